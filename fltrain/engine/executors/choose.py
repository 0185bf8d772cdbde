"""Which executor trains a run: one that is named, or the fastest in a short trial on this machine.

What a trial finds is kept in a file for each kind of work, so that of the runs of a table one has to try.
The trial trains a client on a few batches and throws away what comes out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json
from fltrain.core.hashing import short_hash
from fltrain.engine.clients import Clients, Kept, Round
from fltrain.engine.executors.graph import GraphExecutor
from fltrain.engine.executors.loop import LoopExecutor, Trained
from fltrain.engine.executors.stack import StackExecutor
from fltrain.methods.types import Place
from fltrain.runtime.determinism import Profile
from fltrain.runtime.devices import synchronize

LOG = logging.getLogger("fltrain")

EXECUTORS: Mapping[str, type[LoopExecutor]] = {
    executor.name: executor for executor in (LoopExecutor, GraphExecutor, StackExecutor)
}

STEPS = 6
"""Local steps of the client that a trial trains."""
PATIENCE = 0.5
"""Seconds after which an executor's trial ends."""
WORTH = 60.0
"""Seconds of training that must be left for a trial to be made."""
GAIN = 0.98
"""An executor is preferred to the loop if it takes this share of its time or less."""


class AutoExecutor:
    """The loop in the first round, and from then on what is fastest in a trial, if that is worth its while.

    Attributes:
        chosen: the executor in use.
        decided: whether it is for good.
        seconds: that the first round took, once it is over.
    """

    def __init__(
        self,
        clients: Clients,
        recordings: Place = "auto",
        *,
        kind: Mapping[str, Any],
        found: Path,
        determinism: Profile = "exact",
    ) -> None:
        """Choose for the given clients.

        Args:
            clients: who will be trained.
            recordings: where methods that record local steps keep them.
            kind: settings and facts that tell this kind of work from others.
            found: folder of what trials have found.
            determinism: with ``exact``, only executors count that compute the same bits as the loop.
        """
        self.clients = clients
        self.recordings = recordings
        self.kind = kind
        self.file = found / f"{short_hash(kind)}.json"
        self.exact = determinism == "exact"
        self.candidates = [name for name, executor in EXECUTORS.items() if executor.exact or not self.exact]
        self.chosen = LoopExecutor(clients, recordings)
        self.decided = False
        self.seconds: float | None = None

    @property
    def name(self) -> str:
        """That of the executor in use."""
        return self.chosen.name

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        if self.seconds is not None:
            if not self.decided:
                self._decide(round, clients, kept)
            return self.chosen.train(round, clients, kept)
        started = time.perf_counter()
        trained = self.chosen.train(round, clients, kept)
        synchronize(self.clients.model.weights.device)
        self.seconds = time.perf_counter() - started
        return trained

    def gradients(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> Tensor:
        return self.chosen.gradients(round, clients, kept)

    def _decide(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> None:
        """Choose for the rounds that are left."""
        self.decided = True
        assert self.seconds is not None
        if self.seconds * (round.task.rounds - round.number) < WORTH:
            return
        name = self._known() or self._tried(round, clients, kept)
        if name != self.chosen.name:
            self.chosen = EXECUTORS[name](self.clients, self.recordings)

    def _known(self) -> str | None:
        """What an earlier trial of such work has found."""
        try:
            found = read_json(self.file)["seconds_per_step"]
            return _fastest({name: float(found[name]) for name in self.candidates if name in found})
        except (FltrainError, ValueError, KeyError, TypeError):
            return None  # nobody has tried, or the file is of no use: it will be replaced

    def _tried(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> str:
        client = clients[0]
        own = {client: kept[client]} if client in kept else {}  # read once, whoever is tried
        reference, least = self._trial("loop", round, client, own)
        seconds = {"loop": least}
        for name in (name for name in self.candidates if name != "loop"):
            try:
                weights, least = self._trial(name, round, client, own)
            except (FltrainError, RuntimeError) as error:
                LOG.warning("executor %s cannot be used: %s", name, " ".join(str(error).split()))
                continue
            # Who wrote a method that breaks the contract of local steps would not notice otherwise.
            if self.exact and not torch.equal(weights, reference):
                LOG.warning("executor %s is not used: its weights are not those of the loop", name)
                continue
            seconds[name] = least
        write_json(self.file, {"kind": dict(self.kind), "seconds_per_step": seconds})
        name = _fastest(seconds)
        told = ", ".join(f"{name} {1e3 * value:.2f}" for name, value in seconds.items())
        LOG.info("executor %s; milliseconds per step: %s", name, told)
        return name

    def _trial(self, name: str, round: Round, client: int, kept: Mapping[int, Kept]) -> tuple[Tensor, float]:
        """Train a client on a few batches, again and again.

        Returns:
            where it ends ``[P]``, and the least seconds per local step.
        """
        data, batches = self.clients.data, self.clients.composition.schedule.batches
        few = STEPS * round.training.batch_size * batches
        owners = list(data.clients)
        owners[client] = owners[client][:few]
        clients = replace(self.clients, data=replace(data, clients=tuple(owners)))
        once = replace(round, training=round.training.model_copy(update={"epochs": 1}))
        executor, device = EXECUTORS[name](clients, self.recordings), self.clients.model.weights.device
        least, began = float("inf"), time.perf_counter()
        executor.train(once, [client], kept)  # to get going, and to record what is replayed afterwards
        while least == float("inf") or time.perf_counter() - began < PATIENCE:
            synchronize(device)
            started = time.perf_counter()
            (trained,) = executor.train(once, [client], kept)
            synchronize(device)
            least = min(least, (time.perf_counter() - started) / trained.update.steps)
        return trained.update.trained, least


def _fastest(seconds: Mapping[str, float]) -> str:
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] <= GAIN * seconds["loop"] else "loop"
