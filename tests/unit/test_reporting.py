"""Tables of hand-made records: numbers by hand, and the written files."""

import itertools
import math
import re
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import ItemJob, Measured, Table
from fltrain.experiments.published import Published
from fltrain.reporting.frame import curve, targets_text
from fltrain.reporting.tables import write as tables
from fltrain.reporting.tables.cells import cells
from fltrain.reporting.tables.render import entries_of, published_text, value_text
from fltrain.reporting.tables.table_cell import TableCell, from_csv, to_csv
from fltrain.reporting.text import TEXT_CHARACTERS, latex, number_text, p_text, seeds_text, shared_decimals
from fltrain.runs.measures import CURVES, MEASURES
from fltrain.runs.record import Record, write_record

from .helpers import DIVERGED, MISSING, Cells, Row, tiny, trained
from .helpers import accuracies as accuracy_rows

CONFIG = Path(__file__).parents[2] / "config"
LAYERS = ("stem.0", "stage1.expand", "stage1.project", "classifier")

Yaml = dict[str, Any]


# ---------------------------------------------------------------- records and sheets
class Runs(Cells):
    """Hand-made records, and tables of them."""

    def table(self, *measures: Yaml, rows: str = "method", **changes: Any) -> ItemJob:
        layout = {key: changes.pop(key) for key in ("columns", "panels") if key in changes}
        return self.sheet(table={"rows": rows, "measures": list(measures), **layout}, **changes)

    def cells_of(self, sheet: ItemJob, published: Path | None = None) -> dict[tuple[str, ...], TableCell]:
        """The cells of a table by row, column and panel."""
        return {
            tuple(filter(None, (cell.row, cell.column, cell.panel))): cell
            for cell in cells(sheet, self.results.record, Published.read(published))
        }


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "results", layers=LAYERS, bytes={"down": 3_000_000, "up": 1_000_000})


ACCURACY = {"measure": "final_accuracy"}
GAIN = {"measure": "final_accuracy", "gain_over": {"plugin": "BP"}}

# Accuracies vary much between seeds, gains of equal seeds little: 3, 4 and 2 per cent.
BASE = (0.80, 0.70, 0.60)
BETTER = (0.83, 0.74, 0.62)


def without_and_with(
    runs: Runs, base: Iterable[float | str | None] = BASE, better: Iterable[float | str | None] = BETTER
) -> None:
    for plugin, accuracies in (("BP", base), ("FLFA", better)):
        for accuracy in accuracies:
            runs.add(
                {"method": "FedAvg", "plugin": plugin},
                accuracy,
                reported={"method": "fedavg", "plugin": plugin},
            )


# ---------------------------------------------------------------- mean, spread, gain
def test_gains_are_paired_by_seed(runs: Runs) -> None:
    without_and_with(runs)
    table = runs.cells_of(runs.table(GAIN, columns="plugin"))
    cell = table["FedAvg", "FLFA"]
    assert cell.gains == pytest.approx((3, 4, 2))
    assert cell.gain == pytest.approx(3)
    assert cell.gain_std == pytest.approx(1), "of the differences; unpaired it would be about 14.5"
    assert table["FedAvg", "BP"].gain is None, "the base has no gain over itself"


def test_multiples_of_a_base_are_taken_per_seed(runs: Runs) -> None:
    # Timings exclude the first three rounds.
    for method, seconds in (("FedAvg", (1.0, 2.0)), ("Slow", (2.0, 3.0))):
        for value in seconds:
            runs.add({"method": method}, seconds=(99.0, 99.0, 99.0, value - 0.5, value + 0.5))
    measured = {"measure": "round_seconds", "relative_to": {"method": "FedAvg"}}
    table = runs.cells_of(runs.table(measured))
    slow = table["Slow",]
    assert slow.mean == pytest.approx(mean((2, 1.5))), "not the ratio of the means"
    assert slow.std == pytest.approx(stdev((2, 1.5)))
    assert value_text(slow) == "1.75 ± 0.35"
    assert value_text(table["FedAvg",]) == "1.00 ± 0.00"


# ---------------------------------------------------------------- diverged or without the measure
def selections(*layers: str) -> list[Row]:
    return [
        {"round": round, "kind": "flfa", "selected": [name]} for round, name in enumerate(layers, start=2)
    ]


@pytest.mark.parametrize("seeds", [(0, 1, 2), (42, 7, 8)])
def test_the_first_seed_chooses_the_rate_and_the_others_give_the_value(
    runs: Runs, seeds: tuple[int, ...]
) -> None:
    """The choosing seed, the first of the list, is not part of the value; the best cost is the lowest."""
    accuracies = {"0.1": (0.5, 0.6, 0.7), "0.2": (0.9, 0.4, 0.5), "0.4": (0.8, 0.9, 0.9)}
    for rate, values in accuracies.items():
        for seed, value in zip(seeds, values, strict=True):
            runs.add({"method": "FedAvg", "rate": rate}, value, seconds=(1 - value,), seed=seed)
    runs.add({"method": "one seed", "rate": "0.1"}, 0.3)
    runs.add({"method": "one seed", "rate": "0.2"}, 0.2)
    for measure, decimals in (("final_accuracy", "45.00 ± 7.07"), ("round_seconds", "0.550 ± 0.071")):
        sheet = runs.sheet(table={"rows": "method", "best_of": "rate", "measures": [{"measure": measure}]})
        table = runs.cells_of(sheet)
        cell = table["FedAvg",]
        assert (value_text(cell), cell.best_at_end) == (f"{decimals} at 0.2", False)
    assert cell.value_seeds == seeds[1:]
    assert table["one seed",].best_at_end


def test_rounds_to_target_use_fedavgs_worst_seed(runs: Runs) -> None:
    """The target is the best accuracy of FedAvg's worst seed, in whole per cent."""
    for method, curves in (
        ("FedAvg", ((0.50, 0.609, 0.59), (0.3, 0.7, 0.8), (0.60, 0.65, 0.62))),
        ("FedProx", ((0.50, 0.61, 0.59, 0.63), (0.60, 0.2, 0.2, 0.2), (0.1, 0.2, 0.6, 0.1))),
        ("MOON", ((0.1, 0.59), (0.1, 0.5), (0.7, 0.7))),
    ):
        for accuracies in curves:
            runs.add({"method": method}, max(accuracies), rows=accuracy_rows(*accuracies))
    sheet = runs.table({"measure": "rounds_to_target", "target_of": {"method": "FedAvg"}})
    texts = {row: value_text(cell) for (row,), cell in runs.cells_of(sheet).items()}
    assert texts == {"FedAvg": "2", "FedProx": "2", "MOON": "1 of 3 seeds reach it"}
    assert targets_text(sheet, runs.results.record, Published()) == "Target accuracy: 60 %."


def test_accuracy_at_equal_time_uses_the_median_time_of_the_base(runs: Runs) -> None:
    """FedAvg takes 4 s in the median; methods with one and two seconds a round have four and two rounds."""
    curve = accuracy_rows(0.1, 0.2, 0.3, 0.4)
    for method, times in (("FedAvg", (1.0, 0.5, 1.5)), ("MOON", (2.0, 2.0, 2.0))):
        for seconds in times:
            runs.add({"method": method}, 0.4, rows=curve, seconds=(seconds,) * 4)
    sheet = runs.table({"measure": "accuracy_at_equal_time", "target_of": {"method": "FedAvg"}})
    values = {row: cell.values for (row,), cell in runs.cells_of(sheet).items()}
    assert values == {"FedAvg": pytest.approx((40, 40, 20)), "MOON": pytest.approx((20, 20, 20))}


def test_a_run_that_diverged_sets_no_target(runs: Runs) -> None:
    """Its best accuracy, 0.99 here, must not change the target of the others."""
    runs.add({"method": "FedAvg"}, 1.0, rows=accuracy_rows(0.5, 1.0))
    runs.add({"method": "FedAvg"}, DIVERGED, rows=accuracy_rows(0.99))
    runs.add({"method": "SCAFFOLD"}, 1.0, rows=accuracy_rows(0.1, 0.99, 1.0))
    sheet = runs.table({"measure": "rounds_to_target", "target_of": {"method": "FedAvg"}})
    texts = {row: value_text(cell) for (row,), cell in runs.cells_of(sheet).items()}
    assert texts == {"FedAvg": "1 of 2 diverged; 1 of 2 seeds reach it", "SCAFFOLD": "3"}, "it ranks last"


@pytest.mark.parametrize(
    ("gain", "other", "margin"),
    [(9.0, "fedavg+flfa", 1.0), (0.8, "fedavg+flfa", 0.4), (0.2, "fedavg+flfa", 0.25), (0.8, "moon", 1.0)],
)
def test_the_margin_of_a_plug_in_is_at_most_half_of_the_published_gain(
    runs: Runs, tmp_path: Path, gain: float, other: str, margin: float
) -> None:
    """A rival method of the base has the margin of any method."""
    published = tmp_path / "table.csv"
    published.write_text(f"plugin,metric,value,note\nBP,acc,50,\nFLFA,acc,{50 + gain},\n")
    for plugin, methods, accuracies in (("BP", "fedavg", BASE), ("FLFA", other, BETTER)):
        named = {"plugin": plugin}
        runs.add({"method": "A", **named}, *accuracies, reported=named, methods=methods.split("+"))
    table = runs.table({**GAIN, "reported": "acc"}, columns="plugin", reduced=False)
    assert runs.cells_of(table, published)["A", "FLFA"].margin == pytest.approx(margin)


def test_the_spread_is_at_least_one_test_image(runs: Runs) -> None:
    rows = [{**row, "images": 50} for row in accuracy_rows(0.5)]
    runs.add({"method": "FedAvg"}, 0.5, 0.5, 0.5, rows=rows)
    (cell,) = runs.cells_of(runs.table(ACCURACY)).values()
    assert cell.spread == 2.0


def test_cells_of_different_datasets_do_not_share_their_spread(runs: Runs) -> None:
    for dataset, values in (("digits", (0.5, 0.51, 0.52)), ("mnist", (0.3, 0.5, 0.7))):
        for value in values:
            run = runs.add({"data": dataset}, value)
            summary = {
                key: part for key, part in runs.results.record(run).summary.items() if key != "digests"
            }
            folder = runs.results.run(run)
            write_record(folder, tiny(dataset=dataset), (), summary, {"round_seconds": [1.0]}, {})
    table = runs.cells_of(runs.table(ACCURACY, rows="data"))
    assert table["digits",].spread == pytest.approx(1.0) and table["mnist",].spread == pytest.approx(20.0)


def test_at_full_scale_the_published_target_is_used(runs: Runs, tmp_path: Path) -> None:
    published = tmp_path / "table.csv"
    published.write_text(
        "dataset,method,metric,value,note\n"
        "cifar10,,target_acc,55.0,\n"
        "cifar10,fedavg,rounds_to_target,3,\n"
        "cifar10,moon,rounds_to_target,2,\n"
    )
    for method, accuracies in (("FedAvg", (0.5, 0.6, 0.7)), ("MOON", (0.56, 0.6, 0.65))):
        named = {"dataset": "cifar10", "method": method.lower()}
        runs.add({"method": method}, 0.7, rows=accuracy_rows(*accuracies), reported=named)
    measure = {
        "measure": "rounds_to_target",
        "target_of": {"method": "FedAvg"},
        "reported": "rounds_to_target",
    }
    at_each = {False: {"FedAvg": "2", "MOON": "1"}, True: {"FedAvg": "3", "MOON": "never"}}
    for reduced, expected in at_each.items():
        table = runs.cells_of(runs.table(measure, reduced=reduced), published)
        assert {row: value_text(cell) for (row,), cell in table.items()} == expected
        assert [cell.published for cell in table.values()] == [3, 2]


def test_rounds_that_are_never_reached_have_no_difference(runs: Runs, tmp_path: Path) -> None:
    published = tmp_path / "table.csv"
    published.write_text("method,metric,value,note\na,rounds,3,\nb,rounds,3,\n")
    for method, accuracies in (("a", (0.5, 0.7)), ("b", (0.5, 0.6))):
        for _ in range(3):
            rows, names = accuracy_rows(*accuracies), {"method": method}
            runs.add({"method": method}, 0.7, rows=rows, reported=names)
    measured = {"measure": "interpolated_rounds_to_target", "printed_target": 65, "reported": "rounds"}
    texts = written(runs, runs.table(measured, reduced=False), published)
    assert "| b | 0 of 3 seeds reach it | 3 |  | inconclusive (target missed) |" in texts["md"]


def test_the_best_of_all_seeds_has_no_spread_test_or_gain(runs: Runs, tmp_path: Path) -> None:
    published = tmp_path / "table.csv"
    published.write_text("plugin,metric,value,note\nBP,best,75,\nFLFA,best,82.5,\n")
    without_and_with(runs)
    best = {"measure": "best_of_all_seeds", "reported": "best"}
    table = runs.cells_of(runs.table(best, columns="plugin", reduced=False), published)
    assert {plugin: value_text(cell) for (_, plugin), cell in table.items()} == {
        "BP": "80.00",
        "FLFA": "83.00",
    }
    far = table["FedAvg", "BP"]
    assert (far.difference, far.p, far.spread) == (pytest.approx(5), None, None)
    for key, of, message in (
        ("gain_over", {"plugin": "BP"}, "'best_of_all_seeds' is a maximum over seeds"),
        ("relative_to", {"plugin": "BP"}, "'best_of_all_seeds' is a maximum over seeds"),
        ("average", {"of": "value"}, "remove its 'average'"),
    ):
        sheet = runs.table({**best, key: of}, columns="plugin")
        assert any(message in fault for fault in sheet.table.faults(sheet.axes))


ON_THE_TEST_SET = [
    name
    for name, measure in MEASURES.items()
    if not (measure.targeted or name.startswith("validation_") or name == "accuracy_at_equal_traffic")
    and name not in ("seconds", "peak_memory", *CURVES)
] + ["test_accuracy"]


@pytest.mark.parametrize("measure", ON_THE_TEST_SET)
def test_a_diverged_run_comes_first_and_counts_as_chance(runs: Runs, measure: str) -> None:
    runs.summary["parameters"] = 2_000_000
    for accuracy, rows, seconds in (
        (0.8, selections("stem.0", "classifier"), 1.0),
        (DIVERGED, selections("stem.0", "stem.0"), 9.0),
        (0.8, selections("stem.0", "classifier"), 1.0),
    ):
        rows = [*rows, *accuracy_rows(*[0.1] * 79, 0.8)]
        runs.add({"method": "FedAvg"}, accuracy, rows=rows, seconds=[seconds] * 4)
    dimension = MEASURES[measure].dimension
    sheet = runs.table({"measure": measure}, rows=dimension or "method")
    cell = next(iter(runs.cells_of(sheet).values()))
    exceptions = {"round_seconds": 1, "selection_share": 50, "traffic": 4, "fall": 0, "parameters": 2}
    expected = exceptions.get(measure, 80)
    # Ten classes; other measures have no value of chance, and the run has none.
    values = [expected, 10, expected] if MEASURES[measure].accuracy else [expected, expected]
    assert cell.values == pytest.approx(values)
    summary = max if MEASURES[measure].over_seeds == "max" else mean
    assert (cell.mean, cell.n) == (pytest.approx(summary(values)), len(values))
    assert cell.diverged == 1
    assert value_text(cell).startswith("1 of 3 diverged; ")
    assert len(cell.runs) == 3


# ---------------------------------------------------------------- measures with a dimension
SHARE = {"measure": "selection_share"}


def test_a_label_cannot_be_the_heading_of_another_column() -> None:
    """One of the two columns would replace the other on pages, in Markdown and LaTeX."""
    others = [heading for heading in entries_of(TableCell(label="ours"), False, False) if heading != "ours"]
    labels = ["ours", *others, "ours"]
    measures = [Measured(measure="final_accuracy", label=label) for label in labels]
    faults = [*Table(rows="method", measures=measures).faults({"method": ["FedAvg"]})]
    assert faults == [
        f"measures.{number}: the heading {label!r} is taken; set another 'label'"
        for number, label in enumerate(labels)
        if number
    ]


def test_cells_survive_their_csv_file() -> None:
    texts = {"row": 'a, "b"; c', "published_notes": ("one", "two"), "names": "setting=IID; C = 0.1; seed=1"}
    cell = TableCell(**texts, anomalies=("the text says 61; the figure shows 58", "it is 6 = 7"))
    assert from_csv(to_csv([cell])) == [cell]


def test_shares_of_selections_are_shown_by_block(runs: Runs) -> None:
    runs.add({"strategy": "low"}, 0.5, rows=selections("stage1.project", "stage1.expand", "stem.0", "stem.0"))
    runs.add({"strategy": "low"}, 0.5, rows=selections("stem.0", "stem.0", "stem.0", "stage1.expand"))
    table = runs.cells_of(runs.table(SHARE, rows="block", columns="strategy"))
    assert [row for row, _ in table] == ["stem", "stage1", "classifier"], "in the order of the network"
    assert {row: value_text(cell) for (row, _), cell in table.items()} == {
        "stem": "62.50 ± 17.68",
        "stage1": "37.50 ± 17.68",
        "classifier": "0.00 ± 0.00",
    }


def test_a_table_can_show_the_mean_over_an_axis(runs: Runs) -> None:
    """Seed by seed; a cell names the runs of all points, and has no mean of a seed with a missing run."""
    for dataset, layers in {"a": ("stem.0",) * 3, "b": ("stem.0", "stage1.expand", MISSING)}.items():
        for layer in layers:
            state = MISSING if layer == MISSING else 0.5
            runs.add({"strategy": "low", "dataset": dataset}, state, rows=selections("stem.0", layer))
    pooled = {"rows": "block", "columns": "strategy", "mean_over": ["dataset"], "measures": [SHARE]}
    table = runs.cells_of(runs.sheet(table=pooled))
    assert {row: cell.values for (row, _), cell in table.items()} == {
        "stem": (100.0, 75.0),
        "stage1": (0.0, 25.0),
        "classifier": (0.0, 0.0),
    }
    stem = table["stem", "low"]
    assert (stem.seeds, stem.n, stem.missing, len(stem.runs)) == (3, 2, 1, 6)
    layout = runs.sheet(table={**pooled, "mean_over": []}).table
    (fault,) = layout.faults({"strategy": ["low"], "dataset": ["a", "b"]})
    assert "does not show the axis 'dataset'" in fault


def test_published_shares_are_found_by_block(runs: Runs, published: Path) -> None:
    name = {"variant": "{block} of low"}
    runs.add({"strategy": "low"}, 0.5, reported=name, rows=selections("stem.0"))
    table = runs.cells_of(runs.table({**SHARE, "reported": "share"}, rows="block"), published)
    assert {row: cell.published for (row,), cell in table.items()} == {
        "stem": 17.5,
        "stage1": 24.9,
        "classifier": None,
    }


# ---------------------------------------------------------------- published values
PUBLISHED = """\
dataset,method,plugin,variant,metric,value,std,unit,note
cifar10,fedavg,BP,,acc,65.8,,%,as printed
cifar10,fedavg,FLFA,,acc,68.1,,%,as printed
cifar10,fedprox,BP,,acc,,,%,no convergence; 3 seeds
cifar10,fedprox,FLFA,,acc,61.0,,%,
cifar10,moon,BP,,acc,60.0,,%,first of two
pathmnist,moon,BP,,acc,50.0,,%,second of two
cifar10,fedavg,BP,,time,1.0,,x,
cifar10,fedavg,FLFA,,time,1.2,,x,
,,,stem of low,share,17.5,,%,
,,,stage1 of low,share,24.9,,%,
"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "published.csv"
    path.write_text(PUBLISHED)
    return path


@pytest.mark.parametrize(
    ("names", "value", "notes", "text"),
    [
        ({"method": "fedavg", "plugin": "BP"}, 65.8, ["as printed"], "65.80"),
        ({"method": "fedavg", "plugin": "BP", "no_such_column": "x"}, 65.8, ["as printed"], "65.80"),
        ({"method": "moon", "dataset": "pathmnist"}, 50.0, ["second of two"], "50.00"),
        ({"method": "fedprox", "plugin": "BP"}, None, ["no convergence", "3 seeds"], "no convergence"),
        ({"method": "fedprox", "plugin": "FLFA"}, 61.0, [], "61.00"),
        ({"method": "scaffold"}, None, [], ""),
    ],
)
def test_published_values_are_shown_with_notes(
    runs: Runs, published: Path, names: dict[str, str], value: float | None, notes: list[str], text: str
) -> None:
    runs.add({"method": "ours"}, 0.5, reported=names)
    (cell,) = runs.cells_of(runs.table({**ACCURACY, "reported": "acc"}), published).values()
    assert (cell.published, cell.published_notes) == (value, tuple(notes))
    assert published_text(cell) == text


@pytest.mark.parametrize("names", [{"method": "moon", "plugin": "BP"}, {"method": "fedavg"}])
def test_a_cell_has_at_most_one_published_value(runs: Runs, published: Path, names: dict[str, str]) -> None:
    runs.add({"method": "ours"}, 0.5, reported=names)
    measured = {**ACCURACY, "reported": "acc"}
    with pytest.raises(FltrainError, match=r"published\.csv: 2 published values of 'acc' fit method="):
        runs.cells_of(runs.table(measured, reduced=False), published)
    # A reduced scale can replace an axis; then the cell has no published value.
    (cell,) = runs.cells_of(runs.table(measured), published).values()
    assert (cell.published, cell.published_notes) == (None, ())


# ---------------------------------------------------------------- files
FORMS = ("csv", "md", "tex", "html")
NASTY = "50 % of A_b & C#d <i>x</i> $y$ {z}"
NASTIER = r"a^2 ~ b \ c"


def written(runs: Runs, sheet: ItemJob, published: Path | None = None) -> dict[str, str]:
    """Texts of a table in all formats."""
    folder = runs.results.root / "written"
    outputs = {form: folder / f"table.{form}" for form in FORMS}
    tables.write(sheet, runs.results.record, published, outputs)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in outputs.values())
    return {form: path.read_text(encoding="utf-8") for form, path in outputs.items()}


@pytest.fixture
def rich(runs: Runs) -> Callable[..., ItemJob]:
    """Makes a table with all features: panels, two measures, gains, published values."""
    for panel, method, plugin in itertools.product(("one", "two"), ("fedavg", "fedprox"), ("BP", "FLFA")):
        for accuracy in (0.4, 0.5):
            names = {"method": method, "plugin": plugin}
            runs.add({"data": panel, "method": method, "plugin": plugin}, accuracy, reported=names)

    def make(**changes: Any) -> ItemJob:
        time = {"measure": "round_seconds", "reported": "time", "label": "time, × FedAvg"}
        time["relative_to"] = {"method": "fedavg", "plugin": "BP"}
        layout = {"columns": "plugin", "panels": "data"}
        return runs.table({**GAIN, "reported": "acc"}, time, **layout, **changes)

    return make


# ---------------------------------------------------------------- LaTeX
FITTING = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
MULTICOLUMN = re.compile(r"\\multicolumn\{(\d+)\}")


LIGATURE = re.compile(r"[-\u2013]-|[!?][`\u2018]|['\u2019]['\u2019]|[`\u2018][`\u2018]|,,")
DOCUMENT = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{graphicx}
\IfFileExists{booktabs.sty}{\usepackage{booktabs}}{\let\toprule\hline\let\midrule\hline\let\bottomrule\hline}
\tracinglostchars=3 \tracingoutput=1 \showboxbreadth=\maxdimen \showboxdepth=\maxdimen
\begin{document}
%s
\end{document}
"""


def check_escapes(text: str) -> None:
    """Check for characters and braces that LaTeX refuses, or takes for something else."""
    text = re.sub("^% .*", "", text, flags=re.M)
    bare = re.sub(r"\\[\\&%$#_{}]", " ", text.replace(FITTING, r"\resizebox{}{}{"))
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0, "a brace is closed that was not opened"
    assert depth == 0, "a brace is not closed"
    assert bare.count("$") % 2 == 0
    outside = re.sub(r"\$[^$]*\$", " ", bare)
    for character in '%#_^<>`"':
        assert character not in re.sub(r"\\[`^\"]\{", "", outside), f"{character!r} is not escaped"
    assert not re.search(r"(\\\\|rule)\s*[\[*]", text), "an argument of the command before"
    assert not (joined := LIGATURE.findall(outside)), joined
    assert not (unknown := {char for char in text if char != "\n" and char not in TEXT_CHARACTERS}), unknown


def check_compiled(text: str) -> None:
    """Compile a text if pdfLaTeX is there: it misses no character, and joins none but f, i and l."""
    if not shutil.which("pdflatex"):
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.tex").write_text(DOCUMENT % text, encoding="utf-8")
        command = ("pdflatex", "-draftmode", "-halt-on-error", "-interaction=nonstopmode", "a.tex")
        ended = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        log = Path(folder, "a.log").read_text(encoding="utf-8", errors="replace")
    assert ended.returncode == 0, log[log.find("\n!") :][:500]
    assert {*re.findall(r"\(ligature (.*)\)", log)} <= {"ff", "fi", "fl", "ffi", "ffl"}


def check_latex(text: str, columns: int) -> list[list[str]]:
    """Check for mistakes that LaTeX refuses; return the texts of its cells by line."""
    check_escapes(text)
    check_compiled(text)
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]

    lines: list[list[str]] = []
    for form, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", text, re.S):
        rows = [line.removesuffix(r"\\") for line in body.splitlines() if line.endswith(r"\\")]
        split = [re.split(r"(?<!\\)&", line) for line in rows]
        for line in split:
            spans = (MULTICOLUMN.search(cell) for cell in line)
            assert sum(int(span[1]) if span else 1 for span in spans) == len(form), line
        lines += [[cell.strip() for cell in line] for line in split]
        columns -= len(form) - 1
    assert columns == 0
    return lines


def test_latex_has_a_short_form_that_fits_the_text(
    runs: Runs, rich: Callable[..., ItemJob], published: Path
) -> None:
    """Columns of differences and verdicts are left out; a wide table is scaled down."""
    text = written(runs, rich(reduced=False), published)["tex"]
    lines = check_latex(text, 18)
    assert "difference" not in text.partition(r"\end{table}")[0] and text.count(r"\resizebox{") == 1
    assert [cell.rpartition("{")[2] for cell in lines[0] if cell] == ["one}", "two}"] * 2
    assert lines[3][:3] == ["fedavg", r"45.00 ± 7.07\textsuperscript{$\ne$†}", "65.80 {[}1]"]
    assert r"Signs: $\ne$ not reproduced" in text


LABELS = {
    "[0.1, 0.5]": "{[}0.1, 0.5]",
    " [b] x": "{[}b] x",
    "\n* plain": "{*} plain",
    "\u03b1 \u2192 \u03b2 \u2265 3": r"$\alpha$ $\rightarrow$ $\beta$ $\ge$ 3",
    "\u0141\u00f3d\u017a e\u0301 \u1ec5": "\u0141\u00f3d\u017a \u00e9 {[}U+1EC5]",
    "\u03a9 \u0397 \u03a1 \u00b5": r"$\Omega$ H P µ",
    "\u03db \u03dd \u03ac": "{[}U+03DB] {[}U+03DD] {[}U+03AC]",
    "\u4e2d": "{[}U+4E2D]",
    "-0.5 \u2013 1": "$-$0.5 \u2013 1",
    "A\nB": "A B",
    "a|b --x": r"a\textbar{}b -{}-x",
    "?` !\u2018 \u2013- ''": "?\\textasciigrave{} !{}\u2018 \u2013{}- '{}'",
    "90\u00b0 \u0153 \u0111 \u00f0 \u20ac \u00a3 \u00a7 \u00a9 \u00ab\u00bb": "90° œ đ ð € £ § © «»",
    "x\u2032 \u2207 \u223c": r"x$'$ $\nabla$ $\sim$",
    "m\u00b2 H\u2082": "m² H{[}U+2082]",
}


@pytest.mark.parametrize(("label", "escaped"), LABELS.items(), ids=ascii)
def test_latex_has_any_label_at_the_start_of_a_row(runs: Runs, label: str, escaped: str) -> None:
    """TeX would take a bracket or star for an argument of the line before, also after a blank."""
    runs.add({"method": "first"}, 0.5)
    runs.add({"method": label}, 0.5)
    lines = check_latex(written(runs, runs.table(ACCURACY))["tex"], 1)
    assert [line[0] for line in lines] == ["method", "first", escaped]


def test_rows_keep_the_order_of_their_axis(runs: Runs) -> None:
    """The first column may lack the first rows."""
    runs.add({"rate": "1.0", "cell": "a"}, 0.5)
    runs.add({"rate": "0.1", "cell": "b"}, 0.5)
    axes = {"rate": ["0.1", "1.0"], "cell": ["a", "b"]}
    sheet = runs.table(ACCURACY, rows="rate", columns="cell", axes=axes)
    rows = re.findall(r"^\| (\S+) \|", written(runs, sheet)["md"], re.M)
    assert rows == ["rate", "---", "0.1", "1.0"]


def test_latex_keeps_notes_outside_the_float_and_assumptions_out_of_sight(runs: Runs) -> None:
    """A float that is larger than a page moves all later ones to the end."""
    runs.add({"method": "a"}, 0.5, 0.6)
    text = written(runs, runs.table(ACCURACY, assumptions=["A-1: assumed."]))["tex"]
    inside, _, below = text.partition(r"\end{table}")
    assert "Caption of the item." not in inside
    assert r"{\footnotesize Caption of the item.\par}" in below
    assert "\n% A-1: assumed." in below


def test_seeds_are_a_range_or_a_list_in_order() -> None:
    assert [seeds_text(seeds) for seeds in ((7,), (0, 1), (6, 5, 4), (42, 999, 5, 6))] == [
        "7",
        "0 and 1",
        "4 to 6",
        "5, 6, 42 and 999",
    ]


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    assert number_text(-0.001, 2) == "0.00" and number_text(-0.001, 2, "+") == "0.00"
    assert number_text(-0.0, 1, "+", interval=(-0.04, 0.004)) == "0.0 [-0.04, +0.004]"
    assert number_text(1.0, 1, interval=(-0.0, 2.0)) == "1.0 [0.0, 2.0]"
    assert number_text(1.0, 1, "+", interval=(-1e-9, math.inf)) == "+1.0 [0.0, +inf]"
    assert number_text(-0.005001, 2) == "-0.01"


@pytest.mark.parametrize(
    ("value", "interval", "decimals"),
    [
        *[(-0.02, (-0.04426, 0.0009561), 3), (2.63, (0.33, 4.93), 1), (-583, (-696.6, -469.3), 0)],
        *[(0.1, (0.0004, 0.0996), 4), (0.1, (0.0, 0.2), 2), (-3.9, (-7.83, -0.03), 2), (0, (-1e-9, 1), 2)],
        *[(2.345, None, 2), (0.008329, (0.008329, 0.008329), 4), (1105.2, None, 0), (0.0, None, 2)],
        *[(0.836, None, 2), (math.inf, None, 0), (0.0, (-math.inf, math.inf), 0)],
    ],
)
def test_a_number_and_its_interval_share_decimals(
    value: float, interval: tuple[float, float] | None, decimals: int
) -> None:
    """Two digits of the half-width; more only if an end would look like zero; three or two without it."""
    assert shared_decimals(value, interval) == decimals


def test_a_p_value_near_the_level_shows_its_side() -> None:
    assert [p_text(p) for p in (0.0321, 0.0498, 0.050004, 0.05, 0.0002)] == [
        *("p 0.032", "p 0.0498", "p 0.050004", "p 0.050", "p < 0.001")
    ]


def test_markdown_holds_no_html(runs: Runs) -> None:
    """Imported records can have any text, for example the name of a processor."""
    runs.add({"method": "<script>alert(1)</script> a < b"}, 0.5)
    text = written(runs, runs.table(ACCURACY, caption="<img src=x>"))["md"]
    assert "<script" not in text and "&lt;script>" in text and "&lt;img" in text and "a < b" in text


def test_runs_on_different_data_under_one_name_are_named(runs: Runs) -> None:
    for digest in ("ab" * 32, "ab" * 32, "cd" * 32):
        runs.summary["digests"] = {"data": digest, "partition": "ef" * 32}
        runs.add({"method": "a"}, 0.5)
    text = written(runs, runs.table(ACCURACY))["md"]
    assert "on different data under one name" in text
    assert "dataset digits (abababab: 2, cdcdcdcd: 1)." in text


def test_gains_without_a_verdict_have_a_colour_if_their_interval_excludes_zero(runs: Runs) -> None:
    for method, values in {
        "best": (0.70, 0.80, 0.90),
        "near": (0.69, 0.81, 0.88),
        "far": (0.60, 0.701, 0.80),
    }.items():
        runs.add({"method": method}, *values)
    sheet = runs.table({**ACCURACY, "gain_over": {"method": "best"}})
    page = written(runs, sheet)["html"]
    page = re.sub(r'class="([^"]*)"', lambda match: f'class="{" ".join(match[1].split())}"', page)
    rows = dict(re.findall(r'<th scope="row">(\w+)</th>(.*?)</tr>', page, re.S))
    assert 'class="gain"' in rows["near"] and 'class="gain bad"' in rows["far"]
    assert "Red marks a gain" in page and "Green marks a gain" not in page, (
        "only colours that occur are explained"
    )
    assert "Every cell: values per seed, runs<" in page, "without published values there is no verdict"
    judged = runs.table({**ACCURACY, "gain_over": {"method": "best"}, "gain_margin": 1.0}, reduced=False)
    page = written(runs, judged)["html"]
    assert "Every cell: values per seed, verdict, runs<" in page
    assert 'class="gain "' in page and 'class="gain bad' not in page, "the verdict has a colour"


@pytest.mark.parametrize("text", [NASTY, NASTIER], ids=["percent, underscore ...", "caret, tilde, backslash"])
def test_latex_escapes_texts_everywhere(runs: Runs, text: str) -> None:
    runs.add({"method": text, "plugin": text}, 0.5)
    changes = {"title": text, "caption": text, "scale": text}
    sheet = runs.table({**ACCURACY, "label": text}, columns="plugin", **changes)
    check_latex(written(runs, sheet)["tex"], 1)


def test_latex_has_every_character_of_the_declarations() -> None:
    """Titles, captions, labels, assumptions and notes on published values lose no character."""
    lines = {
        line
        for path in [*CONFIG.rglob("*.yaml"), *CONFIG.rglob("*.csv")]
        for line in path.read_text(encoding="utf-8").splitlines()
    }
    text = "\n\n".join(map(latex, sorted(lines)))
    check_escapes(text)
    assert "{[}U+" not in text
    check_compiled(text)


def test_latex_compiles_every_character() -> None:
    """Also next to each other: no two of them become a dash, a quotation mark, or an inverted mark."""
    characters = [chr(code) for code in range(0x3000)]
    joining = [char for char in TEXT_CHARACTERS if unicodedata.category(char)[0] == "P"]
    pairs = map("".join, itertools.product(sorted(joining), repeat=2))
    for texts in (characters, pairs):
        text = latex(" ".join(texts))
        check_escapes(text)
        check_compiled(text)


# ---------------------------------------------------------------- real runs
def test_records_of_real_runs_have_all_measures(tmp_path: Path) -> None:
    """Measures can read the records that training writes."""
    statistics = {"statistics": ["drift", "similarity", "separability"]}
    evaluation = {**statistics, "extra": ["digits"], "validation": 0.1}
    record: Record = trained(tiny(plugins=["flfa"], evaluation=evaluation), tmp_path)
    assert MEASURES["extra_accuracy"].of(record) == {"digits": 100 * record.summary["accuracy"]["final"]}
    weights = 4 * record.summary["parameters"] / 1e6
    assert MEASURES["traffic"].of(record)[""] >= 12 * weights, "three rounds, two clients, up and down"
    assert MEASURES["parameters"].of(record)[""] == weights / 4
    personal = trained(tiny(method="perfedavg", local_test={}), tmp_path)
    assert MEASURES["best_macro_accuracy"].of(record) is None, "no client has images of its own"
    best = max(personal.rows("evaluation"), key=lambda row: row["macro"])
    assert MEASURES["best_macro_accuracy"].of(personal) == {"": pytest.approx(100 * best["macro"])}
    assert personal.summary["accuracy"]["best_macro_std"] == best["std"]
    for name, measure in MEASURES.items():
        of_clients = "over clients" in measure.label
        target = {"accuracy": [0.05], "seconds": [1e6], None: []}[measure.targeted]
        values = measure.of(personal if of_clients else record, *target)
        assert values and all(value >= 0 or "skewness" in name for value in values.values()), name
    for name in ("updates.drift", "separability.ratio", "evaluation.accuracy"):
        assert curve(record, name).index.tolist() == [1, 2, 3]
