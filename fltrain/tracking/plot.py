"""Curves of compared runs: mean and range over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fltrain.analysis.finished import round_axes
from fltrain.core.errors import FltrainError, count
from fltrain.experiments.layout import named
from fltrain.reporting.figures.draw import lines
from fltrain.reporting.frame import curve, finished
from fltrain.tracking.compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fltrain.reporting.frame import Runs


def plot(compared: Comparison, runs: Runs, metric: str, ax: Axes | None) -> Axes:
    """Draw a line for each row of a comparison, as figures do: a range as a band, a part of the seeds thin.

    Raises:
        FltrainError: if a run has no such metric, or all runs diverged before they had any value.
    """
    visible_runs = {run for cell in compared.cells for run in cell.runs}
    cells = [(cell, record) for cell, record in finished(compared.job, runs) if cell.run in visible_runs]
    axes = list(reversed(compared.job.axes))  # variants come before their conditions
    varying = [axis for axis in axes if len({cell.labels[axis] for cell, _ in cells}) > 1] or axes[:1]
    columns: dict[tuple[str, int], pd.Series] = {}
    for cell, record in cells:
        label = ", ".join(named(axis, cell.labels[axis]) for axis in varying)
        columns[label, cell.seed] = curve(record, metric).get("", pd.Series(dtype=float))
    labels = list(dict.fromkeys(label for label, _ in columns))
    data = lines(pd.DataFrame(columns).sort_index(), labels, window=1)
    if data.empty:
        raise FltrainError(f"no value of {metric!r}: all runs diverged in their first round")
    drawn = round_axes(metric, ax)
    for name, line in data.groupby("series", sort=False):
        seeds = count(sum(label == name for label, _ in columns), "seed")
        (full_line,) = drawn.plot(line["x"], line["whole"], label=f"{name}, {seeds}")
        drawn.plot(line["x"], line["mean"], color=full_line.get_color(), linewidth=0.6)
        if "low" in line.dropna(axis="columns", how="all"):  # several seeds
            ends = line["low"], line["high"]
            drawn.fill_between(line["x"], *ends, color=full_line.get_color(), alpha=0.15, linewidth=0)
    drawn.legend()
    return drawn
