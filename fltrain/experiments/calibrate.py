"""Measurement of step times and traffic for cost estimates: a few rounds of the engine on random images.

Long steps are measured in one or two rounds, short ones for about half a second. Existing measurements are
kept.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.engine.evaluation import test
from fltrain.engine.memory import BATCH
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.synthetic import rehearsal
from fltrain.experiments.costs import (
    Calibration,
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
"""Maximum seconds of a step for measuring a composition on the network of its runs."""
FEW = 16
"""Maximum images per batch for measuring a composition on a network with longer steps."""
STEPS = 2
"""Local steps of a measured round."""

FEDAVG: Patch = {"method": "fedavg", "plugins": []}


def calibrate(plan: Plan, results: Results, device: torch.device, report: Callable[[str], None]) -> None:
    """Measure the missing costs of a plan's runs and store them in ``calibration.json`` of the results.

    Measurements of another device are replaced. The file is written after each measurement, so that you can
    interrupt a calibration and continue it. ``report`` gets a line for each measurement, with the reason if a
    measurement fails and is skipped.
    """
    compute_as_runs()
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        report("warning: other processes keep this machine busy; estimates will be too high")
    path, name = calibration_file(results), device_name(gather(device, 1))
    costs = Calibration.read(path)
    if costs is None or costs.device != name:
        costs = Calibration(device=name, start=_start_up())
    works = [work for spec in plan.runs.values() if (work := Workload.of(spec)) is not None]
    missing = {
        kind: {key: work for work in works if (key := getattr(work, attribute)) not in getattr(costs, kind)}
        for kind, attribute in (("steps", "step"), ("factors", "composition"), ("exchanges", "exchange"))
    }
    left = total = sum(map(len, missing.values()))
    for kind, wanted in missing.items():
        if kind == "factors":
            wanted = _quickest(works, wanted, costs)
        for key, work in wanted.items():
            left -= 1
            reason = ""
            try:
                stopwatch = Stopwatch(device, costs)
                measure = {
                    "steps": stopwatch.step,
                    "factors": stopwatch.factor,
                    "exchanges": stopwatch.exchange,
                }
                costs = costs.model_copy(update={kind: {**getattr(costs, kind), key: measure[kind](work)}})
            except (FltrainError, Diverged) as error:
                reason = f" is left out: {error}"
            report(f"{total - left} of {total}: {key}{reason}")
            write_json(path, costs.model_dump(mode="json"))


def _start_up() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fltrain.engine.train"], check=True)
    return time.perf_counter() - started


def _quickest(
    works: Iterable[Workload], wanted: Mapping[str, Workload], costs: Calibration
) -> dict[str, Workload]:
    """Return for each composition the run with the shortest steps."""
    by_step = sorted(
        (work for work in works if work.step in costs.steps), key=lambda work: -costs.steps[work.step].step
    )
    return {**wanted, **{work.composition: work for work in by_step if work.composition in wanted}}


class Stopwatch:
    """Measurements on a device that build on earlier ones."""

    def __init__(self, device: torch.device, costs: Calibration) -> None:
        self.device = device
        self.costs = costs

    def step(self, work: Workload) -> StepCost:
        """Return the cost of a FedAvg step and of a test on the run's network."""
        simulation = self._simulation(work, {**_settings(work.spec), **FEDAVG})
        images = simulation.data.test
        tested = self._seconds(lambda: self._timed(lambda: test(simulation.network, images)))
        step = self._seconds(lambda: _trained(simulation)) / STEPS
        return StepCost(step=step, image=tested / len(images))

    def factor(self, work: Workload) -> float:
        """Return the time of the composition's local training divided by FedAvg's on the same network."""
        step = self.costs.steps.get(work.step)
        batch = work.batch if step and step.step <= SHORT else min(work.batch, FEW)
        composed = _settings(work.spec)
        ours, fedavg = (
            self._simulation(work, settings, batch=batch) for settings in (composed, {**composed, **FEDAVG})
        )
        return self._seconds(lambda: _trained(ours)) / self._seconds(lambda: _trained(fedavg))

    def exchange(self, work: Workload) -> Exchange:
        """Return the traffic of two clients per round; it does not depend on the batch size."""
        clients, spec = 2, work.spec
        evaluation = {"every": 1, "statistics": list(spec.evaluation.statistics)}
        settings = {**_settings(spec), "batchnorm": spec.batchnorm, "rounds": 2, "evaluation": evaluation}
        tests = 2 * (spec.dataset.entry.classes or 1) if "separability" in spec.evaluation.statistics else 2
        simulation = self._simulation(work, settings, clients, batch=2, tests=tests)
        simulation.round(0)
        before = simulation.bytes_down, simulation.bytes_up, simulation.costs.seconds["aggregate"]
        rows = simulation.round(1)  # the second round: by now clients have a state
        after = simulation.bytes_down, simulation.bytes_up, simulation.costs.seconds["aggregate"]
        down, up, server = ((new - old) / clients for new, old in zip(after, before, strict=True))
        tensors = (simulation.server.weights, simulation.server.buffers)
        return Exchange(
            down=int(down),
            up=int(up),
            model=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            server=server,
            rows=sum(len(json.dumps(row)) + 1 for row in rows),
        )

    def _simulation(
        self,
        work: Workload,
        settings: Patch,
        clients: int = 1,
        batch: int | None = None,
        tests: int | None = None,
    ) -> Simulation:
        """Return a simulation in which all clients train in every round, on two random batches each."""
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
        """Return the median of the measurements within the time limit, without the first, which warms up."""
        first = act()
        if first > PATIENCE:
            return first
        taken = [act()]
        while sum(taken) < PATIENCE and len(taken) < 20:
            taken.append(act())
        return statistics.median(taken)


def _settings(spec: RunSpec) -> Patch:
    """Return a run's settings for measurement: its network and methods, one epoch, no tests."""
    settings = spec.model_dump(mode="json")
    training = {**settings["training"], "epochs": 1, "lr": 1e-3, "lr_schedule": "constant"}
    return {
        **settings,
        "training": training,
        "participation": {"fraction": 1.0},
        "rounds": 10**6,
        "evaluation": {"every": 10**6, "point": spec.evaluation.point},
    }


def _trained(simulation: Simulation) -> float:
    """Run the next round and return the seconds of its local training."""
    before = simulation.costs.seconds["train"]
    simulation.round(len(simulation.costs.round_seconds))
    return simulation.costs.seconds["train"] - before
