"""Cost estimates of runs: wall time, traffic and disk, from rounds measured on a device. Imports no torch.

The wall time of a run is the sum of its start-up, its tests and, for every client sampled in every round, its
local steps and its share of the server's work. ``fltrain.experiments.calibrate`` measures these for each
composition of methods, network, image size and batch size of a plan.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json
from fltrain.core.hashing import short_hash
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec

JSON_BYTES = 3_000
"""Bytes of a record without its rows: spec, summary, provenance and costs."""


class Measurement(Settings):
    """Times, traffic and record size of a method on a network.

    Attributes:
        step: seconds of a training step on a full batch.
        image: seconds of testing one image.
        server: seconds of aggregation per client and round.
        down, up: bytes per client and round.
        model: bytes of weights and buffers.
        rows: bytes that a round adds to the record.
    """

    step: float
    image: float
    server: float
    down: int
    up: int
    model: int
    rows: int


class Calibration(Settings):
    """Measurements on a device: seconds of starting a run, and costs by ``Workload.key``."""

    device: str
    start: float
    runs: dict[str, Measurement] = {}

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the measurements in a file; None if there is no file.

        Raises:
            FltrainError: if the file is damaged or of another version.
        """
        if not path.exists():
            return None
        try:
            return cls.parse(read_json(path), str(path))
        except FltrainError as error:
            raise FltrainError(f"{error}; delete the file and run `fltrain plan --calibrate` again") from None


def calibration_file(results: Results) -> Path:
    """Return the path of the measurements."""
    return results.root / "calibration.json"


@dataclass(frozen=True)
class Workload:
    """The size of a run, and the key of the measurement that its estimate needs.

    Attributes:
        images: training images per client, on average.
        batch: images in a full batch.
        tested: images per test.
        key: names everything that the costs of a step or round depend on.
    """

    spec: RunSpec
    images: int
    batch: int
    tested: int
    key: str

    @classmethod
    def of(cls, spec: RunSpec) -> Self | None:
        """Return the workload of a run; None if the registry lacks the size of the dataset."""
        entry, side = spec.dataset.entry, spec.dataset.side
        train, test = entry.train_images, entry.test_images
        if train is None or test is None or side is None or entry.channels is None or entry.classes is None:
            return None
        if spec.local_test:
            tested = round((train + test) * spec.local_test.fraction)
            train += test - tested
        else:
            tested = test + sum(data.entry.test_images or 0 for data in spec.evaluation.extra)
        validation = round(train * spec.evaluation.validation)
        tested, train = tested + validation, train - validation
        images = max(1, round(train / spec.partition.clients))
        batch = min(spec.training.batch_size, images)
        parts = [spec.model, *spec.composition.methods]
        settings = [[part.model_dump(mode="json"), part.revision] for part in parts]
        others = [entry.classes, spec.batchnorm, spec.precision, sorted(spec.evaluation.statistics)]
        what = f"{spec.composition.name} on {spec.model.name} {entry.channels}x{side}x{side}, batch {batch}"
        return cls(spec, images, batch, tested, key=f"{what}, {short_hash([settings, others])}")

    @property
    def steps(self) -> float:
        """Number of full batches that a client processes per round."""
        training = self.spec.training
        return training.epochs * sum(training.batch_sizes(self.images)) / self.batch

    @property
    def trained(self) -> float:
        """Training images of the run, each as often as it is used."""
        clients = self.spec.participation.per_round(self.spec.partition.clients)
        return self.spec.rounds * clients * self.steps * self.batch

    @property
    def tests(self) -> int:
        """Number of tests of the model in a run."""
        every = self.spec.evaluation.every
        last = sum(1 for round in self.spec.final_rounds if round % every)
        return self.spec.rounds // every + last


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of a run, bytes exchanged by clients and server, and bytes on disk."""

    seconds: float
    traffic: int
    disk: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.seconds + other.seconds, self.traffic + other.traffic, self.disk + other.disk)


def estimate(work: Workload, costs: Calibration) -> Estimate | None:
    """Return the estimated costs of a run; None if a measurement is missing."""
    cost = costs.runs.get(work.key)
    if cost is None:
        return None
    spec = work.spec
    sampled = spec.participation.per_round(spec.partition.clients)
    client = work.steps * cost.step + cost.server
    if "dissimilarity" in spec.evaluation.statistics:  # one more pass over the client's images
        client += work.images / work.batch * cost.step
    models = {"nothing": 0, "model": 1, "clients": 1 + sampled}[spec.evaluation.keep]
    return Estimate(
        seconds=costs.start + spec.rounds * sampled * client + work.tests * work.tested * cost.image,
        traffic=spec.rounds * sampled * (cost.down + cost.up),
        disk=JSON_BYTES + spec.rounds * cost.rows + models * cost.model,
    )


@dataclass(frozen=True)
class PlanCosts:
    """Estimated costs of a plan's runs.

    Attributes:
        calibration: the measurements; None if there are none.
        estimates: by run ID; runs without an estimate are missing.
        done: runs that have a complete record.
    """

    plan: Plan
    calibration: Calibration | None
    estimates: Mapping[str, Estimate]
    done: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, results: Results) -> Self:
        """Return the costs of a plan's runs on the device that was measured last."""
        done = frozenset(run for run in plan.runs if results.record(run).complete)
        calibration = Calibration.read(calibration_file(results))
        estimates = {
            run: expected
            for run, spec in plan.runs.items()
            if calibration and (work := Workload.of(spec)) and (expected := estimate(work, calibration))
        }
        return cls(plan, calibration, estimates, done)

    def sum(self, runs: Iterable[str]) -> Estimate:
        """Return the costs of runs together, without those that have no estimate."""
        return sum((self.estimates[run] for run in runs if run in self.estimates), Estimate(0.0, 0, 0))

    @property
    def unknown(self) -> list[str]:
        """Runs without a record and without an estimate."""
        return [run for run in self.plan.runs if run not in self.estimates and run not in self.done]

    def cheapest(self) -> Plan:
        """Return the items that decide a claim without other items, the one with the least work left first.

        Work is time if all missing runs have an estimate, else the number of training images.
        """

        def work_left(item: PlannedItem) -> float:
            missing = set(item.run_ids) - self.done
            if not self.unknown:
                return self.sum(missing).seconds
            works = [Workload.of(self.plan.runs[run]) for run in missing]
            return sum(work.trained if work else math.inf for work in works)

        deciding = [item for item in self.plan.items if item.claims]
        return replace(self.plan, items=sorted(deciding, key=work_left))

    def within(self, hours: float) -> Plan:
        """Return the part of the plan that fits into a time budget: items with their first seeds.

        The budget is spent seed by seed, in the order of the items. An item gets a seed if it has all seeds
        before it and if its runs with this seed that have no record and are not yet part of the plan fit into
        the rest of the budget. Runs without an estimate must not be left, see ``unknown``.

        Raises:
            FltrainError: if nothing fits.
        """
        left = 3600 * hours
        included = set(self.done)
        seeds = {item.id: 0 for item in self.plan.items}
        for seed in range(max(entry.number for item in self.plan.items for entry in item.entries) + 1):
            for item in self.plan.items:
                runs = {entry.spec.run_id for entry in item.entries if entry.number == seed and item.trains}
                cost = self.sum(runs - included).seconds
                if seeds[item.id] == seed and cost <= left:
                    left -= cost
                    included |= runs
                    seeds[item.id] += 1
        items = [
            replace(item, entries=[entry for entry in item.entries if entry.number < seeds[item.id]])
            for item in self.plan.items
            if seeds[item.id]
        ]
        if not items:
            raise FltrainError(
                f"--hours: no item fits into {hours:g} hours; allow more hours or choose cheaper items"
            )
        return replace(self.plan, items=items)

    def check(self, results: Results) -> str | None:
        """Return a comparison with finished runs on this device in words; None if there are none."""
        ratios = []
        device, start = (costs.device, costs.start) if (costs := self.calibration) else ("", 0.0)
        for run in self.done & self.estimates.keys():
            record = results.record(run)
            if (
                record.usable
                and record.summary["status"] != "diverged"
                and device_name(record.provenance) == device
            ):
                ratios.append(record.costs["seconds"]["total"] / (self.estimates[run].seconds - start))
        if not ratios:
            return None
        runs = "1 finished run" if len(ratios) == 1 else f"{len(ratios)} finished runs"
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        return f"{runs}: actual / estimated median {middle:.2f} ({low:.2f} to {high:.2f})"


def device_name(provenance: Mapping[str, Any]) -> str:
    """Return the name of the device that a record's provenance names."""
    return str(provenance.get("gpu") or provenance.get("processor") or "unknown device")


def run_table(plan: Plan, estimates: Mapping[str, Estimate]) -> str:
    """Return the run table as CSV text: a row per trained item, cell and seed, to read before training.

    The estimates of a run without any are empty.
    """
    rows = []
    for item in plan.items:
        for entry in item.entries if item.trains else ():
            spec, expected = entry.spec, estimates.get(entry.spec.run_id)
            rows.append(
                {
                    "item": item.id,
                    "cell": " / ".join(entry.labels.values()),
                    "seed": entry.seed,
                    "run": spec.run_id,
                    "dataset": spec.dataset.id,
                    "model": spec.model.name,
                    "method": spec.composition.name,
                    "partition": spec.partition_id,
                    "clients": spec.partition.clients,
                    "per_round": spec.participation.per_round(spec.partition.clients),
                    "rounds": spec.rounds,
                    "estimated_seconds": f"{expected.seconds:.0f}" if expected else "",
                    "traffic_bytes": expected.traffic if expected else "",
                    "disk_bytes": expected.disk if expected else "",
                }
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
