"""What runs will cost: seconds, traffic and disk, from a few steps measured on a device. No torch here.

A run costs its start-up and in every round, for every client that takes part, its local steps and its share
of the server's work; and the images on which models are tested. What a step costs is measured with plain
federated averaging for every network, size of images and batch of a plan; by what factor a method and its
plug-ins make it longer, once for each of their compositions (``fltrain.experiments.calibrate`` measures).
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fltrain.core.config import Settings, suggest
from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json
from fltrain.core.hashing import short_hash
from fltrain.experiments.plan import Plan, table_rows
from fltrain.experiments.selection import Selection
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec

JSON_BYTES = 3_000
"""Of a record, beside what grows with the rounds: spec, summary, provenance, costs."""

CLIENT_MEMORY = 4 * 2**30
"""Bytes of the device that clients' states take at most, unless a run is told otherwise."""


class StepCost(Settings):
    """Seconds of a training step on a batch, and of testing one image.

    ``memory`` is what both take of a device at most, in bytes: measured on a GPU, else counted. None if they
    were measured before memory was.
    """

    step: float
    image: float
    memory: int | None = None


class Exchange(Settings):
    """What a method exchanges in a round.

    Attributes:
        down, up: bytes per client.
        model: bytes of weights and buffers.
        server: seconds of aggregation per client.
        rows: bytes of the record per round.
        kept: bytes that stay with a client between rounds; None if it was measured before these were.
    """

    down: int
    up: int
    model: int
    server: float
    rows: int
    kept: int | None = None


class DeviceCosts(Settings):
    """What was measured on a device: seconds of starting a run; the rest by the keys below."""

    start: float
    steps: dict[str, StepCost] = {}
    factors: dict[str, float] = {}
    exchanges: dict[str, Exchange] = {}


class Calibration(Settings):
    """Measurements by name of the device; ``latest`` is the one that was measured last."""

    latest: str
    devices: dict[str, DeviceCosts]

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read what was measured so far; None if nothing was.

        Raises:
            FltrainError: if the file is damaged.
        """
        return cls.parse(read_json(path), str(path)) if path.exists() else None

    def write(self, path: Path) -> None:
        """Write it for the next time."""
        write_json(path, self.model_dump(mode="json"))

    def named(self, device: str | None) -> tuple[str, DeviceCosts]:
        """Name and measurements of a device, of the latest if None.

        Raises:
            FltrainError: if nothing was measured on it.
        """
        name = self.latest if device is None else device
        if name not in self.devices:
            known = ", ".join(map(repr, self.devices))
            raise FltrainError(
                f"nothing was measured on {name!r}{suggest(name, self.devices)} (known: {known})"
            )
        return name, self.devices[name]


# ---------------------------------------------------------------- what a run is made of


@dataclass(frozen=True)
class Workload:
    """A run as far as its costs go.

    Attributes:
        images: training images of a client, on average.
        batch: images of a full step.
        tested: images of one test.
        step, composition, exchange: what is measured for it, by name.
    """

    spec: RunSpec
    images: int
    batch: int
    tested: int
    step: str
    composition: str
    exchange: str

    @classmethod
    def of(cls, spec: RunSpec) -> Self | None:
        """The workload of a run; None if the size of its data set is only known when it is there."""
        entry, side = spec.dataset.entry, spec.dataset.side
        train, test = entry.train_images, entry.test_images
        if train is None or test is None or side is None or entry.channels is None or entry.classes is None:
            return None
        if spec.local_test:
            tested = round((train + test) * spec.local_test.fraction)
            train += test - tested
        else:
            tested = test + sum(data.entry.test_images or 0 for data in spec.evaluation.extra)
        images = max(1, round(train / spec.partition.clients))
        batch = min(spec.training.batch_size, images)
        settings = [spec.model.model_dump(mode="json"), spec.model.revision]
        shape = f"{entry.channels}x{side}x{side}"
        network = f"{spec.model.name}-{short_hash(settings)} {shape} {entry.classes} classes"
        methods = [[one.model_dump(mode="json"), one.revision] for one in spec.composition.methods]
        composition = f"{spec.composition.name}-{short_hash(methods)}"
        recorded = ", ".join(sorted(spec.evaluation.statistics)) or "nothing"
        precision = "" if spec.precision == "fp32" else f", {spec.precision}"
        return cls(
            spec=spec,
            images=images,
            batch=batch,
            tested=tested,
            step=f"{network}, batch {batch}{precision}",
            composition=composition,
            exchange=f"{composition} on {network}, BatchNorm {spec.batchnorm}, {recorded} measured",
        )

    @property
    def steps(self) -> float:
        """Full batches that a client goes through in a round."""
        training = self.spec.training
        return training.epochs * sum(training.batch_sizes(self.images)) / self.batch

    @property
    def tests(self) -> int:
        """How often models are tested."""
        every = self.spec.evaluation.every
        last = sum(1 for round in self.spec.final_rounds if round % every)
        return self.spec.rounds // every + last


@dataclass(frozen=True)
class Estimate:
    """What a run will cost: seconds, bytes that clients and server exchange, bytes on disk."""

    seconds: float
    traffic: int
    disk: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.seconds + other.seconds, self.traffic + other.traffic, self.disk + other.disk)


NOTHING = Estimate(0.0, 0, 0)


def estimate(work: Workload, costs: DeviceCosts) -> Estimate | None:
    """Return what a run costs on a device; None if something of it was not measured there."""
    step = costs.steps.get(work.step)
    factor = costs.factors.get(work.composition)
    exchange = costs.exchanges.get(work.exchange)
    if step is None or factor is None or exchange is None:
        return None
    spec = work.spec
    per_round = spec.participation.per_round(spec.partition.clients)
    client = work.steps * step.step * factor + exchange.server
    if "dissimilarity" in spec.evaluation.statistics:  # the gradient of each client's images, plain
        client += work.images / work.batch * step.step
    kept = {"nothing": 0, "model": 1, "clients": 1 + per_round}[spec.evaluation.keep]
    return Estimate(
        seconds=costs.start + spec.rounds * per_round * client + work.tests * work.tested * step.image,
        traffic=spec.rounds * per_round * (exchange.down + exchange.up),
        disk=JSON_BYTES + spec.rounds * exchange.rows + kept * exchange.model,
    )


def device_bytes(work: Workload, costs: DeviceCosts) -> int | None:
    """Return what a run takes of its device, in bytes; None if something of it was not measured.

    That is a step or a test, what all clients of a round send (once as they send it, once stacked to be
    averaged), what all clients keep up to the default of ``--client-memory``, and the images. What methods
    record of their steps is not counted: it goes to the host where the device has no ample memory.
    """
    step, exchange = costs.steps.get(work.step), costs.exchanges.get(work.exchange)
    if step is None or exchange is None or step.memory is None or exchange.kept is None:
        return None
    spec = work.spec
    clients = spec.partition.clients
    sent = 2 * spec.participation.per_round(clients) * max(exchange.model, exchange.up)
    return step.memory + sent + min(CLIENT_MEMORY, clients * exchange.kept) + image_bytes(spec)


def image_bytes(spec: RunSpec) -> int:
    """Bytes of a run's data sets, one per pixel and channel; 0 where the size is only known later."""
    return sum(
        ((data.entry.train_images or 0) + (data.entry.test_images or 0))
        * (data.entry.channels or 0)
        * (data.side or 0) ** 2
        for data in (spec.dataset, *spec.evaluation.extra)
    )


# ---------------------------------------------------------------- what a plan costs


@dataclass(frozen=True)
class PlanCosts:
    """Estimates of a plan's runs.

    Attributes:
        device: where they hold; None if nothing was measured yet.
        start: seconds of each that go by before a record's own clock starts.
        estimates: by run id; runs that cannot be estimated are missing.
        done: runs that have a complete record.
    """

    plan: Plan
    device: str | None
    start: float
    estimates: Mapping[str, Estimate]
    done: frozenset[str]

    @classmethod
    def of(cls, plan: Plan, results: Results, device: str | None = None) -> Self:
        """Estimate all runs of a plan, from what was measured on a device (the latest if None).

        Raises:
            FltrainError: if a device is named on which nothing was measured.
        """
        done = frozenset(run for run in plan.runs if results.record(run).complete)
        calibration = Calibration.read(calibration_file(results))
        if calibration is None:
            if device is not None:
                raise FltrainError(
                    f"nothing was measured on {device!r}, nor on any other device; "
                    f"run `{how_to_calibrate(plan.scale.scale)}`"
                )
            return cls(plan, None, 0.0, {}, done)
        name, costs = calibration.named(device)
        found = {
            run: estimate(work, costs)
            for run, spec in plan.runs.items()
            if (work := Workload.of(spec)) is not None
        }
        estimates = {run: one for run, one in found.items() if one is not None}
        return cls(plan, name, costs.start, estimates, done)

    def sum(self, runs: Iterable[str]) -> Estimate:
        """What these runs cost, as far as they can be estimated."""
        return sum((self.estimates[run] for run in runs if run in self.estimates), NOTHING)

    def remaining(self) -> dict[str, float]:
        """Seconds that each run will still take: what a budget is spent on.

        Raises:
            FltrainError: if that is not known of all; it says what to do.
        """
        for run, spec in self.plan.runs.items():
            if run not in self.estimates and run not in self.done:
                if Workload.of(spec) is None:
                    raise FltrainError(
                        f"hours: nothing is known about how long {run} takes: the size of the data set "
                        f"{spec.dataset.name!r} is not in config/datasets.yaml"
                    )
                raise FltrainError(
                    f"hours: how long {run} takes has not been measured yet; "
                    f"run `{how_to_calibrate(self.plan.scale.scale)}`"
                )
        return {run: 0.0 if run in self.done else self.estimates[run].seconds for run in self.plan.runs}

    def check(self, results: Results) -> str | None:
        """Say how the estimates compare with finished runs on this device; None if there are none."""
        ratios = [
            ratio
            for run in self.done & self.estimates.keys()
            if (ratio := self._ratio(results.record(run), self.estimates[run])) is not None
        ]
        if not ratios:
            return None
        runs = "1 finished run" if len(ratios) == 1 else f"{len(ratios)} finished runs"
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        return f"{runs}: actual / estimated median {middle:.2f} ({low:.2f} to {high:.2f})"

    def _ratio(self, record: Record, expected: Estimate) -> float | None:
        if record.summary["status"] == "diverged" or device_name(record.provenance) != self.device:
            return None
        seconds: float = record.costs["seconds"]["total"]
        return seconds / (expected.seconds - self.start)

    @property
    def unknown(self) -> list[str]:
        """Runs still to be trained that cannot be estimated."""
        return [run for run in self.plan.runs if run not in self.estimates and run not in self.done]


def affordable(whole: Plan, wanted: Selection, results: Results, device: str | None = None) -> Plan:
    """The part of a plan that is wanted, within its budget if there is one.

    Raises:
        FltrainError: as ``Plan.restricted`` says, or if there is a budget and not all runs can be estimated.
    """
    if wanted.hours is None:
        return whole.restricted(wanted)
    unlimited = whole.restricted(wanted.model_copy(update={"hours": None}))
    return whole.restricted(wanted, PlanCosts.of(unlimited, results, device).remaining())


def device_name(provenance: Mapping[str, Any]) -> str:
    """What a device is called in a calibration, from what a record says about it."""
    return str(provenance.get("gpu") or provenance.get("processor") or "unknown device")


def calibration_file(results: Results) -> Path:
    """Where measurements are kept."""
    return results.root / "calibration.json"


def how_to_calibrate(scale: str) -> str:
    """The command that measures what is missing."""
    return f"fltrain plan --scale {scale} --calibrate"


def run_table(plan: Plan, estimates: Mapping[str, Estimate]) -> str:
    """The run table as CSV text, with the estimates of the runs, empty where there are none."""
    rows = [
        {
            **row,
            "estimated_seconds": f"{one.seconds:.0f}" if one else "",
            "traffic_bytes": one.traffic if one else "",
            "disk_bytes": one.disk if one else "",
        }
        for row in table_rows(plan.items)
        for one in [estimates.get(row["run"])]
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
