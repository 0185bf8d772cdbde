"""Networks whose last layers are cut into independent groups, each for some of the classes (Fed2).

The surgery works on chains of layers: convolutions and linear maps with norms, ReLU, pooling and dropout
between them. Blocks keep their names; unchanged layers keep their modules and drawn weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.models.network import Network, chain
from fltrain.models.parts import norm_layer

Width = Literal["round_up", "round_down", "uneven"]
Entry = Literal["grouped", "dense"]
Norm = Literal["gn", "bn", "none", "keep"]
Count = Literal["blocks", "weight_layers"]

_NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.Identity)
_LEAVES = (
    *(nn.Conv2d, nn.Linear, nn.ReLU, nn.ReLU6, *_NORMS),
    *(nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Dropout, nn.Dropout2d),
)


def nearly_equal(total: int, parts: int) -> list[int]:
    """Return the sizes of ``parts`` nearly equal parts of a total, the larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


# ---------------------------------------------------------------- modules
class PerGroup(nn.ModuleList):
    """Parallel modules, one per group: each reads its own share of the channels.

    For groups of unequal widths, which one grouped module cannot have.
    """

    def __init__(self, parts: Sequence[nn.Module], widths: Sequence[int]) -> None:
        """Set the number of channels that each part reads."""
        super().__init__(parts)
        self.widths = list(widths)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the output channels of the groups, one group after the other."""
        shares = maps.split(self.widths, dim=1)
        return torch.cat([part(share) for part, share in zip(self, shares, strict=True)], dim=1)


class GroupedClassifier(nn.Module):
    """A linear classifier whose logit of a class reads only the features of the class's group.

    ``weight`` is ``[classes, features of the widest group]``; the rows of narrower groups end in unused
    zeros.
    """

    columns: Tensor
    """Feature of each weight; a constant that is neither trained nor sent, hence no buffer."""

    def __init__(self, widths: Sequence[int], class_groups: Sequence[int], bias: bool = True) -> None:
        """Draw weights as ``nn.Linear`` does.

        Args:
            widths: number of features of each group; the groups' features follow one another.
            class_groups: group of each class.
            bias: give the logits biases.
        """
        super().__init__()
        self.in_features = sum(widths)
        starts = [sum(widths[:group]) for group in range(len(widths))]
        within = torch.arange(max(widths)).expand(len(class_groups), -1)
        width = torch.tensor([widths[group] for group in class_groups])[:, None]
        start = torch.tensor([starts[group] for group in class_groups])[:, None]
        self.columns = torch.where(within < width, start + within, self.in_features)
        bound = width.rsqrt()
        drawn = torch.rand(within.shape) * 2 * bound - bound
        self.weight = nn.Parameter(drawn.where(within < width, 0.0))
        self.bias = nn.Parameter((torch.rand(len(width), 1) * 2 * bound - bound)[:, 0]) if bias else None

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        moved: Self = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.columns = args[0](self.columns)
        return moved

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits ``[n, classes]`` of features ``[n, d]``."""
        return functional.linear(features, self.dense_weight(self.weight), self.bias)

    def dense_weight(self, weight: Tensor) -> Tensor:
        """Return the linear map ``[classes, d]`` of a weight; zero for features of other groups."""
        # One more column for the unused entries.
        empty = weight.new_zeros(len(weight), self.in_features + 1)
        return empty.scatter(1, self.columns, weight)[:, :-1].contiguous()


class Decoupled(Network):
    """A network whose last layers are cut into groups.

    Attributes:
        class_groups: group of each class.
        structure_groups: group of each row (index of the first dimension) of the decoupled parameters, by
            name. The groups share all other parameters.
    """

    class_groups: tuple[int, ...]
    structure_groups: dict[str, tuple[int, ...]]


# ---------------------------------------------------------------- chains
@dataclass
class _Layer:
    """A Conv2d or Linear module of a chain.

    Attributes:
        module, path, parent: the module, its name, and its parent module.
        unit: unit of counting; all layers of a depthwise-separable block have the same one.
        norm: the norm behind the layer, if there is a place for one.
        flatten: the block directly before the layer that is only a Flatten, if there is one.
    """

    module: nn.Conv2d | nn.Linear
    path: str
    parent: nn.Module
    unit: str
    flatten: str | None
    norm: nn.Module | None = None

    @property
    def depthwise(self) -> bool:
        return isinstance(self.module, nn.Conv2d) and self.module.groups > 1

    @property
    def inputs(self) -> int:
        module = self.module
        return module.in_channels if isinstance(module, nn.Conv2d) else module.in_features

    @property
    def outputs(self) -> int:
        module = self.module
        return module.out_channels if isinstance(module, nn.Conv2d) else module.out_features

    def made(self, inputs: int, outputs: int, groups: int = 1) -> nn.Conv2d | nn.Linear:
        """Return the module with other widths; the same module if they are unchanged."""
        module = self.module
        if (inputs, outputs, groups) == (self.inputs, self.outputs, getattr(module, "groups", 1)):
            return module
        if isinstance(module, nn.Linear):
            return nn.Linear(inputs, outputs, bias=module.bias is not None)
        return nn.Conv2d(inputs, outputs, groups=groups, **_form(module))


def _form(module: nn.Conv2d) -> dict[str, Any]:
    """Return the arguments of a convolution except its widths."""
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    return {"bias": module.bias is not None, **{name: getattr(module, name) for name in names}}


def _chain(network: Network, count: Count) -> list[_Layer]:
    """Return the layers in order; refuse a network that is not a chain that ends in a linear classifier."""
    layers: list[_Layer] = []
    flatten, before = None, None
    for path, module, parent in chain(network):
        if not isinstance(module, _LEAVES):
            raise FltrainError(
                f"this network is not a chain of layers: {path!r} is a {type(module).__name__}; "
                "choose another model"
            )
        if isinstance(module, nn.Conv2d | nn.Linear):
            separable = any(getattr(child, "groups", 1) > 1 for child in parent.children())
            unit = path.rpartition(".")[0] if separable and count == "blocks" else path
            layers.append(_Layer(module, path, parent, unit, flatten))
            flatten = None
        elif isinstance(module, _NORMS) and isinstance(before, nn.Conv2d):
            layers[-1].norm = module
        elif isinstance(module, nn.Flatten) and parent is network:
            flatten = path
        before = module
    if layers[-1].path != "classifier" or not isinstance(layers[-1].module, nn.Linear):
        raise FltrainError(
            "this network is not a chain of layers that ends in one linear classifier; choose another model"
        )
    return layers


# ---------------------------------------------------------------- surgery
def decouple(
    network: Network,
    decoupled: int,
    class_groups: Sequence[int],
    *,
    width: Width = "round_up",
    entry: Entry = "grouped",
    norm: Norm = "gn",
    count: Count = "blocks",
) -> Network:
    """Return the network with its last layers cut into independent groups.

    The network's blocks are changed, not copied. Layers whose form changes are drawn again, as in PyTorch,
    from the global generator: all decoupled layers, and the last shared one if its width is rounded. With
    one group, or no layer to cut, nothing is decoupled; with ``norm`` ``keep`` the network is unchanged.

    Args:
        network: a chain of layers. Inverted residual blocks may add their input if its width allows it.
        decoupled: number of last layers that are cut into groups (all, if the network has fewer).
        class_groups: group of each class: 0, 1 ..., each at least once.
        width: rule for decoupled widths that the number of groups does not divide: the next multiple (at
            least one channel per group), or groups of nearly equal widths.
        entry: input of each group: its own share of the last shared maps, whose width is then changed, too,
            or (``dense``) all of them. All groups read whole images.
        norm: behind every convolution GroupNorm (in decoupled layers with the structure's groups, in shared
            ones with about 16 channels each), BatchNorm, nothing, or the existing kind.
        count: unit of counting: a depthwise-separable (or inverted) block, or each layer with weights.

    Raises:
        FltrainError: if the network is not a chain, or if its widths do not fit the groups.
    """
    layers = _chain(network, count)
    groups = max(class_groups) + 1
    units = list(dict.fromkeys(layer.unit for layer in layers))
    shared = units[: max(len(units) - decoupled, 0)] if groups > 1 else units
    first = sum(layer.unit in shared for layer in layers)
    dense = entry == "dense" or first == 0
    # If all groups read everything, no channel of an earlier depthwise layer belongs to one group.
    while dense and first < len(layers) and layers[first].depthwise:
        first += 1
    if first == len(layers) and norm == "keep":
        return network
    return _Surgery(layers, first, dense, tuple(class_groups), groups, width, norm).performed(network)


@dataclass
class _Surgery:
    """The changes to the layers of a chain; ``first`` is the index of the first decoupled one."""

    layers: list[_Layer]
    first: int
    dense: bool
    class_groups: tuple[int, ...]
    groups: int
    rounding: Width
    norm: Norm

    def performed(self, network: Network) -> Decoupled:
        """Return the network of the changed blocks."""
        widths = self._widths()
        blocks = dict(network.named_children())
        decoupled: list[nn.Module] = []
        maps = False  # True once the flatten is removed, before convolutions that replace linear maps
        for index, layer in enumerate(self.layers):
            new, norm = self._module(index, widths), None
            placed = [new]
            if isinstance(layer.module, nn.Conv2d):
                norm = self._norm(index, widths[index + 1])
                if norm and layer.norm:
                    _put(layer.parent, layer.norm, norm)
                elif norm:
                    placed.append(norm)
            elif self._grouped(index) and layer.path != "classifier":
                if layer.flatten:
                    del blocks[layer.flatten]
                    maps = True
                elif not maps:
                    features = widths[index] * self._area(index)
                    placed = [nn.Unflatten(1, (features, 1, 1)), new, nn.Flatten()]
            if layer.path == "classifier":
                del blocks["classifier"]
                blocks |= {"flatten": nn.Flatten(), "classifier": new} if maps else {"classifier": new}
            else:
                _put(layer.parent, layer.module, *placed)
            if index >= self.first:
                decoupled += [new, norm] if norm else [new]
        made = Decoupled(**blocks)
        made.class_groups = self.class_groups
        names = {module: name for name, module in made.named_modules()}
        made.structure_groups = {
            f"{names[module]}.{name}": self.class_groups
            if module is made.classifier
            else self._rows(module, name, len(parameter))
            for module in decoupled
            for name, parameter in module.named_parameters()
        }
        return made

    def _grouped(self, index: int) -> bool:
        """Return True if each group reads its own share of a layer's input."""
        return index >= self.first + self.dense

    def _area(self, index: int) -> int:
        """Return the inputs of a layer per channel of the previous layer: pixels, if they are flattened."""
        return self.layers[index].inputs // self.layers[index - 1].outputs if index else 1

    def _module(self, index: int, widths: Sequence[int]) -> nn.Module:
        """Return the replacement of a layer's module; the same module if its form does not change."""
        layer, module, area = self.layers[index], self.layers[index].module, self._area(index)
        inputs, outputs = widths[index], widths[index + 1]
        if layer.depthwise:
            return layer.made(inputs, outputs, groups=inputs)
        if not self._grouped(index):
            return layer.made(inputs * area, outputs)
        shares, form = self._shares(inputs), {"bias": module.bias is not None}
        if layer.path == "classifier":
            return GroupedClassifier([share * area for share in shares], self.class_groups, **form)
        if isinstance(module, nn.Conv2d):
            return self._convolution(shares, outputs, **_form(module))
        if layer.flatten:
            # A kernel as large as the map does the same as the linear map behind the flatten.
            return self._convolution(shares, outputs, kernel_size=math.isqrt(area), **form)
        return self._convolution([share * area for share in shares], outputs, kernel_size=1, **form)

    def _convolution(self, inputs: Sequence[int], outputs: int, **form: Any) -> nn.Module:
        """Return a convolution whose groups read ``inputs`` channels each."""
        shares = self._shares(outputs)
        if len({*inputs}) == len({*shares}) == 1:
            return nn.Conv2d(sum(inputs), outputs, groups=self.groups, **form)
        return PerGroup([nn.Conv2d(*pair, **form) for pair in zip(inputs, shares, strict=True)], inputs)

    def _shares(self, width: int) -> list[int]:
        return nearly_equal(width, self.groups)

    def _widths(self) -> list[int]:
        """Return the channels that each layer reads, then the classes; refuse widths that do not fit."""
        layers, first = self.layers, self.first
        if not self.dense and first < len(layers):
            # The last shared layer; the first decoupled layer divides its channels among the groups.
            first = max(index for index in range(first) if not layers[index].depthwise)
        widths = [layers[0].inputs]
        for index, layer in enumerate(layers[:-1]):
            width = self._rounded(layer) if index >= first else layer.outputs
            widths.append(widths[-1] if layer.depthwise else width)
        widths.append(layers[-1].outputs)
        for parent in {layer.parent: None for layer in layers}:
            if getattr(parent, "residual", False):
                inside = [index for index, layer in enumerate(layers) if layer.parent is parent]
                added, made = widths[inside[0]], widths[inside[-1] + 1]
                if added != made:
                    block = layers[inside[0]].path.rpartition(".")[0]
                    raise FltrainError(
                        f"in {self.groups} groups, {block!r} would add {added} to {made} channels: decouple "
                        "another number of layers, or choose another entry or width"
                    )
        return widths

    def _rounded(self, layer: _Layer) -> int:
        """Return the width of a layer's output in groups."""
        width, multiple = layer.outputs, layer.outputs // self.groups * self.groups
        if self.rounding == "uneven" and not multiple:
            raise FltrainError(
                f"{layer.path!r} has {width} channels, too few for {self.groups} groups; use at most {width} "
                "groups, or another width than 'uneven'"
            )
        if self.rounding == "uneven" or multiple == width:
            return width
        return multiple + self.groups if self.rounding == "round_up" else multiple or self.groups

    def _norm(self, index: int, width: int) -> nn.Module | None:
        """Return the norm behind a convolution; None without a norm and without a place for one."""
        old = self.layers[index].norm
        kinds: dict[type, Norm] = {nn.BatchNorm2d: "bn", nn.GroupNorm: "gn"}
        kind = kinds.get(type(old), "none") if self.norm == "keep" else self.norm
        if kind == "none":
            return old and nn.Identity()
        if kind == "bn":
            fits = isinstance(old, nn.BatchNorm2d) and old.num_features == width
            return old if fits else nn.BatchNorm2d(width)
        if index < self.first:
            fits = self.norm == "keep" and isinstance(old, nn.GroupNorm) and old.num_channels == width
            return old if fits else norm_layer("gn")(width)
        shares = self._shares(width)
        if len({*shares}) == 1:
            return nn.GroupNorm(self.groups, width)
        return PerGroup([nn.GroupNorm(1, share) for share in shares], shares)

    def _rows(self, module: nn.Module, name: str, length: int) -> tuple[int, ...]:
        """Return the group of each row of a parameter whose rows are channels."""
        if isinstance(module, PerGroup):
            return (int(name.partition(".")[0]),) * length
        return tuple(group for group, share in enumerate(self._shares(length)) for _ in range(share))


def _put(parent: nn.Module, old: nn.Module, *new: nn.Module) -> None:
    """Replace a module of a Sequential by others."""
    assert isinstance(parent, nn.Sequential)
    position = [*parent].index(old)
    parent[position] = new[0]
    for offset, module in enumerate(new[1:], start=1):
        parent.insert(position + offset, module)
