"""Figure of images recovered from features: how it is drawn, and the numbers behind it.

The attack itself is in ``fltrain.analysis.feature_inversion``.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from fltrain.analysis.feature_inversion import Compared, Recovered, recover
from fltrain.analysis.trained_model import TrainedRun
from fltrain.experiments.layout import Inversion, ItemJob
from fltrain.reporting.figures.style import GREY, MILLIMETRE, SMALL
from fltrain.reporting.frame import NothingToShow, diverged
from fltrain.runs.record import Results
from fltrain.runtime.devices import pick_device

PICTURE, NUMBERS, LABEL = 19.0, 4.5, 36.0
"""Millimetres: side of an image, height of the numbers below it, width of the rows' labels."""


def attack(sheet: ItemJob, figure: Inversion, results: Results, device: str = "auto") -> Recovered:
    """Attack the run of a sheet; return the recovered images.

    Raises:
        NothingToShow: if the run diverged.
        FltrainError: if its record keeps no model, or the figure does not fit the run.
    """
    record = results.record(min(sheet.cells, key=lambda cell: cell.seed).run)
    if diverged(record):
        raise NothingToShow
    return recover(TrainedRun(record, results, pick_device(device)), figure)


def measurements(recovered: Recovered) -> pd.DataFrame:
    """One row per recovered image: its target, its similarity, and the loss.

    ``psnr`` and ``ssim`` compare with the nearest private image; ``mean_image_psnr`` and ``mean_image_ssim``
    are the mean image's, which a successful attack has to beat by far. ``loss`` is the mean square between
    features and target, ``loss_before`` the same for the image from which the attack started.
    """
    rows = []
    for recovery in recovered.recoveries:
        baseline = recovered.baseline(recovery)
        for place, one in enumerate(recovered.private):
            rows.append(
                {
                    "target": recovery.row.target,
                    "noise": recovery.row.noise,
                    "class": one.label,
                    "client": one.client,
                    "image": one.image,
                    "averaged": one.averaged(recovery.row.target),
                    "psnr": float(recovery.recovered.psnr[place]),
                    "ssim": float(recovery.recovered.ssim[place]),
                    "mean_image_psnr": float(baseline.psnr[place]),
                    "mean_image_ssim": float(baseline.ssim[place]),
                    "loss_before": float(recovery.before[place]),
                    "loss": float(recovery.loss[place]),
                }
            )
    return pd.DataFrame(rows)


def draw(recovered: Recovered) -> Canvas:
    """Draw private images, the mean images of their classes, and recovered images, row by row."""
    rows: list[tuple[str, Tensor, Compared | None]] = [
        ("private images", recovered.images, None),
        ("mean image\nof the class", recovered.class_means.images, recovered.class_means),
    ]
    rows += [(one.row.label, one.recovered.images, one.recovered) for one in recovered.recoveries]
    columns = len(recovered.private)
    width, height = LABEL + PICTURE * columns, (PICTURE + NUMBERS) * len(rows) + 2 * NUMBERS
    canvas = Canvas(figsize=(width * MILLIMETRE, height * MILLIMETRE), layout="constrained")
    grid = canvas.subplots(len(rows), columns, squeeze=False)
    for (label, images, compared), across in zip(rows, grid, strict=True):
        across[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for place, panel in enumerate(across):
            _picture(panel, images[place])
            if compared is not None:
                numbers = f"{compared.psnr[place]:.1f} dB, {compared.ssim[place]:.2f}"
                panel.set_xlabel(numbers, fontsize=SMALL, labelpad=2)
    for panel, one in zip(grid[0], recovered.private, strict=True):
        panel.set_title(f"class {one.label}")
        panel.set_xlabel(f"client {one.client}", fontsize=SMALL, labelpad=2)
    first = grid[1][0]
    explained = {"fontsize": SMALL, "color": GREY, "ha": "right", "va": "top"}
    first.text(-0.08, -0.03, "PSNR, SSIM:", transform=first.transAxes, **explained)
    return canvas


def _picture(panel: Axes, image: Tensor) -> None:
    """Show an image ``[channels, height, width]``, from black (0) to white (1)."""
    pixels = image.permute(1, 2, 0).numpy()
    panel.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
    panel.grid(False)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
