"""Layouts of tables and figures, and the plain data from which jobs make them. No torch."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, Strict

from fltrain.core.config import ListOf, Settings, suggest, unknown
from fltrain.runs.measures import MEASURES, Measure

Labels = dict[str, str]
"""Axis -> label of one of its points."""

Axes = Mapping[str, Sequence[str]]
"""Axis -> labels of its points."""

COLUMNS = (
    *("seed", "run", "state", "value", "gain", "base_state", "names", "spread_family", "composition"),
    *("floor", "averaged", "best", "best_at_end"),
)
"""Columns of a frame of numbers in addition to the axes (``fltrain.reporting.frame``)."""

NO_AXES = (*COLUMNS, "rows", "series")
"""Names of columns that an axis cannot have."""

NO_HEADINGS = ("gain", "published", "published gain", "difference", "verdict", "verdict on the gain")
"""Headings next to a measure's own, which its label cannot be."""


def _unknown_labels(field: str, labels: Labels, axes: Axes) -> Iterator[str]:
    yield from unknown(f"{field}: unknown axis", labels, axes, "axes")
    for axis, label in labels.items():
        yield from unknown(f"{field}: unknown label", [label], axes.get(axis, [label]), f"labels of {axis!r}")


_AXIS = "axis"
OnAxis = Annotated[str, _AXIS]
OnSomeAxis = Annotated[str | None, _AXIS]
"""Fields of a layout that name an axis."""


class ItemLayout(Settings):
    """Layout of a table or figure; ``NO_AXIS`` are names that its fields for axes accept in addition."""

    NO_AXIS: ClassVar[tuple[str, ...]] = ()

    def _places(self) -> list[tuple[str, str]]:
        """Return the fields that name an axis, each with the axis."""
        keys = [key for key, field in type(self).model_fields.items() if _AXIS in field.metadata]
        values = [(key, getattr(self, key)) for key in keys]
        return [
            (key, axis) for key, axes in values for axis in ([axes] if isinstance(axes, str) else axes or ())
        ]

    def faults(self, axes: Axes) -> Iterator[str]:
        """Yield unknown axes and labels, and axes whose points the layout would mix, each after its field.

        An axis that an unknown one resembles is not missed as well: its name is only misspelt.
        """
        names = [name for _, name in self._places()]
        misspelt = [name for name in names if name not in axes]
        for number, (place, name) in enumerate(self._places()):
            yield from unknown(f"{place}: unknown axis", [name], [*axes, *self.NO_AXIS], "axes")
            if name in names[:number]:
                yield f"{place}: the layout names the axis {name!r} twice"
        for axis, labels in axes.items():
            if len(labels) > 1 and axis not in names and not any(suggest(name, [axis]) for name in misspelt):
                yield f"the layout does not show the axis {axis!r}; add it to the layout"


class Average(Settings):
    """A row of averages over the rows of each column and panel, taken per seed.

    Attributes:
        of: averaged number, the measure itself or its gain.
        reported: value of the column ``metric`` in the file of published values.
    """

    of: Literal["value", "gain"]
    reported: str | None = None


class Measured(Settings):
    """A number shown in a table, and its references.

    Attributes:
        measure: name of a measure (see ``fltrain.runs.measures``).
        label: heading of its columns (default: the measure's own).
        reported: value of the column ``metric`` in the file of published values.
        gain_over: adds the difference to the cell with these labels, paired over seeds.
        gain_margin: margin in points around no difference to ``gain_over``. Adds a verdict on the difference:
            better, equivalent, worse or inconclusive, at a false discovery rate of 5 % over the table. A
            published gain has a margin of its own (docs/protocol.md).
        relative_to: shows multiples of the cell with these labels.
        target_of: for rounds to a target: the target is the best accuracy of the cell with these labels, the
            least over seeds, rounded down to whole per cent. For accuracy at equal time: its median time.
        printed_target: the target in per cent that the paper's text states; used at full scale, and at every
            scale without ``target_of``.
        average: adds a row of averages.
        interval: shows the 90 % intervals of means instead of their deviations.
        place: with ``best_of``, the label whose number is shown, the best one or the median one.
    """

    measure: str
    label: str | None = None
    reported: str | None = None
    gain_over: Labels = {}
    gain_margin: float | None = Field(default=None, gt=0)
    relative_to: Labels = {}
    target_of: Labels = {}
    printed_target: float | None = Field(default=None, gt=0, le=100)
    average: Average | None = None
    interval: bool = False
    place: Literal["best", "median"] = "best"

    @property
    def heading(self) -> str:
        """Heading of its columns."""
        return self.label or (MEASURES[self.measure].label if self.measure in MEASURES else self.measure)

    def faults(self, axes: Axes) -> Iterator[str]:
        """Yield settings that do not fit the axes or the measure, each after its field."""
        for reference in ("gain_over", "relative_to", "target_of"):
            yield from _unknown_labels(reference, getattr(self, reference), axes)
        if self.average and self.average.of == "gain" and not self.gain_over:
            yield "average: 'of: gain' needs 'gain_over'"
        yield from unknown("measure: unknown measure", [self.measure], MEASURES)
        if (metric := MEASURES.get(self.measure)) is None:
            return
        if metric.targeted == "seconds" and self.printed_target:
            yield (
                f"printed_target: {self.measure!r} needs seconds, and this is an accuracy; write 'target_of'"
            )
        elif bool(metric.targeted) != bool(self.target_of or self.printed_target):
            targets = "needs" if metric.targeted else "has no target; remove"
            yield f"measure: {self.measure!r} {targets} 'target_of' or 'printed_target'"
        if self.gain_margin and (not self.gain_over or metric.margin.relative or self.average):
            yield (
                "gain_margin: it needs 'gain_over', a measure in points and no 'average'; "
                f"{self.measure!r} has not all of these"
            )
        if self.average and metric.over_seeds != "mean":
            yield f"average: {self.measure!r} is not a mean over seeds; remove its 'average'"
        if metric.over_seeds == "max" and (self.gain_over or self.relative_to):
            yield (
                f"measure: {self.measure!r} is a maximum over seeds, which cannot be paired: it has no "
                "'gain_over' and no 'relative_to'; show 'best_accuracy' for these"
            )


class Table(ItemLayout):
    """Layout of a table.

    Attributes:
        rows: axis (or dimension of the measure) that runs down.
        columns: axis that runs across.
        panels: axis with a table of its own for each value.
        measures: numbers to show.
        order_by: measure by which rows are sorted, from the largest mean to the smallest.
        best_of: axis that the table does not show, for example of learning rates. Each cell has the label
            with which its first seed is best. The other seeds with this label give its number, so that
            they have no part in the choice; with one seed it gives the number.
        spread_by: axes along which spreads over seeds differ by design, for example the label skew. Only
            spreads of cells with the same labels on these axes are moderated together.
        mean_over: axes that the table does not show. A cell has the mean over their points, seed by seed.
    """

    rows: OnAxis
    columns: OnSomeAxis = None
    panels: OnSomeAxis = None
    measures: ListOf[Measured]
    order_by: str | None = None
    best_of: OnSomeAxis = None
    spread_by: ListOf[str] = ()
    mean_over: Annotated[ListOf[str], _AXIS] = ()

    def faults(self, axes: Axes) -> Iterator[str]:
        yield from unknown("spread_by: unknown axis", self.spread_by, axes, "axes")
        headings = [*NO_HEADINGS, *(measured.heading for measured in self.measures)]
        names = dict.fromkeys(measured.measure for measured in self.measures)
        yield from unknown("order_by: unknown measure", filter(None, [self.order_by]), names, "shown")
        for number, measured in enumerate(self.measures):
            if measured.heading in headings[: len(NO_HEADINGS) + number]:
                yield f"measures.{number}: the heading {measured.heading!r} is taken; set another 'label'"
            yield from (f"measures.{number}.{fault}" for fault in measured.faults(axes))
        dimensions = [MEASURES[name].dimension for name in names if name in MEASURES]
        for dimension in dict.fromkeys(dimensions or [None]):
            yield from super().faults({**axes, **({dimension: ("several", "labels")} if dimension else {})})


class Panel(Settings):
    """One panel of a figure of curves.

    Attributes:
        curve: ``kind.field`` of the rows in ``metrics.jsonl``.
        label: heading of the panel.
        reduction_from: shows the reduction, in per cent, from the curve with these labels and the same seed.
        difference_from: shows the difference from the curve with these labels and the same seed, times 100,
            with its 90 % interval. Implies ``late``.
        late: in a figure with ``columns``, the vertical axis fits the second half of the rounds.
        normalise: divides each curve by its own maximum.
    """

    curve: str
    label: str
    reduction_from: Labels = {}
    difference_from: Labels = {}
    late: bool = False
    normalise: bool = False

    @property
    def fits_late(self) -> bool:
        """True if the vertical axis fits the second half of the rounds."""
        return self.late or bool(self.difference_from)


PARTS = ("layers", "blocks")
"""Fields of the rows that hold one number per layer or block of the network."""


class Curves(ItemLayout):
    """Curves over rounds.

    Attributes:
        over: unit of the horizontal axis; ``epochs`` are rounds times local epochs.
        smoothing: number of points (odd) of a centred mean; the measured values become pale lines.
        series: axis with one line per value, or a field with several numbers (``layers``, ``blocks``).
        columns: axis whose values repeat the panels across.
        rows: axis whose values repeat the panels down.
        panels: panels side by side, or below one another if there are ``columns``.
    """

    NO_AXIS = PARTS

    kind: Literal["curves"]
    over: Literal["rounds", "epochs"] = "rounds"
    smoothing: int = Field(default=1, ge=1)
    series: OnAxis
    columns: OnSomeAxis = None
    rows: OnSomeAxis = None
    panels: ListOf[Panel]

    def faults(self, axes: Axes) -> Iterator[str]:
        if self.smoothing % 2 == 0:
            yield f"smoothing: {self.smoothing} {self.over} have no centre; use an odd number"
        yield from super().faults(axes)
        for number, panel in enumerate(self.panels):
            for key in ("reduction_from", "difference_from"):
                base: Labels = getattr(panel, key)
                place = f"panels.{number}.{key}"
                yield from _unknown_labels(place, base, axes)
                if base and set(base) != {self.series}:
                    yield f"{place}: names {', '.join(map(repr, base))}, but the lines show {self.series!r}"


def _measure_faults(name: str, needed: str, fits: Callable[[Measure], bool] = bool) -> Iterator[str]:
    """Yield a fault if a measure is unknown, not one number for each run, or does not fit."""
    yield from unknown("measure: unknown measure", [name], MEASURES)
    metric = MEASURES.get(name)
    if metric and (metric.targeted or metric.dimension or metric.over_seeds == "max" or not fits(metric)):
        yield f"measure: {name!r} is not {needed}; choose another"


class Points(ItemLayout):
    """A measure along an axis, for each point of ``series``: a line with a mark at each point.

    Attributes:
        along: axis whose points are drawn next to one another.
        label: name of the axis in the figure.
        series: axis with a line for each point; a single line if None.
        measure: name of a measure (see ``fltrain.runs.measures``).
    """

    kind: Literal["points"]
    along: OnAxis
    label: str
    series: OnSomeAxis = None
    measure: str

    def faults(self, axes: Axes) -> Iterator[str]:
        yield from super().faults(axes)
        yield from _measure_faults(self.measure, "one number for each run")


class Ranking(ItemLayout):
    """Differences of a measure, best first, each with its 90 % interval, paired by seed.

    Attributes:
        rows: axis whose points are ranked by their mean over ``series``.
        series: axis with a panel for each point.
        measure: name of a measure in points (see ``fltrain.runs.measures``).
        difference_from: label on the axis ``rows`` from which the others differ.
        margin: half the width of the grey band around zero, in points.
    """

    kind: Literal["ranking"]
    rows: OnAxis
    series: OnAxis
    measure: str
    difference_from: str
    margin: float = Field(gt=0)

    def faults(self, axes: Axes) -> Iterator[str]:
        yield from super().faults(axes)
        if self.rows in axes:
            yield from _unknown_labels("difference_from", {self.rows: self.difference_from}, axes)
        yield from _measure_faults(self.measure, "one in points", lambda metric: not metric.margin.relative)


class Histogram(ItemLayout):
    """Distribution in one round of the numbers that a field holds, one per layer or block.

    Attributes:
        curve: ``kind.field`` of the rows in ``metrics.jsonl``.
        label: name of the numbers in the figure.
        round: the round, counted from 1.
        columns: axis with a panel for each point.
    """

    kind: Literal["histogram"]
    curve: str
    label: str
    round: int = Field(ge=1)
    columns: OnAxis


SEEDS = "seeds"
"""The item's seeds, instead of an axis."""


class SelectedSteps(ItemLayout):
    """Local steps that ECGR selects: rounds across, clients below one another.

    Each client has its steps from the first (below) to the last (above).

    Attributes:
        columns: axis with a panel for each point, which shows the first seed; or ``seeds``, each in a panel.
    """

    NO_AXIS = (SEEDS,)

    kind: Literal["selection"]
    columns: OnAxis


class SideBySide(ItemLayout):
    """A figure with a column for each point of an axis; it shows the first seed of the grid.

    Attributes:
        columns: axis with a panel for each point.
    """

    columns: OnAxis


class Bubbles(SideBySide):
    """Images of each class at each client, as areas. Shows partitions; needs no training."""

    kind: Literal["bubbles"]


class Preference(SideBySide):
    """Top class of every neuron at every client of the last round; runs must keep their clients' models.

    Attributes:
        layers: number of last layers before the classifier, drawn below one another.
        begins: only layers whose names begin with this, such as ``conv``.
    """

    kind: Literal["preference"]
    layers: int = Field(default=3, ge=1)
    begins: str = ""
    images: ClassVar[int] = 50  # test images of each class


class Variance(SideBySide):
    """Spread of the classes that the neurons of each layer prefer; runs must keep their model."""

    kind: Literal["variance"]
    images: ClassVar[int] = 50  # test images of each class


Target = Literal["raw", "class_mean", "mean"]


class Attack(Settings):
    """Search for images with given features, made by an untrained network (deep image prior).

    Attributes:
        steps: steps of Adam, which optimises the network's weights.
        lr: its learning rate.
        ema: weight of the old value in the moving average of the images; 0 is no average.
        channels: channels of the network's maps.
    """

    steps: int = Field(default=3000, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    ema: float = Field(default=0.99, ge=0, lt=1)
    channels: int = Field(default=128, ge=1)


class RecoveredRow(NamedTuple):
    """A row of recovered images: the target features and their noise."""

    target: Target
    noise: float

    @property
    def label(self) -> str:
        """Text in front of the row."""
        texts = {
            "raw": "from raw features",
            "class_mean": "from class means",
            "mean": "from the mean of all classes",
        }
        return texts[self.target] + (f", noise {self.noise:g}" if self.noise else "")


class Inversion(ItemLayout):
    """Images recovered from features of a run's global model, below the private ones.

    The run is the grid's only point, with its first seed; its record must keep the model.

    Attributes:
        split: the attacked cut, as the number of the last convolution below it; null is the network's middle
            cut.
        attack: search for images.
        targets: kinds of rows: ``raw`` features of the private image; ``class_mean``, the mean over the
            client's images of the class; ``mean``, the mean over all images of the client.
        noises: a row of ``class_mean`` for each of these standard deviations of noise added to the mean.
        images: number of private images, one of each class in turn.
    """

    kind: Literal["inversion"]
    split: int | None = Field(default=None, ge=1)
    attack: Attack = Attack()
    targets: Annotated[ListOf[Target], Field(min_length=1)] = ("raw", "class_mean", "mean")
    noises: Annotated[ListOf[Annotated[float, Field(ge=0)]], Field(min_length=1)] = (0.0,)
    images: int = Field(default=5, ge=1)

    @property
    def rows(self) -> list[RecoveredRow]:
        """The rows of recovered images."""
        return [
            RecoveredRow(target, noise)
            for target in self.targets
            for noise in (self.noises if target == "class_mean" else (0.0,))
        ]


Figure = Annotated[
    Curves | Points | Ranking | Histogram | SelectedSteps | Bubbles | Preference | Variance | Inversion,
    Field(discriminator="kind"),
]


def curves_of(layout: Table | Figure) -> list[str]:
    """Return the curves that every run of a table or figure must have."""
    if isinstance(layout, Curves):
        return [panel.curve for panel in layout.panels]
    if isinstance(layout, Histogram):
        return [layout.curve]
    return ["ecgr.selected"] if isinstance(layout, SelectedSteps) else []


def measures_of(layout: Table | Figure) -> list[str]:
    """Return the measures that a table or figure shows; at least one run must have each of them."""
    if isinstance(layout, Table):
        return [measured.measure for measured in layout.measures]
    return [layout.measure] if isinstance(layout, Points | Ranking) else []


class Cell(Settings):
    """One run with its labels on the item's axes, its seed, and its names in the published table.

    ``run`` is the ID of the run, ``methods`` the names of its method and plug-ins, in order. Spreads of
    cells with the same ``family`` are moderated together: labels on the axes of ``Table.spread_by``. ``spec``
    has the settings with their revisions in an item that is made without training.
    """

    labels: Labels
    reported: dict[str, str] = {}
    seed: int
    run: str
    methods: ListOf[str] = ()
    family: ListOf[str] = ()
    spec: dict[str, Any] = {}


class Restriction(Settings):
    """Text of a restriction of an item's runs; ``axis`` if it keeps some labels of that axis only."""

    to: str
    axis: str | None = None

    def __str__(self) -> str:
        return self.to


def named(axis: str | None, label: str) -> str:
    """Return a label as pages show it: a number comes with the name of its axis, as in ``alpha 0.1``."""
    number = re.fullmatch(r"[+-]?\d+(\.\d+)?(e-?\d+)?", label)
    return f"{axis.replace('_', ' ')} {label}" if axis and number else label


class ItemJob(Settings):
    """Plain data from which a job makes a table or figure: layout and runs.

    ``restricted`` lists restrictions by a full scale's axes or by the user's selection; ``scale`` names them.
    ``seen`` is the day by which the runs had been seen: a rule of that day or later is exploratory.
    ``rejudged`` names the cells whose verdict a later version of the rule has changed. Of a ``control``, we
    know which published values are true.
    """

    id: str
    paper: str = ""
    title: str = ""
    caption: str = ""
    scale: str = ""
    reduced: bool
    control: bool = False
    axes: dict[str, ListOf[str]]
    table: Table | None = None
    figure: Figure | None = None
    reported: str | None = None
    reported_seeds: int | None = None
    restricted: ListOf[Restriction] = ()
    assumptions: ListOf[str] = ()
    seen: Annotated[datetime.date, Strict(False)] | None = None
    rejudged: ListOf[str] = ()
    cells: ListOf[Cell]

    @property
    def name(self) -> str:
        """Name of the item in its paper."""
        return self.id.partition("/")[2]

    @property
    def scale_note(self) -> str:
        """One sentence about the scale of the item."""
        return f"{'Reduced scale' if self.reduced else 'Scale'}: {self.scale}."
