"""Trained models of a run, loaded from its record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.data.prepared import load_prepared, partition
from fltrain.engine.simulation import Simulation
from fltrain.models.network import Network
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec


class TrainedRun:
    """A finished run with its data, loaded for analysis."""

    def __init__(self, record: Record, results: Results, device: torch.device) -> None:
        """Build the network, and load the data and the models of the record, if it keeps any.

        Raises:
            FltrainError: if the record has models of another training.
        """
        self.run_id = record.run_id
        self.spec = RunSpec.recorded(record.spec, str(record.folder))
        data = load_prepared(self.spec.dataset, results.data(self.spec.dataset))
        divided = partition(self.spec.division, data)
        simulation = Simulation(self.spec, data, divided, device)
        models = record.models() if self.spec.evaluation.keep != "nothing" else {}
        self.arrays: dict[str, Tensor] = {
            name: torch.from_numpy(np.array(array)).to(device) for name, array in models.items()
        }
        self.data, self.model = simulation.data, simulation.model

    @property
    def network(self) -> Network:
        """The network, in evaluation mode."""
        network = self.model.network
        network.eval()
        return network

    def load_global(self) -> None:
        """Load the global model into the network.

        Raises:
            FltrainError: if the method has none, or the record keeps none.
        """
        if not self.spec.composition.needs.global_model:
            raise FltrainError(f"method {self.spec.method.name!r} has no global model to analyse")
        if not self.arrays:
            raise FltrainError(f"{self.run_id} keeps no model; set evaluation.keep to model or clients")
        self.model.load(self.arrays["weights"], self.arrays["buffers"], self.arrays["counters"])

    def each_client(self) -> Iterator[int]:
        """Load the models of the last round's clients into the network, one after the other.

        Raises:
            FltrainError: if the record has no models of clients.
        """
        if "clients" not in self.arrays:
            raise FltrainError("the record keeps no clients' models; set evaluation.keep to clients")
        for place, client in enumerate(self.arrays["clients"].tolist()):
            weights, buffers = (self.arrays[f"client_{part}"][place] for part in ("weights", "buffers"))
            self.model.load(weights, buffers, self.arrays["counters"])
            yield client
