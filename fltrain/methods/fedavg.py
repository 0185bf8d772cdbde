"""Federated averaging."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.methods.base import Method


class FedAvg(Method):
    """Local SGD, then the mean of the clients' weights by data size; the default of the base class."""

    name: Literal["fedavg"] = "fedavg"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017"
    )
