"""Training of a run: data, partition, simulation, checkpoints, record.

A run that was stopped or killed resumes from its last checkpoint at the next start. Its record equals the
record of an uninterrupted run, byte for byte.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from fltrain.core.errors import FltrainError, MethodError, Stopped, as_mistake, count, noting, own_place
from fltrain.core.files import clear_leftovers
from fltrain.data.datasets import Dataset
from fltrain.data.prepared import PreparedData, load_or_prepare, stored_partition
from fltrain.engine.checkpoint import Checkpoints, Progress
from fltrain.engine.cuda_graph import CapturedTraining
from fltrain.engine.local import LocalTraining
from fltrain.engine.simulation import Diverged, Simulation
from fltrain.engine.statistics import Row
from fltrain.engine.workers import prepare
from fltrain.runs.record import Record, Results, checkpoint_files, leased, on_split, summarise, write_record
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import outside_files, source_digests
from fltrain.runtime.determinism import Determinism, Profile, determined
from fltrain.runtime.process import compute_as_runs, forget_peaks, out_of_memory, peak_memory
from fltrain.runtime.provenance import changes, gather, merged
from fltrain.runtime.signals import Stopping

LOG = logging.getLogger("fltrain")
LOG_EVERY_SECONDS = 15.0


@dataclass(frozen=True)
class Execution:
    """Settings of the execution, which do not change the numbers of a run.

    Attributes:
        device: device of the run.
        threads: CPU threads.
        checkpoint_seconds: time between checkpoints; 0 saves one after every round.
        determinism: profile of CUDA, see ``fltrain.runtime.determinism``.
        cuda_graph: capture local steps as CUDA graphs, see ``fltrain.engine.cuda_graph``.
        workers: processes that divide the clients of each round on the CPU, see ``fltrain.engine.workers``.
    """

    device: torch.device
    threads: int = 1
    checkpoint_seconds: float = 120.0
    determinism: Profile = "exact"
    cuda_graph: bool = False
    workers: int = 1


def train(
    spec: RunSpec,
    results: Results,
    execution: Execution,
    *,
    again: bool = False,
    quiet: bool = False,
    stopping: Stopping | None = None,
) -> Record:
    """Train a run, from its last checkpoint if there is one, and write its record.

    If another process trains the run, wait until it has ended.

    Args:
        spec: the run.
        results: the results folder, for the record, data and partitions.
        execution: settings of the execution.
        again: train the run even if it has a record.
        quiet: write progress to the log file only.
        stopping: handler of signals (default: none are handled).

    Raises:
        FltrainError: if data or spec do not allow the run; it leaves no record.
        MethodError: if the code of a method fails.
        Stopped: after a signal; the state is saved.
    """
    prepare(execution.workers, execution.device, execution.threads)
    results.create()
    tf32 = spec.precision == "tf32"
    with (
        compute_as_runs(execution.threads),
        _logging_to(results.run(spec.run_id) / "train.log", quiet),
        determined(execution.determinism, execution.device, tf32) as determinism,
    ):
        training = _Training(spec, results, execution, determinism, stopping or Stopping())
        return training.record_of_run(again)


@dataclass
class _Training:
    """Training of a run by this process."""

    spec: RunSpec
    results: Results
    execution: Execution
    determinism: Determinism
    stopping: Stopping

    def record_of_run(self, again: bool) -> Record:
        """Train the run and return its record, or the one that another process has written."""
        run, record = self.spec.run_id, self.results.record(self.spec.run_id)
        before = record.written if record.complete and again else None
        try:
            with leased(self.results.lease(run), self._wait):
                if record.complete and self._is_done(record, before):
                    return record
                clear_leftovers(record.folder)
                if not self.results.saved_rounds(run):
                    (record.folder / "train.log").write_text("")
                forget_peaks(self.execution.device)
                self._train()
        except Exception as error:
            LOG.error("failed: %s", failure := as_mistake(error), exc_info=failure.__cause__)
            raise
        except Stopped as stopped:
            option, saved = " with --again" * record.complete, self.results.saved_rounds(run)
            start = (
                f"resumes after round {saved}" if saved else "begins with round 1, because no round is saved"
            )
            raise type(stopped)(f"{run}: {stopped}; the next start{option} {start}") from None
        return Record(record.folder)

    def _is_done(self, record: Record, before: float | None) -> bool:
        """Return True unless the record of time ``before`` is to be replaced; delete unneeded checkpoints."""
        record.check_settings(self.spec)
        done = record.written != before  # with `again`: another process trained it while this one waited
        folder = self.results.checkpoints(self.spec.run_id)
        paths = checkpoint_files(folder)
        # With `again`, later checkpoints belong to a training that was interrupted.
        if done or all(path.stat().st_mtime <= record.written for path in paths):
            shutil.rmtree(folder, ignore_errors=True)
        if done:
            cause = "has a record; its checkpoints are deleted" if paths else "another process has trained it"
            LOG.info("%s: %s", self.spec.run_id, cause)
        return done

    def _train(self) -> None:
        """Train the remaining rounds, and write the record."""
        started, spec, execution = time.perf_counter(), self.spec, self.execution
        with self.stopping.interruptible():
            simulation, digests, identity = self._prepared()
        layout = simulation.model.layout
        checkpoints = Checkpoints(
            self.results.checkpoints(spec.run_id), identity, execution.checkpoint_seconds
        )
        cohort = spec.participation.in_words(spec.partition.clients)
        size = f"{layout.size:,} parameters, {count(len(layout.layers), 'layer')}, {cohort}"
        LOG.info("%s: %s, on %s", spec.run_id, size, execution.device)
        progress = checkpoints.restore(simulation) or Progress([], 0.0, [])
        facts = gather(execution.device, execution.threads, outside_files(spec))
        facts |= {"sources": source_digests(spec), "after_round": simulation.finished}
        if simulation.finished:
            LOG.info("%s: resumed after round %d of %d", spec.run_id, simulation.finished, spec.rounds)
            if differences := changes(progress.processes[-1], facts):
                LOG.warning("%s: not bitwise: changed since then: %s", spec.run_id, "; ".join(differences))
        progress.processes.append(facts)
        started -= progress.seconds

        def account() -> Progress:
            """Update the wall time and the determinism of this process."""
            progress.seconds = time.perf_counter() - started
            facts.update(self.determinism.facts, executor=simulation.trainer.name, workers=execution.workers)
            return progress

        diverged = self._rounds(simulation, checkpoints, progress.rows, account)
        about = {
            "parameters": layout.size,
            "layers": [layer.name for layer in layout.layers],
            "bytes": {"down": simulation.bytes_down, "up": simulation.bytes_up},
            "digests": digests,
        }
        summary = summarise(spec, progress.rows, diverged, about)
        costs, provenance = _costs(simulation, account().seconds), merged(progress.processes)
        models = kept_models(simulation)
        write_record(self.results.run(spec.run_id), spec, progress.rows, summary, costs, provenance, models)
        shutil.rmtree(checkpoints.folder, ignore_errors=True)
        if summary["accuracy"]["final"] is not None:
            LOG.info("%s: final accuracy %.2f %%", spec.run_id, 100 * summary["accuracy"]["final"])

    def _rounds(
        self,
        simulation: Simulation,
        checkpoints: Checkpoints,
        rows: list[Row],
        account: Callable[[], Progress],
    ) -> Row | None:
        """Train the remaining rounds, with checkpoints, and add their rows; return the divergence, if any."""
        spec, until, logged = self.spec, self.spec.evaluation.until, time.monotonic()
        accuracies = [row["accuracy"] for row in on_split(spec.test_split, rows)]
        try:
            with self._described():
                for finished in simulation.run():
                    rows += finished
                    accuracies += [row["accuracy"] for row in on_split(spec.test_split, finished)]
                    if time.monotonic() - logged >= LOG_EVERY_SECONDS or simulation.finished == spec.rounds:
                        logged = time.monotonic()
                        accuracy = f", accuracy {100 * accuracies[-1]:.2f} %" if accuracies else ""
                        progress = f"round {simulation.finished} of {spec.rounds}{accuracy}"
                        LOG.info("%s: %s", spec.run_id, progress)
                    if until is not None and max(accuracies, default=0) >= until:
                        return None
                    if simulation.finished < spec.rounds and checkpoints.due():
                        checkpoints.save(simulation, account())
        except Diverged as reason:
            diverged = {"round": simulation.finished + 1, "what": str(reason)}
            LOG.warning("%s: diverged in round %d: %s is not finite", spec.run_id, diverged["round"], reason)
            return diverged
        except Stopped as stopped:
            if simulation.finished:
                checkpoints.save(simulation, account())
            raise type(stopped)(f"{stopped} after round {simulation.finished} of {spec.rounds}") from None
        return None

    def _prepared(self) -> tuple[Simulation, dict[str, str], dict[str, Any]]:
        """Return the run before its first round, digests of its data, and the checkpoint's identity."""
        spec, results, execution = self.spec, self.results, self.execution

        def prepared(dataset: Dataset) -> PreparedData:
            return load_or_prepare(dataset, results.data(dataset), results.downloads)

        data = prepared(spec.dataset)
        if data.side < spec.model.min_side:  # the size of some datasets is only known now
            raise FltrainError(
                f"model {spec.model.name!r} needs images of at least {spec.model.min_side} pixels, "
                f"{spec.dataset.id!r} has {data.side}; set dataset.image_size"
            )
        extra = {dataset.name: prepared(dataset) for dataset in spec.evaluation.extra}
        divided = stored_partition(spec.division, data, results.partition(spec.partition_id))
        trainer = partial(
            CapturedTraining if execution.cuda_graph else LocalTraining,
            workers=execution.workers,
            poll=self.stopping.poll,
        )
        with self._described(), noting("before round 1"):
            simulation = Simulation(spec, data, divided, execution.device, trainer, extra)
        digests = {"data": data.digest, "partition": divided.digest}
        others = {name: more.digest for name, more in extra.items()}
        identity = {"settings or revisions": spec.canonical, "data or partition": [digests, others]}
        return simulation, digests, identity

    def _wait(self, lock: FileLock) -> None:
        """Take the lock of the run; wait while another process holds it."""
        with self.stopping.interruptible():
            try:
                lock.acquire(timeout=1)  # longer than `held` shares it
            except Timeout:
                LOG.info("%s: another process is training it; waiting for that one to end", self.spec.run_id)
                lock.acquire()

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Turn an exception of the enclosed code into one line: out of memory, or a fault of a method."""
        try:
            yield
        except (FltrainError, Diverged):
            raise
        except Exception as error:
            where, run = ", ".join(reversed(getattr(error, "__notes__", []))), self.spec.run_id
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if out_of_memory(error):
                raise FltrainError(
                    f"{run}: out of memory {where} ({message}); let fewer runs share the device, or take a "
                    "larger device"
                ) from error
            log = self.results.run(run) / "train.log"
            remedy = f"{log} has the traceback{own_place(error)}"
            raise MethodError(f"{run}: {message} ({where}); {remedy}") from error


def _costs(simulation: Simulation, total: float) -> dict[str, Any]:
    """Return the costs of all processes of a run, without the work between a checkpoint and a kill."""
    costs, device = simulation.costs, simulation.device
    training, cuda = costs.seconds["train"], device.type == "cuda"
    return {
        "seconds": {**costs.seconds, "total": total},
        "round_seconds": costs.round_seconds,
        "samples": costs.samples,
        "samples_per_second": costs.samples / training if training else None,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
    }


@contextmanager
def _logging_to(path: Path, quiet: bool) -> Iterator[None]:
    """Write messages to a file and, unless ``quiet``, to the terminal; errors go to the file only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Append: the shell and another process that trains the run may write to the same file.
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
    if not quiet:
        handlers.append(logging.StreamHandler())
        handlers[-1].addFilter(lambda message: message.levelno < logging.ERROR)
    level, raising = LOG.level, logging.raiseExceptions
    LOG.setLevel(logging.INFO)
    logging.raiseExceptions = False  # no tracebacks when the disk is full
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.setLevel(level)
        logging.raiseExceptions = raising
        for handler in handlers:
            LOG.removeHandler(handler)
            with suppress(OSError):  # the disk is full
                handler.close()


def kept_models(simulation: Simulation) -> dict[str, NDArray[Any]] | None:
    """Return the models that the spec asks to keep in the record; None if it keeps none.

    ``weights`` ``[P]``, ``buffers`` ``[B]`` and ``counters`` of the global model. With ``keep: clients`` also
    the last cohort, ``clients`` ``[m]``, and its models after local training: ``client_weights`` ``[m, P]``
    and ``client_buffers``.
    """
    server = simulation.server
    if simulation.spec.evaluation.keep == "nothing":
        return None
    tensors = {"weights": server.weights, "buffers": server.buffers, "counters": server.counters}
    tensors |= simulation.last_models  # empty unless the spec keeps `clients`, or if the first round diverged
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
