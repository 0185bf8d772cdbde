"""Measurement of step times and traffic for cost estimates: a few rounds of the engine on random images.

Long rounds are measured once, short ones for about half a second. Existing measurements are kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.engine.memory import BATCH
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.synthetic import NEVER, synthetic_run
from fltrain.experiments.costs import Calibration, Measurement, Workload, calibration_file, device_name
from fltrain.experiments.plan import Plan
from fltrain.runs.record import Results
from fltrain.runtime.process import compute_as_runs
from fltrain.runtime.provenance import gather

PATIENCE = 0.5
"""Seconds of training after which a measurement ends."""
CLIENTS = 2
"""Clients of a measured round."""
STEPS = 2
"""Local steps of each client in a measured round."""


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
    works = {work.key: work for spec in plan.runs.values() if (work := Workload.of(spec)) is not None}
    missing = [work for key, work in works.items() if key not in costs.runs]
    for number, work in enumerate(missing, start=1):
        reason = ""
        try:
            costs = costs.model_copy(update={"runs": {**costs.runs, work.key: measure(work, device)}})
        except (FltrainError, Diverged) as error:
            reason = f" is left out: {error}"
        report(f"{number} of {len(missing)}: {work.key}{reason}")
        write_json(path, costs.model_dump(mode="json"))


def _start_up() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fltrain.engine.train"], check=True)
    return time.perf_counter() - started


def measure(work: Workload, device: torch.device) -> Measurement:
    """Return the costs of a run, measured in rounds of two clients with full batches and a test.

    Raises:
        FltrainError: if the run does not fit random images.
        Diverged: if it diverges on them.
    """
    spec = work.spec
    settings = spec.model_dump(mode="json")
    training = {"batch_size": work.batch, "epochs": 1, "lr": 1e-3, "lr_schedule": "constant"}
    settings |= {
        "partition": {"name": "iid", "clients": CLIENTS},
        "participation": {"fraction": 1.0},
        "rounds": NEVER,
        "training": {**settings["training"], **training},
        "evaluation": {"point": spec.evaluation.point, "statistics": list(spec.evaluation.statistics)},
    }
    # Two images of each class, because the separability of features needs them.
    tests = max(BATCH[device.type], 2 * (spec.dataset.entry.classes or 1))
    simulation = synthetic_run(settings, STEPS * work.batch, tests, device)
    simulation.round(0)  # warms up, and gives the clients their states
    before, rounds = _spent(simulation), 0
    while rounds == 0 or (rounds < 20 and _spent(simulation)["train"] - before["train"] < PATIENCE):
        rounds += 1
        rows = simulation.round(rounds)
    spent = {name: (total - before[name]) / rounds for name, total in _spent(simulation).items()}
    tensors = (simulation.server.weights, simulation.server.buffers)
    return Measurement(
        step=spent["train"] / CLIENTS / STEPS,
        image=spent["evaluate"] / tests,
        server=spent["aggregate"] / CLIENTS,
        down=round(spent["down"] / CLIENTS),
        up=round(spent["up"] / CLIENTS),
        model=sum(tensor.nbytes for tensor in tensors),
        rows=sum(len(json.dumps(row)) + 1 for row in rows),
    )


def _spent(simulation: Simulation) -> dict[str, float]:
    """Return the seconds of each phase and the bytes of traffic so far."""
    traffic = {"down": simulation.bytes_down, "up": simulation.bytes_up}
    return {**simulation.costs.seconds, **traffic}
