"""Curves of a run: named metrics over rounds."""

from __future__ import annotations

import math
from typing import Any

from fltrain.runs.record import Record
from fltrain.runs.spec import RunSpec

CURVES = {
    "test_accuracy": ("evaluation", "accuracy"),
    "test_loss": ("evaluation", "loss"),
    "train_loss": ("train", "loss"),
    "drift": ("updates", "drift"),
    "similarity_skewness": ("updates", "skewness"),
    "separability_ratio": ("separability", "ratio"),
}
"""Metrics with a value per round: kind of row and name of its value."""


def factor(metric: str) -> int:
    """Return 100 for accuracies, which pages and MLflow show in per cent, else 1."""
    return 100 if "accuracy" in metric else 1


Curve = list[tuple[int, float]]
"""Rounds (from 1) and values."""


def curves_of(record: Record, spec: RunSpec) -> dict[str, Curve]:
    """Return the finite values of each of ``CURVES`` that a record has.

    Only tests that count are included: none on further datasets or with another model.
    """
    counts = {"split": spec.test_split, "view": spec.view}.items()
    curves: dict[str, Curve] = {name: [] for name in CURVES}
    for row in record.metrics:
        if row["kind"] == "evaluation" and not counts <= row.items():
            continue
        for name, (kind, value) in CURVES.items():
            if kind == row["kind"] and is_number(row.get(value)):
                curves[name].append((row["round"], float(row[value])))
    return {name: curve for name, curve in curves.items() if curve}


def is_number(value: Any) -> bool:
    """Return True for a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
