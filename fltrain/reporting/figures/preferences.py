"""Figures of class preferences: top classes of neurons at each client, and variance by layer (Fed2)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fltrain.analysis.class_preference import (
    alignment,
    class_preference,
    shared_depth,
    top_classes,
    total_variance,
)
from fltrain.analysis.trained_model import TrainedRun
from fltrain.core.errors import FltrainError
from fltrain.engine.data import ImageSet
from fltrain.experiments.layout import ItemJob, Preference, Variance
from fltrain.reporting.figures import style
from fltrain.reporting.frame import NothingToShow, diverged, first_of_each
from fltrain.runs.record import Results

CLASSES = (*style.COLOURS, style.BLACK)
"""Colours of up to ten classes."""


def _runs(sheet: ItemJob, axis: str, results: Results) -> list[tuple[str, TrainedRun]]:
    """Return for each label of the axis the trained run with the lowest seed that exists."""
    found = [
        (label, TrainedRun(record, results, torch.device("cpu")))
        for label, record in first_of_each(sheet, axis, results.record)
        if not diverged(record)
    ]
    if not found:
        raise NothingToShow
    return found


def _some_of_each_class(split: ImageSet, classes: int, count: int) -> torch.Tensor:
    """Return the indices of the first ``count`` images of every class."""
    places = [(split.labels == label).nonzero().flatten()[:count] for label in range(classes)]
    return torch.cat(places)


def draw_preferences(sheet: ItemJob, figure: Preference, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Draw the top class of every neuron (across) at every client of the last round (down), by layer.

    The numbers are the top class of every neuron, or -1 if it prefers none.

    Raises:
        FltrainError: if a network has fewer layers than ``figure.layers``.
    """
    runs = _runs(sheet, figure.columns, results)
    canvas, grid = style.canvas(len(runs), figure.layers, height=45)
    numbers: list[tuple[str, str, int, int, int]] = []
    for column, (label, run) in enumerate(runs):
        classes = run.data.classes
        chosen = _some_of_each_class(run.data.test, classes, figure.images)
        names: list[int] = []
        clients: list[dict[str, torch.Tensor]] = []
        for client in run.each_client():
            names.append(client)
            clients.append(class_preference(run.network, run.data.test, classes, chosen))
        aligned = alignment(clients)
        named = [layer for layer in aligned if layer.startswith(figure.begins)]
        hidden = [layer for layer in named if not layer.startswith("classifier")]
        if len(hidden) < figure.layers:
            raise FltrainError(
                f"{sheet.id}: figure.layers: {figure.layers}, but {label} has only {len(hidden)} "
                "layers to show; use at most these"
            )
        for across, layer in zip(grid, hidden[-figure.layers :], strict=True):
            bars = torch.stack([top_classes(client[layer]) for client in clients]).numpy()
            image = _bars(across[column], bars, classes)
            numbers += [
                (label, layer, names[place], neuron, int(top))
                for (place, neuron), top in np.ndenumerate(bars)
            ]
            agreement = f"{layer} (agree {aligned[layer]:.2f})"
            style.heading(across[column], [label, agreement], len(runs))
    canvas.colorbar(
        image,
        ax=[across[-1] for across in grid],
        label="top class",
        aspect=30,
        ticks=MaxNLocator(integer=True),
    )
    return canvas, pd.DataFrame(numbers, columns=["panel", "layer", "client", "neuron", "top_class"])


def _bars(axes: Axes, classes_of: np.ndarray[tuple[int, int], np.dtype[np.int64]], classes: int) -> AxesImage:
    """Draw a coloured bar per neuron, clients below one another; neurons without a class stay grey."""
    few = classes <= len(CLASSES)
    colours: Colormap = ListedColormap(CLASSES[:classes]) if few else colormaps["viridis"].resampled(classes)
    image = style.image(axes, np.ma.masked_less(classes_of, 0), colours, (-0.5, classes - 0.5))
    axes.set_xlabel("neuron")
    axes.set_ylabel("client")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return image


def draw_variances(sheet: ItemJob, figure: Variance, results: Results) -> tuple[Canvas, pd.DataFrame]:
    """Draw the total variance of class preferences by layer of the global model, and the suggested depth."""
    runs = _runs(sheet, figure.columns, results)
    canvas, (panels,) = style.canvas(len(runs))
    numbers: list[tuple[str, str, float, float]] = []
    for axes, (label, run) in zip(panels, runs, strict=True):
        chosen = _some_of_each_class(run.data.test, run.data.classes, figure.images)
        run.load_global()
        preferences = class_preference(run.network, run.data.test, run.data.classes, chosen)
        names = list(preferences)
        scaled = [total_variance(vectors, unit_norm=True) for vectors in preferences.values()]
        raw = [total_variance(vectors) for vectors in preferences.values()]
        depth = shared_depth(scaled)
        relative = [value / max(raw) for value in raw]
        axes.plot(names, scaled, "o-", color=style.INDIGO, label="vectors of length one")
        axes.plot(names, relative, "s--", color=style.VERMILION, label="raw, of its largest")
        axes.axvline(depth - 0.5, color=style.GREY, linewidth=0.8)
        style.heading(axes, [label, f"{depth} of {len(names)} layers to be shared"], len(runs))
        axes.set_ylabel("total variance")
        axes.tick_params(axis="x", rotation=60, labelsize=style.SMALL)
        numbers += [(label, *values) for values in zip(names, scaled, raw, strict=True)]
    style.legend(canvas, panels)
    return canvas, pd.DataFrame(numbers, columns=["panel", "layer", "unit_norm", "raw"])
