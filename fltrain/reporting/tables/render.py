"""Cells of a table as people read them: one grid of texts, as Markdown and LaTeX, and the notes below it."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from fltrain.core.statistics import LEVEL, Sample, contrast, holm
from fltrain.experiments.layout import ItemJob, named
from fltrain.reporting.tables.cells import layout_of
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import latex, markdown_table, number_text, without_tags
from fltrain.reporting.verdict import EXPECTED, count_verdicts, expected_counts
from fltrain.reporting.version import RULE_DATE
from fltrain.runs.measures import measure

PUBLISHED = "published"
DOUBTFUL = "Doubtful as published"
DROPPED = "†"
"""Mark of a cell that drops out of the list of cells that are not reproduced."""


@dataclass(frozen=True)
class GridEntry:
    """Text in one place of a table.

    Attributes:
        kind: ``own``, ``gain``, ``published`` and so on; class of the HTML element.
        value: sorts the column.
        marks: numbers of the notes below.
        best: no other of our values in the column is better.
        tied: not shown to be worse than the best one.
        tone: ``up`` or ``down`` if the interval of a gain excludes zero, for the better or the worse.
        verdict: sign of the verdict on a value or gain, for tables without columns of verdicts.
    """

    text: str
    kind: str = ""
    cell: TableCell | None = None
    value: float | None = None
    marks: tuple[str, ...] = ()
    best: bool = False
    tied: bool = False
    tone: str = ""
    verdict: str = ""

    @property
    def marked(self) -> str:
        """The text with its marks."""
        return self.text + "".join(f" [{mark}]" for mark in self.marks)


def value_text(cell: TableCell, as_interval: bool = False) -> str:
    """Return our value with its spread or interval; runs that diverged are counted first."""
    absent = {"not run": cell.missing, "stale": cell.stale, "damaged": cell.damaged}
    lost = f"{cell.diverged} of {cell.seeds} diverged" if cell.diverged else ""
    if cell.mean is None:
        if cell.gains or (cell.gain is None and cell.published_gain is not None and cell.published is None):
            return ""  # an average of gains has no value
        return lost or next((name for name, count in absent.items() if count), "—")
    if cell.diverged and cell.diverged == cell.complete:
        return lost
    text = _mean_text(cell, as_interval)
    text += f" at {cell.best}" if cell.best else ""
    notes = [f"{count} of {cell.seeds} {name}" for name, count in absent.items() if count]
    return (f"{lost}; " if lost else "") + text + (f" ({', '.join(notes)})" if notes else "")


def _mean_text(cell: TableCell, as_interval: bool) -> str:
    """Return our mean; if a seed misses the target, the mean is infinite: count the seeds that reach it."""
    if cell.mean == math.inf and cell.n > 1:
        return f"{sum(map(math.isfinite, cell.values))} of {cell.n} seeds reach it"
    return number_text(cell.mean, cell.decimals, "", cell.std, cell.interval if as_interval else None)


def gain_text(cell: TableCell, as_interval: bool = False) -> str:
    """Return our gain with its spread or interval."""
    interval = cell.gain_interval if as_interval else None
    return number_text(cell.gain, cell.decimals, "+", cell.gain_std, interval)


def published_text(cell: TableCell) -> str:
    """Return the published value, or the reason why none is printed."""
    if cell.published is None and cell.published_gain is None:
        return next(iter(cell.published_notes), "")
    return number_text(cell.published, cell.decimals, "", cell.published_std)


def _notes_on(cell: TableCell) -> list[str]:
    """Return doubts and notes on the published value, without the note that stands in its place."""
    doubts = [f"{DOUBTFUL}: {reason}." for reason in cell.anomalies]
    printed = cell.published is not None or cell.published_gain is not None
    return [*doubts, *cell.published_notes[0 if printed else 1 :]]


def difference_text(cell: TableCell) -> str:
    """Return our value minus the published one, with its interval."""
    return number_text(cell.difference, cell.decimals, "+", None, cell.difference_interval)


def verdict_text(cell: TableCell) -> str:
    """Return the verdict on the value with its marks."""
    return _marked(cell.full_verdict + ("" if cell.listed else DROPPED), cell)


def _marked(text: str, cell: TableCell) -> str:
    return f"{text}, exploratory" if text and cell.exploratory and text != "not run" else text


def entries_of(
    cell: TableCell, as_interval: bool, reduced: bool, marks: Mapping[str, str] = {}
) -> dict[str, GridEntry]:
    """Return the entries of a cell by the heading of their column; empty ones have no text.

    ``marks`` are the numbers of notes on published values.
    """
    noted = tuple(marks[note] for note in _notes_on(cell) if note in marks)
    return {
        cell.label: GridEntry(
            value_text(cell, as_interval), "own", cell, cell.mean, verdict=_sign(cell, cell.verdict)
        ),
        "gain": GridEntry(
            gain_text(cell, as_interval),
            "gain",
            cell,
            cell.gain,
            tone=_tone(cell),
            verdict=_sign(cell, cell.gain_verdict),
        ),
        PUBLISHED + (" (full scale)" if reduced else ""): GridEntry(
            published_text(cell), "published", cell, cell.published, noted
        ),
        "published gain": GridEntry(
            number_text(cell.published_gain, cell.decimals, "+"), "published-gain", cell, cell.published_gain
        ),
        "difference": GridEntry(difference_text(cell), "difference", cell, cell.difference),
        "verdict": GridEntry(verdict_text(cell), "verdict", cell),
        "verdict on the gain": GridEntry(_marked(cell.gain_verdict or "", cell), "verdict", cell),
    }


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
LONG_FORM = ("difference", "verdict", "published-gain")
"""Kinds of columns that LaTeX tables leave out."""


def _sign(cell: TableCell, verdict: str | None) -> str:
    dropped = verdict == cell.verdict and not cell.listed
    return SIGNS.get(verdict or "", "") + DROPPED * dropped


def _tone(cell: TableCell) -> str:
    """Return the direction of a gain whose interval excludes zero; of costs, less is better."""
    what = measure(cell.measure)
    if not cell.gain_interval or not (what.accuracy or what.margin.relative):
        return ""
    low, high = cell.gain_interval
    if low <= 0 <= high:
        return ""
    return "up" if (low > 0) == what.accuracy else "down"


def _mark_best(column: dict[str, GridEntry]) -> None:
    """Mark the largest of several accuracies in a column, or the smallest of several costs.

    Values that are not shown to be worse are tied: by one-sided tests at 5 %, paired by seed, with Holm's
    correction. Columns with a single seed have no best value.
    """
    own = {
        row: entry.cell
        for row, entry in column.items()
        if entry.kind == "own" and entry.cell is not None and entry.value is not None
    }
    if len(own) < 2 or any(cell.n < 2 for cell in own.values()):
        return
    what = measure(next(iter(own.values())).measure)
    if not what.accuracy and not what.margin.relative:
        return
    sign = 1 if what.accuracy else -1
    best = max(own, key=lambda row: sign * (column[row].value or 0.0))
    top = dict(zip(own[best].value_seeds, own[best].values, strict=True))
    rivals = [row for row in own if row != best]
    ps: list[float | None] = []
    for row in rivals:
        pairs = zip(own[row].value_seeds, own[row].values, strict=True)
        found = contrast(Sample([sign * (top[seed] - value) for seed, value in pairs if seed in top]))
        ps.append(found.p_above() if found else None)
    column[best] = replace(column[best], best=True)
    for row, p in zip(rivals, holm(ps), strict=True):
        column[row] = replace(column[row], tied=p is None or p >= LEVEL)


@dataclass(frozen=True)
class Grid:
    """A table for display: column headings of one to three levels, and entries by row.

    Attributes:
        quantity: name of the numbers if all columns show the same; the headings then lack it.
    """

    corner: str
    columns: list[tuple[str, ...]]
    rows: dict[str, list[GridEntry]]
    quantity: str = ""

    @classmethod
    def of(
        cls, sheet: ItemJob, shown: Sequence[TableCell], marks: Mapping[str, str], short: bool = False
    ) -> Grid:
        """Arrange cells: rows by label; columns by panel, column and quantity, as far as these differ.

        The ``short`` form has our values, gains and the published values only.
        """
        layout = layout_of(sheet)
        intervals = {
            (measured.measure, measured.label or measure(measured.measure).label): measured.interval
            for measured in layout.measures
        }
        columns: dict[tuple[str, str, str, str], dict[str, GridEntry]] = {}
        for cell in shown:
            as_interval = intervals[cell.measure, cell.label]
            for heading, entry in entries_of(cell, as_interval, sheet.reduced, marks).items():
                if short and entry.kind in LONG_FORM:
                    continue
                place = (named(layout.panels, cell.panel), named(layout.columns, cell.column))
                columns.setdefault((cell.label, *place, heading), {})[cell.row] = entry
        columns = {
            place: entries
            for place, entries in columns.items()
            if any(entry.marked for entry in entries.values())
        }
        for entries in columns.values():
            _mark_best(entries)
        levels = [level for level in (1, 2, 3) if any(place[level] for place in columns)]
        quantities = {place[3] for place in columns}
        alike = len(levels) > 1 and len(quantities) == 1
        levels = levels[:-1] if alike else levels
        return cls(
            quantity=quantities.pop() if alike else "",
            corner=layout.rows,
            columns=[tuple(place[level] for level in levels) for place in columns],
            rows={
                row: [entries.get(row, GridEntry("")) for entries in columns.values()]
                for row in dict.fromkeys(cell.row for cell in shown)
            },
        )

    def parts(self, lines: int) -> list[Grid]:
        """Divide it into tables with this number of rows; the last one can be shorter."""
        names = list(self.rows)
        chunks = [names[start : start + lines] for start in range(0, len(names), lines)] or [[]]
        return [replace(self, rows={name: self.rows[name] for name in chunk}) for chunk in chunks]

    @property
    def heading_rows(self) -> list[list[tuple[str, int]]]:
        """Per level, the headings with the number of columns that each spans; one each on the last level."""
        columns = self.columns
        if not columns:
            return []
        spanned = [
            [tuple(same) for _, same in itertools.groupby(columns, operator.itemgetter(slice(level)))]
            for level in range(1, len(columns[0]))
        ]
        spans = [[(same[0][level], len(same)) for same in groups] for level, groups in enumerate(spanned)]
        return [*spans, [(place[-1], 1) for place in columns]]


# ---------------------------------------------------------------- notes
ASSUMED = "Assumed where the paper's text leaves it open:"

RULE = (
    f"Verdicts follow the rule of {RULE_DATE:%Y-%m-%d} (docs/protocol.md). Differences are ours minus "
    "published, with a 90 % interval that allows for the spread over seeds on both sides. Reproduced: the "
    "interval lies inside the margin ({margins}). Not reproduced: it lies wholly outside. Inconclusive: "
    "neither."
)
COMPARED = (
    "Better, equivalent or worse: the mean difference, paired by seed, lies outside or inside the margin of "
    "{margin:g} points, at a false discovery rate of 5 % over this table; inconclusive: neither is shown."
)
STALE_RUNS = (
    "Stale: the run was trained before one of its components was revised, so its numbers are not shown. "
    "Train it again."
)
BEST = (
    "Each cell has the {axis} with which its first seed is best. With further seeds, the number is that of "
    "these alone."
)
BEST_OR_MEDIAN = (
    "Each cell has the {axis} that is best (or median, if the column says so) with its first seed. With "
    "further seeds, the number is that of these alone."
)
DIVERGED_RUNS = "A diverged run counts as chance accuracy in means and gains."
ONE_SEED = "One seed: no spread and no intervals; ranks carry no weight."
EXPLORATORY = "Exploratory: the rule was decided after these runs had been seen."
DROPPED_CELLS = (
    f"{DROPPED} drops out of the list of cells that are not reproduced at a false discovery rate of 5 %."
)


@dataclass(frozen=True)
class Notes:
    """Texts below a table.

    Attributes:
        marks: number of each note on some published values.
        seeds: summary over seeds, and the treatment of diverged runs.
        texts: rule, margins, expected counts, detectable differences; notes on all published values; stale
            runs; published values without a cell.
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
        shown: Sequence[TableCell],
        missing: Sequence[TableCell],
        remarks: Sequence[str] = (),
        targets: str = "",
    ) -> Notes:
        """Collect the notes of a table; ``targets`` is the sentence on its target accuracies."""
        noted = [cell.published_notes for cell in shown if cell.published_notes or cell.published is not None]
        general = [note for note in noted[0] if all(note in notes for notes in noted)] if noted[1:] else []
        special = dict.fromkeys(note for cell in shown for note in _notes_on(cell) if note not in general)
        doubts_first = sorted(special, key=lambda note: not note.startswith(DOUBTFUL))
        diverged = DIVERGED_RUNS if any(cell.diverged and cell.n for cell in shown) else ""
        ends = [cell.place for cell in shown if cell.best_at_end]
        table = layout_of(sheet)
        chosen = BEST_OR_MEDIAN if any(one.place == "median" for one in table.measures) else BEST
        best = chosen.format(axis=table.best_of) if table.best_of else ""
        at_end = (
            f"At the end of the grid, where a better one may lie beyond: {'; '.join(ends)}." if ends else ""
        )
        texts = [
            _comparison(shown, sheet.control),
            f"All published values: {'; '.join(general)}." if general else "",
            STALE_RUNS if any(cell.stale for cell in shown) else "",
            f"Published values without a run here: {len(missing)}." if missing else "",
        ]
        return cls(
            marks={note: str(number) for number, note in enumerate(doubts_first, start=1)},
            seeds=" ".join(filter(None, (targets, over_seeds(sheet), best, at_end, diverged))),
            texts=[*filter(None, texts)],
            remarks=tuple(remarks),
        )

    def naming(self, quantity: str) -> Notes:
        """Return the notes with the name of the numbers, if the headings lack it."""
        return replace(self, seeds=f"Numbers: {quantity}. {self.seeds}") if quantity else self

    @property
    def all(self) -> list[str]:
        """The notes, one text each."""
        numbered = [f"[{mark}] {note.removesuffix('.')}." for note, mark in self.marks.items()]
        return [self.seeds, *numbered, *self.texts, *self.remarks]


def _comparison(shown: Sequence[TableCell], control: bool) -> str:
    own = [cell for cell in shown if cell.gain_margin and cell.published_gain is None]
    compared = [COMPARED.format(margin=cell.gain_margin) for cell in own]
    judged = [
        cell
        for cell in shown
        if cell not in own and (cell.verdict not in (None, "not run") or cell.gain_verdict)
    ]
    if not judged:
        return " ".join(dict.fromkeys(compared))
    parts = [RULE.format(margins=_ranges(judged, "margin") or "none declared")]
    parts += [] if control else [expected_numbers(judged)]
    if detectable := _ranges(judged, "detectable"):
        parts.append(f"Difference that would be found with a probability of 80 %: {detectable}.")
    if any(cell.gain_verdict for cell in judged):
        parts.append("Gains have verdicts of their own: on their size, else on their direction.")
    parts += [DROPPED_CELLS] if any(not cell.listed for cell in judged) else []
    parts += [EXPLORATORY] if any(cell.exploratory for cell in judged) else []
    return " ".join(filter(None, parts))


def _ranges(shown: Iterable[TableCell], column: Literal["margin", "detectable"]) -> str:
    """For example ``accuracy, %: 0.25 to 1, median 1``: a column's range for each measure."""
    by_label: dict[str, list[float]] = {}
    for cell in shown:
        value = cell.margin if column == "margin" else cell.detectable
        if value is not None:
            by_label.setdefault(cell.label, []).append(value)

    def text(values: list[float]) -> str:
        ends = (min(values), median(values), max(values))
        low, middle, high = (f"{value:.0f}" if value >= 100 else f"{value:.2g}" for value in ends)
        return low if low == high else f"{low} to {high}, median {middle}"

    return "; ".join(f"{label}: {text(values)}" for label, values in by_label.items())


def expected_numbers(cells: Sequence[TableCell]) -> str:
    """Return the counts of verdicts, each with the number expected if every published value were true."""
    tested = [cell for cell in cells if cell.expected_reproduced is not None]
    if not tested:
        return ""
    counts = count_verdicts(cell.verdict for cell in tested if cell.verdict)
    parts = [
        f"{name} {counts.get(name, 0)} (expected {number:.1f})"
        for name, number in expected_counts(tested, EXPECTED).items()
    ]
    intro = "Cells with an interval, and the number expected if every published value were true"
    return f"{intro}: {', '.join(parts)}."


def over_seeds(sheet: ItemJob) -> str:
    """Return a sentence on the summary over seeds that a table shows."""
    seeds = len({cell.seed for cell in sheet.cells})
    if seeds > 1 and layout_of(sheet).best_of:
        seeds -= 1
    if seeds < 2:
        return ONE_SEED
    summaries: dict[str, str] = {}
    for measured in layout_of(sheet).measures:
        what = measure(measured.measure)
        mean = "mean with its 90 % interval" if measured.interval else "mean ± standard deviation"
        summary = {"mean": mean, "median": "median", "max": "maximum"}[what.over_seeds]
        summaries[measured.label or what.label] = summary
    if len(set(summaries.values())) == 1:
        return f"{summary.capitalize()} over {seeds} seeds."
    return f"Over {seeds} seeds: {'; '.join(f'{label} ({what})' for label, what in summaries.items())}."


def heading(sheet: ItemJob) -> str:
    """Return the title of an item with its scale."""
    return f"{sheet.title}. {sheet.scale_note}"


# ---------------------------------------------------------------- Markdown and LaTeX
def to_markdown(sheet: ItemJob, grid: Grid, notes: Notes) -> str:
    """Return a Markdown table with heading, caption and notes."""
    lines = [[grid.corner, *(" · ".join(filter(None, column)) for column in grid.columns)]]
    lines += [[row, *(entry.marked for entry in entries)] for row, entries in grid.rows.items()]
    assumed = [ASSUMED, "\n".join(f"- {text}" for text in sheet.assumptions)] if sheet.assumptions else []
    parts = [f"**{heading(sheet)}**", markdown_table(lines), sheet.caption, *notes.all, *assumed]
    return without_tags("\n\n".join(parts) + "\n")


TEXT_LINES = 45
"""Rows of a LaTeX table that fit its page."""
FITTING = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
"""Beginning of a box that is scaled down to the width of the text, if it is wider."""


def to_latex(sheet: ItemJob, grid: Grid, notes: Notes) -> str:
    """Return LaTeX tables in the short form, their notes, and assumptions as comments.

    They need the packages booktabs and graphicx. A wide table is scaled down, a long one divided. Notes stand
    outside the floats, which could otherwise be larger than a page.
    """
    label = re.sub(r"[^A-Za-z0-9]+", "-", sheet.id)
    blocks = grid.parts(TEXT_LINES)
    lines: list[str] = []
    for number, block in enumerate(blocks, start=1):
        part = f" Part {number} of {len(blocks)}." if len(blocks) > 1 else ""
        lines += [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{latex(heading(sheet) + part)}}}",
            rf"\label{{tab:{label}{f'-{number}' if number > 1 else ''}}}",
            *_tabular(block),
            r"\end{table}",
        ]
    entries = [entry for row in grid.rows.values() for entry in row if entry.verdict and entry.cell]
    signs: dict[str, None] = {}
    for entry in entries:
        assert entry.cell is not None
        verdict = entry.cell.verdict if entry.kind == "own" else entry.cell.gain_verdict
        signs[f"{SIGNS[verdict or '']} {verdict}"] = None
    legend = f"Signs: {', '.join(signs)}." if signs else ""
    texts = [*filter(None, (sheet.caption, legend)), *notes.all]
    lines += [rf"{{\footnotesize {latex(text)}\par}}" for text in texts]
    lines += [f"% {latex(text)}" for text in ([ASSUMED, *sheet.assumptions] if sheet.assumptions else [])]
    return "\n".join(lines) + "\n"


def _tabular(grid: Grid) -> list[str]:
    def line(first: str, *texts: str) -> str:
        # TeX would take these characters for an argument of the command that ends the line above.
        return " & ".join(["{}" * first.startswith(("[", "*")) + first, *texts]) + r" \\"

    def number(entry: GridEntry) -> str:
        sign = latex(entry.verdict) if entry.text else ""
        return latex(entry.marked) + (rf"\textsuperscript{{{sign}}}" if sign else "")

    *spans, last = grid.heading_rows or [[]]
    return [
        rf"{FITTING}\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        *(
            line("", *(rf"\multicolumn{{{span}}}{{c}}{{{latex(label)}}}" for label, span in level))
            for level in spans
        ),
        line(latex(grid.corner), *(latex(label) for label, _ in last)),
        r"\midrule",
        *(line(latex(row), *map(number, entries)) for row, entries in grid.rows.items()),
        r"\bottomrule",
        r"\end{tabular}}",
    ]
