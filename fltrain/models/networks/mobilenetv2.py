"""MobileNetV2 for small images, in the variants of federated-learning code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fltrain import models
from fltrain.core.config import added
from fltrain.core.lazy import nn
from fltrain.models.base import NormedModel


@dataclass(frozen=True)
class Variant:
    """Differences between the variants.

    Attributes:
        stem: kernel size of the first convolution; its padding is 1.
        strides: stride of the first block of each stage.
        bias: convolutions have biases.
        always_expand: blocks have a 1x1 expansion also for expansion 1.
        dropout: rate before the classifier.
    """

    stem: int
    strides: tuple[int, ...]
    bias: bool
    always_expand: bool
    dropout: float


STAGES = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
"""Expansion, output channels and number of blocks of the stages."""

VARIANTS = {
    "a": Variant(stem=1, strides=(1, 2, 2, 2, 1, 1, 1), bias=True, always_expand=True, dropout=0.0),
    "b": Variant(stem=3, strides=(1, 1, 2, 2, 1, 2, 1), bias=False, always_expand=True, dropout=0.0),
    "t": Variant(stem=3, strides=(1, 2, 2, 2, 1, 2, 1), bias=False, always_expand=False, dropout=0.2),
}


class MobileNetV2(NormedModel):
    """MobileNetV2 adapted to small images.

    ``norm_groups`` is 2 in the FedACG code.

    Attributes:
        variant: ``a`` has the block names of the FLFA paper: 1x1 stem with padding 1, stage strides 1, 2, 2,
            2, 1, 1, 1, biases (54 layers, 2,254,090 parameters for 3 channels and 10 classes). ``b``: 3x3
            stem, strides 1, 1, 2, 2, 1, 2, 1, no biases (54 layers, 2,237,770 parameters). ``t``:
            torchvision's network, with a dropout of 0.2 before the classifier (53 layers, 2,236,682
            parameters).
        stem_stride: stride of the stem; 2, as in torchvision, only in variant ``t``.
        initialisation: PyTorch's (``pytorch``), or He's by the fan in with zero biases (``he_fan_in``), as in
            the code of FLFA's authors. Torchvision initialises its network otherwise.
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
    shortcut_projection: Literal[False] = False  # only for run IDs
    initialisation: Literal["pytorch", "he_fan_in"] = added("pytorch")

    @model_validator(mode="after")
    def _options_fit_variant(self) -> Self:
        if self.stem_stride == 2 and self.variant != "t":
            raise ValueError("'stem_stride' 2 is an option of variant 't' only")
        return self

    def blocks(self, channels: int, side: int, classes: int) -> dict[str, nn.Module]:
        form = VARIANTS[self.variant]
        blocks: dict[str, nn.Module] = {
            "stem": self._convolution(channels, 32, form.stem, self.stem_stride, 1)
        }
        inputs = 32
        for number, (expansion, outputs, count) in enumerate(STAGES, start=1):
            first = self._block(inputs, outputs, expansion, form.strides[number - 1])
            others = (self._block(outputs, outputs, expansion, stride=1) for _ in range(count - 1))
            blocks[f"stage{number}"] = nn.Sequential(first, *others)
            inputs = outputs
        pool = models.parts.mean_pool()
        if form.dropout:
            pool.append(nn.Dropout(form.dropout))
        head = self._convolution(inputs, 1280, 1, 1, 0)
        return {**blocks, "head_conv1": head, "pool": pool, "classifier": nn.Linear(1280, classes)}

    def _block(self, inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
        form = VARIANTS[self.variant]
        expand = form.always_expand or expansion > 1
        return models.parts.InvertedResidual(
            inputs, outputs, expansion, stride, self.norm_layer, form.bias, expand
        )

    def _convolution(self, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Module:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=VARIANTS[self.variant].bias)
        return nn.Sequential(layer, self.norm_layer(outputs), nn.ReLU6())
