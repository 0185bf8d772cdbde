"""FedBN: federated averaging of everything except BatchNorm."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.core.errors import FltrainError
from fltrain.core.lazy import nn
from fltrain.methods.base import Footprint, Method, Needs, Network


class FedBN(Method):
    """Scales, shifts and statistics of BatchNorm stay with their client."""

    name: Literal["fedbn"] = "fedbn"
    citation: ClassVar[str] = "Li et al., FedBN: federated learning on non-IID features, ICLR 2021"
    needs: ClassVar[Needs] = Needs(private="batchnorm")
    footprint: ClassVar[Footprint] = Footprint(client=None)

    def adapt(self, network: Network, classes: int) -> Network:
        if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
            raise FltrainError(
                "method 'fedbn' needs a model with BatchNorm, and this one has none; choose another model or "
                "'fedavg'"
            )
        return network
