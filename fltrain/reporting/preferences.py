"""Figures of what neurons speak for: their top classes at each client, and how layers differ in it (Fed2)."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage

from fltrain.engine.data import Split
from fltrain.errors import FltrainError
from fltrain.metrics.preference import (
    alignment,
    class_preference,
    shared_depth,
    top_classes,
    total_variance,
)
from fltrain.records import Results
from fltrain.reporting.layout import Preference, Sheet, Variance
from fltrain.trained import TrainedRun

MILLIMETRE = 1 / 25.4


def _runs(sheet: Sheet, axis: str, results: Results) -> Iterator[tuple[str, TrainedRun]]:
    """Label on the axis and trained run of each cell of the first seed."""
    first = min(cell.seed for cell in sheet.cells)
    for cell in sheet.cells:
        if cell.seed == first:
            record = results.record(cell.run)
            if record.summary["status"] == "diverged":
                raise FltrainError(f"{sheet.id}: {record.run_id} diverged; there is no model to look into")
            yield cell.labels[axis], TrainedRun(record, results, torch.device("cpu"))


def _some_of_each_class(split: Split, classes: int, count: int) -> torch.Tensor:
    """Indices of the first ``count`` images of every class."""
    places = [(split.labels == label).nonzero().flatten()[:count] for label in range(classes)]
    return torch.cat(places)


def draw_preferences(sheet: Sheet, figure: Preference, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Top class of every neuron (across) at every client of the last round (down), layer by layer.

    The numbers are those of every neuron: its top class, or -1 if it never speaks.

    Raises:
        FltrainError: if a network has fewer layers than are to be shown.
    """
    labels = sheet.axes[figure.columns]
    size = (75 * len(labels) * MILLIMETRE, (32 * figure.layers + 22) * MILLIMETRE)
    canvas = Canvas(figsize=size, layout="constrained")
    grid = canvas.subplots(figure.layers, len(labels), squeeze=False)
    numbers: list[tuple[str, str, int, int, int]] = []
    for column, (label, run) in enumerate(_runs(sheet, figure.columns, results)):
        classes = run.data.classes
        chosen = _some_of_each_class(run.data.test, classes, figure.images)
        names: list[int] = []
        clients: list[dict[str, torch.Tensor]] = []
        for client in run.each_client():
            names.append(client)
            clients.append(class_preference(run.network, run.data.test, classes, chosen))
        aligned = alignment(clients)
        hidden = [layer for layer in aligned if not layer.startswith("classifier")]
        if len(hidden) < figure.layers:
            raise FltrainError(
                f"{sheet.id}: figure.layers: {label} has {len(hidden)} layers that can be shown"
            )
        for axes, layer in zip(grid[:, column], hidden[-figure.layers :], strict=True):
            bars = torch.stack([top_classes(client[layer]) for client in clients]).numpy()
            image = _bars(axes, bars, classes)
            numbers += [
                (label, layer, names[place], neuron, int(top))
                for (place, neuron), top in np.ndenumerate(bars)
            ]
            axes.set_title(f"{label}, {layer} (agree {aligned[layer]:.2f})", loc="left", fontsize=8)
    canvas.colorbar(image, ax=grid[:, -1].tolist(), label="top class", aspect=30)
    return canvas, pd.DataFrame(numbers, columns=["panel", "layer", "client", "neuron", "top_class"])


def _bars(axes: Axes, classes_of: np.ndarray[tuple[int, int], np.dtype[np.int64]], classes: int) -> AxesImage:
    """One coloured bar per neuron, clients below one another; neurons that never speak stay grey."""
    colours = matplotlib.colormaps["tab10" if classes <= 10 else "viridis"].resampled(classes)
    axes.set_facecolor("#d5dae1")
    image = axes.imshow(
        np.ma.masked_less(classes_of, 0),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=-0.5,
        vmax=classes - 0.5,
    )
    axes.grid(False)
    axes.set_xlabel("neuron")
    axes.set_ylabel("client")
    axes.set_yticks(range(len(classes_of)))
    axes.tick_params(axis="y", labelsize=6)
    return image


def draw_variances(sheet: Sheet, figure: Variance, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Total variance of the class preferences of the global model's layers, and the depth it suggests."""
    labels = sheet.axes[figure.columns]
    canvas = Canvas(figsize=(95 * len(labels) * MILLIMETRE, 75 * MILLIMETRE), layout="constrained")
    grid = canvas.subplots(1, len(labels), squeeze=False)
    numbers: list[tuple[str, str, float, float]] = []
    for axes, (label, run) in zip(grid[0], _runs(sheet, figure.columns, results), strict=True):
        chosen = _some_of_each_class(run.data.test, run.data.classes, figure.images)
        preferences = class_preference(run.network, run.data.test, run.data.classes, chosen)
        names = list(preferences)
        scaled = [total_variance(vectors, unit_norm=True) for vectors in preferences.values()]
        raw = [total_variance(vectors) for vectors in preferences.values()]
        depth = shared_depth(scaled)
        axes.plot(names, scaled, "o-", color="#0072B2", label="vectors of length one")
        axes.plot(
            names, [value / max(raw) for value in raw], "s--", color="#D55E00", label="raw, of its largest"
        )
        axes.axvline(depth - 0.5, color="#5b6675", linewidth=0.8)
        axes.set_title(f"{label}: {depth} of {len(names)} layers to be shared", loc="left")
        axes.set_ylabel("total variance")
        axes.tick_params(axis="x", rotation=60, labelsize=7)
        axes.legend(fontsize=7)
        numbers += [(label, *values) for values in zip(names, scaled, raw, strict=True)]
    return canvas, pd.DataFrame(numbers, columns=["panel", "layer", "unit_norm", "raw"])
