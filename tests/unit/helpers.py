"""A small training run on the handwritten digits, and small custom datasets."""

import io
import itertools
import json
import multiprocessing
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from fltrain.cli import app
from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json
from fltrain.core.hashing import sha256
from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.simulation import Simulation
from fltrain.engine.train import Execution, train
from fltrain.experiments.layout import ItemJob
from fltrain.experiments.plan import Plan, plan
from fltrain.runs import today
from fltrain.runs.record import Record, Results, sealed, write_record
from fltrain.runs.spec import RunSpec

CONFIG = Path(__file__).parents[2] / "config"
CPU = torch.device("cpu")
DIVERGED, MISSING = "diverged", "missing"
ANOTHER_USER = 65534
Row = dict[str, Any]


def cli(*arguments: object, given: str | None = None, code: int = 0) -> Result:
    """Run a command that ends with this exit code; its errors are raised."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=given, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def error_line(call: Callable[[], object]) -> str:
    """The message of the error that a call ends with: one line."""
    with pytest.raises(FltrainError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    return message


@cache
def shipped(scale: str) -> Plan:
    """The plan of a scale of this project, made once; tests must not change it."""
    return plan(CONFIG, scale)


class Cells:
    """Hand-made records and the cells of a sheet that they fill; seeds are counted per place."""

    def __init__(self, root: Path, full: float = 1.0, **summary: Any) -> None:
        """``full`` is the accuracy without any error; all summaries contain the further entries."""
        self.results = Results(root)
        self.cells: list[dict[str, Any]] = []
        self.full = full
        self.summary = summary

    def add(
        self,
        labels: dict[str, str],
        *accuracies: float | str,
        rows: Sequence[Row] = (),
        seconds: Sequence[float] = (1.0,),
        **cell: Any,
    ) -> str:
        """Write a record per accuracy, with the next seeds of the place; return the last run ID.

        An accuracy can be ``DIVERGED``, or ``MISSING``: a cell without a record.
        """
        for accuracy in accuracies or (0.5 * self.full,):
            run = f"run-{len(self.cells)}"
            if accuracy != MISSING:
                value = None if isinstance(accuracy, str) else accuracy / self.full
                # A run that diverged late also has a best accuracy.
                reached = {"final": value, "best": 0.99 if value is None else value, "last": value}
                summary = {
                    "run_id": run,
                    "status": "diverged" if value is None else "completed",
                    "accuracy": {**reached, "best_macro": value, "best_macro_std": value},
                    "extra": {"other_test": value},
                    "rounds": 3,
                    **self.summary,
                }
                costs = {"round_seconds": list(seconds)}
                write_record(self.results.run(run), tiny(), rows, summary, costs, {})
            self.place(labels, run, **cell)
        return run

    def place(self, labels: dict[str, str], run: str, **entries: Any) -> None:
        """Add a cell with this run, and with the next seed of its place."""
        seed = sum(cell["labels"] == labels for cell in self.cells)
        cell = {"reported": {}, **entries}
        self.cells.append({"labels": labels, "seed": seed, "run": run, **cell})

    def sheet(self, **changes: Any) -> ItemJob:
        """The sheet of all cells so far; their labels give its axes."""
        axes: dict[str, dict[str, None]] = {}
        for axis, label in itertools.chain.from_iterable(cell["labels"].items() for cell in self.cells):
            axes.setdefault(axis, {})[label] = None
        data = {
            "id": "toy/table",
            "paper": "A toy paper",
            "title": "A toy",
            "caption": "Caption of the item.",
            "scale": "on toy data",
            "reduced": True,
            "axes": {axis: list(labels) for axis, labels in axes.items()},
            "table": None,
            "figure": None,
            "reported": None,
            "cells": self.cells,
        }
        return ItemJob.parse({**data, **changes}, "sheet")


TINY: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mobilenet_tiny",
    "method": "fedavg",
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "rounds": 3,
    "participation": {"fraction": 0.2},
}
"""A spec that trains in a fraction of a second, as written by a user."""


TWO_METHODS: dict[str, Any] = {
    "title": "Two methods",
    "axes": {"method": ["fedavg", "fedprox"]},
    "table": {"rows": "method", "measures": [{"measure": "final_accuracy"}]},
}
PAPER: dict[str, Any] = {
    **{"paper": "toy", "title": "A toy", "citation": "none", "seeds": 1},
    **{"settings": TINY, "items": {"table": TWO_METHODS}},
}
SCALE: dict[str, Any] = {"scale": "one", "title": "a trial", "reduced": True, "items": ["toy"]}


def write_papers(folder: Path, *papers: dict[str, Any], scale: dict[str, Any] = SCALE) -> Path:
    """Write papers and a scale, each to a file with its name."""
    files = {f"papers/{paper['paper']}": paper for paper in papers}
    for name, data in {**files, f"scales/{scale['scale']}": scale}.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(data, sort_keys=False))
    return folder


def write_config(folder: Path, items: dict[str, Any], seeds: int = 1, **settings: Any) -> Path:
    """Write a paper ``toy`` of these items with the small run's settings, and a scale ``one`` of all."""
    return write_papers(folder, {**PAPER, "items": items, "seeds": seeds, "settings": {**TINY, **settings}})


def tiny(**changes: Any) -> RunSpec:
    """The small run with some settings replaced."""
    return RunSpec.parse({**TINY, **changes}, "test")


def accuracies(*values: float) -> list[Row]:
    """Rows of a record: accuracies of the global model."""
    return [
        {"round": number, "kind": "evaluation", "split": "test", "view": "global", "accuracy": value}
        for number, value in enumerate(values, start=1)
    ]


def drifts(*values: float | None, part: str | None = None) -> list[Row]:
    """Rows of a record: the drift of each round, of the whole network or of one of two parts."""
    return [
        {"round": number, "kind": "updates", "drift": {part: value, "other": 0.0} if part else value}
        for number, value in enumerate(values, start=1)
    ]


def trained(spec: RunSpec, root: Path) -> Record:
    """Train a run on one thread of the CPU."""
    return train(spec, Results(root), Execution(CPU), again=True)


def federation(
    spec: RunSpec, data: PreparedData, extra: Mapping[str, PreparedData] | None = None
) -> Simulation:
    """A run in memory, its images divided as the spec says."""
    pool = data.merged() if spec.local_test else data
    parts = spec.division.parts(pool.train_labels, data.classes, pool.writers)
    divided = Partition(parts[""], "", parts.get("test_"), parts.get("validation_"))
    return Simulation(spec, data, divided, CPU, extra=extra)


def as_another_user(work: Callable[[], None], folder: Path) -> None:
    """Run a function in a process that is not root's; a user who is not root takes their own rights."""

    def child() -> None:
        if os.geteuid() == 0:
            os.seteuid(ANOTHER_USER)
        work()

    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, ANOTHER_USER, -1)
        for parent in folder.parents:  # of the temporary folders of this user
            if parent.stat().st_uid == 0 and parent != parent.parent:
                parent.chmod(parent.stat().st_mode | 0o111)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def seal(folder: Path) -> None:
    """Give an edited or renamed record valid digests and a matching run ID."""
    summary = read_json(folder / "summary.json")
    summary["run_id"] = folder.name
    for name in ("spec.json", "metrics.jsonl"):
        summary["digests"][name.partition(".")[0]] = sha256((folder / name).read_bytes())
    for name in ("costs.json", "provenance.json"):
        write_json(folder / name, sealed(read_json(folder / name)))
    write_json(folder / "summary.json", sealed(summary))


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Replace the rows of a record, and seal it."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(folder)


def forget_sources() -> None:
    """Clear the cached digests of sources, as in a new process."""
    today._digest.cache_clear()
    today._digests.cache_clear()


def flip(path: Path, place: int = -100) -> None:
    """Turn one bit of a byte, counted from the end if negative."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random images."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int, classes: int = 4) -> NDArray[np.int64]:
    """``count`` labels: every class in turn."""
    return np.arange(count) % classes


def write_npz(path: Path, train: int = 40, test: int = 20, shape: tuple[int, ...] = (8, 8)) -> Path:
    """A dataset of four classes in MedMNIST's layout, without a validation split."""
    arrays: dict[str, NDArray[Any]] = {}
    for seed, (split, count) in enumerate({"train": train, "test": test}.items()):
        arrays[f"{split}_images"] = pixels(count, *shape, seed=seed)
        arrays[f"{split}_labels"] = labels(count)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def write_tar(path: Path, files: Mapping[str, bytes | tuple[bytes, str]]) -> Path:
    """A tar archive of files, or of members of another type with a target, by name."""
    mode = {".tar": "w", ".bz2": "w:bz2"}.get(path.suffix, "w:gz")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type, member.linkname = content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path
