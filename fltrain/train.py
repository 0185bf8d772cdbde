"""From a spec to a complete record: data, partition, simulation, checkpoints, files.

A run that is stopped or killed goes on from its last checkpoint when it is started again, and its record is
the one that it would have had, byte for byte.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fltrain.data.datasets import Dataset
from fltrain.data.prepared import Partition, PreparedData, load_partition, load_prepared, partition, prepare
from fltrain.determinism import Determinism, Profile, determined
from fltrain.engine.checkpoint import Checkpoints, Interval, Progress
from fltrain.engine.local import LoopExecutor
from fltrain.engine.memory import out_of_memory
from fltrain.engine.rounds import Diverged, Simulation
from fltrain.engine.statistics import Row
from fltrain.engine.store import ClientStore
from fltrain.errors import FltrainError, MethodError, Stopped
from fltrain.files import clear_leftovers
from fltrain.methods.base import Place
from fltrain.provenance import gather, merged
from fltrain.records import Record, Results, summarise, write_record
from fltrain.spec import RunSpec
from fltrain.stopping import Stopping
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


@dataclass(frozen=True)
class Execution:
    """How runs are executed: what their numbers do not depend on.

    Attributes:
        device: that trains.
        threads: of the processor.
        recordings: where methods that record local steps keep them.
        client_memory: GiB of the device that clients' states may take; more goes into a file.
        checkpoints: when they are due.
        determinism: profile of CUDA, see ``fltrain.determinism``.
    """

    device: torch.device
    threads: int = 1
    recordings: Place = "auto"
    client_memory: float = 4.0
    checkpoints: Interval = field(default_factory=Interval)
    determinism: Profile = "exact"


def train(spec: RunSpec, results: Results, execution: Execution, quiet: bool = False) -> Record:
    """Train a run, from its last checkpoint if there is one, and write its record.

    With ``quiet`` progress goes to its log only. If another process is training the run, this one waits for
    that to end, and goes on only if there is no record then.

    Raises:
        FltrainError: if data or spec do not allow the run; there is no record then.
        MethodError: if the code of a method fails.
        Stopped: if a signal asked for it; the state is saved then.
    """
    torch.set_num_threads(execution.threads)
    stopping, record = Stopping(), results.record(spec.run_id)
    log = record.folder / "train.log"
    _log_to(log, quiet)
    with stopping.heeded(), _lease(results.lease(spec.run_id), spec.run_id, stopping) as waited:
        if waited and record.complete:
            LOG.info("%s: the other process has trained it", spec.run_id)
            return record
        clear_leftovers(record.folder)
        if not results.checkpoints(spec.run_id).exists():
            log.write_text("")
        try:
            with determined(execution.determinism, execution.device) as determinism:
                _train(spec, results, execution, determinism, stopping, quiet)
        except MethodError:
            LOG.exception("%s failed", spec.run_id)
            raise
    return Record(record.folder)


def _train(
    spec: RunSpec,
    results: Results,
    execution: Execution,
    determinism: Determinism,
    stopping: Stopping,
    quiet: bool,
) -> None:
    started = time.perf_counter()
    with stopping.interruptible():
        simulation, digests = _prepare(spec, results, execution, stopping, quiet)
    layout, folder = simulation.model.layout, results.run(spec.run_id)
    identity = {"settings or revisions": spec.canonical, "data or partition": digests}
    checkpoints = Checkpoints(results.checkpoints(spec.run_id), identity, execution.checkpoints)
    LOG.info(
        "%s: %s parameters, %s layers, on %s",
        *(spec.run_id, f"{layout.size:,}", len(layout.layers), execution.device),
    )
    progress = checkpoints.restore(simulation) or Progress([], 0.0, [])
    if simulation.finished:
        LOG.info("%s: goes on after round %d of %d", spec.run_id, simulation.finished, spec.rounds)
    here = {**gather(execution.device, execution.threads), "after_round": simulation.finished}
    progress.processes.append(here)
    started -= progress.seconds

    def save() -> bool:
        progress.seconds = time.perf_counter() - started
        here.update(determinism.facts)
        return checkpoints.save(simulation, progress)

    diverged: Row | None = None
    with _progress(spec, quiet) as report:
        try:
            for rows in simulation.run():
                progress.rows += rows
                report(simulation.finished, progress.rows)
                if simulation.finished < spec.rounds and checkpoints.due(simulation.finished):
                    save()
        except Diverged as reason:
            diverged = {"round": simulation.finished + 1, "what": str(reason)}
            LOG.warning("%s: diverged in round %d: %s is not finite", spec.run_id, diverged["round"], reason)
        except FltrainError:
            raise
        except Exception as error:
            raise _failure(spec, error, folder / "train.log") from error
        except Stopped as stopped:
            saved = simulation.finished > 0 and save()
            raise type(stopped)(_farewell(spec, stopped, simulation.finished, saved)) from None

    facts = {
        "parameters": layout.size,
        "layers": [layer.name for layer in layout.layers],
        "bytes": {"down": simulation.bytes_down, "up": simulation.bytes_up},
        "digests": digests,
    }
    summary = summarise(spec, progress.rows, diverged, facts)
    costs = _costs(simulation, time.perf_counter() - started)
    here.update(determinism.facts)
    provenance = merged(progress.processes)
    write_record(folder, spec, progress.rows, summary, costs, provenance, kept_models(simulation))
    checkpoints.remove()
    if summary["accuracy"]["final"] is not None:
        LOG.info("%s: final accuracy %.2f %%", spec.run_id, 100 * summary["accuracy"]["final"])


def _prepare(
    spec: RunSpec, results: Results, execution: Execution, stopping: Stopping, quiet: bool
) -> tuple[Simulation, dict[str, str]]:
    """The run before its first round, and the digests of its data and partition."""
    data = ensure_data(spec.dataset, results, quiet)
    if data.side < spec.model.min_side:  # not every data set's size is known before it is read
        raise FltrainError(
            f"model {spec.model.name!r} needs images of at least {spec.model.min_side} pixels, "
            f"{spec.dataset.id!r} has {data.side}; set dataset.image_size"
        )
    extra = {dataset.name: ensure_data(dataset, results, quiet) for dataset in spec.evaluation.extra}
    divided = ensure_partition(spec, data, results)
    simulation = Simulation(
        spec,
        data,
        divided,
        execution.device,
        partial(LoopExecutor, recordings=execution.recordings),
        extra,
        ClientStore(results.run(spec.run_id), int(execution.client_memory * 2**30)),
        stopping.interruptible,
    )
    return simulation, {"data": data.digest, "partition": divided.digest}


@contextmanager
def _lease(path: Path, run_id: str, stopping: Stopping) -> Iterator[bool]:
    """Hold a run for this process alone; yields whether another process held it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, waited = FileLock(path), False
    with stopping.interruptible():
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
            LOG.info("%s: another process is training it; waiting for that one to end", run_id)
            lock.acquire()
    try:
        yield waited
    finally:
        path.unlink(missing_ok=True)  # still held: whoever waits for it finds it gone, and makes a new one
        lock.release()


def _farewell(spec: RunSpec, stopped: Stopped, finished: int, saved: bool) -> str:
    where = f"{spec.run_id}: {stopped} after round {finished} of {spec.rounds}"
    if saved:
        return f"{where}; its state is saved, start it again to go on from there"
    return f"{where}; start it again to go on from its last checkpoint, if there is one, or to begin anew"


def _failure(spec: RunSpec, error: Exception, log: Path) -> FltrainError:
    where = ", ".join(reversed(getattr(error, "__notes__", [])))
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if out_of_memory(error):
        return FltrainError(
            f"{spec.run_id}: out of memory {where} ({said}); let fewer runs share the device, keep what "
            "clients have on the host (--client-memory 0 --recordings host), or take a larger device"
        )
    return MethodError(f"{spec.run_id}: {said} ({where}); {log} has the traceback")


def _costs(simulation: Simulation, total: float) -> dict[str, Any]:
    """What the run has cost, in all processes; the work between a checkpoint and a kill is not known."""
    costs, device = simulation.costs, simulation.device
    training = costs.seconds["train"]
    return {
        "seconds": {**costs.seconds, "total": total},
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
        with Bar(*columns, TextColumn("{task.fields[accuracy]}"), console=console) as bar:
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
    logging.raiseExceptions = False  # a disk that is full shall not fill the terminal with tracebacks
    # Appending, as a shell may write errors to the same file, and another process that trains the run does.
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
