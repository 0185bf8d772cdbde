"""Exporting records to MLflow: every run once, whatever happened before; checked on real SQLite files."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fltrain import tracking
from fltrain.errors import FltrainError
from fltrain.records import Record, Results
from fltrain.tracking import Exported, export

from .helpers import tiny, trained

STATISTICS = {"statistics": ["drift", "similarity", "separability"]}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three runs: plain, with everything measured, and diverged."""
    root = tmp_path_factory.mktemp("results")
    trained(tiny(), root)
    trained(tiny(method="fedprox", plugins=["flfa"], seed=7, evaluation=STATISTICS), root)
    trained(tiny(training={"epochs": 1, "lr": 1e30}), root)
    return root


@pytest.fixture
def results(originals: Path, tmp_path: Path) -> Results:
    """A copy of these results that a test may change."""
    return Results(Path(shutil.copytree(originals, tmp_path / "results")))


@pytest.fixture
def records(results: Results) -> list[Record]:
    """The three runs, in the order: plain, diverged, measured."""
    return sorted(results.records(), key=lambda record: (record.spec["seed"], record.summary["status"]))[
        ::1
    ]


@pytest.fixture
def plain(records: list[Record]) -> Record:
    return next(r for r in records if r.spec["seed"] == 0 and r.summary["status"] == "completed")


@pytest.fixture
def measured(records: list[Record]) -> Record:
    return next(r for r in records if r.spec["plugins"])


@pytest.fixture
def diverged(records: list[Record]) -> Record:
    return next(r for r in records if r.summary["status"] == "diverged")
