"""Histograms of numbers over layers, and figures of selected local steps."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.stats import skew

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import SEEDS, Histogram, SelectedSteps, Sheet
from fltrain.reporting.figures import style
from fltrain.reporting.numbers import NothingToShow, Runs, curve, diverged, finished, first_of_each
from fltrain.runs.record import Record, Results

Map = NDArray[np.float64]

PLACES = 20
"""Maximum number of parts of the local training of a round."""
STEPS = {"other local steps": "#dfe3ea", "selected local steps": style.INDIGO}
MOST_CLIENTS = 12
"""Maximum number of clients below one another."""


# ---------------------------------------------------------------- histograms
def spread(sheet: Sheet, figure: Histogram, runs: Runs) -> pd.DataFrame:
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


def draw_histogram(sheet: Sheet, figure: Histogram, results: Results) -> tuple[Canvas, pd.DataFrame]:
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


def shares(steps: pd.DataFrame, places: int) -> Map:
    """Return the share of the selected steps in each of ``places`` equal parts of clients' training.

    All clients have the same weight. A step that lies in two parts counts in proportion to the overlap.
    Returns ``[places, rounds]``; a round without any steps is NaN.
    """
    rounds = int(steps["round"].max())
    edges = np.linspace(0, 1, places + 1)
    total: Map = np.zeros((rounds, places))
    clients = np.zeros((rounds, 1))
    for _, client_steps in steps.groupby(["round", "client"]):
        row, count = int(client_steps["round"].iloc[0]) - 1, len(client_steps)
        selected = np.concatenate([[0.0], np.cumsum(client_steps.sort_values("step")["selected"]) / count])
        total[row] += places * np.diff(np.interp(edges, np.arange(count + 1) / count, selected))
        clients[row] += 1
    with np.errstate(invalid="ignore"):
        return (total / clients).T


def of_client(steps: pd.DataFrame, client: int, rounds: int) -> Map:
    """Return the steps of a client ``[steps, rounds]``: 1 if selected, 0 if not, NaN if there was none."""
    client_steps = steps[steps["client"] == client]
    grid = np.full((int(client_steps["steps"].max()), rounds), np.nan)
    grid[client_steps["step"], client_steps["round"] - 1] = client_steps["selected"]
    return grid


def _panels(sheet: Sheet, figure: SelectedSteps, runs: Runs) -> Iterator[tuple[str, Record]]:
    if figure.columns != SEEDS:
        yield from first_of_each(sheet, figure.columns, runs)
    else:
        for cell, record in finished(sheet, runs):
            yield f"seed {cell.seed}", record


def draw_selected_steps(sheet: Sheet, figure: SelectedSteps, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Draw rounds across and local steps from below; the numbers are every step of every client."""
    found = {label: selections(record) for label, record in _panels(sheet, figure, results.record)}
    found = {label: steps for label, steps in found.items() if len(steps)}
    if not found:
        raise NothingToShow
    draw = _draw_together if figure.clients == "together" else _draw_apart
    canvas = draw(found)
    numbers = pd.concat([steps.assign(panel=label) for label, steps in found.items()], ignore_index=True)
    return canvas, numbers[["panel", "round", "client", "step", "selected"]]


def _draw_together(found: dict[str, pd.DataFrame]) -> Canvas:
    canvas, (across,) = style.canvas(len(found))
    places = min(PLACES, max(int(steps["steps"].max()) for steps in found.values()))
    for axes, (label, steps) in zip(across, found.items(), strict=True):
        shown = shares(steps, places)
        image = _image(axes, shown, (0.5, shown.shape[1] + 0.5, 0, 1), matplotlib.colormaps["cividis"])
        style.heading(axes, [label], len(found))
        axes.set_xlabel("communication round")
        axes.set_yticks([0, 0.5, 1], ["first", "middle", "last"])
    across[0].set_ylabel("local step")
    canvas.colorbar(image, ax=across, label="share selected", aspect=30)
    return canvas


def _draw_apart(found: dict[str, pd.DataFrame]) -> Canvas:
    clients = sorted({int(client) for steps in found.values() for client in steps["client"]})
    if len(clients) > MOST_CLIENTS:
        raise FltrainError(
            f"figure.clients: 'apart' shows up to {MOST_CLIENTS} clients, but there are {len(clients)}; "
            "write 'together'"
        )
    canvas, grid = style.canvas(len(found), len(clients), height=18)
    style.make_room(canvas, 12)  # titles above, and below the numbers and the name of the axis
    for column, (label, steps) in enumerate(found.items()):
        rounds = int(steps["round"].max())
        for axes, client in zip((across[column] for across in grid), clients, strict=True):
            shown = of_client(steps, client, rounds)
            _image(
                axes, shown, (0.5, rounds + 0.5, 0.5, len(shown) + 0.5), ListedColormap(list(STEPS.values()))
            )
            axes.set_ylabel(f"client {client}")
            axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
            axes.tick_params(axis="x", labelbottom=client == clients[-1])
        style.heading(grid[0][column], [label], len(found))
        grid[-1][column].set_xlabel("communication round")
    for what, colour in STEPS.items():
        grid[0][0].bar(np.nan, np.nan, color=colour, label=what)
    style.legend(canvas, grid[0])
    return canvas


def _image(axes: Axes, shown: Map, extent: tuple[float, float, float, float], colours: Colormap) -> AxesImage:
    """Draw a map from 0 to 1 whose first row lies below; missing values (NaN) stay grey."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    shown = np.ma.masked_invalid(shown)
    return style.image(axes, shown, colours, (0, 1), origin="lower", extent=extent)
