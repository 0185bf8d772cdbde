"""Tables: our mean and spread over seeds, paired gains, and beside them the published value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fltrain.errors import FltrainError
from fltrain.files import write_text
from fltrain.records import Record
from fltrain.reporting.layout import Labels, Measured, Sheet, Table
from fltrain.reporting.measures import best_accuracy, measure

TEMPLATES = Environment(
    loader=PackageLoader("fltrain.reporting"),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over ``n`` seeds; the deviation needs two."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: pd.Series, median: bool = False) -> Statistic | None:
        """Summarise the values that are there, possibly by their median alone; None if there are none."""
        present = values.dropna()
        if present.empty:
            return None
        if median:
            return cls(float(present.median()), None, len(present))
        return cls(
            float(present.mean()), float(present.std(ddof=1)) if len(present) > 1 else None, len(present)
        )

    def text(self, decimals: int, sign: str = "") -> str:
        """For example ``67.34 ± 0.52``; ``never`` for an infinite number of rounds."""
        if math.isinf(self.mean):
            return "never"
        spread = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        return f"{self.mean:{sign}.{decimals}f}{spread}"


@dataclass(frozen=True)
class Shown:
    """One cell of a table for one measure; ``label`` heads the measure's columns."""

    row: str
    column: str
    panel: str
    measure: str
    label: str
    decimals: int
    value: Statistic | None
    diverged: int
    gain: Statistic | None
    published: float | None
    published_gain: float | None
    published_notes: list[str]
    runs: list[str]

    @property
    def text(self) -> str:
        """The value as people read it, with what became of runs that have none."""
        if self.value is None:
            return "diverged" if self.diverged else "—"
        note = f" ({self.diverged} of {len(self.runs)} diverged)" if self.diverged else ""
        return self.value.text(self.decimals) + note

    def quantities(self, reduced: bool) -> dict[str, str]:
        """What is shown of the cell, by heading; empty where it has no such quantity."""
        full_scale = " (full scale)" if reduced else ""
        published = _number(self.published, f".{self.decimals}f")
        return {
            self.label: self.text,
            "gain": self.gain.text(self.decimals, "+") if self.gain else "",
            # Where a paper prints no number, the first note is the reason.
            f"published{full_scale}": published or next(iter(self.published_notes), ""),
            "published gain": _number(self.published_gain, f"+.{self.decimals}f"),
        }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def cells(sheet: Sheet, runs: Callable[[str], Record], published: Path | None) -> list[Shown]:
    """Compute every cell of a table.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run id.
        published: file of published values, or None.
    """
    table = _table(sheet)
    reported = _read_published(published)
    shown: list[Shown] = []
    for measured in table.measures:
        values = _values(sheet, runs, measured, reported)
        shown += _cells_of(table, measured, values, reported)
    return shown


def _table(sheet: Sheet) -> Table:
    if sheet.table is None:
        raise FltrainError(f"{sheet.id} is not a table")
    sheet.table.check(sheet.id, sheet.axes)
    return sheet.table


def _values(
    sheet: Sheet, runs: Callable[[str], Record], measured: Measured, reported: pd.DataFrame
) -> pd.DataFrame:
    """One line per run (and label of the measure's dimension): labels, seed, value, what it is called."""
    what = measure(measured.measure)
    targets = _targets(sheet, runs, measured.target_of, reported) if what.targeted else {}
    lines: list[dict[str, Any]] = []
    for cell in sheet.cells:
        record = runs(cell.run)
        diverged = record.summary["status"] == "diverged"
        target = [targets[_key({**cell.labels, **measured.target_of})]] if what.targeted else []
        for label, value in (what.of(record, *target) or {"": math.nan}).items():
            dimension = {what.dimension: label} if what.dimension else {}
            names = {key: text.format(**dimension) for key, text in cell.reported.items()}
            place = {**cell.labels, **dimension}
            lines.append(
                {
                    **place,
                    "seed": cell.seed,
                    "run": cell.run,
                    "value": math.nan if diverged else value,
                    "diverged": diverged,
                    "names": names,
                }
            )
    frame = pd.DataFrame(lines)
    if measured.relative_to:
        frame["value"] = frame["value"] / _baseline(frame, measured.relative_to)
    frame["gain"] = frame["value"] - _baseline(frame, measured.gain_over) if measured.gain_over else math.nan
    return frame


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _targets(
    sheet: Sheet, runs: Callable[[str], Record], labels: Labels, reported: pd.DataFrame
) -> dict[tuple[tuple[str, str], ...], float]:
    """Target accuracy by the labels of the cell that sets it (FedImpro, table 2).

    At full scale it is the published one (metric ``target_acc``, printed for a row, not for a method).
    """
    printed: dict[tuple[tuple[str, str], ...], float] = {}
    best: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for cell in sheet.cells:
        if labels.items() <= cell.labels.items():
            best.setdefault(_key(cell.labels), []).append(best_accuracy(runs(cell.run)))
            names = {**cell.reported, "method": ""}
            target, _ = _published(reported, None if sheet.reduced else "target_acc", names)
            if target is not None:
                printed[_key(cell.labels)] = target / 100
    own = {key: math.floor(100 * min(values) + 1e-9) / 100 for key, values in best.items()}
    return {**own, **printed}


def _places(frame: pd.DataFrame) -> list[str]:
    """Columns that say where a value stands, the seed included."""
    return [name for name in frame.columns if name not in ("run", "value", "diverged", "names", "gain")]


def _baseline(frame: pd.DataFrame, labels: Labels) -> pd.Series:
    """For every line, the value at the same place and seed but with the given labels."""
    places = _places(frame)
    by_place = frame.set_index(places)["value"]
    wanted = frame[places].assign(**labels)
    return pd.Series(by_place.reindex(pd.MultiIndex.from_frame(wanted)).to_numpy(), index=frame.index)


def _cells_of(table: Table, measured: Measured, values: pd.DataFrame, reported: pd.DataFrame) -> list[Shown]:
    what = measure(measured.measure)
    places = [axis for axis in (table.rows, table.columns, table.panels) if axis]
    shown: list[Shown] = []
    for _, group in values.groupby(places, sort=False):
        first = group.iloc[0]
        is_baseline = all(first[axis] == label for axis, label in measured.gain_over.items())
        names = first["names"]
        value, notes = _published(reported, measured.reported, names)
        base_names = _names_at(values, first, measured.gain_over)
        base, _ = _published(reported, measured.reported, base_names) if base_names else (None, [])
        shown.append(
            Shown(
                row=str(first[table.rows]),
                column=str(first[table.columns]) if table.columns else "",
                panel=str(first[table.panels]) if table.panels else "",
                measure=measured.measure,
                label=measured.label or what.label,
                decimals=2 if measured.relative_to else what.decimals,
                value=Statistic.of(group["value"], what.median),
                diverged=int(group["diverged"].sum()),
                gain=None if is_baseline else Statistic.of(group["gain"]),
                published=value,
                published_gain=None if is_baseline or value is None or base is None else value - base,
                published_notes=notes,
                runs=list(group["run"]),
            )
        )
    return shown


def _names_at(values: pd.DataFrame, line: pd.Series, labels: Labels) -> Mapping[str, str] | None:
    """How the published table calls the cell at the line's place but with the given labels."""
    if not labels:
        return None
    same = pd.Series(True, index=values.index)
    for place in _places(values):
        same &= values[place] == labels.get(place, line[place])
    found: list[Mapping[str, str]] = list(values.loc[same, "names"])
    return found[0] if found else None


def _read_published(path: Path | None) -> pd.DataFrame:
    if path is None:
        return pd.DataFrame(columns=["metric", "value", "note"], dtype=str)
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        frame["value"] = pd.to_numeric(frame["value"].replace("", None))
        return frame[[*frame.columns.drop(["metric", "value", "note"]), "metric", "value", "note"]]
    except (OSError, ValueError, KeyError) as error:
        raise FltrainError(f"{path}: published values cannot be read ({error})") from None


def _published(
    reported: pd.DataFrame, metric: str | None, names: Mapping[str, str]
) -> tuple[float | None, list[str]]:
    """The one published value that the names fit, and the notes on it; else none."""
    if metric is None:
        return None, []
    found = reported[reported["metric"] == metric]
    for column, name in names.items():
        if column in found:
            found = found[found[column] == name]
    if len(found) != 1:
        return None, []
    row = found.iloc[0]
    notes = [note for note in str(row["note"]).split("; ") if note]
    return (None if pd.isna(row["value"]) else float(row["value"])), notes


# ---------------------------------------------------------------- output


def heading(sheet: Sheet) -> str:
    """Title of the item, which says so if the scale is reduced."""
    return f"{sheet.title}. {sheet.scale_note}"


def to_frame(shown: list[Shown]) -> pd.DataFrame:
    """All cells in long form: what the CSV file holds."""
    return pd.DataFrame(
        {
            "row": cell.row,
            "column": cell.column,
            "panel": cell.panel,
            "measure": cell.measure,
            "label": cell.label,
            "mean": cell.value.mean if cell.value else None,
            "std": cell.value.std if cell.value else None,
            "n": cell.value.n if cell.value else 0,
            "diverged": cell.diverged,
            "gain": cell.gain.mean if cell.gain else None,
            "gain_std": cell.gain.std if cell.gain else None,
            "published": cell.published,
            "published_gain": cell.published_gain,
            "published_notes": "; ".join(cell.published_notes),
            "runs": " ".join(cell.runs),
        }
        for cell in shown
    )


@dataclass(frozen=True)
class Grid:
    """A table as people read it: column headings of one to three levels, and texts by row."""

    corner: str
    columns: list[tuple[str, ...]]
    rows: dict[str, list[str]]

    @classmethod
    def of(cls, sheet: Sheet, shown: list[Shown]) -> Grid:
        """Arrange cells: rows by label; columns by panel, column and quantity, as far as these differ."""
        columns: dict[tuple[str, ...], dict[str, str]] = {}
        for cell in shown:
            for quantity, text in cell.quantities(sheet.reduced).items():
                place = (cell.measure, cell.panel, cell.column, quantity)
                columns.setdefault(place, {})[cell.row] = text
        columns = {place: texts for place, texts in columns.items() if any(texts.values())}
        levels = [level for level in (1, 2, 3) if any(place[level] for place in columns)]
        return cls(
            corner=_table(sheet).rows,
            columns=[tuple(place[level] for level in levels) for place in columns],
            rows={
                row: [texts.get(row, "") for texts in columns.values()]
                for row in dict.fromkeys(cell.row for cell in shown)
            },
        )

    @property
    def heading_rows(self) -> list[list[tuple[str, int]]]:
        """Per level, the headings with the number of columns that each spans."""
        return [
            [(label, len(list(group))) for label, group in itertools.groupby(level)]
            for level in zip(*self.columns, strict=True)
        ]


def to_markdown(sheet: Sheet, grid: Grid) -> str:
    """Render as a Markdown table with heading and caption."""
    lines = [[grid.corner, *(" · ".join(filter(None, column)) for column in grid.columns)]]
    lines += [["---"] + ["---:"] * len(grid.columns)]
    lines += [[row, *texts] for row, texts in grid.rows.items()]
    table = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
    return f"**{heading(sheet)}**\n\n{table}\n\n{sheet.caption}\n"


def to_latex(sheet: Sheet, grid: Grid) -> str:
    """Render as a LaTeX table (package booktabs)."""
    frame = pd.DataFrame.from_dict(grid.rows, orient="index")
    # With one level only, pandas would show the tuples themselves.
    one_level = all(len(column) == 1 for column in grid.columns)
    frame.columns = (
        pd.Index([*itertools.chain(*grid.columns)]) if one_level else pd.MultiIndex.from_tuples(grid.columns)
    )
    styler = frame.style.format(escape="latex")
    for axis in (0, 1):
        styler = styler.format_index(escape="latex", axis=axis)
    latex = styler.to_latex(
        hrules=True,
        caption=_latex_text(f"{heading(sheet)} {sheet.caption}"),
        label=f"tab:{sheet.id.replace('/', '-')}",
        column_format="l" + "r" * len(grid.columns),
        multicol_align="c",
        position_float="centering",
    )
    for text, command in LATEX_COMMANDS.items():
        latex = latex.replace(text, command)
    return latex


LATEX_COMMANDS = {
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "—": "---",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
}


LATEX_SPECIAL = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
    }
)


def _latex_text(text: str) -> str:
    return text.translate(LATEX_SPECIAL)


def to_html(sheet: Sheet, grid: Grid, shown: list[Shown]) -> str:
    """Render as a page of its own, without anything loaded from elsewhere."""
    runs = {" / ".join(filter(None, (cell.panel, cell.row, cell.column))): cell.runs for cell in shown}
    notes = list(dict.fromkeys(note for cell in shown for note in cell.published_notes))
    seeds = len({cell.seed for cell in sheet.cells})
    return TEMPLATES.get_template("table.html").render(
        sheet=sheet, grid=grid, runs=runs, notes=notes, seeds=seeds
    )


def write(
    sheet: Sheet, runs: Callable[[str], Record], published: Path | None, outputs: Mapping[str, Path]
) -> None:
    """Make a table and write it in the forms asked for.

    Args:
        sheet: the table and its runs.
        runs: returns the record of a run id.
        published: file of published values, or None.
        outputs: file by form: ``csv`` (long form), ``md``, ``tex``, ``html``.
    """
    shown = cells(sheet, runs, published)
    grid = Grid.of(sheet, shown)
    render: dict[str, Callable[[], str]] = {
        "csv": lambda: to_frame(shown).to_csv(index=False),
        "md": lambda: to_markdown(sheet, grid),
        "tex": lambda: to_latex(sheet, grid),
        "html": lambda: to_html(sheet, grid, shown),
    }
    for form, path in outputs.items():
        write_text(path, render[form]())
