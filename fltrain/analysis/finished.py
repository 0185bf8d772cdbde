"""A finished run for notebooks: its metrics as a data frame, its trained network, a plot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError
from fltrain.core.lazy import Tensor, torch
from fltrain.runs.measures import recorded_curves
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fltrain.analysis.trained_model import TrainedRun
    from fltrain.models.network import Network


def round_axes(metric: str, ax: Axes | None) -> Axes:
    """Return axes for a metric over rounds: the given ones, or new ones."""
    from matplotlib import pyplot
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

    if not isinstance(ax, Axes | None):
        raise FltrainError(f"ax should be axes of Matplotlib, such as pyplot.subplots()[1], got {ax!r}")
    axes: Axes = pyplot.subplots()[1] if ax is None else ax
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("communication round")
    axes.set_ylabel(metric.replace("_", " "))
    return axes


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run with a complete record, as ``fltrain.train`` returns it.

    Attributes:
        record: its record, with all rows, settings, costs and provenance.
        spec: its settings.
        results: the results folder.
    """

    record: Record
    spec: RunSpec
    results: Results

    @property
    def run_id(self) -> str:
        """ID of the run."""
        return self.record.run_id

    @property
    def status(self) -> str:
        """``completed`` or ``diverged``."""
        return str(self.record.summary["status"])

    @property
    def accuracy(self) -> float | None:
        """Final accuracy from 0 to 1: mean of the last tenth of the rounds; None if the run diverged."""
        final: float | None = self.record.summary["accuracy"]["final"]
        return final

    @property
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json``: accuracies, traffic, digests."""
        return self.record.summary

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Metrics over rounds: a row per round (from 1), a column per metric, accuracies from 0 to 1.

        Columns are ``test_accuracy``, ``test_loss``, ``train_loss`` and measured statistics; NaN where a
        round has no value.
        """
        curves = recorded_curves(self.record)
        frame = pd.DataFrame({name: pd.Series(dict(curve)) for name, curve in curves.items()})
        return frame.rename_axis("round")

    def plot(self, metric: str = "test_accuracy", ax: Axes | None = None) -> Axes:
        """Draw a metric over the rounds and return the axes.

        Args:
            metric: a column of ``metrics``.
            ax: axes to draw on, for example another run's; default: new ones.

        Raises:
            FltrainError: if the run has no such metric.
        """
        check_known(f"{self.run_id}: no metric", [metric], map(str, self.metrics), "it has")
        axes, curve = round_axes(metric, ax), self.metrics[metric].dropna()
        axes.plot(curve, label=f"{self.spec.composition.name}, seed {self.spec.seed}")
        axes.legend()
        return axes

    def model(self) -> Network:
        """Return the trained global network in evaluation mode, on the CPU.

        It takes normalised images ``[n, channels, height, width]`` and returns logits ``[n, classes]``.

        Raises:
            FltrainError: if the run keeps no model, or its method has no global one.
        """
        self._trained.load_global()
        return self._trained.network

    def test_images(self) -> tuple[Tensor, Tensor]:
        """Return the dataset's test images, normalised as ``model`` takes them, and their labels."""
        test = self._trained.data.test
        return test.batch(torch.arange(len(test)))

    @cached_property
    def _trained(self) -> TrainedRun:
        from fltrain.analysis.trained_model import TrainedRun

        return TrainedRun(self.record, self.results, torch.device("cpu"))

    def __repr__(self) -> str:
        final = "" if self.accuracy is None else f", final accuracy {100 * self.accuracy:.2f} %"
        return f"<{self.run_id}: {self.status}{final}>"

    def _repr_html_(self) -> str:
        """Show the run and its last rounds in a notebook."""
        return f"<p>{repr(self)[1:-1]}</p>{self.metrics.tail().to_html()}"
