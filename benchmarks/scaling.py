"""How time and memory of a round grow: with clients, their local steps, the network, the clients in all.

For FedAvg, and for SCAFFOLD, of which every client keeps a vector as long as the weights; what clients keep
is there for all of them, as after many rounds, and lies in a file beyond a limit. Images are random bytes, 20
for each client, in batches of 10. The points of a curve take turns round by round. Times are processor
seconds on one thread, or seconds on the clock on a GPU. Memory is what a process of its own takes at most in
three rounds beyond what it has once everything is imported; on a GPU, what PyTorch has taken there at most.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fltrain.bench import Bench, Counting
from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.engine.client_store import ClientStore
from fltrain.engine.executors.choose import EXECUTORS
from fltrain.engine.executors.loop import LoopExecutor
from fltrain.engine.simulation import Simulation
from fltrain.engine.synthetic import rehearsal
from fltrain.runs.spec import RunSpec
from fltrain.runtime.determinism import determined
from fltrain.runtime.devices import pick_device
from fltrain.runtime.process import compute_as_runs

METHODS = ("fedavg", "scaffold")
IMAGES, BATCH = 20, 10
NEVER = 10**6
ROUNDS_FOR_MEMORY = 3
LIMIT_MB = 128
"""Megabytes that what clients keep may take before it goes into a file; in runs it is 4 GiB."""


@dataclass(frozen=True)
class Setting:
    """A federation and its rounds."""

    model: str = "lenet5"
    dataset: str = "mnist"
    clients: int = 100
    per_round: int = 10
    epochs: int = 5

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * IMAGES // BATCH

    def spec(self, method: str) -> RunSpec:
        """A run in which nothing is tested."""
        settings = {
            "dataset": self.dataset,
            "partition": {"name": "iid", "clients": self.clients},
            "model": self.model,
            "method": method,
            "training": {"epochs": self.epochs, "batch_size": BATCH, "lr": 0.001},
            "participation": {"fraction": self.per_round / self.clients},
            "rounds": NEVER,
            "evaluation": {"every": NEVER},
        }
        return RunSpec.parse(settings, "benchmark")

    def simulation(self, method: str, where: Where) -> Simulation:
        """The federation as after many rounds: all clients have taken part."""
        simulation = rehearsal(self.spec(method), IMAGES, 1, where.device, EXECUTORS[where.executor])
        simulation.clients = ClientStore(where.folder, LIMIT_MB * 10**6)
        for client in range(self.clients):
            control = {"control": torch.zeros_like(simulation.server.weights)}
            simulation.clients[client] = {method: control if method == "scaffold" else {}}
        return simulation


@dataclass(frozen=True)
class Where:
    """Where federations are: device, who trains there, and the folder of what clients keep."""

    device: torch.device
    executor: str
    folder: Path

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute there, on one thread, as runs do."""
        compute_as_runs()
        with determined("exact", self.device):
            yield


@dataclass(frozen=True)
class Curve:
    """What grows: an attribute of a setting, with its values.

    ``title`` and ``axis`` are what the figure calls it.
    """

    name: str
    values: Sequence[int | str]
    title: str
    axis: str
    base: Setting = Setting()

    @property
    def settings(self) -> list[Setting]:
        """The points."""
        changes: list[dict[str, Any]] = [{self.name: value} for value in self.values]
        return [replace(self.base, **change) for change in changes]


CURVES = {
    curve.name: curve
    for curve in (
        Curve("per_round", (5, 10, 20, 50, 100), "Clients of a round", "clients of a round, of 100"),
        Curve("epochs", (1, 2, 5, 10, 25), "Local steps", "local steps of a client"),
        Curve(
            "model",
            ("mlp", "lenet5", "fedavg_cnn", "mobilenetv2", "ecgr_cnn", "resnet18"),
            "Network",
            "GFLOP of a local step",
            Setting(dataset="cifar10", clients=10, per_round=2, epochs=2),
        ),
        Curve("clients", (100, 1_000, 10_000), "Clients in all", "clients in all, 10 of them in a round"),
    )
}


@dataclass(frozen=True)
class Memory:
    """Megabytes that a process has taken for a federation at most, and what for.

    Attributes:
        peak: in all.
        images: of all clients' images.
        kept: of what all clients keep between rounds.
        in_file: whether that lies in a file.
    """

    peak: float
    images: float
    kept: float
    in_file: bool


@dataclass
class Point:
    """What was measured of a setting with a method.

    Attributes:
        parameters: of the network.
        gflop: floating-point operations of a local step, in billions.
        seconds: of each timed round.
    """

    curve: Curve
    setting: Setting
    method: str
    parameters: int
    gflop: float
    memory: Memory
    seconds: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Local steps of all clients in a round."""
        return self.setting.per_round * self.setting.steps

    @property
    def step_ms(self) -> float:
        """Milliseconds of a round for each of its local steps."""
        return 1e3 * statistics.median(self.seconds) / self.steps

    @property
    def size(self) -> float:
        """Where it is on the axis of its curve."""
        sizes = {"epochs": self.setting.steps, "model": self.gflop}
        return float(sizes.get(self.curve.name, getattr(self.setting, self.curve.name)))


def measure(curve: Curve, where: Where, repeats: int) -> list[Point]:
    """Measure a curve: memory of one point after the other, then the times of all in turns."""
    timed: list[tuple[Point, Simulation]] = []
    for method in METHODS:
        for setting in curve.settings:
            memory = in_own_process(setting, method, where)
            simulation = setting.simulation(method, where)
            size = simulation.model.layout.size
            point = Point(curve, setting, method, size, counted_gflop(setting, where.device), memory)
            timed.append((point, simulation))
    # What it times with; its other settings do not matter.
    bench = Bench(["lenet5"], ["mnist"], METHODS, [where.executor], where.device)
    for number in range(1 + repeats):
        first = number % len(timed)
        for point, simulation in timed[first:] + timed[:first]:
            seconds = bench.seconds(partial(simulation.round, number))
            if number:  # the first one warms up
                point.seconds.append(seconds)
    return [point for point, _ in timed]


def counted_gflop(setting: Setting, device: torch.device) -> float:
    """Operations of a local step of federated averaging, counted by PyTorch, in billions."""
    alone = replace(setting, clients=1, per_round=1, epochs=1)
    simulation = rehearsal(alone.spec("fedavg"), IMAGES, 1, device, Counting)
    simulation.round(0)
    counted = simulation.executor
    assert isinstance(counted, Counting)
    return counted.flops / counted.steps / 1e9


def in_own_process(setting: Setting, method: str, where: Where) -> Memory:
    """Memory of a few rounds, in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(memory_of, setting, method, where).result()


def memory_of(setting: Setting, method: str, where: Where) -> Memory:
    """Memory that this process takes for a few rounds, beyond what it has already."""
    with where.used():
        before = now_mb(where.device)
        simulation = setting.simulation(method, where)
        for number in range(ROUNDS_FOR_MEMORY):
            simulation.round(number)
        peak = peak_mb(where.device) - before
    store, images = simulation.clients, simulation.data.train.images
    return Memory(peak, images.nbytes / 1e6, store.bytes / 1e6, store.spilled)


def now_mb(device: torch.device) -> float:
    """Megabytes that this process has now, or PyTorch on a GPU."""
    return torch.cuda.memory_allocated(device) / 1e6 if device.type == "cuda" else status_mb("VmRSS")


def peak_mb(device: torch.device) -> float:
    """Most megabytes that it has had."""
    return torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else status_mb("VmHWM")


def status_mb(name: str) -> float:
    """A line of what Linux says of this process.

    Not ``getrusage``, whose maximum a new process inherits from the one that has started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024 / 1e6


# ---------------------------------------------------------------- what is shown
def power(points: Sequence[Point]) -> float:
    """The exponent k for which the time of a round grows as size ** k: the slope between logarithms."""
    sizes, seconds = ([p.size for p in points], [statistics.median(p.seconds) for p in points])
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def table(curve: Curve, points: Sequence[Point]) -> Iterator[str]:
    """Lines of a Markdown table: medians, with quartiles of the ratio to the method's first point."""
    columns = [curve.title.lower(), "method", "parameters", "GFLOP/step", "s/round", "ms/step"]
    columns += ["of the first", "GFLOP/s", "memory, MB", "images, MB", "kept, MB", "in a file"]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)
    for method in METHODS:
        own = [point for point in points if point.method == method]
        for point in own:
            memory, label = point.memory, getattr(point.setting, curve.name)
            values = [
                str(point.setting.steps if curve.name == "epochs" else label),
                method,
                f"{point.parameters:,}",
                f"{point.gflop:.4f}",
                f"{statistics.median(point.seconds):.3f}",
                f"{point.step_ms:.2f}",
                of_first(point, own[0]),
                f"{1e3 * point.gflop / point.step_ms:.1f}",
                f"{memory.peak:,.0f}",
                f"{memory.images:,.1f}",
                f"{memory.kept:,.0f}",
                "yes" if memory.in_file else "no",
            ]
            yield "| " + " | ".join(values) + " |"
    for method in METHODS:
        grown = power([point for point in points if point.method == method])
        yield f"{method}: the time of a round grows as (x) ** {grown:.2f}, x: {curve.axis}"


def of_first(point: Point, first: Point) -> str:
    """Time of a step over that of the curve's first point, in the same turn; median and quartiles."""
    steps = point.steps / first.steps
    ratios = [mine / theirs / steps for mine, theirs in zip(point.seconds, first.seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def draw(measured: Mapping[str, Sequence[Point]], where: Where, path: Path) -> None:
    """Draw times and memory along each curve."""
    import matplotlib

    from fltrain.reporting.figures import style

    with matplotlib.rc_context(style.STYLE):
        canvas, panels = style.canvas(2, len(measured), height=46)
        for (name, points), (times, memory) in zip(measured.items(), panels, strict=True):
            title = CURVES[name].title
            times.set_title(f"{title}: ms for each local step", loc="left")
            memory.set_title(f"{title}: memory, MB", loc="left")
            (draw_networks if name == "model" else draw_curve)(points, times, memory)
        style.legend(canvas, [axes for both in panels for axes in both])
        kind = "one thread" if where.device.type == "cpu" else where.device.type
        style.footnote(canvas, f"Executor {where.executor}, {kind}, batches of {BATCH}; medians of rounds.")
        with replacing(path) as temporary:
            canvas.savefig(temporary, format=path.suffix[1:], dpi=140)


def draw_curve(points: Sequence[Point], times: Any, memory: Any) -> None:
    """Draw lines from zero, and what of the memory is images."""
    from fltrain.reporting.figures import style

    ticks = sorted({point.size for point in points})
    for method in METHODS:
        own, look = [point for point in points if point.method == method], style.PLACES[method]
        lines = {times: [one.step_ms for one in own], memory: [one.memory.peak for one in own]}
        for axes, values in lines.items():
            axes.plot(ticks, values, color=look.colour, marker=look.marker, label=method)
    images = [point.memory.images for point in points[: len(ticks)]]
    memory.plot(ticks, images, color=style.GREY, linestyle=style.DOTTED, label="images of all clients")
    for axes in (times, memory):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(points[0].curve.axis)
        axes.set_ylim(0, 1.2 * axes.dataLim.y1)


def draw_networks(points: Sequence[Point], times: Any, memory: Any) -> None:
    """Draw points with names: times beside operations, memory beside parameters."""
    from fltrain.reporting.figures import style

    gflop = {point.setting.model: point.gflop for point in points}
    for place, name in enumerate(sorted(gflop, key=gflop.__getitem__)):
        own = [point for point in points if point.setting.model == name]
        values = {
            times: [(one.gflop, one.step_ms) for one in own],
            memory: [(one.parameters / 1e6, one.memory.peak) for one in own],
        }
        for axes, found in values.items():
            for point, (size, value) in zip(own, found, strict=True):
                look = style.PLACES[point.method]
                axes.plot(size, value, look.marker, color=look.colour)
            # By turns above on the left and below on the right, or neighbours would overlap.
            spot, shift, side = (max(found), (-5, 4), "right") if place % 2 else (min(found), (5, -9), "left")
            offset = {"xytext": shift, "textcoords": "offset points", "ha": side}
            axes.annotate(name, spot, fontsize=style.SMALL, **offset)
    for axes in (times, memory):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(0.4, 0.25)
    largest = max(points, key=lambda one: one.gflop)
    ends = [min(one.gflop for one in points), largest.gflop]
    rate = largest.step_ms / largest.gflop
    label = "speed of the largest"
    times.plot(ends, [rate * end for end in ends], color=style.GREY, linestyle=style.DASHED, label=label)
    times.set_xlabel(points[0].curve.axis)
    memory.set_xlabel("million parameters")


def write(measured: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Keep every timed round."""
    columns = ["curve", "method", *(one.name for one in fields(Setting)), "steps", "parameters", "gflop"]
    columns += [*(one.name for one in fields(Memory)), "repeat", "seconds"]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for name, points in measured.items():
            for point in points:
                facts = {**asdict(point.setting), **asdict(point.memory), "parameters": point.parameters}
                facts |= {"curve": name, "method": point.method, "steps": point.steps, "gflop": point.gflop}
                for repeat, seconds in enumerate(point.seconds):
                    writer.writerow({**facts, "repeat": repeat, "seconds": seconds})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of each point, 2 or more")
    parser.add_argument("--executor", choices=EXECUTORS, default=LoopExecutor.name)
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--folder", type=Path, default=Path("results"), help="for what clients keep: on a disk"
    )
    parser.add_argument("--csv", type=Path, help="keep every timed round in this file")
    parser.add_argument("--figure", type=Path, help="draw the curves into this file (.png, .webp, .svg)")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: 2 or more, as quartiles are shown")
    try:
        where = Where(pick_device(options.device), options.executor, options.folder)
    except FltrainError as error:
        sys.exit(f"error: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[Point]] = {}
    with where.used():
        for name in options.curves:
            curve = CURVES[name]
            print(f"\n{curve.title}\n", flush=True)
            measured[name] = measure(curve, where, options.repeats)
            print("\n".join(table(curve, measured[name])), flush=True)
            if options.csv:
                write(measured, options.csv)
    if options.figure:
        draw(measured, where, options.figure)


if __name__ == "__main__":
    main()
