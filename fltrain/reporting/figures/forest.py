"""Forest plots: intervals of all cells of a paper below one another, as plain data for a page. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fltrain.core.errors import count
from fltrain.reporting.pages import tone
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.verdict import MISSED, NO_INTERVAL, without_interval

LIMIT, MEDIANS, MOST = 6, 4, 40
"""Farthest end of the axis in margins or, of gains, in medians of their ends; most cells of a plot."""
STEPS = (0.5, 1, 2, 5, 10, 20, 50)
"""Distances of ticks, in points."""
AXIS = "(ours minus published) / allowed difference (margin)"


def forest(
    cells: Sequence[TableCell], titles: Mapping[str, str], of: Literal["difference", "gain"] = "difference"
) -> dict[str, Any]:
    """Return differences below one another, for the macro of this name in ``parts.html``.

    Args:
        cells: cells of a paper; those without an interval are counted in the notes. If all runs of a side
            diverged or some miss the target, these words stand in the place of the number.
        titles: title of each item, the heading of its cells if they are gains or there are several items.
        of: differences to published values, in margins, or gains in points.

    Returns:
        ``rows`` by heading; ``ticks``, ``notes`` and ends of the allowed ``margin`` of the axis, which has
        zero on it. Labels leave out a panel that all cells share. Numbers are in per cent of the axis; an
        interval can reach ``below`` or ``above`` it, and a ``middle`` beyond it is None. Empty without an
        interval, or with too many cells.
    """
    compared = of == "difference"
    entries: list[tuple[TableCell, str, list[float]]] = []
    for cell in cells:
        interval, middle = cell.interval("difference_" if compared else "gain_"), getattr(cell, of)
        unit = cell.margin if compared else float(cell.label.endswith("%"))
        if compared and cell.reason == MISSED:
            entries.append((cell, MISSED, [0.0] * 3))
        elif interval and unit and middle is not None and all(map(math.isfinite, interval)):
            lost = "diverged" * cell.lost if compared else cell.lost_gain
            numbers = [0.0 if lost else number / unit for number in (interval[0], middle, interval[1])]
            entries.append((cell, lost, numbers))
    if all(lost == MISSED for _, lost, _ in entries) or len(entries) > MOST:
        return {}
    reaches = [max(map(abs, numbers)) for _, lost, numbers in entries if not lost] or [0.0]
    # A few intervals that are much wider, for example after divergence, do not shrink all others to dots.
    farthest = LIMIT if compared else max(1, math.ceil(MEDIANS * statistics.median(reaches)))
    drawn = [number for _, _, numbers in entries for number in numbers]
    least, most = (-2, 2) if compared else (0, 0 if any(drawn) else 1)
    left = max(-farthest, min(least, math.floor(min(drawn, default=0))))
    right = min(farthest, max(most, math.ceil(max(drawn, default=0))))

    def place_of(number: float) -> float:
        return round(100 * (max(left, min(right, number)) - left) / (right - left), 2)

    labels = {(cell.item, cell.label) for cell, *_ in entries}
    items = {item for item, _ in labels}
    panels = {cell.panel for cell, *_ in entries}
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell, lost, numbers in entries:
        label = [cell.label.removesuffix(", %")] * (len(labels) > len(items))
        heading = ", ".join([titles[cell.item]] * (len(items) > 1 or not compared) + label)
        low, middle, high = map(place_of, numbers)
        colour = tone((cell.full_verdict if compared else cell.gain_verdict) or "")
        if not compared and not cell.gain_verdict:
            # As in tables, the colour of a gain without a verdict shows on which side of zero it is.
            colour = "good" if numbers[0] > 0 else "bad" if numbers[2] < 0 else ""
        inside = left <= numbers[1] <= right
        place = (cell if len(panels) > 1 else cell.replace(panel="")).place or cell.place
        row = {
            **{"place": place.replace(" / + ", " + "), "lost": lost, "tone": colour},
            **{"low": low, "middle": middle if inside else None, "high": high},
            **{"below": numbers[0] < left, "above": numbers[2] > right},
        }
        rows.setdefault(heading, []).append(row)
    hidden = sum(without_interval(cell.reason) == NO_INTERVAL for cell in cells) if compared else 0
    notes = [AXIS if compared else "gain, in percentage points"]
    coloured = not compared and any(row["tone"] for group in rows.values() for row in group)
    notes += ["colour: the interval excludes zero"] * coloured
    notes += ["arrows: beyond the axis"] * (max(reaches) > farthest)
    notes += [f"{count(hidden, 'cell')} without an interval: not shown"] * bool(hidden)
    step = next((step for step in STEPS if right - left <= 5 * step), STEPS[-1])
    steps = [step * number for number in range(math.ceil(left / step), math.floor(right / step) + 1)]
    ticks = {f"{tick:g}": place_of(tick) for tick in (sorted({left, -1, 0, 1, right}) if compared else steps)}
    return {"rows": rows, "ticks": ticks, "notes": notes, "margin": [*map(place_of, (-1, 1))] * compared}
