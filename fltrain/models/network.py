"""Base class of networks: features, classifier, ordered layers, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from fltrain.core.errors import FltrainError
from fltrain.runtime.determinism import tf32_products

SHORTCUTS = frozenset({"shortcut", "downsample"})
"""Names of modules next to the main path (the second name is torchvision's)."""


class Network(nn.Module):
    """A chain of named blocks that ends in a classifier.

    The blocks (stem, stage1, ... classifier) are the top-level children, run in order; the blocks before the
    classifier are the feature extractor.

    Attributes:
        products: type of the products in the feature extractor's layers (PyTorch's autocast); None for the
            type of the weights, which the representation and the classifier always have.
        tf32: True if these layers may multiply in TF32 (CUDA).
    """

    classifier: nn.Module
    products: torch.dtype | None = None
    tf32: bool = False

    def __init__(self, **blocks: nn.Module) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.add_module(name, block)

    def features(self, images: Tensor) -> Tensor:
        """Return the representation ``[n, d]`` of normalised images ``[n, channels, height, width]``."""
        return self.through((block for name, block in self.named_children() if name != "classifier"), images)

    def through(self, blocks: Iterable[nn.Module], maps: Tensor) -> Tensor:
        """Return the output of some blocks of the feature extractor for maps or images."""
        autocast = self.products and torch.autocast(maps.device.type, self.products)
        with autocast or tf32_products(self.tf32):
            for block in blocks:
                try:
                    maps = block(maps)
                except RuntimeError as error:
                    self._locate(block, maps, error)
                    raise
        return maps.float() if autocast else maps

    def _locate(self, block: nn.Module, maps: Tensor, error: RuntimeError) -> None:
        """Note the block that refuses its input, for example because of its shape."""
        name = next((name for name, child in self.named_children() if child is block), "")
        error.add_note(f"block {name!r} of the network, input {[*maps.shape]}")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[n, classes]``."""
        features = self.features(images)
        try:
            logits: Tensor = self.classifier(features)
        except RuntimeError as error:
            self._locate(self.classifier, features, error)
            raise
        return logits

    @property
    def splits(self) -> dict[int, str]:
        """Cuts of the network: number of the last convolution below the cut -> last block.

        Convolutions of the main path count from 1; convolutions of shortcuts do not count. Blocks without
        weights (pooling, flatten) belong to the convolutions before them. No cut lies behind a Linear module.
        """
        last_blocks: dict[int, str] = {}
        count = 0
        for name, block in self.named_children():
            if name == "classifier" or any(isinstance(module, nn.Linear) for module in block.modules()):
                break
            count += sum(
                isinstance(module, nn.Conv2d) and SHORTCUTS.isdisjoint(path.split("."))
                for path, module in block.named_modules()
            )
            last_blocks[count] = name
        last_blocks.pop(0, None)
        return last_blocks

    def cut(self, split: int | None) -> int:
        """Return the number of a cut: ``split``, or the middle cut of the network if ``split`` is None.

        Raises:
            FltrainError: if there is no such cut; the message lists the existing ones.
        """
        cuts = sorted(self.splits)
        if not cuts:
            raise FltrainError(
                "this network cannot be split: it has no convolutions below a classifier; take another model"
            )
        if split is not None and split not in cuts:
            options = ", ".join(map(str, cuts))
            raise FltrainError(f"this network cannot be split at convolution {split} (possible: {options})")
        return cuts[(len(cuts) - 1) // 2] if split is None else split

    def lower(self, images: Tensor, split: int) -> Tensor:
        """Return the output of the part below a cut; ``split`` is a key of ``splits``."""
        return self.through(self._parts(split)[0], images)

    def upper_features(self, maps: Tensor, split: int) -> Tensor:
        """Return the representation ``[n, d]`` of ``maps`` from the part above a cut."""
        return self.through(self._parts(split)[1][:-1], maps)

    def _parts(self, split: int) -> tuple[list[nn.Module], list[nn.Module]]:
        """Return the blocks below and above a cut."""
        last_below = self.splits[self.cut(split)]
        names = [name for name, _ in self.named_children()]
        blocks = list(self.children())
        above = names.index(last_below) + 1
        return blocks[:above], blocks[above:]


def chain(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Yield path, module and parent of the modules in a network's or a Sequential's chain, in order."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            yield from chain(child, f"{path}{name}.")
        else:
            yield f"{path}{name}", child, module


@contextmanager
def in_mode(network: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the network into training or evaluation mode within the context."""
    before = network.training
    network.train(training)
    try:
        yield
    finally:
        network.train(before)


def map_shape(network: Network, example: Tensor, split: int) -> tuple[int, ...]:
    """Return the shape of an image's maps at a cut; the network does not change."""
    with torch.no_grad(), in_mode(network, training=False):
        return tuple(network.lower(example, split).shape[1:])


@dataclass(frozen=True)
class Layer:
    """A module with a weight that transports errors: Conv2d or Linear.

    Attributes:
        name: module path, for example ``stage1.expand``.
        inputs: number of input channels (Conv2d) or features (Linear).
        sends_error: True if an error travels on from its input; False if its input is the images.
        consumers: indices of the layers that this one feeds; empty for the classifier.
    """

    name: str
    inputs: int
    sends_error: bool
    consumers: tuple[int, ...]


def layers(network: nn.Module, example: Tensor) -> tuple[Layer, ...]:
    """Return the layers in registration order with their connections, from one forward pass.

    Connections are read from the autograd graph: a layer reads the nearest outputs of other layers behind its
    input, across norms, activations, poolings and sums.

    Args:
        network: any module; its mode and buffers do not change.
        example: a batch of images that the network accepts.
    """
    modules = {
        module: name
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) or hasattr(module, "in_features")
    }
    inputs = dict.fromkeys(modules, example)  # also of layers that the network does not use
    outputs: dict[Node | None, nn.Module] = {}

    def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[module] = args[0]
        outputs[output.grad_fn] = module

    # Evaluation mode: BatchNorm buffers do not change, and one image is enough.
    with ExitStack() as hooks, torch.enable_grad(), in_mode(network, training=False):
        for module in modules:
            hooks.enter_context(module.register_forward_hook(record))
        network(example)

    producers = [_nearest(inputs[module].grad_fn, outputs) for module in modules]
    return tuple(
        Layer(
            name,
            inputs=module.in_channels if isinstance(module, nn.Conv2d) else module.in_features,
            sends_error=inputs[module].requires_grad,
            consumers=tuple(index for index, feeding in enumerate(producers) if module in feeding),
        )
        for module, name in modules.items()
    )


def _nearest(node: Node | None, outputs: Mapping[Node | None, nn.Module]) -> set[nn.Module]:
    """Return the layers whose outputs come first on every path behind ``node``."""
    modules: set[nn.Module] = set()
    seen: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        if current in outputs:
            modules.add(outputs[current])
        else:
            pending.extend(following for following, _ in current.next_functions)
    return modules
