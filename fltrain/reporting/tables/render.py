"""Cells of a table as people read them: one grid of texts for all renderers, and the notes below it."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from fltrain.experiments.layout import ItemJob, Measured, Table, named
from fltrain.reporting.pages import TEMPLATES
from fltrain.reporting.tables.cells import layout_of, ranked
from fltrain.reporting.tables.table_cell import CORRECTED, TableCell
from fltrain.reporting.text import number_text, seeds_text
from fltrain.reporting.verdict import EXPECTED, expected_counts, repeated, without_interval
from fltrain.reporting.version import RULE_DATE
from fltrain.runs.measures import Margin, measure

DROPPED = "†"
"""Mark of a verdict that is not significant after the correction for the number of cells or claims."""
CORRECTION = f"{DROPPED} Significant alone, but not after the correction for the number of"
DROPPED_CELLS = f"{CORRECTION} cells (false discovery rate 5 %)."
EXPLORATORY = "Exploratory: the rule was decided after these runs had been seen."
GENERAL = {
    "chance": "A diverged run counts as chance accuracy in means and gains.",
    "never": "A diverged run never reaches the target.",
    "no_value": "A diverged run has no value.",
    "no_gain": "If all runs of a cell or of its base diverged, there is no gain.",
    "pooled_spread": "Intervals of equal width share one estimate of the spread (docs/protocol.md).",
}
"""Notes that hold for any table: a page with several tables has them once."""

SIGNS = {
    "reproduced": "=",
    "not reproduced": "≠",
    "size reproduced": "=",
    "direction reproduced": "~",
    "opposite": "≠",
    "better": ">",
    "equivalent": "=",
    "worse": "<",
    "inconclusive": "?",
}
"""Verdicts in LaTeX tables."""
FORMS = {" ± ": " ± SD", " [": " [90 % interval]"}
"""Text after a number in a column -> text after its heading."""
LONG_FORM = ("difference", "verdict", "published-gain")
"""Kinds of columns that LaTeX tables leave out. Pages have verdicts below values, for narrow screens."""


# ---------------------------------------------------------------- texts of a cell
def value_text(cell: TableCell, as_interval: bool = False) -> str:
    """Return our value with its spread or interval; runs that diverged are counted first."""
    absent = {"not run": cell.missing, "damaged": cell.damaged}
    lost = f"{cell.diverged} of {cell.seeds} diverged" if cell.diverged else ""
    if cell.mean is None:
        if cell.gains or (cell.gain is None and cell.published_gain is not None and cell.published is None):
            return ""  # an average of gains has no value
        return lost or next((name for name, count in absent.items() if count), "—")
    if cell.lost:
        return lost
    text = number_text(cell.mean, cell.decimals, "", cell.std, cell.interval() if as_interval else None)
    if cell.mean == math.inf and cell.n > 1:  # a seed misses the target
        text = f"{sum(map(math.isfinite, cell.values))} of {cell.n} seeds reach it"
    text += f" at {cell.best}" if cell.best else ""
    notes = [f"{count} of {cell.seeds} {name}" for name, count in absent.items() if count]
    return (f"{lost}; " if lost else "") + text + (f" ({', '.join(notes)})" if notes else "")


def gain_text(cell: TableCell) -> str:
    """Return our gain with its interval; diverged runs of the base are counted first.

    If all runs of a side diverged, they stand in its place.
    """
    if cell.lost_gain:
        return cell.lost_gain if cell.gains else ""
    lost = f"{cell.base_diverged} of {len(cell.gains)} of the base diverged; " if cell.base_diverged else ""
    return lost + number_text(cell.gain, cell.decimals, "+", interval=cell.interval("gain_"))


def published_text(cell: TableCell) -> str:
    """Return the published value, or the reason why none is printed."""
    if cell.published is None and cell.published_gain is None:
        return next(iter(cell.published_notes), "")
    return number_text(cell.published, cell.decimals, "", cell.published_std)


def _notes_on(cell: TableCell) -> list[str]:
    """Return doubts and notes on the published value, without the note that stands in its place."""
    doubts = [f"Doubtful as published: {reason}." for reason in cell.anomalies]
    printed = cell.published is not None or cell.published_gain is not None
    return [*doubts, *cell.published_notes[0 if printed else 1 :]]


NO_CELL = TableCell()


@dataclass(frozen=True)
class GridEntry:
    """Text in one place of a table.

    Attributes:
        kind: ``own``, ``gain``, ``published`` and so on; class of the HTML element.
        value: sorts the column.
        marks: numbers of the notes below.
    """

    text: str = ""
    kind: str = ""
    cell: TableCell = NO_CELL
    value: float | None = None
    marks: tuple[str, ...] = ()

    @property
    def marked(self) -> str:
        """The text with its marks."""
        return self.text + "".join(f" [{mark}]" for mark in self.marks)

    @property
    def verdict(self) -> str:
        """Verdict on our value or gain; empty for other kinds."""
        return {"own": self.cell.verdict, "gain": self.cell.gain_verdict}.get(self.kind) or ""

    @property
    def badge(self) -> str:
        """The verdict with its side or reason and its marks."""
        cell = self.cell
        texts = {"own": cell.full_verdict + DROPPED * cell.dropped, "gain": cell.full_gain_verdict}
        text = texts.get(self.kind, "")
        return f"{text}, exploratory" if self.verdict and cell.exploratory and text != "not run" else text

    @property
    def pill(self) -> str:
        """The verdict with its side, or the reason why it is inconclusive, without the note next to it."""
        reason = self.cell.reason if (self.cell.reason == CORRECTED) == (self.kind == "gain") else ""
        return reason or self.badge.removesuffix(", exploratory")

    @property
    def legend(self) -> str:
        """The verdict after its sign."""
        return f"{SIGNS[self.verdict]} {self.verdict}"

    @property
    def sign(self) -> str:
        """Sign of the verdict, for tables without columns of verdicts."""
        dropped = self.kind == "own" and self.cell.dropped
        return SIGNS.get(self.verdict, "") + DROPPED * (dropped and bool(self.verdict))

    @property
    def tone(self) -> str:
        """``good`` or ``bad`` if the interval of a gain without a verdict excludes zero.

        Of costs, less is better. A verdict has its own colour, which the margin decides.
        """
        cell, interval = self.cell, self.cell.interval("gain_")
        unjudged = self.kind == "gain" and not (cell.gain_verdict or cell.lost_gain)
        if not unjudged or not interval or interval[0] <= 0 <= interval[1]:
            return ""
        definition = measure(cell.measure)
        if not (definition.accuracy or definition.margin.relative):
            return ""
        return "good" if (interval[0] > 0) == definition.accuracy else "bad"


def entries_of(
    cell: TableCell, as_interval: bool, reduced: bool, marks: Mapping[str, str] = {}, gain: str = "gain"
) -> dict[str, GridEntry]:
    """Return the entries of a cell by the heading of their column; empty ones have no text.

    ``marks`` are the numbers of notes on published values, ``gain`` is the heading of our gain.
    """

    def signed(value: float | None, interval: tuple[float, float] | None = None) -> str:
        finite = value is not None and math.isfinite(value)
        return number_text(value, cell.decimals, "+", None, interval) if finite else ""

    noted = tuple(marks[note] for note in _notes_on(cell) if note in marks)
    numbers = cell.measured(("mean", "gain", "difference"))
    difference = signed(cell.difference, cell.interval("difference_"))
    difference = "diverged" if difference and cell.lost else difference
    our_value = GridEntry(value_text(cell, as_interval), "own", cell, numbers["mean"])
    gained = GridEntry(gain_text(cell), "gain", cell, numbers["gain"])
    return {
        cell.label: our_value,
        gain: gained,
        "published" + (" (full scale)" if reduced else ""): GridEntry(
            published_text(cell), "published", cell, cell.published, noted
        ),
        "published gain": GridEntry(signed(cell.published_gain), "published-gain", cell, cell.published_gain),
        "difference": GridEntry(difference, "difference", cell, numbers["difference"]),
        "verdict": GridEntry(our_value.badge, "verdict", cell),
        "verdict on the gain": GridEntry(gained.badge, "verdict", cell),
    }


# ---------------------------------------------------------------- the grid
@dataclass(frozen=True)
class Grid:
    """A table for display: column headings of one to three levels, and entries by row."""

    corner: str
    columns: list[tuple[str, ...]]
    rows: dict[str, list[GridEntry]]

    @classmethod
    def of(
        cls,
        sheet: ItemJob,
        cells: Sequence[TableCell],
        marks: Mapping[str, str],
        without: Container[str] = (),
    ) -> Grid:
        """Arrange cells: rows by label; columns by panel, column and quantity, as far as these differ.

        It leaves out empty columns, and kinds ``without``. Headings tell deviations from intervals.
        """
        layout = layout_of(sheet)
        intervals = {measured.heading: measured.interval for measured in layout.measures}
        columns: dict[tuple[str, str, str, str], dict[str, GridEntry]] = {}
        for cell in cells:
            place = (cell.label, named(layout.panels, cell.panel), named(layout.columns, cell.column))
            gain = gain_heading(layout, cell)
            entries = entries_of(cell, intervals[cell.label], sheet.reduced, marks, gain)
            for heading, entry in entries.items():
                columns.setdefault((*place, heading), {})[cell.row] = entry
        texts = {place: "".join(entry.text for entry in column.values()) for place, column in columns.items()}
        forms = {key: next((FORMS[form] for form in FORMS if form in texts[key]), "") for key in columns}
        if {*FORMS.values()} <= {*forms.values()}:
            columns = {(*place[:3], place[3] + forms[place]): column for place, column in columns.items()}
        columns = {
            place: column
            for place, column in columns.items()
            if any(entry.marked and entry.kind not in without for entry in column.values())
        }
        levels = [level for level in (1, 2, 3) if any(place[level] for place in columns)]
        return cls(
            corner=layout.rows,
            columns=[tuple(place[level] for level in levels) for place in columns],
            rows={
                row: [entries.get(row, GridEntry()) for entries in columns.values()]
                for row in _rows(sheet, cells)
            },
        )

    @property
    def entries(self) -> list[GridEntry]:
        """All entries."""
        return list(itertools.chain.from_iterable(self.rows.values()))

    @property
    def heading_rows(self) -> list[list[tuple[str, int]]]:
        """Per level, the headings with the number of columns that each spans; one each on the last level."""
        spans = []
        for level in range(1, len(self.columns[0]) if self.columns else 1):
            groups = itertools.groupby(self.columns, operator.itemgetter(slice(level)))
            spans.append([(place[-1], len(list(group))) for place, group in groups])
        return [*spans, [(place[-1], 1) for place in self.columns]]


def _rows(sheet: ItemJob, cells: Sequence[TableCell]) -> list[str]:
    """Return the rows from top to bottom."""
    layout, rows = layout_of(sheet), list(dict.fromkeys(cell.row for cell in cells))
    if ranked(layout, cells):
        return rows
    order = [*sheet.axes.get(layout.rows, ()), *rows]  # a column may lack the first rows
    return sorted(rows, key=order.index)


# ---------------------------------------------------------------- notes
@dataclass(frozen=True)
class Notes:
    """Texts below a table; the template ``notes.txt`` has their words.

    Attributes:
        marks: number of each note on some published values.
        seeds: summary over seeds, and the treatment of diverged runs.
        texts: rule, margins, expected counts, detectable differences; notes on all published values.
        remarks: damaged records and mixed conditions, see ``fltrain.runs.today``.
    """

    marks: dict[str, str]
    seeds: str
    texts: list[str]
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        sheet: ItemJob,
        cells: Sequence[TableCell],
        remarks: Sequence[str] = (),
        targets: str = "",
    ) -> Notes:
        """Collect the notes of a table; ``targets`` is the sentence on its target accuracies."""
        layout, seeds = layout_of(sheet), max(cell.seeds for cell in cells)
        noted = [cell.published_notes for cell in cells if cell.published_notes or cell.published is not None]
        general = [note for note in noted[0] if all(note in notes for notes in noted)] if noted[1:] else []
        by_row = [cell for row in _rows(sheet, cells) for cell in cells if cell.row == row]
        special = dict.fromkeys(note for cell in by_row for note in _notes_on(cell) if note not in general)
        judged = [cell for cell in cells if cell.judged and not cell.among_own]
        tested = [cell for cell in judged if cell.expected_reproduced is not None]
        intervals = {measured.measure for measured in layout.measures if measured.interval}
        ends = {cell.runs: cell.interval() for cell in cells if cell.measure in intervals}
        gained = [cell for cell in cells if not cell.lost_gain]
        ends |= {("gain", cell.measure, *cell.runs): cell.interval("gain_") for cell in gained}
        widths = {runs: round(interval[1] - interval[0], 9) for runs, interval in ends.items() if interval}
        alike: dict[tuple[str, ...], list[TableCell]] = {}
        for cell in cells:
            if cell.measure in intervals and cell.runs:
                alike.setdefault((cell.measure, *cell.runs), []).append(cell)
        unlike = (group for group in alike.values() if len({cell.interval() for cell in group}) > 1)
        counted = {measure(cell.measure).diverged or "no_value" for cell in cells if cell.diverged and cell.n}
        seed_lists = {cell.value_seeds for cell in cells if cell.value_seeds}
        rendered = TEMPLATES.get_template("notes.txt").render(
            sheet=sheet,
            layout=layout,
            targets=targets,
            seeds=seeds,
            which_seeds="".join(f" ({seeds_text(group)})" for group in seed_lists if len(seed_lists) == 1),
            up_to="up to " * any(0 < cell.complete < seeds for cell in cells),
            summaries={measured.heading: _over_seeds(measured) for measured in layout.measures},
            cells=cells,
            diverged=next((GENERAL[note] for note in GENERAL if note in counted), ""),
            general=general,
            ordered_by=measure(layout.order_by or "").label.partition(",")[0]
            if ranked(layout, cells)
            else "",
            own_margins=own_margins(cells),
            repeated=repeated(cells),
            judged=judged,
            margins=_ranges(judged, "margin"),
            detectable=_ranges(judged, "detectable"),
            counts=Counter(cell.verdict for cell in tested),
            without=Counter(filter(None, (without_interval(cell.reason) for cell in judged))),
            bases=bases_of(layout),
            unlike=next(unlike, []),
            pooled=len({*widths.values()}) < len(widths),
            expected={} if sheet.control else expected_counts(tested, EXPECTED),
            rule_date=RULE_DATE,
            dropped=DROPPED_CELLS,
            exploratory=EXPLORATORY,
            **GENERAL,
        )
        first, *texts = (re.sub(r"[ \n]+", " ", text).strip() for text in rendered.split("---\n"))
        marks = {note: str(number) for number, note in enumerate(special, start=1)}
        return cls(marks, first, [text for text in texts if text], tuple(remarks))

    @property
    def numbered(self) -> list[str]:
        """The notes on some published values, each after its mark."""
        return [f"[{mark}] {note.removesuffix('.')}." for note, mark in self.marks.items()]

    @property
    def all(self) -> list[str]:
        """The notes, one text each."""
        return [self.seeds, *self.numbered, *self.texts, *self.remarks]


def own_margins(cells: Sequence[TableCell]) -> list[str]:
    """Return the note on verdicts on gains that no paper prints, for each margin."""
    margins = dict.fromkeys(cell.gain_margin for cell in cells if cell.among_own)
    return [
        "Better, equivalent or worse: the difference, paired by seed, lies above, inside or below the margin "
        f"of {margin:g} points. One-sided tests are corrected for all differences of this table (false "
        f"discovery rate 5 %). Inconclusive: none of these. “{CORRECTED.capitalize()}”: the interval alone "
        "would decide the cell."
        for margin in margins
    ]


def bases_of(table: Table) -> list[str]:
    """Return the bases of a table's gains, for example ``FedAvg``."""
    return list(dict.fromkeys(_base(measured) for measured in table.measures if measured.gain_over))


def gain_heading(table: Table, cell: TableCell) -> str:
    """Return the heading of a cell's gain, which names the base."""
    measured = next(measured for measured in table.measures if measured.heading == cell.label)
    return f"gain over {_base(measured)}"


def _base(measured: Measured) -> str:
    return ", ".join(named(axis, label) for axis, label in measured.gain_over.items())


def _over_seeds(measured: Measured) -> str:
    mean = "mean with its 90 % interval" if measured.interval else "mean ± standard deviation"
    return {"mean": mean, "median": "median", "max": "maximum"}[measure(measured.measure).over_seeds]


def _ranges(cells: Sequence[TableCell], column: str) -> str:
    """For example ``0.25 to 1 points of final accuracy``: a column's range for each measure.

    Margins that are shares of the published values name the share first.
    """
    by_label: dict[str, list[float]] = {}
    shares: dict[str, Margin] = {}
    for cell in cells:
        if (value := getattr(cell, column)) is not None:
            value = float(f"{value:.2g}") if column == "detectable" else value  # an estimate
            by_label.setdefault(cell.label, []).append(value)
            if column == "margin" and (share := measure(cell.measure).margin).relative:
                shares[cell.label] = share

    def text(values: list[float], label: str) -> str:
        ends = [f"{end:.0f}" if end >= 100 else f"{end:.2g}" for end in (min(values), max(values))]
        name, percent, _ = label.partition(", %")
        unit = f"point{'s' * (ends != ['1', '1'])} of {name}" if percent else name
        numbers = f"{' to '.join(dict.fromkeys(ends))} {unit}"
        return f"{shares[label]} of the published value ({numbers})" if label in shares else numbers

    return " and ".join(text(values, label) for label, values in by_label.items())
