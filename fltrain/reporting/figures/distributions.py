"""Histograms of numbers over layers, and figures of selected local steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from scipy.stats import skew

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import SEEDS, Histogram, ItemJob, SelectedSteps
from fltrain.reporting.figures import style
from fltrain.reporting.frame import NothingToShow, Runs, curve, diverged, finished, first_of_each
from fltrain.runs.record import Record, Results

STEPS = {"other local steps": "#dfe3ea", "selected local steps": style.INDIGO}
MOST_CLIENTS = 12
"""Maximum number of clients below one another."""


# ---------------------------------------------------------------- histograms
def spread(sheet: ItemJob, figure: Histogram, runs: Runs) -> pd.DataFrame:
    """Return the shown numbers: panel, seed, layer (or block) and value.

    Raises:
        FltrainError: if a record has none in that round, or not one per layer or block.
    """
    lines: list[tuple[str, int, str, float]] = []
    for cell, record in finished(sheet, runs):
        found = curve(record, figure.curve)
        if diverged(record) and figure.round not in found.index:
            continue
        if figure.round not in found.index or "" in found:
            why = (
                "it has one number for each round"
                if "" in found
                else f"it has numbers for the rounds {found.index.min()} to {found.index.max()}"
            )
            raise FltrainError(
                f"{sheet.id}: {record.run_id} has no {figure.curve!r} by layer for round "
                f"{figure.round}; {why}"
            )
        label = cell.labels[figure.columns] if figure.columns else ""
        values = found.transpose()[figure.round].dropna()
        lines += [(label, cell.seed, str(part), float(value)) for part, value in values.items()]
    return pd.DataFrame(lines, columns=["panel", "seed", "part", "value"])


def draw_histogram(sheet: ItemJob, figure: Histogram, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Draw the number of layers by value, with the same bins in all panels; seeds count together."""
    numbers = spread(sheet, figure, results.record)
    labels = sheet.axes[figure.columns] if figure.columns else ("",)
    canvas, (across,) = style.canvas(len(labels))
    edges = np.histogram_bin_edges(numbers["value"], bins="auto").tolist() if len(numbers) else []
    for axes, label in zip(across, labels, strict=True):
        shown = numbers[numbers["panel"] == label]
        if shown.empty:
            style.heading(axes, [label], len(labels))
            style.no_runs(axes)
            continue
        values = shown["value"].to_numpy()
        axes.hist(values, bins=edges, color=style.INDIGO, edgecolor="white", linewidth=0.6)
        middle = float(np.median(values))
        axes.axvline(middle, color=style.VERMILION, linestyle=style.DASHED, label="median")
        skewness = f"skewness {skew(values):+.2f}" if values.std() > 0 else ""
        style.heading(axes, [label, f"round {figure.round}", skewness], len(labels))
        axes.set_xlabel(figure.label or figure.curve.rpartition(".")[2])
        axes.set_ylabel("number of layers")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=False, axis="x")
    style.legend(canvas, across)
    return canvas, numbers


# ---------------------------------------------------------------- selected steps
def selections(record: Record) -> pd.DataFrame:
    """Return every local step of a run: round, client, step (from 0), selected or not, number of steps.

    Raises:
        FltrainError: if no steps were selected in the run.
    """
    rows = record.rows("ecgr")
    if not rows and not diverged(record):
        raise FltrainError(f"{record.run_id} selects no steps; add the plug-in 'ecgr' to its spec")
    lines = [
        (row["round"], int(client), step, step in chosen, steps)
        for row in rows
        for client, steps in row["steps"].items()
        for chosen in [set(row["selected"][client])]
        for step in range(steps)
    ]
    return pd.DataFrame(lines, columns=["round", "client", "step", "selected", "steps"])


def _panels(sheet: ItemJob, figure: SelectedSteps, runs: Runs) -> Iterator[tuple[str, Record]]:
    if figure.columns != SEEDS:
        yield from first_of_each(sheet, figure.columns, runs)
    else:
        for cell, record in finished(sheet, runs):
            yield f"seed {cell.seed}", record


def draw_selected_steps(
    sheet: ItemJob, figure: SelectedSteps, results: Results
) -> tuple[Canvas, pd.DataFrame]:
    """Draw rounds across and local steps from below; the numbers are every step of every client."""
    found = {label: selections(record) for label, record in _panels(sheet, figure, results.record)}
    found = {label: steps for label, steps in found.items() if len(steps)}
    if not found:
        raise NothingToShow
    canvas = _draw(sheet, found)
    numbers = pd.concat([steps.assign(panel=label) for label, steps in found.items()], ignore_index=True)
    return canvas, numbers[["panel", "round", "client", "step", "selected"]]


def _draw(sheet: ItemJob, found: dict[str, pd.DataFrame]) -> Canvas:
    clients = sorted({int(client) for steps in found.values() for client in steps["client"]})
    if len(clients) > MOST_CLIENTS:
        raise FltrainError(
            f"{sheet.id}: a figure of selected steps shows up to {MOST_CLIENTS} clients, but there are "
            f"{len(clients)}; choose runs with fewer"
        )
    canvas, grid = style.canvas(len(found), len(clients), height=18)
    style.make_room(canvas, 12)  # titles above, and below the numbers and the name of the axis
    colours = ListedColormap(list(STEPS.values()))
    for column, (label, steps) in enumerate(found.items()):
        rounds = int(steps["round"].max())
        for axes, client in zip((across[column] for across in grid), clients, strict=True):
            of_client = steps[steps["client"] == client].pivot(
                index="step", columns="round", values="selected"
            )
            shown = of_client.reindex(columns=range(1, rounds + 1)).to_numpy(float)
            extent = (0.5, rounds + 0.5, 0.5, len(shown) + 0.5)
            shown = np.ma.masked_invalid(shown)  # missing steps stay grey
            style.image(axes, shown, colours, (0, 1), origin="lower", extent=extent)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.set_ylabel(f"client {client}")
            axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
            axes.tick_params(axis="x", labelbottom=client == clients[-1])
        style.heading(grid[0][column], [label], len(found))
        grid[-1][column].set_xlabel("communication round")
    for what, colour in STEPS.items():
        grid[0][0].bar(np.nan, np.nan, color=colour, label=what)
    style.legend(canvas, grid[0])
    return canvas
