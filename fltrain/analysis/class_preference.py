"""Class preference of each neuron, and its variance within a layer (Fed2, sections 3 and 4).

A neuron is a unit of a layer with a weight; a filter of a convolution is one neuron. Its post-activation A is
the layer's output after the norm and the ReLU that directly follow the layer. Layers without a ReLU (linear
projections, the classifier, whose neurons are the logits) use the output of the norm, or their own output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.core.errors import FltrainError
from fltrain.models.decoupled import GroupedClassifier, PerGroup
from fltrain.models.network import Network, in_mode

if TYPE_CHECKING:
    from fltrain.engine.data import ImageSet

_LAYERS = (nn.Conv2d, nn.Linear, GroupedClassifier)
_NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.Identity)
_ACTIVATIONS = (nn.ReLU, nn.ReLU6)
_BATCH = 64  # images whose maps are in memory at once


def class_preference(
    network: Network,
    split: ImageSet,
    classes: int,
    chosen: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the class preferences ``[neurons, classes]`` of every layer, by its name, in float64.

    The preference of a neuron for class c is the mean over the images of class c of A dZ_c / dA, summed over
    the pixels of the map, with Z_c the logit of the class. The paper uses at least 50 images of each class.
    The network runs in evaluation mode and is unchanged afterwards.

    Args:
        network: any network; its parameters keep their gradients.
        split: the images.
        classes: number of classes.
        chosen: indices of the images to use (default: all).

    Raises:
        FltrainError: if a class has no images.
    """
    if chosen is None:
        chosen = torch.arange(len(split), device=split.labels.device)
    counts = torch.bincount(split.labels[chosen], minlength=classes)
    if not counts.all():
        missing = int((counts == 0).nonzero()[0])
        raise FltrainError(
            f"class preferences need images of all classes; there are none of {missing}; take other data"
        )
    totals: dict[str, Tensor] = {}
    with in_mode(network, training=False):
        for part in chosen.split(_BATCH):
            images, labels = split.batch(part)
            with torch.enable_grad():
                activations, logits = _post_activations(network, images.requires_grad_())
                # Images are independent in evaluation mode, so one backward pass suffices for all of them.
                own_class = logits.gather(1, labels[:, None]).sum()
                errors = torch.autograd.grad(own_class, list(activations.values()), materialize_grads=True)
            by_class = functional.one_hot(labels, classes).double()
            for (name, maps), error in zip(activations.items(), errors, strict=True):
                products = maps.detach() * error
                of_neurons = products.sum((2, 3)) if products.dim() == 4 else products
                values = of_neurons.double().T @ by_class
                totals[name] = totals[name] + values if name in totals else values
    return {name: total / counts for name, total in totals.items()}


def _post_activations(network: Network, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return the post-activation of every layer for some images, by its name, and the logits."""
    activations: dict[str, Tensor] = {}
    # The layer whose output may still pass a norm and a ReLU, and the tensor that it passed on.
    pending: list[tuple[str, Tensor]] = []

    def record(name: str, module: nn.Module, input: Tensor, output: Tensor) -> Tensor:
        kind = module[0] if isinstance(module, PerGroup) else module
        if not isinstance(kind, _LAYERS):
            # A tensor that was changed in place, such as a residual sum, is not the layer's output.
            written = int(getattr(kind, "inplace", False))
            follows = pending and input is pending[0][1] and input._version == written
            if not (isinstance(kind, _NORMS + _ACTIVATIONS) and follows):
                pending.clear()
                return output
            name = pending[0][0]
        activations[name] = output
        passed_on = output.clone()  # networks may change their output in place: keep a copy
        pending[:] = [] if isinstance(kind, _ACTIVATIONS) else [(name, passed_on)]
        return passed_on

    def watch(name: str) -> Any:
        return lambda module, inputs, output: record(name, module, inputs[0], output)

    with ExitStack() as hooks:
        for name, module in _parts("", network):
            hooks.enter_context(module.register_forward_hook(watch(name)))
        return activations, network(images)


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that compute, and their names; parallel groups count as one module."""
    children = [] if isinstance(module, PerGroup) else list(module.named_children())
    if not children:
        yield name, module
    for key, child in children:
        yield from _parts(f"{name}.{key}" if name else key, child)


# ---------------------------------------------------------------- results from preferences
def top_classes(preferences: Tensor) -> Tensor:
    """Return the class that each neuron prefers ``[neurons]``: the first among equals, or -1.

    -1 marks neurons whose largest preference is exactly 0: silent neurons, and neurons of a group that only
    act against its classes.
    """
    return preferences.argmax(1).where(preferences.amax(1) != 0, -1)


def total_variance(preferences: Tensor, unit_norm: bool = False) -> float:
    """Return the mean squared distance of the neurons' preference vectors from their mean.

    With ``unit_norm`` every vector is first scaled to length one (zero vectors stay), so that layers of
    different scale can be compared.
    """
    vectors = preferences.double()
    if unit_norm:
        norms = vectors.norm(dim=1, keepdim=True)
        vectors = vectors / norms.where(norms > 0, 1.0)
    return float((vectors - vectors.mean(0)).square().sum(1).mean())


def shared_depth(variances: Sequence[float]) -> int:
    """Return the number of first layers that all groups should share.

    These are the leading layers whose total variance (of vectors of length one) is below half of the largest.
    The paper gives no threshold and fixes the number.
    """
    half = max(variances) / 2
    return next((depth for depth, value in enumerate(variances) if value >= half), len(variances))


def alignment(preferences: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return, by layer, the share of pairs of clients whose neurons at the same place prefer the same class.

    Neurons that are silent at every client do not count; a neuron that is silent at a client counts as
    disagreement there.

    Args:
        preferences: ``class_preference`` of each client's network, two or more.
    """
    pairs = len(preferences) * (len(preferences) - 1)
    aligned: dict[str, float] = {}
    for name, first in preferences[0].items():
        tops = torch.stack([top_classes(client[name]) for client in preferences])
        votes = functional.one_hot(tops + 1, first.shape[1] + 1)[..., 1:].sum(0)
        agreeing = (votes * (votes - 1)).sum(1).double()[votes.any(1)]
        aligned[name] = float(agreeing.mean()) / pairs if len(agreeing) else float("nan")
    return aligned
