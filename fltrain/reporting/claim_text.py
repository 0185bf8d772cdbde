"""Texts for the number that a claim is about: its name, its value, and the limits of its region. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fltrain.core.statistics import Interval
from fltrain.experiments.claims import LabelChoice, Quantity
from fltrain.experiments.layout import Curves, ItemJob, named
from fltrain.reporting.text import joined, number_text, shared_decimals
from fltrain.runs.measures import CURVES, measure

OTHERS = "the others"
"""Name of a side of several labels."""


@dataclass(frozen=True)
class Sides:
    """Names of what a test compares.

    For example, ``B = 10`` and ``B = inf``, for ``IID``; or the gain with ``ECGR`` ``at Dirichlet 0.01`` and
    ``at Dirichlet 0.1``.

    Attributes:
        common: labels that both sides share.
        first: first side of the difference, or the plug-in of a gain.
        second: second side; empty for a gain with a plug-in, and without a difference. Several sides are
            ``the others``, or the one at a place.
        plugin: the number is a gain with a plug-in.
        changes: pairs of places, or of parts of a run, between which the number is a difference.
    """

    common: str
    first: str
    second: str
    plugin: bool = False
    changes: Sequence[Sequence[str]] = ()

    @property
    def noun(self) -> str:
        """Kind of the number."""
        return "difference" if self.second or self.changes else "gain" if self.plugin else "number"


@dataclass(frozen=True)
class ClaimText:
    """Texts for the number of a claim.

    Attributes:
        sheet: the item whose runs have the number.
        test: the number.
    """

    sheet: ItemJob
    test: Quantity

    def number(self, value: float, interval: Interval | None) -> str:
        """Return a value with its unit and interval, for example ``+1.5 points [+0.7, +2.2]``."""
        value, interval = self.scaled(value, interval)
        decimals = shared_decimals(value, interval)
        if self.unit == " points" and not interval:
            decimals = min(decimals, 2)
        return number_text(value, decimals, self.sign, interval=interval, unit=self.unit)

    def scaled(self, value: float, interval: Interval | None) -> tuple[float, Interval | None]:
        """Return a value and its interval in the unit of texts."""
        return self.scale * value, interval and (self.scale * interval[0], self.scale * interval[1])

    def limit(self, value: float, kind: Literal["end", "margin", "stated"] = "end") -> str:
        """Return an end or margin of a region, or a stated number, with its unit; 0 needs none.

        Stated differences have a sign. The margin around a percentage is in points.
        """
        value *= self.scale
        unit = self.unit if value else ""
        unit = " points" if kind == "margin" and unit == " %" else unit
        unit = unit.removesuffix("s") if abs(value) == 1 else unit
        sign = self.sign if value else ""
        return f"{value:{f'{sign}zg' if kind == 'stated' else 'z.3g'}}{unit}"

    def name(self, place: str, scope: str = "") -> str:
        """Return the name of the number at a place, for example ``Fed2 minus FedAvg, average of 3 cases``."""
        sides = self.sides(place)
        first, second = (
            re.sub("^(?=with(out)? )", "the variant ", side) for side in (sides.first, sides.second)
        )
        quantity = "" if self.unit == " rounds" else self._measure_name
        quantity += f" (relative to {self._base})" if self._base else ""
        if parts := self.test.part:
            quantity += f" {'summed over' if len(parts) > 1 else 'of'} {joined(parts)}"
        name = first
        if sides.plugin:
            name = f"{'gain' if self.unit == ' points' else 'change'} with {first}"
        elif second:
            second = f"({second})" if " + " in second else second
            name = f"{first} {'relative to' if self.test.relative else 'minus'} {second}"
        name, quantity = (name, quantity) if name else (quantity, "")
        for before, after in sides.changes:
            name = f"{f'({name})' if ' minus ' in name else name} {before} minus {after}"
        return ", ".join(filter(None, (quantity, name, sides.common, scope)))

    @property
    def sign(self) -> str:
        """``+`` if the number is a difference, which has a sign."""
        return "+" if self.test.over or self.test.minus or self.test.minus_rounds else ""

    @property
    def scale(self) -> float:
        """Factor of texts: fractions are in points, and differences of multiples in per cent."""
        fraction = self.test.curve in ("evaluation.accuracy", "evaluation.macro")
        return 100.0 if not self.test.relative and (fraction or (self._base and self.sign)) else 1.0

    @property
    def unit(self) -> str:
        """Unit after a space. Curves of distances have none."""
        if self.test.relative:
            return " %"
        if self.test.measure is None:
            return (" points" if self.sign else " %") if self.scale > 1 else ""
        if self._base:
            return " %" if self.sign else " times"
        unit = measure(self.test.measure).unit
        return f" {'points' if unit == '%' and (self.test.over or self.test.minus) else unit}" if unit else ""

    @property
    def _base(self) -> str:
        """Cell in whose multiples the table has the measure, or an empty text."""
        columns = self.sheet.table.measures if self.sheet.table else ()
        base = next((column.relative_to for column in columns if column.measure == self.test.measure), {})
        return ", ".join(base.values())

    @property
    def _measure_name(self) -> str:
        """Name of a measure or of a curve, as in the figure: ``final accuracy``, ``mean local drift``."""
        if self.test.measure:
            return measure(self.test.measure).label.partition(",")[0]
        panels = self.sheet.figure.panels if isinstance(self.sheet.figure, Curves) else ()
        names = [panel.label for panel in panels if panel.curve == self.test.curve]
        names += [name.replace("_", " ") for name, curve in CURVES.items() if curve == self.test.curve]
        label = next(iter(names), self.test.curve or "")
        return "mean " + re.sub(r"^(\(\w\) )?(\w)", lambda match: match[2].lower(), label)

    def sides(self, place: str) -> Sides:
        """Name the sides of the number at a place."""
        test, axes = self.test, self.sheet.axes
        subtracted = test.over or test.minus
        fixed = {axis: names for axis, names in test.at.items() if axis not in {**test.over, **test.minus}}
        common = [named(axis, *names) for axis, names in fixed.items() if len(names) == 1 < len(axes[axis])]
        first, second = labels_text(self._minuend(subtracted)), ""
        changes: list[Sequence[str]] = []
        if subtracted:
            rivals = [named(axis, label) for axis in subtracted for label in axes[axis]]
            first = first or (place if place in rivals else OTHERS)
            second = ", ".join(
                "the mean of " * (len(names) > 1) + " and ".join(named(axis, label) for label in names)
                for axis, names in subtracted.items()
            )
            if test.reverse:
                first, second = second, first
            shared, first, second = _common_labels(first, second)
            common += shared
        if test.over and test.minus:
            shared, *ends = _common_labels(labels_text(self._minuend(test.minus)), labels_text(test.minus))
            common += shared
            changes.append([f"at {end}" for end in ends])
        if test.minus_rounds:
            changes.append([_share(test.rounds), _share(test.minus_rounds).removesuffix(" of rounds")])
        elif test.rounds != (0.0, 1.0):
            common.append(_share(test.rounds))
        plugin, removed = _plugin(first), _plugin(second)
        if plugin:
            first, second = plugin, ""
        elif removed:
            first, second = f"training without {removed}", "training with it"
        return Sides(", ".join(dict.fromkeys(common)), first, second, bool(plugin), changes)

    def _minuend(self, subtracted: LabelChoice) -> LabelChoice:
        """Return the label of each axis from which others are subtracted, if there is only one."""
        minuend: LabelChoice = {}
        for axis, names in subtracted.items():
            labels = {*self.sheet.axes[axis]}
            remaining = {*self.test.at.get(axis, labels)} & labels - {*names}
            if len(remaining) == 1:
                minuend[axis] = (remaining.pop(),)
        return minuend


def _share(rounds: tuple[float, float]) -> str:
    """Return a share of the rounds in words."""
    start, end = (100 * share for share in rounds)
    if not start:
        return f"in the first {end:.3g} % of rounds"
    if end == 100:
        return f"in the last {end - start:.3g} % of rounds"
    return f"between {start:.3g} and {end:.3g} % of rounds"


def _common_labels(first: str, second: str) -> tuple[list[str], str, str]:
    """Return the labels that two sides share, and each side without them."""
    labels = [side.split(", ") for side in (first, second)]
    common = [label for label in labels[0] if label in labels[1]]
    first, second = (", ".join(label for label in side if label not in common) for side in labels)
    return common, first, second


def _plugin(label: str) -> str:
    """Return the plug-in that a label such as ``+ ECGR`` adds to a base method, else an empty text."""
    return label.removeprefix("+ ") if label.startswith("+ ") else ""


def labels_text(chosen: LabelChoice) -> str:
    """Return labels with commas between them; numbers with the name of their axis."""
    return ", ".join(named(axis, label) for axis, names in chosen.items() for label in names)
