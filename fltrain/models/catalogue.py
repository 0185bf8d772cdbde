"""The networks by name. No torch here, so that the workflow can name them cheaply."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from fltrain.core.registry import Component, catalogue

if TYPE_CHECKING:
    from fltrain.models.network import Network
    from fltrain.models.parts import NormLayer


class Model(Component):
    """A network architecture and its options."""

    channels_last: ClassVar[bool] = True
    """Whether its images lie channels-last on a processor, which is faster.

    PyTorch's BatchNorm sums in single precision there, in double precision otherwise. Deep networks magnify
    that, so that they rather do without.
    """

    @property
    def min_side(self) -> int:
        """Smallest image height and width, in pixels, that the network accepts."""
        raise TypeError(f"model {self.name!r} does not say how small images may be")

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


class NormedModel(Model):
    """A network whose convolutions are followed by norm layers.

    ``norm``: ``bn`` BatchNorm, ``gn`` GroupNorm, ``none`` nothing. ``norm_groups``: number of groups of each
    GroupNorm; without it they hold about 16 channels each (the number of groups is the largest divisor of
    the width that is at most a sixteenth of it).
    """

    norm: Literal["bn", "gn", "none"]
    norm_groups: int | None = Field(default=None, ge=1)

    width_step: ClassVar[int]
    """Greatest common divisor of the widths of the norm layers."""

    @field_validator("norm_groups")
    @classmethod
    def _groups_divide_widths(cls, groups: int | None) -> int | None:
        if groups is not None and cls.width_step % groups:
            raise ValueError(
                f"must divide {cls.width_step}, of which the layers' widths are multiples, got {groups}"
            )
        return groups

    @property
    def norm_layer(self) -> NormLayer:
        """What makes the norm layers."""
        from fltrain.models.parts import norm_layer

        return norm_layer(self.norm, self.norm_groups)


class MobileNetV2(NormedModel):
    """MobileNetV2 adapted to small images.

    Variant ``a`` (54 layers, 2,254,090 parameters for 3 channels and 10 classes) is the network of the FLFA
    paper's block names: 1x1 stem with padding 1, stage strides 1, 2, 2, 2, 1, 1, 1, biases. ``b`` (54 layers,
    2,237,770 parameters): 3x3 stem, strides 1, 1, 2, 2, 1, 2, 1, no biases; with ``shortcut_projection`` 1x1
    shortcuts where a block changes its width only (4 layers and 59,152 parameters more). ``t`` (53 layers,
    2,236,682 parameters) is torchvision's network, with a dropout of 0.2 before the classifier, and with its
    own stem at ``stem_stride`` 2. All variants keep PyTorch's initialisation, ``t`` too, whose torchvision
    original has another. ``norm_groups`` is the 2 of the FedACG code.
    """

    name: Literal["mobilenetv2"] = "mobilenetv2"
    citation: ClassVar[str] = "Sandler et al., MobileNetV2, CVPR 2018"
    channels_last: ClassVar[bool] = False
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 8

    variant: Literal["a", "b", "t"] = "a"
    norm: Literal["bn", "gn"] = "bn"
    norm_groups: int | None = Field(default=2, ge=1)
    stem_stride: Literal[1, 2] = 1
    shortcut_projection: bool = False

    @model_validator(mode="after")
    def _options_fit_variant(self) -> Self:
        if self.stem_stride == 2 and self.variant != "t":
            raise ValueError("'stem_stride' 2 is an option of variant 't' only")
        if self.shortcut_projection and self.variant != "b":
            raise ValueError("'shortcut_projection' is an option of variant 'b' only")
        return self

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.mobilenetv2 import mobilenetv2

        return mobilenetv2(
            channels, classes, self.variant, self.norm_layer, self.stem_stride, self.shortcut_projection
        )


class MobileNetV1(NormedModel):
    """MobileNetV1 for 32 x 32 images: 28 layers, 3,217,226 parameters for 3 channels and 10 classes.

    Stem of stride 1, then the separable blocks ``block1`` to ``block13``, of total stride 16. (Fed2)
    """

    name: Literal["mobilenetv1"] = "mobilenetv1"
    citation: ClassVar[str] = "Howard et al., MobileNets, 2017"
    channels_last: ClassVar[bool] = False
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 32

    norm: Literal["bn", "gn"] = "bn"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.mobilenetv1 import mobilenetv1

        return mobilenetv1(channels, classes, self.norm_layer)


class ResNet(NormedModel):
    """A ResNet; stride on the 3x3 convolution of bottlenecks, 1x1 shortcuts where the shape changes.

    ``stem``: ``cifar`` is a 3x3 convolution of stride 1, ``imagenet`` torchvision's 7x7 of stride 2 with
    max-pooling. ``initialisation``: PyTorch's, or that of torchvision's ResNets (``he``).
    """

    citation: ClassVar[str] = "He et al., Deep residual learning for image recognition, CVPR 2016"
    channels_last: ClassVar[bool] = False
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 64
    depth: ClassVar[int]

    norm: Literal["bn", "gn"] = "bn"
    stem: Literal["cifar", "imagenet"] = "cifar"
    initialisation: Literal["pytorch", "he"] = "pytorch"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.parts import initialised
        from fltrain.models.resnet import resnet

        network = resnet(self.depth, channels, classes, self.stem, self.norm_layer)
        return initialised(network, self.initialisation)


class ResNet18(ResNet):
    """ResNet-18: 21 layers, 11,173,962 parameters for 3 channels and 10 classes (FedImpro).

    With the ``imagenet`` stem it is torchvision's: 11,227,812 parameters for 100 classes (FedFCD),
    11,179,077 for 5 (ECGR on LC25000); both authors' code keeps torchvision's initialisation, ``he``.
    """

    name: Literal["resnet18"] = "resnet18"
    depth: ClassVar[int] = 18


class ResNet50(ResNet):
    """ResNet-50: 54 layers, 23,520,842 parameters for 3 channels and 10 classes (FLFA).

    23,705,252 parameters for 100 classes (FedImpro).
    """

    name: Literal["resnet50"] = "resnet50"
    depth: ClassVar[int] = 50


class Vgg(NormedModel):
    """A VGG for small images; convolutions with biases, norm layers only if asked for.

    ``initialisation``: PyTorch's, or He's for convolutions with zero biases (``he``). PyTorch's shrinks the
    signal at every layer; without norm layers VGG-16 does not leave chance level with it.
    """

    citation: ClassVar[str] = "Simonyan and Zisserman, Very deep convolutional networks, ICLR 2015"

    norm: Literal["bn", "gn", "none"] = "none"
    initialisation: Literal["pytorch", "he"]


class Vgg9(Vgg):
    """VGG-9: 9 layers, 3,491,530 parameters for 32 x 32 images of 3 channels and 10 classes.

    It has Dropout2d(0.05) behind the fourth convolution and Dropout(0.1) around the hidden layers.
    (FedMA, Fed2, FedImpro table 9)
    """

    name: Literal["vgg9"] = "vgg9"
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 32

    initialisation: Literal["pytorch", "he"] = "pytorch"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.parts import initialised
        from fltrain.models.vgg import vgg9

        return initialised(vgg9(channels, side, classes, self.norm_layer), self.initialisation)


class Vgg11(Vgg):
    """VGG-11 of the FedImpro repository: 11 layers, 9,750,922 parameters for 3 channels and 10 classes.

    It has Dropout(0.5) before both hidden layers, and the repository's initialisation, ``he``.
    """

    name: Literal["vgg11"] = "vgg11"
    min_side: ClassVar[int] = 32
    width_step: ClassVar[int] = 64

    initialisation: Literal["pytorch", "he"] = "he"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.parts import initialised
        from fltrain.models.vgg import vgg11

        return initialised(vgg11(channels, side, classes, self.norm_layer), self.initialisation)


class Vgg16(Vgg):
    """VGG-16: 15,291,300 parameters for 32 x 32 images of 3 channels and 100 classes (Fed2).

    ``fc_layers``: 3 fully connected layers (512, 512, classes) or 1 (14,765,988 parameters).
    """

    name: Literal["vgg16"] = "vgg16"
    min_side: ClassVar[int] = 32
    width_step: ClassVar[int] = 64

    fc_layers: Literal[1, 3] = 3
    initialisation: Literal["pytorch", "he"] = "he"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.parts import initialised
        from fltrain.models.vgg import vgg16

        network = vgg16(channels, side, classes, self.norm_layer, self.fc_layers)
        return initialised(network, self.initialisation)


class EcgrCnn(NormedModel):
    """CNN "3-32-64-128-256" of the ECGR paper: 7 layers, 1,167,872 parameters for CIFAR-10.

    1,536,512 parameters for CIFAR-100; the classifier has no bias.
    """

    name: Literal["ecgr_cnn"] = "ecgr_cnn"
    citation: ClassVar[str] = "ECGR, arXiv 2601.03584"
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 64

    norm: Literal["bn", "gn"] = "bn"

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.ecgr_cnn import ecgr_cnn

        return ecgr_cnn(channels, side, classes, self.norm_layer)


class Mlp(Model):
    """Perceptron with one hidden layer: 79,510 parameters for 28 x 28 grey images and 10 classes (FedFCD)."""

    name: Literal["mlp"] = "mlp"
    citation: ClassVar[str] = "FedFCD, CMC 81(1), 2024"
    min_side: ClassVar[int] = 1

    hidden: int = Field(default=100, ge=1)

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.mlp import mlp

        return mlp(channels, side, classes, self.hidden)


class FedAvgCnn(Model):
    """Two 5x5 convolutions and two linear layers: 878,538 parameters for CIFAR-10 (FedFCD).

    ``padding`` of the convolutions is 0 in PFLlib; with 2, as in the FedAvg paper, 2,156,490 parameters.
    """

    name: Literal["fedavg_cnn"] = "fedavg_cnn"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )

    padding: Literal[0, 2] = 0

    @property
    def min_side(self) -> int:
        return 4 if self.padding else 16

    def network(self, channels: int, side: int, classes: int) -> Network:
        from fltrain.models.fedavg_cnn import fedavg_cnn

        return fedavg_cnn(channels, side, classes, self.padding)


MODELS = catalogue(Model)
