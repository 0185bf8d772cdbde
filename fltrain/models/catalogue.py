"""The networks by name. No torch here, so that the workflow can name them cheaply."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fltrain.component import Component, catalogue

if TYPE_CHECKING:
    from fltrain.models.network import Network


class Model(Component):
    """A network architecture and its options."""

    min_side: ClassVar[int]
    """Smallest image height and width, in pixels, that the network accepts."""

    def network(self, channels: int, side: int, classes: int) -> Network:
        """Return the network, freshly initialised, for images ``[channels, side, side]``."""
        raise TypeError(f"model {self.name!r} does not say how to build its network")


class LeNet5(Model):
    """LeNet-5 with ReLU and max-pooling: 61,706 parameters for 28 x 28 grey images and 10 classes."""

    name: Literal["lenet5"] = "lenet5"
    citation: ClassVar[str] = "LeCun et al., Gradient-based learning applied to document recognition, 1998"
    min_side: ClassVar[int] = 12

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.lenet import lenet5

        return lenet5(channels, side, classes)


class MobileNetTiny(Model):
    """A MobileNetV2 in miniature: stem, a residual and a strided inverted block, head, classifier.

    Nine layers with BatchNorm, made for demonstrations and tests: it has every kind of convolution that
    the large networks have (strided, depthwise, pointwise, residual) under the same block names.
    """

    name: Literal["mobilenet_tiny"] = "mobilenet_tiny"
    citation: ClassVar[str] = "after Sandler et al., MobileNetV2, CVPR 2018"
    min_side: ClassVar[int] = 4

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.mobilenet_tiny import mobilenet_tiny

        return mobilenet_tiny(channels, classes)


MODELS = catalogue(Model)
