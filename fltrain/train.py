"""From a spec to a complete record: data, partition, simulation, files."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fltrain.data.datasets import Dataset
from fltrain.data.prepared import Partition, PreparedData, load_partition, load_prepared, partition, prepare
from fltrain.engine.local import LoopExecutor
from fltrain.engine.rounds import Diverged, Simulation
from fltrain.engine.statistics import Row
from fltrain.engine.store import ClientStore
from fltrain.errors import FltrainError
from fltrain.methods.base import Place
from fltrain.provenance import gather
from fltrain.records import Record, Results, summarise, write_record
from fltrain.spec import RunSpec
from fltrain.trained import kept_models

LOG = logging.getLogger("fltrain")
LOG_EVERY_SECONDS = 15.0


def pick_device(name: str) -> torch.device:
    """Return the device called ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        FltrainError: if there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise FltrainError(f"--device: {name!r} is not known; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise FltrainError(
                f"--device: {name!r} asked for, but this machine has {count} CUDA devices; use cpu or auto"
            )
        torch.cuda.set_device(device)
    return device


def ensure_data(dataset: Dataset, results: Results, quiet: bool = False) -> PreparedData:
    """Read a prepared data set, after getting and preparing it if it is not there."""
    path = results.data(dataset)
    if path.exists():
        return load_prepared(dataset, path)
    return prepare(dataset, path, results.downloads, quiet)


def ensure_partition(spec: RunSpec, data: PreparedData, results: Results) -> Partition:
    """Read the run's partition, after making it if it is not there."""
    path = results.partition(spec)
    make = load_partition if path.exists() else partition
    return make(spec.partition, spec.local_test, data, spec.seed, path)


def train(
    spec: RunSpec,
    results: Results,
    device: torch.device,
    threads: int,
    quiet: bool = False,
    recordings: Place = "auto",
    client_memory: float = 4.0,
) -> Record:
    """Train a run and write its record; with ``quiet`` progress goes to its log only.

    What clients keep between rounds goes into a file when it takes more than ``client_memory`` GiB of the
    device's memory.

    Raises:
        FltrainError: if data or spec do not allow the run; there is no record then.
    """
    torch.set_num_threads(threads)
    started = time.perf_counter()
    data = ensure_data(spec.dataset, results, quiet)
    if data.side < spec.model.min_side:  # not every data set's size is known before it is read
        raise FltrainError(
            f"model {spec.model.name!r} needs images of at least {spec.model.min_side} pixels, "
            f"{spec.dataset.id!r} has {data.side}; set dataset.image_size"
        )
    extra = {dataset.name: ensure_data(dataset, results, quiet) for dataset in spec.evaluation.extra}
    divided = ensure_partition(spec, data, results)
    executor = partial(LoopExecutor, recordings=recordings)
    folder = results.run(spec.run_id)
    store = ClientStore(folder, int(client_memory * 2**30))
    simulation = Simulation(spec, data, divided, device, executor, extra, store)
    layout = simulation.model.layout
    _log_to(folder / "train.log", quiet)
    LOG.info(
        "%s: %s parameters, %s layers, on %s", spec.run_id, f"{layout.size:,}", len(layout.layers), device
    )

    rows: list[Row] = []
    diverged: Row | None = None
    with _progress(spec, quiet) as report:
        try:
            for finished in simulation.run():
                rows += finished
                report(rows[-1]["round"], rows)
        except Diverged as reason:
            diverged = {"round": rows[-1]["round"] + 1 if rows else 1, "what": str(reason)}
            LOG.warning("%s: diverged in round %d: %s is not finite", spec.run_id, diverged["round"], reason)

    facts = {
        "parameters": layout.size,
        "layers": [layer.name for layer in layout.layers],
        "bytes": {"down": simulation.bytes_down, "up": simulation.bytes_up},
        "digests": {"data": data.digest, "partition": divided.digest},
    }
    summary = summarise(spec, rows, diverged, facts)
    costs, provenance = _costs(simulation, started), gather(device, threads)
    write_record(folder, spec, rows, summary, costs, provenance, kept_models(simulation))
    if summary["accuracy"]["final"] is not None:
        LOG.info("%s: final accuracy %.2f %%", spec.run_id, 100 * summary["accuracy"]["final"])
    return Record(folder)


def _costs(simulation: Simulation, started: float) -> dict[str, Any]:
    costs, device = simulation.costs, simulation.device
    training = costs.seconds["train"]
    return {
        "seconds": {**costs.seconds, "total": time.perf_counter() - started},
        "round_seconds": costs.round_seconds,
        "samples": costs.samples,
        "samples_per_second": costs.samples / training if training else None,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_memory_bytes": torch.cuda.max_memory_allocated(device)
        if device.type == "cuda"
        else None,
    }


@contextmanager
def _progress(spec: RunSpec, quiet: bool) -> Iterator[Any]:
    """Show progress: a bar on a terminal, elsewhere a plain line now and then.

    Yields a function to be called with the number of finished rounds and all rows so far.
    """
    console = Console(stderr=True)

    def latest(rows: list[Row]) -> str:
        tests = (row for row in reversed(rows) if row.get("split") == spec.test_split)
        accuracy = next((row["accuracy"] for row in tests), None)
        return "" if accuracy is None else f"accuracy {100 * accuracy:.2f} %"

    if console.is_terminal and not quiet:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[accuracy]}"), console=console) as bar:
            task = bar.add_task(spec.run_id, total=spec.rounds, accuracy="")
            yield lambda done, rows: bar.update(task, completed=done, accuracy=latest(rows))
        return

    last = time.monotonic()

    def line(done: int, rows: list[Row]) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY_SECONDS or done == spec.rounds:
            last = time.monotonic()
            LOG.info("%s: round %d of %d, %s", spec.run_id, done, spec.rounds, latest(rows))

    yield line


def _log_to(path: Path, quiet: bool) -> None:
    """Write messages to a file, and to the terminal unless ``quiet``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Appending, so that a shell may write errors to the same file.
    path.write_text("")
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
    if not quiet:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=handlers,
        force=True,
    )
