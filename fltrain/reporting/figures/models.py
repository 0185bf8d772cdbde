"""Figures of trained models: class preferences of neurons (Fed2), and recovered images (FedImpro)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from torch import Tensor

from fltrain.analysis.class_preference import (
    alignment,
    class_preference,
    shared_depth,
    top_classes,
    total_variance,
)
from fltrain.analysis.feature_inversion import Recovered, recover
from fltrain.analysis.trained_model import TrainedRun
from fltrain.core.errors import FltrainError
from fltrain.engine.data import ImageSet
from fltrain.experiments.layout import Inversion, ItemJob, Preference, Variance
from fltrain.reporting.figures import style
from fltrain.reporting.figures.style import Drawn, Spec, panel, quantity, whole_numbers
from fltrain.reporting.frame import diverged, first_of_each
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device
from fltrain.runtime.process import compute_as_runs

LENGTHS = ("vectors of length one", "raw, of its largest")
"""Names of the variances."""


@compute_as_runs()
def draw(sheet: ItemJob, figure: Preference | Variance | Inversion, results: Results) -> Drawn:
    """Return the panels and the numbers of a figure; nothing if all runs diverged.

    PyTorch uses one thread, so that figures do not depend on the number of threads.

    Raises:
        FltrainError: if a record keeps no model, or the figure does not fit the run.
    """
    if isinstance(figure, Inversion):
        record = results.record(sheet.cells[0].run)
        if diverged(record):
            return style.NOTHING
        return draw_inversion(recover(TrainedRun(record, results, pick_device("auto")), figure))
    runs = {
        label: TrainedRun(record, results, torch.device("cpu"))
        for label, record in first_of_each(sheet, figure.columns, results.record)
        if not diverged(record)
    }
    if not runs:
        return style.NOTHING
    if isinstance(figure, Variance):
        return draw_variances(runs, figure)
    return draw_preferences(sheet.id, runs, figure)


def _some_of_each_class(split: ImageSet, classes: int, count: int) -> Tensor:
    """Return the indices of the first ``count`` images of every class."""
    places = [(split.labels == label).nonzero().flatten()[:count] for label in range(classes)]
    return torch.cat(places)


# ---------------------------------------------------------------- class preferences
def draw_preferences(item: str, runs: dict[str, TrainedRun], figure: Preference) -> Drawn:
    """Draw the top class of every neuron (across) at every client of the last round (down), by layer.

    The numbers are the top class of every neuron, or -1 if it prefers none.

    Raises:
        FltrainError: if a network has fewer layers than ``figure.layers``.
    """
    rows: list[list[Spec]] = [[] for _ in range(figure.layers)]
    numbers: list[tuple[str, str, int, int, int]] = []
    for label, run in runs.items():
        classes = run.data.classes
        chosen = _some_of_each_class(run.data.test, classes, figure.images)
        clients = {
            client: class_preference(run.network, run.data.test, classes, chosen)
            for client in run.each_client()
        }
        aligned = alignment(list(clients.values()))
        named = [layer for layer in aligned if layer.startswith(figure.begins)]
        hidden = [layer for layer in named if not layer.startswith("classifier")]
        if len(hidden) < figure.layers:
            raise FltrainError(
                f"{item}: figure.layers: {figure.layers}, but {label} has only {len(hidden)} "
                "layers to show; use at most these"
            )
        shades = colormaps["viridis"](np.linspace(0, 0.84, classes))
        colours = style.COLOURS if classes <= len(style.COLOURS) else list(map(to_hex, shades))
        names = dict(zip([f"class {index}" for index in range(classes)], colours, strict=False))
        for row, layer in zip(rows, hidden[-figure.layers :], strict=True):
            tops = torch.stack([top_classes(client[layer]) for client in clients.values()]).numpy()
            numbers += [
                (label, layer, list(clients)[place], neuron, int(top))
                for (place, neuron), top in np.ndenumerate(tops)
            ]
            heading = [label, f"{layer} (agree {aligned[layer]:.2f})"]
            x = whole_numbers("", "neuron", domain=[-0.5, tops.shape[1] - 0.5])
            y = whole_numbers("", "client", domain=[-0.5, len(tops) - 0.5], reverse=True)
            row.append(style.raster(heading, len(runs), tops, names, 110, x, y))
    return rows, pd.DataFrame(numbers, columns=["panel", "layer", "client", "neuron", "top_class"])


def draw_variances(runs: dict[str, TrainedRun], figure: Variance) -> Drawn:
    """Draw the total variance of class preferences by layer of the global model, and the suggested depth."""
    encoding = style.by_series(LENGTHS)
    shape, dash = encoding.pop("shape"), encoding.pop("strokeDash")
    panels: list[Spec] = []
    parts: list[pd.DataFrame] = []
    for label, run in runs.items():
        chosen = _some_of_each_class(run.data.test, run.data.classes, figure.images)
        run.load_global()
        preferences = class_preference(run.network, run.data.test, run.data.classes, chosen)
        scaled = [total_variance(vectors, unit_norm=True) for vectors in preferences.values()]
        raw = [total_variance(vectors) for vectors in preferences.values()]
        frame = pd.DataFrame({"panel": label, "layer": list(preferences), "unit_norm": scaled, "raw": raw})
        data = frame.assign(raw=frame["raw"] / max(raw)).melt(["panel", "layer"], var_name="series")
        data["series"] = data["series"].map(dict(zip(("unit_norm", "raw"), LENGTHS, strict=True)))
        x = {"field": "layer", "type": "nominal", "sort": None, "title": None, "axis": {"labelAngle": -60}}
        y = quantity("value", "total variance", scale={"zero": True})
        layers: list[Spec] = [
            {"mark": "line", "encoding": {"strokeDash": dash}},
            {"mark": style.POINT, "encoding": {"shape": shape}},
        ]
        heading = [label, f"{shared_depth(scaled)} of {len(raw)} layers to be shared"]
        panels.append(panel(heading, len(runs), data, layers, {"x": x, "y": y, **encoding}))
        parts.append(frame)
    return [panels], pd.concat(parts, ignore_index=True)


# ---------------------------------------------------------------- recovered images
def draw_inversion(recovered: Recovered) -> Drawn:
    """Draw private images, the mean images of their classes, and recovered images, row by row.

    The numbers have a row per recovered image: its target, its similarity, and the loss. ``psnr`` and
    ``ssim`` compare with the nearest private image; ``mean_image_psnr`` and ``mean_image_ssim`` are the mean
    image's, which a successful attack has to beat by far. ``loss`` is the mean square between features and
    target, ``loss_before`` the same for the image from which the attack started.
    """
    means = recovered.class_means
    rows = {
        "private images": (recovered.images, [f"client {private.client}" for private in recovered.private]),
        "mean image of the class": (means.images, _similarities(means.psnr, means.ssim)),
    }
    numbers: list[dict[str, object]] = []
    for recovery in recovered.recoveries:
        result, baseline = recovery.recovered, recovered.baseline(recovery)
        rows[recovery.row.label] = result.images, _similarities(result.psnr, result.ssim)
        numbers += [
            {
                "target": recovery.row.target,
                "noise": recovery.row.noise,
                "class": private.label,
                "client": private.client,
                "image": private.image,
                "averaged": private.averaged(recovery.row.target),
                "psnr": float(result.psnr[place]),
                "ssim": float(result.ssim[place]),
                "mean_image_psnr": float(baseline.psnr[place]),
                "mean_image_ssim": float(baseline.ssim[place]),
                "loss_before": float(recovery.before[place]),
                "loss": float(recovery.loss[place]),
            }
            for place, private in enumerate(recovered.private)
        ]
    pictures = [
        (label, f"{place + 1}: class {recovered.private[place].label}", _picture(images[place]), text)
        for label, (images, texts) in rows.items()
        for place, text in enumerate(texts)
    ]
    data = pd.DataFrame(pictures, columns=["row", "image", "url", "text"])
    axis = {"domain": False, "ticks": False, "grid": False, "labelLimit": 0, "labelAngle": 0}
    x: Spec = {"field": "image", "type": "nominal", "sort": None, "title": None}
    y: Spec = {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": axis}
    x["axis"] = {**axis, "orient": "top"}
    url = {"url": {"field": "url", "type": "nominal"}}
    layers: list[Spec] = [
        {"mark": {"type": "image", "width": 72, "height": 72, "yOffset": -6}, "encoding": url},
        {"mark": {"type": "text", "yOffset": 40, "fontSize": 10}, "encoding": {"text": {"field": "text"}}},
    ]
    heading = ["PSNR and SSIM below each image"]
    grid = panel(heading, 1, data, layers, {"x": x, "y": y}, height=94 * len(rows))
    return [[{**grid, "width": 92 * len(recovered.private)}]], pd.DataFrame(numbers)


def _similarities(psnr: Tensor, ssim: Tensor) -> list[str]:
    return [f"{ratio:.1f} dB, {similarity:.2f}" for ratio, similarity in zip(psnr, ssim, strict=True)]


def _picture(image: Tensor) -> str:
    """Return an image ``[channels, height, width]``, from black (0) to white (1), as an address."""
    colours = (255 * image.clamp(0, 1)).round().permute(1, 2, 0).numpy()
    return style.pixels(np.broadcast_to(colours, (*colours.shape[:2], 3)), 4)
