"""FedPer: federated averaging of the body; the classifier stays with the client."""

from __future__ import annotations

from typing import ClassVar, Literal

from fltrain.methods.base import Footprint, Method, Needs


class FedPer(Method):
    """Clients train body and classifier together, and upload the body."""

    name: Literal["fedper"] = "fedper"
    citation: ClassVar[str] = (
        "Arivazhagan et al., Federated learning with personalization layers, arXiv 1912.00818, 2019"
    )
    needs: ClassVar[Needs] = Needs(private="head")
    footprint: ClassVar[Footprint] = Footprint(client=None)
