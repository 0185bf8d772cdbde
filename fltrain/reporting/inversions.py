"""Figure of images recovered from features: its layout, how it is drawn, and the numbers behind it.

The layout is imported where experiments are planned: torch, pandas and Matplotlib wait until something is
attacked or drawn. The attack itself is in ``fltrain.inversion``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import Field, Strict, model_validator

from fltrain.component import Settings
from fltrain.devices import pick_device
from fltrain.errors import FltrainError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure as Canvas
    from torch import Tensor

    from fltrain.inversion import Compared, Recovered
    from fltrain.records import Results
    from fltrain.reporting.layout import Axes, Sheet

PICTURE, NUMBERS, LABEL = 19.0, 4.5, 36.0
"""Millimetres: side of an image, height of the numbers below it, width of the rows' labels."""

Target = Literal["raw", "class_mean", "mean"]


class Attack(Settings):
    """How images are sought whose features are the given ones.

    Attributes:
        kind: what is optimised, the weights of an untrained network that makes the image (``prior``: deep
            image prior) or the image itself (``pixels``).
        steps: steps of Adam.
        lr: its learning rate; null is 0.001 for ``prior`` and 0.1 for ``pixels``.
        tv: weight of the image's total variation; null is 0 for ``prior`` and 0.01 for ``pixels``.
        ema: weight of the old in the moving average of the images that ``prior`` makes; 0 takes them as they
            are.
        channels: of the prior's maps.
        scales: how often the prior halves the image; null goes down to maps of 2 or 3 pixels, 5 at most.
        perturbation: standard deviation of the noise added to the prior's input in each step.
    """

    kind: Literal["prior", "pixels"] = "prior"
    steps: int = Field(default=3000, ge=1)
    lr: float | None = Field(default=None, gt=0)
    tv: float | None = Field(default=None, ge=0)
    ema: float = Field(default=0.99, ge=0, lt=1)
    channels: int = Field(default=128, ge=1)
    scales: int | None = Field(default=None, ge=1)
    perturbation: float = Field(default=1 / 30, ge=0)

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if self.kind == "pixels":
            for name in ("ema", "channels", "scales", "perturbation"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name}: belongs to the attack 'prior', not to 'pixels'; leave it out")
        return self

    @property
    def learning_rate(self) -> float:
        """Learning rate of Adam."""
        return self.lr or {"prior": 1e-3, "pixels": 0.1}[self.kind]

    @property
    def tv_weight(self) -> float:
        """Weight of the total variation."""
        return {"prior": 0.0, "pixels": 1e-2}[self.kind] if self.tv is None else self.tv


class Row(NamedTuple):
    """A row of recovered images: what they are recovered from."""

    target: Target
    noise: float

    @property
    def label(self) -> str:
        """What stands before the row."""
        whole = {
            "raw": "from raw features",
            "class_mean": "from class means",
            "mean": "from the mean\nof all classes",
        }
        return whole[self.target] + (f",\nnoise {self.noise:g}" if self.noise else "")


class Inversion(Settings):
    """Images recovered from features of a run's global model, below the private ones.

    The run is the grid's only point, with its first seed; its record has to keep the model.

    Attributes:
        split: the cut whose features are attacked, as the number of the last convolution below it; null is
            the middle one of those that the network has.
        attack: how images are sought.
        targets: a row (or several) for each: ``raw`` features of the private image; ``class_mean``, the mean
            over the client's images of the class; ``mean``, that over all images of the client.
        noises: a row of ``class_mean`` for each of these standard deviations of noise added to the mean.
        images: number of private images, one of each class in turn.
    """

    kind: Literal["inversion"]
    split: int | None = Field(default=None, ge=1)
    attack: Attack = Attack()
    targets: Annotated[tuple[Target, ...], Strict(False), Field(min_length=1)] = ("raw", "class_mean", "mean")
    noises: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Strict(False), Field(min_length=1)] = (0.0,)
    images: int = Field(default=5, ge=1)

    @model_validator(mode="after")
    def _rows_differ(self) -> Self:
        for name in ("targets", "noises"):
            values = getattr(self, name)
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"{name}: {value!r} is named twice")
        if "class_mean" not in self.targets and self.noises != (0.0,):
            raise ValueError("noises: noise is added to class means; name 'class_mean' in targets")
        return self

    @property
    def rows(self) -> list[Row]:
        """What images are recovered from, row by row."""
        return [
            Row(target, noise)
            for target in self.targets
            for noise in (self.noises if target == "class_mean" else (0.0,))
        ]

    def check(self, item: str, axes: Axes) -> None:
        """Refuse a grid with more than one point: only one run is attacked.

        Raises:
            FltrainError: with the axis that has several.
        """
        for axis, labels in axes.items():
            if len(labels) > 1:
                raise FltrainError(
                    f"{item}: the layout does not show the axis {axis!r}; an inversion attacks one run: "
                    "leave the axis one of its points"
                )


def attack(sheet: Sheet, figure: Inversion, results: Results, device: str = "auto") -> Recovered:
    """Attack the run of a sheet; what comes out can be drawn and measured.

    Raises:
        NothingToShow: if the run diverged.
        FltrainError: if its record keeps no model, or the figure does not fit the run.
    """
    from fltrain.inversion import recover
    from fltrain.reporting.readings import NothingToShow, diverged
    from fltrain.trained import TrainedRun

    record = results.record(min(sheet.cells, key=lambda cell: cell.seed).run)
    if diverged(record):
        raise NothingToShow
    return recover(TrainedRun(record, results, pick_device(device)), figure)


def measurements(recovered: Recovered) -> pd.DataFrame:
    """One row per recovered image: what it was recovered from, how near it came, and the loss.

    ``psnr`` and ``ssim`` are those to the nearest private image; ``mean_image_psnr`` and ``mean_image_ssim``
    those of the mean image, which a successful attack has to beat by far. ``loss`` is the mean square between
    features and target, ``loss_before`` that of the image from which the attack started.
    """
    import pandas as pd

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


def draw(found: Recovered) -> Canvas:
    """Draw private images, the mean images of their classes, and what an attack recovered, row by row."""
    from matplotlib.figure import Figure as Canvas

    from fltrain.reporting.style import GREY, MILLIMETRE, SMALL

    rows: list[tuple[str, Tensor, Compared | None]] = [
        ("private images", found.images, None),
        ("mean image\nof the class", found.class_means.images, found.class_means),
    ]
    rows += [(one.row.label, one.recovered.images, one.recovered) for one in found.recoveries]
    columns = len(found.private)
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
    for panel, one in zip(grid[0], found.private, strict=True):
        panel.set_title(f"class {one.label}")
        panel.set_xlabel(f"client {one.client}", fontsize=SMALL, labelpad=2)
    first = grid[1][0]
    explained = {"fontsize": SMALL, "color": GREY, "ha": "right", "va": "top"}
    first.text(-0.08, -0.03, "PSNR, SSIM:", transform=first.transAxes, **explained)
    return canvas


def _picture(panel: Panel, image: Tensor) -> None:
    """Show an image ``[channels, height, width]``, from black (0) to white (1)."""
    pixels = image.permute(1, 2, 0).numpy()
    panel.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
    panel.grid(False)
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set_visible(False)
