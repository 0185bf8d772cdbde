"""Appearance and footnotes of figures; smoothing, bars, histograms and selected steps by hand."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from scipy import stats

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import Cell, ItemJob
from fltrain.methods import METHODS
from fltrain.reporting.figures import draw as figures
from fltrain.reporting.figures import style

from .helpers import DIVERGED, MISSING, Cells, Row, accuracies, shipped

Yaml = dict[str, Any]


class Runs(Cells):
    """Hand-made records, and figures of them."""

    def figure(self, scale: str = "on toy data", **layout: Any) -> ItemJob:
        return self.sheet(id="toy/figure", scale=scale, figure=layout)

    def curves(self, series: str = "method", **layout: Any) -> ItemJob:
        panels = layout.pop("panels", [ACCURACY])
        return self.figure(kind="curves", series=series, panels=panels, **layout)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "results")


ACCURACY = {"curve": "evaluation.accuracy", "label": "accuracy"}


def note(canvas: Canvas) -> str:
    """The note below a figure, as one line."""
    below = canvas._supxlabel  # type: ignore[attr-defined]
    return " ".join(below.get_text().split())


def test_a_label_that_begins_with_an_underscore_is_in_the_legend(runs: Runs) -> None:
    for method in ("FedAvg", "_ours"):
        runs.add({"method": method}, 0.5, rows=accuracies(0.4, 0.5))
    canvas, _ = figures.draw(runs.curves(), runs.results)
    (legend,) = canvas.legends
    assert [text.get_text().strip("\N{WORD JOINER}") for text in legend.get_texts()] == ["FedAvg", "_ours"]


def test_chinese_labels_have_the_best_font_that_is_installed() -> None:
    installed = ["Arial", "Source Han Sans SC", "Noto Sans CJK JP"]
    assert style.families(installed) == ["DejaVu Sans", "Noto Sans CJK JP", "Source Han Sans SC"]
    assert style.STYLE["font.family"][0] == "DejaVu Sans"


# Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB.
SIGHTS = {
    "full": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(colour: str, sight: str = "full") -> np.ndarray:
    """A colour in CIELAB (D65), as seen with this colour vision."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(SIGHTS[sight] @ linear, 0, 1) / to_xyz.sum(1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_can_be_told_apart(sight: str) -> None:
    distances = {
        pair: np.linalg.norm(lab(pair[0], sight) - lab(pair[1], sight))
        for pair in itertools.combinations([style.BLACK, *style.COLOURS], 2)
    }
    assert {pair: distance for pair, distance in distances.items() if distance < 17} == {}


def test_every_method_has_a_distinct_style() -> None:
    taken: dict[style.Look, str] = {}
    for name in METHODS:
        other = taken.setdefault(style.place(name), name)
        assert other == name, f"{name} looks like {other}: give it a free place in style.PLACES"
        # Colour and dash of a line without markers, colour and marker of one with solid lines.
    assert len({(look.colour, look.dash) for look in taken}) == len(taken)
    assert len({(look.colour, look.marker) for look in taken}) == len(taken)


def of(*runs: tuple[str, Sequence[str]], axis: str = "series") -> dict[str, style.Look]:
    """Styles of an axis with these labels, each with the methods of a run; a label can have several."""
    cells = [
        Cell(labels={axis: label}, reported={}, seed=seed, run="-", methods=tuple(methods))
        for seed, (label, methods) in enumerate(runs)
    ]
    return style.looks(list(dict.fromkeys(label for label, _ in runs)), axis, cells)


def test_the_style_of_a_method_depends_on_the_method_only() -> None:
    one = of(("FedAvg", ["fedavg"]), ("FedProx", ["fedprox"]), ("SCAFFOLD", ["scaffold"]))
    other = of(("SCAFFOLD, lr 0.01", ["scaffold"]), ("Fed2", ["fed2"]), ("prox", ["fedprox"]))
    assert one["SCAFFOLD"] == other["SCAFFOLD, lr 0.01"] == style.PLACES["scaffold"]
    assert one["FedProx"] == other["prox"] == style.PLACES["fedprox"]
    assert one["FedAvg"] == ("#000000", "-", "o")


def test_plugins_have_the_colour_of_their_method_and_another_dash() -> None:
    runs = (["fedprox"], ["fedprox", "flfa"], ["fedprox", "ecgr"], ["fedavg", "flfa"])
    base, flfa, ecgr, alone = of(*[("+".join(methods), methods) for methods in runs]).values()
    assert {base.colour, flfa.colour, ecgr.colour} == {style.PLACES["fedprox"].colour}
    assert len({base.dash, flfa.dash, ecgr.dash}) == 3
    assert alone == style.PLACES["flfa"]
    assert flfa[1:] == alone[1:]


def test_a_line_for_several_methods_has_their_common_style() -> None:
    bases = ("scaffold", "fedprox", "fednova", "fedavg")
    found = of(*[("base", [name]) for name in bases], *[("+ ECGR", [name, "ecgr"]) for name in bases])
    assert found == {"base": style.PLACES["fedavg"], "+ ECGR": style.PLACES["ecgr"]}


def test_numeric_labels_are_coloured_from_dark_to_light() -> None:
    labels = ["0.001", "0.01", "0.1", "0.5", "1"]
    found = of(*[(label, ["fedfcd"]) for label in labels])
    lightness = [lab(look.colour)[0] for look in found.values()]
    assert np.all(np.diff(lightness) > 8)
    assert len({look.marker for look in found.values()}) == len(labels)
    across_methods = of(*[(label, [name]) for label in labels for name in ("fedavg", "fedprox")])
    assert across_methods == found, "no label has one method only"


def test_lines_of_the_papers_figures_differ() -> None:
    """No two lines of a declared figure have the same style, and no two bars, which have no dash."""
    drawn = 0
    for item in shipped("paper").items:
        series = getattr(item.item.figure, "series", None)
        if series in item.axes:
            found = style.looks(item.axes[series], series, item.sheet.cells)
            lines = item.item.figure.kind == "curves"
            styles = {look if lines else (look.colour, look.hatch) for look in found.values()}
            assert len(styles) == len(found), item.id
            drawn += 1
    assert drawn >= 5


def test_missing_and_diverged_runs_are_named(runs: Runs) -> None:
    rows = accuracies(0.1, 0.2)
    for method, *reached in (("A", 0.2, MISSING), ("B", DIVERGED, DIVERGED), ("C", MISSING, MISSING)):
        runs.add({"method": method, "data": "one"}, *reached, rows=rows)
    canvas, numbers = figures.draw(runs.curves(), runs.results)
    assert {(row.series, row.seed) for row in numbers.itertuples()} == {("A", 0), ("B", 0), ("B", 1)}
    assert "Not run: A (seed 1); C. Diverged: B." in note(canvas)


RANKING = {"rows": "method", "series": "data", "difference_from": "A", "margin": 0.5}
FIGURES = {
    "curves": {"series": "method", "panels": [ACCURACY]},
    "points": {"along": "method", "label": "method", "measure": "best_accuracy"},
    "bars": {"along": "method", "label": "method", "measure": "best_accuracy"},
    "histogram": {"curve": "updates.similarity", "columns": "method"},
    "selection": {"columns": "method"},
    "preference": {"columns": "method"},
    "variance": {"columns": "method"},
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_without_runs_are_refused_and_diverged_runs_give_empty_ones(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    for method in ("A", "B"):
        runs.add({"method": method}, MISSING)
    sheet = runs.figure(kind=kind, **FIGURES[kind])
    with pytest.raises(FltrainError, match="toy/figure: none of its 2 runs has a record"):
        figures.write(sheet, runs.results, [tmp_path / "figure.png"])
    assert not (tmp_path / "figure.png").exists()
    runs.cells.clear()
    for method in ("A", "B"):
        runs.add({"method": method}, DIVERGED)
    canvas, numbers = figures.draw(runs.figure(kind=kind, **FIGURES[kind]), runs.results)
    assert numbers.empty
    assert "Diverged: A; B." in note(canvas)


def test_a_ranking_shows_paired_differences_with_their_intervals(runs: Runs) -> None:
    accuracies = {"A": (0.60, 0.70, 0.80), "B": (0.62, 0.72, 0.85), "C": (0.61, DIVERGED, 0.82)}
    for method, values in accuracies.items():
        runs.add({"method": method, "data": "one", "settings": "tuned"}, *values)
        runs.add({"method": method, "data": "two", "settings": "tuned"}, *values[::2])
    sheet = runs.figure(kind="ranking", measure="final_accuracy", **RANKING)
    canvas, numbers = figures.draw(sheet, runs.results)
    rows = {
        row.method: (row.difference, row.low, row.high) for row in numbers.itertuples() if row.data == "one"
    }
    assert list(rows) == ["B", "C"], "best first, without the row from which the others differ"
    first, second = canvas.axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["B", "C"]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["one", "two"]
    assert first.get_xlim() != second.get_xlim(), "each panel has its own scale"
    half = stats.t.isf(0.05, 2) * math.sqrt(3) / math.sqrt(3)
    assert rows["B"] == pytest.approx((3, 3 - half, 3 + half)), "of the differences 2, 2 and 5"
    assert rows["C"][0] == pytest.approx((1 + 2 + 10 - 70) / 3), "digits have ten classes"
    assert "Every method, A included: tuned settings." in note(canvas)
    assert "Differences from A, paired by seed (3 seeds), with 90 % intervals" in note(canvas)
    assert "not corrected for the number of comparisons" in note(canvas)
    assert "Rows are ordered by their mean over the panels" in note(canvas)


def test_accuracies_are_in_per_cent_on_an_axis_that_fits_the_late_rounds(runs: Runs) -> None:
    for method, *values in (("A", 0.1, 0.5, 0.9, 0.92), ("B", 0.1, 0.5, 0.94, 0.96)):
        runs.add({"method": method, "data": "one"}, rows=accuracies(*values))
    axes = {}
    for late in (False, True):
        panel = {**ACCURACY, "late": late}
        canvas, _ = figures.draw(runs.curves(columns="data", panels=[panel]), runs.results)
        (axes[late],) = canvas.axes
        assert ("Vertical axes fit the second half of the rounds" in note(canvas)) == late
    low, high = axes[True].get_ylim()
    assert (low, high) == pytest.approx((0.5 - 0.046, 0.96 + 0.046)), "rounds 2 to 4"
    assert axes[False].get_ylim()[0] < 0.1
    assert axes[True].yaxis.get_major_formatter()(0.95) == "95 %"


def test_smooth_curves_are_drawn_over_the_measured_ones(runs: Runs) -> None:
    runs.add({"method": "A"}, rows=accuracies(0.0, 0.3, 0.0, 0.3))
    runs.add({"method": "A"}, DIVERGED, rows=accuracies(0.2, 0.5, 0.2))
    canvas, numbers = figures.draw(runs.curves(smoothing=3), runs.results)
    pale, smooth, left = canvas.axes[0].get_lines()
    assert pale.get_ydata() == pytest.approx([0.1, 0.4, 0.1, 0.3])
    means = [0.1, (0.1 + 0.3) / 2, (0.2 + 0.2) / 2, 0.3]
    assert smooth.get_ydata() == pytest.approx([*means[:3], math.nan], nan_ok=True)
    assert left.get_ydata() == pytest.approx([math.nan, math.nan, *means[2:]], nan_ok=True)
    assert pale.get_alpha() < 1 and pale.get_color() == smooth.get_color()
    assert "Centred means over 3 rounds, pale as measured." in note(canvas)
    assert numbers.columns.tolist() == ["panel", "series", "seed", "rounds", "value", "smoothed"]
    ended = numbers[numbers["seed"] == 1]
    assert ended["smoothed"].tolist() == pytest.approx([0.2, 0.3, 0.2]), "not longer than the run"


def test_the_mean_over_seeds_is_thin_after_a_seed_has_ended(runs: Runs) -> None:
    for reached, *values in ((0.6, 0.2, 0.4, 0.6), (DIVERGED, 0.4, 0.2)):
        runs.add({"method": "A"}, reached, rows=accuracies(*values))
        runs.add({"method": "B"}, rows=accuracies(0.5, 0.6, 0.7))
    canvas, _ = figures.draw(runs.curves(), runs.results)
    whole, left, other = canvas.axes[0].get_lines()
    assert whole.get_ydata() == pytest.approx([0.3, 0.3, math.nan], nan_ok=True)
    assert left.get_ydata() == pytest.approx([math.nan, 0.3, 0.6], nan_ok=True)
    assert left.get_linewidth() < whole.get_linewidth() and left.get_color() == whole.get_color()
    assert other.get_ydata() == pytest.approx([0.5, 0.6, 0.7])
    band, _ = (collection.get_paths()[0].vertices for collection in canvas.axes[0].collections)
    assert band[:, 0].max() == 2, "no range after the seed has ended"
    assert "Diverged: A (seed 1). Thin lines: " in note(canvas)


BARS = {"along": "classes", "label": "classes", "series": "method", "measure": "best_accuracy"}


def test_bars_are_means_from_zero_with_the_range_over_seeds(runs: Runs) -> None:
    gh, fcd = {"4": (0.5, 0.7), "8": (0.4, 0.4)}, {"4": (0.9, 0.8), "8": (0.3,)}
    for method, reached in (("fedgh", gh), ("fedfcd", fcd)):
        for classes, finals in reached.items():
            runs.add({"method": method, "classes": classes}, *finals, methods=[method])
    canvas, _ = figures.draw(runs.figure(kind="bars", **BARS), runs.results)
    (axes,) = canvas.axes
    bars = [patch for patch in axes.patches if patch.get_height() > 0]
    assert [bar.get_height() for bar in bars] == pytest.approx([60, 40, 85, 30])
    assert {bar.get_y() for bar in bars} == {0}
    assert axes.get_ylim()[0] == 0
    middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert [round(middle) for middle in middles] == [0, 1, 0, 1], "at their classes"
    assert middles[0] < middles[2] and middles[1] < middles[3], "methods in order"
    ranges = [segment[:, 1].tolist() for lines in axes.collections for segment in lines.get_segments()]
    assert ranges == [pytest.approx(ends) for ends in ([50, 70], [40, 40], [80, 90], [30, 30])]
    assert [text.get_text() for text in axes.texts] == ["60.0", "40.0", "85.0", "30.0"]
    looks = [style.PLACES["fedgh"], style.PLACES["fedfcd"]]
    colours = [to_rgb(bar.get_facecolor()[:3]) for bar in bars]
    assert colours == [to_rgb(look.colour) for look in looks for _ in range(2)]


def similarities(round: int, **layers: float | None) -> Row:
    return {"round": round, "kind": "updates", "similarity": layers, "drift": 1.0}


HISTOGRAM = {"kind": "histogram", "curve": "updates.similarity", "columns": "method"}


def test_layers_are_counted_by_value(runs: Runs) -> None:
    later = similarities(2, a=0.9, b=0.9, c=0.9, d=0.9)
    runs.add({"method": "A"}, rows=[similarities(1, a=0.0, b=0.0, c=0.0, d=1.0), later])
    runs.add({"method": "B"}, rows=[similarities(1, a=0.5, b=0.75, c=None, d=1.0), later])
    canvas, numbers = figures.draw(runs.figure(**HISTOGRAM), runs.results)
    first, second = canvas.axes
    counts = [[int(bar.get_height()) for bar in axes.patches] for axes in (first, second)]
    assert (counts[0][0], counts[0][-1], sum(counts[0])) == (3, 1, 4)
    assert sum(counts[1]) == 3, "a layer without a number is not counted"
    edges = [[bar.get_x() for bar in axes.patches] for axes in (first, second)]
    assert edges[0] == edges[1], "bins are the same in all panels"
    # One of four: m2 = 3/16, m3 = 3/32, skewness 2/sqrt(3).
    assert first.get_title(loc="left") == "A, round 1, skewness +1.15"
    assert first.get_xlabel() == "similarity"
    assert [first.get_lines()[0].get_xdata()[0], second.get_lines()[0].get_xdata()[0]] == [0.0, 0.75]
    assert numbers[numbers["panel"] == "B"]["part"].tolist() == ["a", "b", "d"]


def selected(round: int, steps: dict[int, int], chosen: dict[int, list[int]]) -> Row:
    """A row of ECGR's record: steps of each client, and the selected ones."""
    return {
        "round": round,
        "kind": "ecgr",
        "steps": {str(client): count for client, count in steps.items()},
        "selected": {str(client): found for client, found in chosen.items()},
    }


def maps(canvas: Canvas) -> dict[str, list[list[float]]]:
    """The image in each panel, by its title."""
    return {
        axes.get_title(loc="left"): axes.get_images()[0].get_array().filled(np.nan).tolist()
        for axes in canvas.axes
        if axes.get_images()
    }


def test_the_first_seed_is_shown_for_each_point_of_an_axis(runs: Runs) -> None:
    for data, step in (("one", 0), ("one", 1), ("two", 1)):
        runs.add({"data": data}, rows=[selected(1, {0: 2}, {0: [step]})])
    canvas, numbers = figures.draw(runs.figure(kind="selection", columns="data"), runs.results)
    assert maps(canvas) == {"one": [[1], [0]], "two": [[0], [1]]}
    assert numbers.columns.tolist() == ["panel", "round", "client", "step", "selected"]
    assert len(numbers) == 4


SELECTION = {"kind": "selection"}
POINTS = {"kind": "points", **FIGURES["points"]}
TWICE = [similarities(1, a=0.0, b=1.0), similarities(2, a=0.0, b=1.0)]
MANY = [selected(1, dict.fromkeys(range(13), 1), {client: [0] for client in range(13)})]


@pytest.mark.parametrize(
    ("layout", "rows", "words"),
    [
        ({**HISTOGRAM, "round": 7}, TWICE, ["run-0", "'updates.similarity'", "round 7", "rounds 1 to 2"]),
        (
            {**HISTOGRAM, "curve": "updates.drift"},
            TWICE,
            ["run-0", "'updates.drift'", "one number for each round"],
        ),
        ({**HISTOGRAM, "columns": None}, TWICE, ["'method'", "does not show"]),
        ({**POINTS, "along": "methd"}, [], ["'methd'", "method"]),
        ({**POINTS, "series": "method"}, [], ["'method'", "twice"]),
        ({**POINTS, "measure": "rounds_to_target"}, [], ["'rounds_to_target'", "one number"]),
        ({**SELECTION, "columns": "method"}, [], ["run-0", "ecgr"]),
        (
            {"kind": "curves", **FIGURES["curves"], "smoothing": 4},
            accuracies(0.0, 0.3),
            ["smoothing: 4 rounds", "odd"],
        ),
        (
            {**SELECTION, "columns": "method"},
            MANY,
            ["12", "13", "fewer"],
        ),
    ],
)
def test_invalid_figures_are_refused(runs: Runs, layout: Yaml, rows: list[Row], words: list[str]) -> None:
    for method in ("A", "B"):
        runs.add({"method": method}, rows=rows)
    sheet = runs.figure(**layout)
    with pytest.raises(FltrainError) as raised:
        sheet.figure.check(sheet.axes)
        figures.draw(sheet, runs.results)
    assert [word for word in words if word not in str(raised.value)] == [], raised.value


LONG = "a scale whose title is longer than any figure is wide, so that it has to be broken into several lines"
METHODS_OF_FLFA = ["fedavg", "fedprox", "moon", "fedavgm", "fedsol", "fedrs", "fedlc", "fedacg", "feddyn"]


NIGHTLY = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("grid", "selection")]


@pytest.fixture(params=["curves", "short names", "bars", *NIGHTLY])
def crowded(request: pytest.FixtureRequest, runs: Runs) -> ItemJob:
    """Figures with as many elements as in the papers, and long labels."""
    rows = [
        *accuracies(*np.linspace(0.1, 0.9, 20)),
        *[selected(number, {0: 4, 1: 2}, {0: [1, 2], 1: [1]}) for number in range(1, 21)],
    ]
    match request.param:
        case "curves":
            for name in METHODS_OF_FLFA:
                runs.add({"method": f"{name} with a longer name"}, rows=rows, methods=[name])
            return runs.curves(smoothing=5, scale=LONG)
        case "short names":
            for name in METHODS_OF_FLFA:
                runs.add({"method": name.upper()}, rows=rows, methods=[name])
            return runs.curves()
        case "grid":
            for name, data, plugin in itertools.product(METHODS_OF_FLFA[:4], ("MNIST", "CIFAR-100"), "ab"):
                labels = {"method": f"{name}, lr 0.01", "data": data, "plugin": plugin}
                runs.add(labels, rows=rows, methods=[name])
            return runs.curves("plugin", columns="method", rows="data", scale=LONG)
        case "bars":
            for name, classes in itertools.product(METHODS_OF_FLFA, "468"):
                runs.add({"method": name, "classes": classes}, methods=[name])
            return runs.figure(kind="bars", scale=LONG, **BARS)
        case _:
            for data in ("CIFAR-10, Dirichlet 0.1", "CIFAR-100, Dirichlet 0.1", "FMNIST, Dirichlet 0.1"):
                runs.add({"data": data}, rows=rows)
            return runs.figure(kind="selection", scale=LONG, columns="data")


def test_figures_can_be_read_in_print(runs: Runs, crowded: ItemJob) -> None:
    """At most a page wide, text of at least 7 points inside the figure, legends next to the panels."""
    canvas, _ = figures.draw(crowded, runs.results)
    assert canvas.get_figwidth() * 25.4 <= 180 + 1e-6
    agg = FigureCanvasAgg(canvas)
    agg.draw()
    renderer = agg.get_renderer()
    texts = [text for text in canvas.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 7
    page = canvas.bbox.padded(2)
    # Ticks beyond the limits of an axis have labels that are not drawn.
    ticks = {label for axes in canvas.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    for text in set(texts) - ticks:
        box = text.get_window_extent(renderer)
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside, f"{text.get_text()!r} leaves the page"
    panels = [axes.get_window_extent(renderer) for axes in canvas.axes]
    for named in canvas.legends:
        assert not any(named.get_window_extent(renderer).overlaps(panel) for panel in panels)
    assert min(panel.height for panel in panels) > 10 / 25.4 * canvas.dpi, "no panel is squeezed"
