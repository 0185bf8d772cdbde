"""Record of a run: its files, the source of tables, figures and the MLflow export. No torch.

``<results>/runs/<run id>/`` holds

* ``spec.json``        all settings with the revisions of their components;
* ``metrics.jsonl``    one row per evaluation or statistic: ``round`` (counted from 1), ``kind``, values;
* ``summary.json``     format of the record, status, accuracies, traffic, digests;
* ``costs.json``       seconds by phase, throughput, peak memory;
* ``provenance.json``  code, packages and machine;
* ``train.log``        log of the training;
* ``models.safetensors``  the final model, if the spec requests it (see ``fltrain.analysis.trained_model``).

Two executions of a run on the same kind of machine write the first three files byte for byte equal. The other
files differ between executions.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic_core import from_json

from fltrain.core.config import similar
from fltrain.core.errors import FltrainError
from fltrain.core.files import digest as digest_of
from fltrain.core.files import flush, json_text, read_arrays, replacing, save_arrays
from fltrain.core.floats import average
from fltrain.core.hashing import canonical_json, sha256, short_hash
from fltrain.core.own import own_remedy
from fltrain.core.shell import command
from fltrain.data.datasets import Dataset
from fltrain.runs.spec import RunSpec

Row = dict[str, Any]

RECORD_FORMAT = 1
"""Version of the record files. Increase it when older versions of fltrain would misread new records."""

BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that reading damaged files can raise."""

RECORD_FILES = ("spec.json", "metrics.jsonl", "summary.json", "costs.json", "provenance.json")
"""The files of a complete record."""

_OBJECTS = ("summary.json", "costs.json", "provenance.json")  # they hold their own digests

MODELS_FILE = "models.safetensors"
"""File of the final weights, in records whose spec requests them."""

_REMEDY = "restore the file or retrain the run"


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, latest first."""
    return sorted(folder.glob(f"round-{6 * '[0-9]'}.safetensors"), reverse=True)


def checkpoint_file(folder: Path, finished: int) -> Path:
    """Return the path of the checkpoint after ``finished`` rounds."""
    return folder / f"round-{finished:06d}.safetensors"


def reason(error: Exception) -> str:
    """Describe one of ``BROKEN``, or an error of the system, in one line."""
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name}: {error.strerror}"
    text = str(error) if isinstance(error, ValueError) else f"its files do not fit together ({error!r})"
    return " ".join(text.split())


def unknown_remedy() -> str:
    """Return the remedy for a record with a component that the code lacks."""
    return f"{own_remedy()}; if a notebook or script defines it, register it first (fltrain.register)"


@contextmanager
def _damage_named(where: str) -> Iterator[None]:
    """Turn errors of damaged files into one line that begins with ``where`` and ends with the remedy."""
    try:
        yield
    except FltrainError as error:  # with a remedy
        raise FltrainError(f"{where}{error}") from None
    except (*BROKEN, OSError) as error:
        raise FltrainError(f"{where}{reason(error)}; {_REMEDY}") from None


@dataclass(frozen=True)
class Results:
    """Layout of the results folder: paths of all files that runs read and write."""

    root: Path

    @property
    def missing(self) -> str:
        """Problem, and the nearest name or the current folder, if there is no such folder; else empty."""
        note = "" if self.root.is_absolute() else f"; you are in {Path.cwd()}"
        problem = "not a folder" if self.root.exists() else f"no such folder{similar(self.root) or note}"
        return "" if self.root.is_dir() else f"{self.root}: {problem}"

    def existing(self) -> Results:
        """Return this folder; refuse it if it does not exist."""
        if self.missing:
            raise FltrainError(
                f"{self.missing}; name your folder with --results, or make 'results' with `make quick`"
            )
        return self

    @property
    def downloads(self) -> Path:
        """Folder of downloaded raw files."""
        return self.root / "downloads"

    def data(self, dataset: Dataset) -> Path:
        """Path of a prepared dataset."""
        return self.root / "data" / f"{dataset.id}.safetensors"

    def partition(self, partition_id: str) -> Path:
        """Path of a partition."""
        return self.root / "partitions" / f"{partition_id}.safetensors"

    @property
    def runs(self) -> Path:
        """Folder of all records."""
        return self.root / "runs"

    def create(self) -> None:
        """Create the folder of all records; Git ignores a new results folder."""
        is_new = not self.root.exists()
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            if is_new:
                (self.root / ".gitignore").write_text("*\n")
            if not os.access(self.runs, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "no permission to write")
        except OSError as error:
            raise FltrainError(
                f"results folder {self.root} cannot be written ({error.strerror or error}); choose another"
            ) from None

    def run(self, run_id: str) -> Path:
        """Folder of a run's record."""
        return self.runs / run_id

    def record(self, run_id: str) -> Record:
        """Record of a run, complete or not."""
        return Record(self.run(run_id))

    def trained(self, spec: RunSpec, again: str) -> Record | None:
        """Return the complete record of a run; None if the run is to be trained.

        Training also deletes the checkpoints that a complete run has left.

        Args:
            spec: the run.
            again: option that would retrain it, for the error.

        Raises:
            FltrainError: if the record is damaged, or belongs to other settings.
        """
        record = self.record(spec.run_id)
        if not record.complete:
            return None
        record.check_settings(spec)
        if record.damage:
            raise FltrainError(record.refusal(f"retrain it with {again}"))
        return None if self.saved_rounds(spec.run_id) else record

    def checkpoints(self, run_id: str) -> Path:
        """Folder of a run's checkpoints; training deletes it after writing the record."""
        return self.root / "checkpoints" / run_id

    def saved_rounds(self, run_id: str) -> int:
        """Rounds that the latest checkpoint of a run covers; 0 without a checkpoint."""
        files = checkpoint_files(self.checkpoints(run_id))
        return int(files[0].stem.partition("-")[2]) if files else 0

    def lease(self, run_id: str) -> Path:
        """Lock file of the process that trains a run."""
        return self.root / "checkpoints" / f"{run_id}.lock"

    @property
    def tracking(self) -> Path:
        """SQLite database of MLflow."""
        return self.root / "mlflow.db"

    def records(self) -> Iterator[Record]:
        """Yield all complete records, by run ID."""
        yield from (record for record in map(Record, self.folders()) if record.complete)

    def folders(self) -> list[Path]:
        """Return the folders of all runs, trained or not, by run ID."""
        paths = self.runs.iterdir() if self.runs.is_dir() else ()
        return sorted(path for path in paths if path.is_dir() and not path.name.startswith("."))


@dataclass(frozen=True)
class Record:
    """Record of one run. Files are read, and their digests checked, on first use.

    Everything that is read from files, except ``spec``, raises ``FltrainError`` if they do not have their
    digests. To leave out damaged records, test ``usable`` first.
    """

    folder: Path

    @property
    def complete(self) -> bool:
        """True if the run has ended: training writes the summary last. False without access to the folder."""
        return os.path.exists(self.folder / "summary.json")

    @cached_property
    def _contents(self) -> dict[str, bytes]:
        """Contents of the files of a complete record, which have their digests."""
        with _damage_named(f"{self.folder}/"):
            contents = {name: (self.folder / name).read_bytes() for name in RECORD_FILES}
            objects = {name: _parse(contents[name], name) for name in _OBJECTS}
            summary = objects["summary.json"]
            version = summary.get("format")
            if isinstance(version, int) and version > RECORD_FORMAT:
                raise FltrainError(
                    "summary.json: made by a newer version of fltrain (record format "
                    f"{version}, this one reads {RECORD_FORMAT}); update fltrain or train into another "
                    "results folder"
                )
            if version != RECORD_FORMAT:
                raise ValueError(f"summary.json: not a record of format {RECORD_FORMAT}")
            if summary.get("run_id", self.run_id) != self.run_id:
                raise ValueError(f"summary.json: belongs to {summary['run_id']}")
            changed = [name for name, data in objects.items() if data != sealed(data)]
            for name in ("metrics.jsonl", "spec.json"):
                if summary["digests"].get(name.partition(".")[0]) != sha256(contents[name]):
                    changed.append(name)
            if changed:
                raise ValueError(f"{changed[0]}: changed after training")
            return contents

    @cached_property
    def damage(self) -> str:
        """Damaged file of a complete record and its problem; empty if the digests are correct."""
        try:
            self._contents  # noqa: B018
        except FltrainError as error:
            return str(error)
        return ""

    def refusal(self, retrain: str) -> str:
        """Return the message that refuses a damaged record; ``retrain`` tells how to train the run again."""
        problem = self.damage.removeprefix(f"{self.folder}/")
        cause = problem.removesuffix(f"; {_REMEDY}")
        if cause == problem:  # it has another remedy: a newer version of fltrain made the record
            return f"{self.run_id}: {problem}"
        return f"{self.run_id}: the record is damaged ({cause}); restore it or {retrain}"

    @property
    def usable(self) -> bool:
        """True if the record is complete and undamaged: only such records give results."""
        return self.complete and not self.damage

    @property
    def run_id(self) -> str:
        """ID of the run."""
        return self.folder.name

    @property
    def written(self) -> float:
        """Time at which a complete record was written or imported, in seconds since 1970."""
        file = (self.folder / "summary.json").stat()
        return file.st_mtime or file.st_ctime  # archives hold no dates

    @cached_property
    def spec(self) -> dict[str, Any]:
        """All settings with the revisions of their components, as plain data."""
        with _damage_named(f"{self.folder}/"):
            return _parse((self.folder / "spec.json").read_bytes(), "spec.json")

    @cached_property
    def _today(self) -> RunSpec | str:
        """Its settings as a spec, or the reason why the current code lacks one of them."""
        recorded = self.spec
        try:
            return RunSpec.recorded(recorded)
        except FltrainError as error:
            lines = [line.strip() for line in str(error).splitlines()]  # of several, the first is a heading
            text = "; ".join(lines[1:] or lines).removeprefix("spec.json: ")
            unknown = re.findall(r"[\w.]+: unknown [^;(]*'", text)  # without guesses at other names
            remedy = unknown_remedy() * any(": unknown key " not in message for message in unknown)
            return ("; ".join(unknown) or text) + remedy

    @property
    def run_spec(self) -> RunSpec | None:
        """Spec of the run; None if the current code lacks one of its settings.

        If a component was revised since, it has another run ID than the record.
        """
        return None if isinstance(self._today, str) else self._today

    @property
    def lacking(self) -> str:
        """Settings that the code lacks, such as ``method: unknown method 'mine'``; else empty."""
        return self._today if not self.damage and isinstance(self._today, str) else ""

    @property
    def stale(self) -> str:
        """Why its settings have another run ID today: ``methods 1 -> 2``; empty if they have not.

        It is ``settings`` if a setting was added or renamed, or a message on a setting that the code lacks.
        """
        today, recorded = self._today, self.spec.get("revisions")
        if isinstance(today, str):
            return today
        if today.run_id == self.run_id:
            return ""
        before, after = recorded if isinstance(recorded, dict) else {}, today.canonical["revisions"]

        def text_of(revision: Any) -> str:
            return ", ".join(map(str, revision)) if isinstance(revision, list) else str(revision)

        names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
        changes = [f"{name} {text_of(before.get(name))} -> {text_of(after.get(name))}" for name in names]
        return "; ".join(changes) or "settings"

    def check_settings(self, spec: RunSpec) -> None:
        """Refuse a run that has the ID of this record but other settings: IDs are 40 bits of a hash."""
        try:
            recorded = self.spec
        except FltrainError:  # damaged
            return
        if recorded == spec.canonical or short_hash(recorded) != short_hash(spec.canonical):
            return
        different = sorted(key for key, value in spec.canonical.items() if recorded.get(key) != value)
        raise FltrainError(
            f"{self.run_id}: {self.folder} is the record of other settings with the same ID (they differ in "
            f"{', '.join(different)}); choose another seed, or another results folder"
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Status, accuracies, traffic, digests."""
        return _parse(self._contents["summary.json"], "summary.json")

    @cached_property
    def metrics(self) -> list[Row]:
        """All rows of ``metrics.jsonl``."""
        return [from_json(line) for line in self._contents["metrics.jsonl"].splitlines()]

    def rows(self, kind: str) -> list[Row]:
        """Return the rows of one kind, by round."""
        return [row for row in self.metrics if row["kind"] == kind]

    @cached_property
    def costs(self) -> dict[str, Any]:
        """Seconds by phase, throughput, peak memory."""
        return _parse(self._contents["costs.json"], "costs.json")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Code, packages and machine."""
        return _parse(self._contents["provenance.json"], "provenance.json")

    @property
    def test_images(self) -> int | None:
        """Number of images behind an accuracy; None if no row of the record has it."""
        return next((row["images"] for row in self.rows("evaluation") if "images" in row), None)

    def models(self) -> dict[str, NDArray[Any]]:
        """Return the models that the record keeps, by name; refuse models of another training."""
        spec = quote(str(self.folder / "spec.json"))
        train = command(f"fltrain train --again {spec}", self.folder.parent.parent)
        remedy = f"archives have none; run `{train}`"
        arrays, about = read_arrays(self.folder / MODELS_FILE, "file of models", remedy)
        if about["run_id"] != self.run_id:
            raise FltrainError(f"{self.run_id}: {MODELS_FILE} belongs to {about['run_id']}; retrain the run")
        if self.summary["digests"].get("models", about["digest"]) != about["digest"]:
            raise FltrainError(f"{self.run_id}: {MODELS_FILE} is of another training; retrain the run")
        return arrays

    def check(self) -> None:
        """Refuse a complete record that is damaged, or whose run ID or summary do not follow from its files.

        The settings of a stale record have another run ID today.
        """
        if self.damage:
            raise FltrainError(f"{self.run_id}: {self.damage.removeprefix(f'{self.folder}/')}")
        with _damage_named(f"{self.run_id}: "):
            lines = self._contents["metrics.jsonl"].splitlines()
            rows = [_parse(line, f"metrics.jsonl, line {number}") for number, line in enumerate(lines, 1)]
            spec, summary = self.run_spec, self.summary
            # The hash in the run ID proves that the spec belongs to the run, even if the record is stale.
            slug = (spec.run_id if spec else self.run_id).rpartition("-")[0]
            if (run := f"{slug}-{short_hash(self.spec)}") != self.run_id:
                raise ValueError(f"spec.json belongs to {run}")
            if spec:
                for key, value in summarise(spec, rows, summary["diverged"], {}).items():
                    if key != "run_id" and summary.get(key) != value:
                        raise ValueError(f"summary.json: {key!r} does not follow from spec and metrics")


def _parse(text: bytes, where: str) -> Row:
    """Parse a JSON object without NaN and infinity."""
    try:
        data = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"{where}: cannot be read ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where}: not a JSON object")
    return data


# -------------------------------------------------------------------------------------------------- writing
def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with the digest of everything else in it.

    It is ``digests.summary`` in ``summary.json``, which has further digests, and ``digest`` in other files.
    """
    if "digests" not in data:
        content = {key: value for key, value in data.items() if key != "digest"}
        return {**content, "digest": sha256(canonical_json(content))}
    digests = {name: digest for name, digest in data["digests"].items() if name != "summary"}
    seal = sha256(canonical_json({**data, "digests": digests}))
    return {**data, "digests": {**digests, "summary": seal}}


def summarise(
    spec: RunSpec, rows: Sequence[Row], diverged: Row | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the summary of a run.

    Args:
        spec: the run.
        rows: all rows of its record.
        diverged: ``{"round": ..., "what": ...}`` if a loss or weight became non-finite, else None.
        facts: further deterministic entries (traffic, digests, size of the network).
    """
    tests, validation = on_split(spec.test_split, rows), {}
    if spec.evaluation.validation:
        validated = on_split("validation", rows)
        validation["validation"] = {
            **_accuracies(spec, validated, diverged),
            "loss": _last(validated, "loss"),
        }
    macro = max((row for row in tests if "macro" in row), key=_rank("macro"), default=None)
    over_clients = {"best_macro": macro["macro"], "best_macro_std": macro["std"]} if macro else {}
    return {
        "run_id": spec.run_id,
        "status": "diverged" if diverged else "completed",
        "diverged": diverged,
        "rounds": spec.rounds,
        "accuracy": {**_accuracies(spec, tests, diverged), **over_clients},
        "loss": {"last": _last(tests, "loss")},
        "extra": {
            data.name: _final(spec, on_split(data.name, rows), diverged) for data in spec.evaluation.extra
        },
        "rounds_to_target": {
            str(target): next((row["round"] for row in tests if row["accuracy"] >= target), None)
            for target in spec.evaluation.targets
        },
        **validation,
        **facts,
    }


def on_split(split: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the tests on a split."""
    return [row for row in rows if row["kind"] == "evaluation" and row["split"] == split]


def _rank(value: str) -> Callable[[Row], tuple[float, int]]:
    """Return a key for the best test, the first of equal ones."""
    return lambda row: (row[value], -row["round"])


def _accuracies(spec: RunSpec, tests: Sequence[Row], diverged: Row | None) -> dict[str, Any]:
    """Return the last, best (with its first round) and final accuracy of tests."""
    best = max(tests, key=_rank("accuracy"), default=None)
    return {
        "last": _last(tests, "accuracy"),
        "best": best and best["accuracy"],
        "best_round": best and best["round"],
        "final": _final(spec, tests, diverged),
    }


def _last(tests: Sequence[Row], value: str) -> float | None:
    return tests[-1][value] if tests else None


def _final(spec: RunSpec, tests: Sequence[Row], diverged: Row | None) -> float | None:
    """Return the mean accuracy over the last tenth of the rounds; None for a diverged run.

    For a run that ended before them (``evaluation.until``), return the last accuracy.
    """
    if diverged:
        return None
    final: list[float] = [row["accuracy"] for row in tests if row["round"] in spec.final_rounds]
    return average(final or [tests[-1]["accuracy"]])


def write_record(
    folder: Path,
    spec: RunSpec,
    rows: Iterable[Row],
    summary: Mapping[str, Any],
    costs: Mapping[str, Any],
    provenance: Mapping[str, Any],
    models: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write the record of a run; the summary, which marks it complete, comes last.

    The summary gets the format of the record and the digests of spec, metrics, models and itself; costs and
    provenance get their own digests. An older record stays until all files are on the disk.
    """
    metrics = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    settings = json_text(spec.canonical)
    digests = {**summary.get("digests", {}), "metrics": sha256(metrics), "spec": sha256(settings)}
    if models is not None:
        digests["models"] = digest_of(models)
    contents = {
        "summary.json": json_text(sealed({"format": RECORD_FORMAT, **summary, "digests": digests})),
        "provenance.json": json_text(sealed(provenance)),
        "costs.json": json_text(sealed(costs)),
        "metrics.jsonl": metrics,
        "spec.json": settings,
    }
    with ExitStack() as files:
        for name, text in contents.items():
            temporary = files.enter_context(replacing(folder / name))
            temporary.write_text(text, encoding="utf-8")
            flush(temporary)
        if models is not None:
            temporary = files.enter_context(replacing(folder / MODELS_FILE))
            save_arrays(temporary, models, {"run_id": spec.run_id})
            flush(temporary)
        (folder / "summary.json").unlink(missing_ok=True)  # renames follow, the one of the summary last


# ---------------------------------------------------------------------------------------------------- locks
def held(lock: Path) -> bool:
    """Return True if a process holds a lock, also of another user; this shares the lock for a moment."""
    try:
        number = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


@contextmanager
def leased(lease: Path, take: Callable[[FileLock], object] | None = None) -> Iterator[None]:
    """Hold the lock of a run, which ``take`` acquires; only its holder may change the record.

    Raises:
        Timeout: without ``take``, if another process holds it for a second, longer than ``held`` does.
        FltrainError: if the file system has no locks.
    """
    lease.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lease, fallback_to_soft=False)
    try:
        take(lock) if take else lock.acquire(timeout=1)
    except Timeout:
        raise
    except OSError as error:
        raise FltrainError(
            f"{lease}: cannot be locked ({error.strerror}); choose a results folder that has locks"
        ) from None
    try:
        yield
    finally:
        lease.unlink(missing_ok=True)  # while locked: a waiting process then makes a new file
        lock.release()
