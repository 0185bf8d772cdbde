"""What a run writes: the only truth about it. Tables, figures and MLflow are made from these files.

``<results>/runs/<run id>/`` holds

* ``spec.json``        the resolved spec with the revisions of its components;
* ``metrics.jsonl``    one row per evaluation or statistic: ``round`` (counted from 1), ``kind``, values;
* ``summary.json``     format of the record, status, accuracies, traffic, digests of data, partition, metrics;
* ``costs.json``       seconds by phase, throughput, peak memory;
* ``provenance.json``  code, packages and machine that trained;
* ``train.log``        what was printed;
* ``models.safetensors``  if the spec asks for it, the final model (see ``fltrain.analysis.trained_model``).

The first three are equal, byte for byte, for two executions of a run on the same kind of machine; whatever
differs between executions is in the last three. No torch here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic_core import from_json

from fltrain.core.errors import FltrainError
from fltrain.core.files import json_text, read_json, replacing, write_arrays
from fltrain.data.datasets import Dataset
from fltrain.runs.spec import RunSpec

Row = dict[str, Any]

RECORD_FORMAT = 1
"""Raised whenever records are written so that programs of before would misread them."""

BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""What reading files that are not as they were written can end in."""

RECORD_FILES = ("spec.json", "metrics.jsonl", "summary.json", "costs.json", "provenance.json")
"""The files of a complete record."""

MODELS_FILE = "models.safetensors"
"""Weights that a record holds if its spec asks for them."""


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the latest one first."""
    return sorted(folder.glob(f"round-{6 * '[0-9]'}.safetensors"), reverse=True)


def checkpoint_file(folder: Path, finished: int) -> Path:
    """The checkpoint after so many rounds."""
    return folder / f"round-{finished:06d}.safetensors"


def round_of(checkpoint: Path) -> int:
    """The rounds after which a checkpoint was written."""
    return int(checkpoint.stem.partition("-")[2])


def reason(error: Exception) -> str:
    """What one of ``BROKEN`` says, in one line."""
    what = str(error) if isinstance(error, ValueError) else f"its files do not fit together ({error!r})"
    return " ".join(what.split())


@dataclass(frozen=True)
class Results:
    """The folder that holds everything runs write and read, by name."""

    root: Path

    @property
    def downloads(self) -> Path:
        """Folder of raw files as they were downloaded."""
        return self.root / "downloads"

    def data(self, dataset: Dataset) -> Path:
        """Prepared data set."""
        return self.root / "data" / f"{dataset.id}.safetensors"

    def partition(self, spec: RunSpec) -> Path:
        """Partition of a run."""
        return self.partition_file(spec.partition_id)

    def partition_file(self, partition_id: str) -> Path:
        """Partition by its id."""
        return self.root / "partitions" / f"{partition_id}.safetensors"

    def run(self, run_id: str) -> Path:
        """Folder of a run's record."""
        return self.root / "runs" / run_id

    def record(self, run_id: str) -> Record:
        """Record of a run, complete or not."""
        return Record(self.run(run_id))

    def checkpoints(self, run_id: str) -> Path:
        """Folder of a run's checkpoints, from the first one on until there is a record."""
        return self.root / "checkpoints" / run_id

    def saved_rounds(self, run_id: str) -> int:
        """Rounds after which the last checkpoint of a run was written; 0 without one."""
        return max((round_of(path) for path in checkpoint_files(self.checkpoints(run_id))), default=0)

    def lease(self, run_id: str) -> Path:
        """File that is locked by the process that trains a run."""
        return self.root / "checkpoints" / f"{run_id}.lock"

    @property
    def executors(self) -> Path:
        """Folder of what trials of executors have found on this machine."""
        return self.root / "executors"

    @property
    def tracking(self) -> Path:
        """SQLite database that MLflow shows."""
        return self.root / "mlflow.db"

    def records(self) -> Iterator[Record]:
        """All complete records, by run id."""
        for summary in sorted((self.root / "runs").glob("*/summary.json")):
            yield Record(summary.parent)


@dataclass(frozen=True)
class Record:
    """The record of one run, read when asked for."""

    folder: Path

    @property
    def complete(self) -> bool:
        """Whether the run has ended: its summary is written last."""
        return (self.folder / "summary.json").exists()

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.folder.name

    @property
    def written(self) -> float:
        """When a complete record was written, in seconds since 1970."""
        return (self.folder / "summary.json").stat().st_mtime

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The resolved spec, as plain data with revisions."""
        return self._mapping("spec.json")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The spec without revisions: what can be parsed, and trained again."""
        return {key: value for key, value in self.spec.items() if key != "revisions"}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Status, accuracies, traffic."""
        summary = self._mapping("summary.json")
        try:
            check_format(summary)
        except FltrainError as error:
            raise FltrainError(f"{self.folder / 'summary.json'}: {error}") from None
        return summary

    @cached_property
    def costs(self) -> dict[str, Any]:
        """Seconds by phase, throughput, peak memory."""
        return self._mapping("costs.json")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Code, packages and machine."""
        return self._mapping("provenance.json")

    @cached_property
    def metrics(self) -> list[Row]:
        """All rows of ``metrics.jsonl``."""
        return self._rows(lambda line: True)

    def rows(self, kind: str) -> list[Row]:
        """The rows of one kind, by round."""
        name = json.dumps(kind)
        # Parsing takes most of the time that tables take, and most rows are of other kinds. In a line with a
        # backslash, the name may be spelled otherwise.
        return [row for row in self._rows(lambda line: name in line or "\\" in line) if row["kind"] == kind]

    def _rows(self, wanted: Callable[[str], bool]) -> list[Row]:
        """The rows whose lines are wanted."""
        path = self.folder / "metrics.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return [from_json(line) for line in lines if wanted(line)]
        except (OSError, ValueError) as error:
            raise FltrainError(f"{path}: cannot be read ({error}); train the run again") from None

    def _mapping(self, name: str) -> dict[str, Any]:
        data = read_json(self.folder / name)
        if not isinstance(data, dict):
            raise FltrainError(f"{self.folder / name}: not a JSON object; train the run again")
        return data


def check_format(summary: Mapping[str, Any]) -> None:
    """Refuse the summary of a record that another version of fltrain has written otherwise.

    Raises:
        FltrainError: with what to do.
    """
    found = summary.get("format")
    if found == RECORD_FORMAT:
        return
    if isinstance(found, int) and found > RECORD_FORMAT:
        raise FltrainError(
            f"made by a newer version of fltrain (record format {found}, this one reads {RECORD_FORMAT}); "
            "update fltrain or train into another results folder"
        )
    raise FltrainError(f"not a record of format {RECORD_FORMAT}; train the run again")


def metrics_digest(content: bytes) -> str:
    """SHA-256 of what ``metrics.jsonl`` holds."""
    return hashlib.sha256(content).hexdigest()


def summarise(
    spec: RunSpec, rows: Sequence[Row], diverged: Row | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the summary of a run.

    Args:
        spec: the run.
        rows: all rows of its record.
        diverged: ``{"round": ..., "what": ...}`` if a loss became non-finite, else None.
        facts: further deterministic facts (traffic, digests, size of the network).
    """
    tests = _tests(rows, spec.test_split, spec.view)
    accuracies = {row["round"]: row["accuracy"] for row in tests}
    best = max(accuracies, key=lambda round: (accuracies[round], -round), default=None)
    reached = {
        str(target): next((round for round, accuracy in accuracies.items() if accuracy >= target), None)
        for target in spec.evaluation.targets
    }
    return {
        "run_id": spec.run_id,
        "status": "diverged" if diverged else "completed",
        "diverged": diverged,
        "rounds": spec.rounds,
        "accuracy": {
            "last": tests[-1]["accuracy"] if tests else None,
            "best": None if best is None else accuracies[best],
            "best_round": best,
            "final": _final(spec, rows, spec.test_split, diverged),
            **_over_clients(tests),
        },
        "loss": {"last": tests[-1]["loss"] if tests else None},
        "extra": {data.name: _final(spec, rows, data.name, diverged) for data in spec.evaluation.extra},
        "rounds_to_target": reached,
        **facts,
    }


def _tests(rows: Sequence[Row], split: str, view: str) -> list[Row]:
    wanted = "evaluation", split, view
    return [row for row in rows if (row["kind"], row.get("split"), row.get("view")) == wanted]


def _over_clients(tests: Sequence[Row]) -> dict[str, float]:
    """Of tests on clients' own images: the best mean over clients, whatever their sizes, and its spread."""
    means = [row for row in tests if "macro" in row]
    if not means:
        return {}
    best = max(means, key=lambda row: (row["macro"], -row["round"]))
    return {"best_macro": best["macro"], "best_macro_std": best["std"]}


def _final(spec: RunSpec, rows: Sequence[Row], split: str, diverged: Row | None) -> float | None:
    """Final accuracy: mean over the last tenth of the rounds; None for a run that diverged."""
    if diverged:
        return None
    final: list[float] = [
        row["accuracy"] for row in _tests(rows, split, spec.view) if row["round"] in spec.final_rounds
    ]
    return sum(final) / len(final)


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

    The summary gets the format of the record and the digest of the metrics.
    """
    metrics = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    digests = {**summary.get("digests", {}), "metrics": metrics_digest(metrics.encode())}
    texts = {
        "spec.json": json_text(spec.canonical),
        "metrics.jsonl": metrics,
        "costs.json": json_text(costs),
        "provenance.json": json_text(provenance),
        "summary.json": json_text({"format": RECORD_FORMAT, **summary, "digests": digests}),
    }
    with ExitStack() as places:  # which take their names in reverse order, once all have been written
        for name, text in reversed(texts.items()):
            places.enter_context(replacing(folder / name)).write_text(text, encoding="utf-8")
        if models is not None:
            write_arrays(folder / MODELS_FILE, models, {"run_id": spec.run_id})
        # An older record is not complete any more, but only now, as a full disk would have been noticed.
        (folder / "summary.json").unlink(missing_ok=True)
