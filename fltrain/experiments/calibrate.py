"""Measuring what runs will cost: a few rounds of the engine on random images, for every key of a plan.

Long steps are measured in one or two rounds, short ones for about half a second. What was measured before is
not measured again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import Kept
from fltrain.engine.evaluation import test
from fltrain.engine.memory import BATCH, MOST
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.synthetic import rehearsal
from fltrain.experiments.costs import (
    Calibration,
    DeviceCosts,
    Exchange,
    StepCost,
    Workload,
    calibration_file,
    device_name,
)
from fltrain.experiments.plan import Plan
from fltrain.experiments.schema import Patch
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec
from fltrain.runtime.devices import synchronize
from fltrain.runtime.process import compute_as_runs
from fltrain.runtime.provenance import gather

PATIENCE = 0.5
"""Seconds after which a measurement ends."""
SHORT = 0.05
"""Seconds of a step up to which a composition is measured on a network of its runs."""
FEW = 16
"""Images in a batch when it is measured on a network whose steps are longer than that."""
STEPS = 2
"""Local steps of a measured round."""
MODELS = 4
"""Vectors of a network's size that a step works on: weights, gradient, momentum, and the server's weights."""

SMALL = ({"dataset": "mnist", "model": "lenet5"}, {"dataset": "mnist", "model": "mobilenet_tiny"})
"""Networks on which a composition is measured otherwise, if it can work on them."""

FEDAVG: Patch = {"method": "fedavg", "plugins": []}


def calibrate(plan: Plan, results: Results, device: torch.device, report: Callable[[str], None]) -> None:
    """Measure what is not known yet of a plan's runs, and keep it in ``calibration.json`` of the results.

    What cannot be measured is reported and left out. It is written after each measurement, so that an
    interrupted calibration goes on where it was.
    """
    compute_as_runs()
    path, name = calibration_file(results), device_name(gather(device, 1))
    known = Calibration.read(path) or Calibration(latest=name, devices={})
    costs = known.devices.get(name) or DeviceCosts(start=_start_up())
    works = [work for spec in plan.runs.values() if (work := Workload.of(spec)) is not None]
    kinds: dict[str, tuple[Callable[[Workload], str], Callable[[Bench, Workload], Any]]] = {
        "steps": (lambda work: work.step, Bench.step),
        "factors": (lambda work: work.composition, Bench.factor),
        "exchanges": (lambda work: work.exchange, Bench.exchange),
    }
    missing = {
        kind: {key(work): work for work in works if key(work) not in getattr(costs, kind)}
        for kind, (key, _) in kinds.items()
    }
    left = total = sum(map(len, missing.values()))
    for kind, wanted in missing.items():
        if kind == "factors":  # each on the quickest network of its runs
            wanted = _quickest(works, wanted, costs)
        for key, work in wanted.items():
            left -= 1
            said = ""
            try:
                measured = kinds[kind][1](Bench(device, costs), work)
                costs = costs.model_copy(update={kind: {**getattr(costs, kind), key: measured}})
            except (FltrainError, Diverged) as error:
                said = f" is left out: {error}"
            report(f"{total - left} of {total}: {key}{said}")
            known = Calibration(latest=name, devices={**known.devices, name: costs})
            known.write(path)
    Calibration(latest=name, devices={**known.devices, name: costs}).write(path)


def _start_up() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fltrain.engine.train"], check=True)
    return time.perf_counter() - started


def _quickest(
    works: Iterable[Workload], wanted: Mapping[str, Workload], costs: DeviceCosts
) -> dict[str, Workload]:
    """Of every wanted composition, the run whose steps are the shortest."""
    by_step = sorted(
        (work for work in works if work.step in costs.steps), key=lambda work: -costs.steps[work.step].step
    )
    return {**wanted, **{work.composition: work for work in by_step if work.composition in wanted}}


class Bench:
    """Measures on a device, given what is known of it so far."""

    def __init__(self, device: torch.device, costs: DeviceCosts) -> None:
        self.device = device
        self.costs = costs
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def step(self, work: Workload) -> StepCost:
        """Federated averaging on the run's network."""
        simulation = self._simulation(work, {**_settings(work.spec), **FEDAVG})
        images = simulation.data.test
        tested = self._seconds(lambda: self._timed(lambda: test(simulation.network, images)))
        step = self._seconds(lambda: _trained(simulation)) / STEPS
        return StepCost(step=step, image=tested / len(images), memory=self._memory(simulation))

    def factor(self, work: Workload) -> float:
        """Local training of the composition, relative to federated averaging on the same network."""
        own, step = _settings(work.spec), self.costs.steps.get(work.step)
        short = step is not None and step.step <= SHORT
        networks: list[Patch] = [own, *({**_plain(own), **small} for small in SMALL)]
        if not short:
            networks = [*networks[1:], own]
        *others, last = networks
        for settings in others:
            try:
                return self._factor(work, settings)
            except (FltrainError, Diverged):
                continue
        return self._factor(work, last, None if short else min(work.batch, FEW))

    def _factor(self, work: Workload, settings: Patch, batch: int | None = None) -> float:
        each = settings, {**settings, **FEDAVG}
        with_, without = (self._simulation(work, one, batch=batch) for one in each)
        return self._seconds(lambda: _trained(with_)) / self._seconds(lambda: _trained(without))

    def exchange(self, work: Workload) -> Exchange:
        """Two clients with two images in a batch exchange what they do, whatever the sizes of batches."""
        clients, spec = 2, work.spec
        evaluation = {"every": 1, "statistics": list(spec.evaluation.statistics)}
        settings = {**_settings(spec), "batchnorm": spec.batchnorm, "rounds": 2, "evaluation": evaluation}
        tests = 2 * (spec.dataset.entry.classes or 1) if "separability" in spec.evaluation.statistics else 2
        simulation = self._simulation(work, settings, clients, batch=2, tests=tests)
        simulation.round(0)
        before = simulation.bytes_down, simulation.bytes_up, simulation.costs.seconds["aggregate"]
        rows = simulation.round(1)  # by now methods have a past
        after = simulation.bytes_down, simulation.bytes_up, simulation.costs.seconds["aggregate"]
        down, up, server = ((new - old) / clients for new, old in zip(after, before, strict=True))
        held = (simulation.server.weights, simulation.server.buffers)
        return Exchange(
            down=int(down),
            up=int(up),
            model=sum(tensor.numel() * tensor.element_size() for tensor in held),
            server=server,
            rows=sum(len(json.dumps(row)) + 1 for row in rows),
            kept=max(map(_kept_bytes, simulation.clients.values()), default=0),
        )

    def _memory(self, simulation: Simulation) -> int:
        """Bytes of a GPU that were taken at most; on a CPU, those that a GPU would have to hold at once."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        kept: dict[int, int] = {}  # by address: operations share what they keep

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        network, batch = simulation.network.train(), simulation.spec.training.batch_size
        images, _ = simulation.data.train.batch(torch.arange(batch))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = network(images)  # whose graph holds what is kept, so that no address is used again
        del logits
        weights = simulation.model.weights.untyped_storage()
        kept.pop(weights.data_ptr(), None)
        # A layer's input and output, for as many images as are tested at once on a GPU.
        tested = 2 * max(kept.values(), default=0) * MOST["cuda"] // batch
        return MODELS * weights.nbytes() + max(sum(kept.values()), tested)

    def _simulation(
        self,
        work: Workload,
        settings: Patch,
        clients: int = 1,
        batch: int | None = None,
        tests: int | None = None,
    ) -> Simulation:
        """Clients with random images of two batches each, who all train in every round."""
        batch = batch or work.batch
        training = {**settings["training"], "batch_size": batch}
        partition = {"name": "iid", "clients": clients}
        spec = RunSpec.parse({**settings, "training": training, "partition": partition}, work.step)
        return rehearsal(spec, STEPS * batch, tests or BATCH[self.device.type], self.device)

    def _timed(self, act: Callable[[], object]) -> float:
        started = time.perf_counter()
        act()
        synchronize(self.device)
        return time.perf_counter() - started

    def _seconds(self, act: Callable[[], float]) -> float:
        """Median of what is measured within the time; the first, to warm up, counts if there is no other."""
        first = act()
        if first > PATIENCE:
            return first
        taken = [act()]
        while sum(taken) < PATIENCE and len(taken) < 20:
            taken.append(act())
        return statistics.median(taken)


def _kept_bytes(kept: Kept) -> int:
    return sum(tensor.nbytes for state in kept.values() for tensor in state.values())


def _settings(spec: RunSpec) -> Patch:
    """A run's settings, made short: its network and methods, nothing but training."""
    settings = spec.model_dump(mode="json")
    training = {**settings["training"], "epochs": 1, "lr": 1e-3, "lr_schedule": "constant"}
    return {
        **settings,
        "training": training,
        "participation": {"fraction": 1.0},
        "rounds": 10**6,
        "evaluation": {"every": 10**6, "point": spec.evaluation.point},
    }


def _plain(settings: Patch) -> Patch:
    """Settings without what may not suit another data set or network."""
    training = {**settings["training"], "augmentation": {}}
    return {**settings, "training": training, "batchnorm": "average"}


def _trained(simulation: Simulation) -> float:
    """Seconds of local training in the next round."""
    before = simulation.costs.seconds["train"]
    simulation.round(len(simulation.costs.round_seconds))
    return simulation.costs.seconds["train"] - before
