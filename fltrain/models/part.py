"""Parts of a network whose parameters can be named. No torch, so that plans stay light."""

from typing import Literal

Part = Literal["all", "head", "body"]
"""Which parameters: all, those of the classifier, or those before it."""

Private = Literal[Part, "batchnorm"]
"""Parameters that can stay with their client: a part, or the scales and shifts of BatchNorm."""
