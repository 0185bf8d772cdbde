"""VGG networks for small images: 7, 9, 11 and 16 layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.core.lazy import nn
from fltrain.models.base import NormedModel


class Vgg(NormedModel):
    """A VGG for small images; convolutions with biases, norm layers on request.

    Attributes:
        initialisation: PyTorch's (``pytorch``), or for convolutions He's with zero biases (``he``). PyTorch's
            shrinks the signal at every layer: without norm layers, VGG-16 stays at chance level with it.
    """

    citation: ClassVar[str] = "Simonyan and Zisserman, Very deep convolutional networks, ICLR 2015"
    stages: ClassVar[tuple[tuple[int, ...], ...]]
    """Output channels of the 3x3 convolutions; a max-pooling follows the last of each stage."""

    norm: Literal["bn", "gn", "none"] = "none"
    initialisation: Literal["pytorch", "he"]

    def _convolutions(self, channels: int) -> dict[str, nn.Sequential]:
        """Blocks conv1, conv2, ... of a convolution, norm and ReLU."""
        blocks: dict[str, nn.Sequential] = {}
        for widths in self.stages:
            for width in widths:
                layer = nn.Conv2d(channels, width, 3, padding=1)
                block = blocks[f"conv{len(blocks) + 1}"] = nn.Sequential(
                    layer, self.norm_layer(width), nn.ReLU()
                )
                channels = width
            block.append(nn.MaxPool2d(2))
        return blocks


class VggTiny(Vgg):
    """A VGG of 7 layers with BatchNorm: 130,194 parameters for 16 x 16 images of 3 channels and 10 classes.

    Made for experiments on few cores. Ten groups divide the widths from the third convolution on, so Fed2
    with four decoupled layers keeps them.
    """

    name: Literal["vgg_tiny"] = "vgg_tiny"
    citation: ClassVar[str] = "after Simonyan and Zisserman, ICLR 2015"
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 8
    stages: ClassVar = ((16,), (32, 40), (80, 80))

    norm: Literal["bn", "gn", "none"] = "bn"
    initialisation: Literal["pytorch", "he"] = "he"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        return {
            **self._convolutions(channels),
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Linear(80 * (side // 8) ** 2, 80), nn.ReLU()),
            "classifier": nn.Linear(80, classes),
        }


class Vgg9(Vgg):
    """VGG-9: 9 layers, 3,491,530 parameters for 32 x 32 images of 3 channels and 10 classes.

    It has Dropout2d(0.05) behind the fourth convolution and Dropout(0.1) around the hidden layers.
    (FedMA, Fed2, FedImpro table 9)
    """

    name: Literal["vgg9"] = "vgg9"
    min_side: ClassVar[int] = 8
    width_step: ClassVar[int] = 32
    stages: ClassVar = ((32, 64), (128, 128), (256, 256))

    initialisation: Literal["pytorch", "he"] = "pytorch"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        convolutions = self._convolutions(channels)
        convolutions["conv4"].append(nn.Dropout2d(0.05))
        return {
            **convolutions,
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Dropout(0.1), nn.Linear(256 * (side // 8) ** 2, 512), nn.ReLU()),
            "fc2": nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1)),
            "classifier": nn.Linear(512, classes),
        }


class Vgg11(Vgg):
    """VGG-11 of the FedImpro repository: 11 layers, 9,750,922 parameters for 3 channels and 10 classes.

    It has Dropout(0.5) before both hidden layers, and the repository's initialisation, ``he``.
    """

    name: Literal["vgg11"] = "vgg11"
    min_side: ClassVar[int] = 32
    width_step: ClassVar[int] = 64
    stages: ClassVar = ((64,), (128,), (256, 256), (512, 512), (512, 512))

    initialisation: Literal["pytorch", "he"] = "he"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        return {
            **self._convolutions(channels),
            "flatten": nn.Flatten(),
            "fc1": nn.Sequential(nn.Dropout(0.5), nn.Linear(512 * (side // 32) ** 2, 512), nn.ReLU()),
            "fc2": nn.Sequential(nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU()),
            "classifier": nn.Linear(512, classes),
        }


class Vgg16(Vgg):
    """VGG-16: 15,291,300 parameters for 32 x 32 images of 3 channels and 100 classes (Fed2).

    Attributes:
        fc_layers: number of fully connected layers: 3 (512, 512, classes), or 1 (14,765,988 parameters).
    """

    name: Literal["vgg16"] = "vgg16"
    min_side: ClassVar[int] = 32
    width_step: ClassVar[int] = 64
    stages: ClassVar = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)

    fc_layers: Literal[1, 3] = 3
    initialisation: Literal["pytorch", "he"] = "he"

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        # The hidden layers draw their weights before the convolutions: recorded runs depend on the order.
        hidden: dict[str, nn.Module] = {}
        width = 512 * (side // 32) ** 2
        for number in range(1, self.fc_layers):
            hidden[f"fc{number}"] = nn.Sequential(nn.Linear(width, 512), nn.ReLU())
            width = 512
        convolutions, classifier = self._convolutions(channels), nn.Linear(width, classes)
        return {**convolutions, "flatten": nn.Flatten(), **hidden, "classifier": classifier}
