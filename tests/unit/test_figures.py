"""Appearance and captions of figures; their curves, points, histograms and areas by hand."""

import base64
import io
import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from scipy import stats

from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import Curves, ItemJob
from fltrain.reporting.figures import draw as figures
from fltrain.reporting.figures import style
from fltrain.reporting.figures.style import Spec
from fltrain.reporting.pages import size_and_caption

from . import helpers
from .helpers import DIVERGED, MISSING, Cells, Row, accuracies, drifts, tiny

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


def panels(spec: Spec) -> dict[str, Spec]:
    """The panels of a figure by title."""
    all_panels = [panel for row in spec["vconcat"] for panel in row["hconcat"]]
    return {" ".join(panel["title"]["text"]): panel for panel in all_panels}


def data(panel: Spec) -> pd.DataFrame:
    return pd.DataFrame(panel["data"]["values"])


def note(spec: Spec) -> str:
    return spec["description"]


def lab(colour: str) -> np.ndarray:
    """A colour in CIELAB (D65)."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / to_xyz.sum(1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_lines_do_not_differ_by_colour_alone() -> None:
    """The first one is black and solid; numbers, layers and many lines have shades of one palette."""
    looks = [encoding["scale"]["range"] for encoding in style.by_series(["FedAvg", "+ FLFA"]).values()]
    assert [look[0] for look in looks] == [style.BLACK, style.SOLID, "circle"]
    assert all(look[0] != look[1] for look in looks)
    assert min(np.linalg.norm(lab(a) - lab(b)) for a, b in itertools.combinations(style.COLOURS, 2)) > 17
    many = [f"method {number}" for number in range(len(style.COLOURS) + 1)]
    for labels, ordered in ((["0.001", "1"], False), (["stem", "head"], True), (many, False)):
        scales = style.by_series(labels, ordered=ordered)
        assert "viridis" in str(scales["color"]["scale"]) and scales["strokeDash"]["scale"]["range"] == [
            style.SOLID
        ]


@pytest.mark.parametrize("layout", ["curves", "points"])
def test_dashes_are_on_lines_but_not_on_the_markers_of_the_legend(runs: Runs, layout: str) -> None:
    for method in ("A", "B"):
        for classes in ("1", "2"):
            runs.add({"method": method, "classes": classes}, 0.2, 0.3, rows=accuracies(0.1, 0.2))
    options = {"curves": {"series": "method", "panels": [ACCURACY]}, "points": POINTS}[layout]
    spec, _ = figures.draw(runs.figure(kind=layout, **options), runs.results)
    svg = figures.to_svg(spec)
    legend = re.findall(r"role-legend-symbol.*?<path ([^>]*)/>", svg)
    assert len(legend) == 2 and "dasharray" not in " ".join(legend)
    assert 'stroke-dasharray="6,3"' in svg


def test_missing_and_diverged_runs_are_named(runs: Runs) -> None:
    rows = accuracies(0.1, 0.2)
    for method, *reached in (("A", 0.2, MISSING), ("B", DIVERGED, DIVERGED), ("C", MISSING, MISSING)):
        runs.add({"method": method, "data": "one"}, *reached, rows=rows)
    spec, numbers = figures.draw(runs.curves(), runs.results)
    assert {(row.series, row.seed) for row in numbers.itertuples()} == {("A", 0), ("B", 0), ("B", 1)}
    assert "Not run: A (seed 1), C (seed 0), C (seed 1). Diverged: B (seed 0), B (seed 1)." in note(spec)


RANKING = {"rows": "method", "series": "data", "difference_from": "A", "margin": 0.5}
POINTS = {"along": "classes", "label": "classes", "series": "method", "measure": "best_accuracy"}
FIGURES = {
    "curves": {"series": "method", "panels": [ACCURACY]},
    "points": {"along": "method", "label": "method", "measure": "best_accuracy"},
    "histogram": {"curve": "updates.similarity", "label": "similarity", "round": 1, "columns": "method"},
    "selection": {"columns": "method"},
    "preference": {"columns": "method"},
    "variance": {"columns": "method"},
}


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_without_runs_are_refused_and_diverged_runs_give_empty_ones(runs: Runs, kind: str) -> None:
    for method in ("A", "B"):
        runs.add({"method": method}, MISSING)
    sheet = runs.figure(kind=kind, **FIGURES[kind])
    with pytest.raises(FltrainError, match="toy/figure: none of its runs has a record"):
        figures.draw(sheet, runs.results)
    runs.cells.clear()
    for method in ("A", "B"):
        runs.add({"method": method}, DIVERGED)
    spec, numbers = figures.draw(runs.figure(kind=kind, **FIGURES[kind]), runs.results)
    assert numbers.empty == (kind != "points"), "measures count as chance"
    assert "Diverged: A, B." in note(spec)


def test_a_ranking_shows_paired_differences_with_their_intervals(runs: Runs) -> None:
    accuracies = {"A": (0.60, 0.70, 0.80), "B": (0.62, 0.72, 0.85), "C": (0.61, DIVERGED, 0.82)}
    for method, values in accuracies.items():
        runs.add({"method": method, "data": "one", "settings": "tuned"}, *values)
        runs.add({"method": method, "data": "two", "settings": "tuned"}, *values[::2])
    sheet = runs.figure(kind="ranking", measure="final_accuracy", **RANKING)
    spec, numbers = figures.draw(sheet, runs.results)
    rows = {
        row.method: (row.difference, row.low, row.high) for row in numbers.itertuples() if row.data == "one"
    }
    assert list(rows) == ["B", "C"], "best first, without the row from which the others differ"
    assert [*panels(spec)] == ["one", "two"]
    assert data(panels(spec)["one"])["difference"].tolist() == [rows["B"][0], rows["C"][0]]
    half = stats.t.isf(0.05, 2) * math.sqrt(3) / math.sqrt(3)
    assert rows["B"] == pytest.approx((3, 3 - half, 3 + half)), "of the differences 2, 2 and 5"
    assert rows["C"][0] == pytest.approx((1 + 2 + 10 - 70) / 3), "digits have ten classes"
    assert (
        "Every method, A included, has tuned settings. The figure shows differences from A, paired by seed"
        in note(spec)
    )
    assert "(3 seeds), with 90 % intervals" in note(spec) and "ordered by their mean" in note(spec)


@pytest.mark.parametrize("lost", ["diverged", "base diverged"])
def test_a_ranking_shows_words_if_all_runs_of_a_side_diverged(runs: Runs, lost: str) -> None:
    accuracies = {"A": (0.60, 0.70, 0.80), "B": (0.62, 0.72, 0.85), "C": (0.61, 0.71, 0.82)}
    accuracies["C" if lost == "diverged" else "A"] = (DIVERGED,) * 3
    for method, values in accuracies.items():
        runs.add({"method": method, "data": "one"}, *values)
    spec, numbers = figures.draw(
        runs.figure(kind="ranking", measure="final_accuracy", **RANKING), runs.results
    )
    words = dict(zip(numbers["method"], numbers["lost"], strict=True))
    assert words == ({"B": "", "C": lost} if lost == "diverged" else {"B": lost, "C": lost})
    svg = figures.to_svg(spec)
    assert svg.count(f">{lost}</text>") == sum(map(bool, words.values()))
    points = re.findall(r'<g class="mark-symbol role-mark[^>]*>(.*?)</g>', svg)
    assert sum(group.count("<path") for group in points) == sum(not word for word in words.values())


def test_one_seed_ranks_nothing_and_has_no_intervals(runs: Runs) -> None:
    for method, value in {"A": 0.6, "C": 0.5, "B": 0.7}.items():
        runs.add({"method": method, "data": "one"}, value)
    sheet = runs.figure(kind="ranking", measure="final_accuracy", **RANKING)
    spec, numbers = figures.draw(sheet, runs.results)
    assert numbers["method"].tolist() == ["C", "B"], "the order of the axis"
    assert "(1 seed), without intervals" in note(spec)
    assert "ordered" not in note(spec) and "90 %" not in note(spec)


def test_panels_side_by_side_share_an_axis_that_can_fit_the_late_rounds(runs: Runs) -> None:
    for method, *values in (("A", 0.1, 0.5, 0.9, 0.92), ("B", 0.1, 0.5, 0.94, 0.96)):
        runs.add({"method": method, "data": "one"}, rows=accuracies(*values))
    ends = {}
    for late in (False, True):
        panel = {**ACCURACY, "late": late}
        spec, _ = figures.draw(runs.curves(columns="data", panels=[panel]), runs.results)
        (chart,) = panels(spec).values()
        ends[late] = chart["layer"][0]["encoding"]["y"]["scale"]["domain"]
        assert ("Vertical axes fit the second half of the rounds" in note(spec)) == late
    assert ends[True] == pytest.approx([0.5 - 0.046, 0.96 + 0.046]), "rounds 2 to 4"
    assert ends[False] == pytest.approx([0.1 - 0.086, 0.96 + 0.086])


def test_lines_are_means_of_all_seeds_and_thin_after_a_seed_has_ended(runs: Runs) -> None:
    for reached, *values in ((0.6, 0.2, 0.4, 0.6), (DIVERGED, 0.4, 0.2)):
        runs.add({"method": "A"}, reached, rows=accuracies(*values))
    spec, _ = figures.draw(runs.curves(), runs.results)
    (panel,) = panels(spec).values()
    points = data(panel)
    assert points["mean"].tolist() == pytest.approx([0.3, 0.3, 0.6])
    assert points["whole"].tolist() == pytest.approx([0.3, 0.3, math.nan], nan_ok=True)
    assert points[["low", "high"]].to_numpy().tolist()[:2] == [[0.2, 0.4], [0.2, 0.4]]
    assert "Diverged: seed 1." in note(spec) and "Thin lines show " in note(spec)


@pytest.mark.parametrize(("best", "noted"), [(0.9, True), (0.8, False)])
def test_a_figure_tells_if_training_ended_at_a_target(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, best: float, noted: bool
) -> None:
    monkeypatch.setattr(helpers, "tiny", lambda: tiny(evaluation={"until": 0.9}))
    runs.add({"method": "A"}, best, rows=accuracies(0.5, 0.8))
    text = note(figures.draw(runs.curves(), runs.results)[0])
    assert ("A curve ends at a test accuracy of 90 %, because training stops there." in text) == noted


def test_titles_break_no_line_at_an_equals_sign(runs: Runs) -> None:
    """Lines have up to 69 characters, so that one of these titles would end a line after 'B ='."""
    for length in range(58, 70):
        runs.add({"method": "x", "data": f"{'c' * length}, B = inf"}, rows=accuracies(0.5))
    spec, _ = figures.draw(runs.curves(rows="data"), runs.results)
    titles = [panel["title"]["text"] for row in spec["vconcat"] for panel in row["hconcat"]]
    assert all(sum("B = inf" in line for line in title) == 1 for title in titles)


def test_differences_of_equal_seeds_vary_by_one_test_image(runs: Runs) -> None:
    """Here 1 of 100 images, a point; curves of other numbers have no such floor."""
    for method, value in (("A", 0.5), ("B", 0.6)):
        for _ in range(3):
            runs.add({"method": method}, rows=[{**row, "images": 100} for row in accuracies(value)])
    panel = {**ACCURACY, "difference_from": {"method": "A"}}
    points = data(panels(figures.draw(runs.curves(panels=[panel]), runs.results)[0])["accuracy"])
    half = stats.t.isf(0.05, 2) / math.sqrt(3)
    assert points[["low", "high"]].to_numpy().tolist() == [pytest.approx([10 - half, 10 + half])]


def test_smooth_curves_are_drawn_over_the_measured_ones(runs: Runs) -> None:
    runs.add({"method": "A"}, rows=accuracies(0.0, 0.3, 0.0, 0.6))
    spec, numbers = figures.draw(runs.curves(smoothing=3), runs.results)
    points = data(next(iter(panels(spec).values())))
    assert points["raw"].tolist() == [0.0, 0.3, 0.0, 0.6]
    assert points["mean"].tolist() == pytest.approx([0.15, 0.1, 0.3, 0.3])
    assert "Curves show centred means over 3 rounds. Pale curves show the measured values." in note(spec)
    assert numbers.columns.tolist() == ["panel", "series", "seed", "rounds", "value", "smoothed"]


def test_points_are_means_with_the_range_over_seeds(runs: Runs) -> None:
    gh, fcd = {"4": (0.5, 0.7), "8": (0.4, 0.4)}, {"4": (0.9, 0.8), "8": (0.3, DIVERGED, MISSING)}
    for method, reached in (("fedgh", gh), ("fedfcd", fcd)):
        for classes, finals in reached.items():
            runs.add({"method": method, "classes": classes}, *finals, methods=[method])
    spec, _ = figures.draw(runs.figure(kind="points", **POINTS), runs.results)
    points = data(panels(spec)[""])
    assert points[["mean", "min", "max"]].to_numpy().tolist() == [
        pytest.approx(row) for row in ([60, 50, 70], [40, 40, 40], [85, 80, 90], [20, 10, 30])
    ], "a diverged run counts as chance among ten classes, as in tables"
    assert "Diverged runs count as chance accuracy." in note(spec)
    scale = panels(spec)[""]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["fedgh", "fedfcd"], "range": style.COLOURS}


def similarities(round: int, **layers: float | None) -> Row:
    return {"round": round, "kind": "updates", "similarity": layers, "drift": 1.0}


HISTOGRAM = {"kind": "histogram", **FIGURES["histogram"]}


def test_layers_are_counted_by_value(runs: Runs) -> None:
    later = similarities(2, a=0.9, b=0.9, c=0.9, d=0.9)
    runs.add({"method": "A"}, rows=[similarities(1, a=0.0, b=0.0, c=0.0, d=1.0), later])
    runs.add({"method": "B"}, rows=[similarities(1, a=0.5, b=0.75, c=None, d=1.0), later])
    spec, numbers = figures.draw(runs.figure(**HISTOGRAM), runs.results)
    (title, first), (_, second) = panels(spec).items()
    assert data(first)["value"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert data(second)["value"].tolist() == [0.5, 0.75, 1.0], "a layer without a number is not counted"
    marks = re.findall(r'aria-label="similarity: ([^"]+)"', figures.to_svg(spec))
    assert [re.sub(r" \W ", " to ", mark) for mark in marks] == [
        *("0 to 0.05; number of layers: 3", "0.95 to 1; number of layers: 1", "0"),
        *(f"{ends}; number of layers: 1" for ends in ("0.5 to 0.55", "0.75 to 0.8", "0.95 to 1")),
        "0.75",
    ], "the same bins, and the medians"
    # One of four: m2 = 3/16, m3 = 3/32, skewness 2/sqrt(3).
    assert title == "A, round 1, skewness +1.15"
    assert numbers[numbers["panel"] == "B"]["part"].tolist() == ["a", "b", "d"]


def selected(round: int, steps: dict[int, int], chosen: dict[int, list[int]]) -> Row:
    """A row of ECGR's record: steps of each client, and the selected ones."""
    return {
        "round": round,
        "kind": "ecgr",
        "steps": {str(client): count for client, count in steps.items()},
        "selected": {str(client): indices for client, indices in chosen.items()},
    }


def test_the_first_seed_is_shown_for_each_point_of_an_axis(runs: Runs) -> None:
    for data, step, seed in (("one", 0, 42), ("one", 1, 7), ("two", 1, 42)):
        runs.add({"data": data}, rows=[selected(1, {0: 2}, {0: [step]})], seed=seed)
    spec, numbers = figures.draw(runs.figure(kind="selection", columns="data"), runs.results)
    assert [*panels(spec)] == ["one", "two"]
    assert numbers.to_numpy().tolist() == [
        ["one", 1, 0, 0, True],
        ["one", 1, 0, 1, False],
        ["two", 1, 0, 0, False],
        ["two", 1, 0, 1, True],
    ]
    for panel, top in zip(panels(spec).values(), (0, 1), strict=True):
        picture = base64.b64decode(panel["layer"][1]["mark"]["url"].partition(",")[2])
        corner = Image.open(io.BytesIO(picture)).getpixel((0, 0))
        assert corner == tuple(round(255 * part) for part in to_rgb([*figures.STEPS.values()][top]))


SELECTION = {"kind": "selection"}
ONE_LINE = {"kind": "points", **FIGURES["points"]}
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
        ({**HISTOGRAM, "columns": "seed"}, TWICE, ["'seed'", "unknown axis"]),
        ({**ONE_LINE, "along": "methd"}, [], ["'methd'", "method"]),
        ({**ONE_LINE, "series": "method"}, [], ["'method'", "twice"]),
        ({**ONE_LINE, "measure": "rounds_to_target"}, [], ["'rounds_to_target'", "one number"]),
        ({**ONE_LINE, "measure": "best_acc"}, [], ["unknown measure 'best_acc'", "'best_accuracy'"]),
        (
            {"kind": "ranking", **RANKING, "measure": "best_of_all_seeds"},
            [],
            ["'best_of_all_seeds'", "not one in points"],
        ),
        ({"kind": "ranking", **RANKING, "measure": "seconds"}, [], ["'seconds'", "not one in points"]),
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
    if not (message := "\n".join(sheet.figure.faults(sheet.axes))):
        with pytest.raises(FltrainError) as raised:
            figures.draw(sheet, runs.results)
        message = str(raised.value)
    assert [word for word in words if word not in message] == [], message


LONG = "a scale whose title is longer than any figure is wide, so that it has to be broken into several lines"
METHODS_OF_FLFA = ["fedavg", "fedprox", "moon", "fedavgm", "fedsol", "fedrs", "fedlc", "fedacg", "feddyn"]


@pytest.mark.parametrize("kind", ["curves", "grid", "selection"])
def test_figures_can_be_read_in_print(runs: Runs, tmp_path: Path, kind: str) -> None:
    """At most about a page (180 mm, 680 pixels) wide, also with as many elements as in the papers."""
    rows = [
        *accuracies(*np.linspace(0.1, 0.9, 20)),
        *[selected(number, {0: 4, 1: 2}, {0: [1, 2], 1: [1]}) for number in range(1, 21)],
    ]
    names = METHODS_OF_FLFA[: {"curves": 9, "grid": 4, "selection": 2}[kind]]
    for name, data, plugin in itertools.product(names, ("MNIST", "CIFAR-100, Dirichlet 0.1"), "ab"):
        labels = {"method": f"{name} with a longer name"}
        labels |= {"data": data, "plugin": plugin} if kind == "grid" else {}
        labels = {"data": f"{data}, {name}"} if kind == "selection" else labels
        runs.add(labels, rows=rows, methods=[name])
    sheet = {
        "curves": lambda: runs.curves(smoothing=5, scale=LONG),
        "grid": lambda: runs.curves("plugin", columns="method", rows="data", scale=LONG),
        "selection": lambda: runs.figure(kind="selection", scale=LONG, columns="data"),
    }[kind]()
    figures.save(*figures.draw(sheet, runs.results), [path := tmp_path / "figure.svg"])
    svg = path.read_text()
    assert float(re.search(r'width="([\d.]+)"', svg)[1]) <= 720
    assert min(map(float, re.findall(r'font-size="([\d.]+)px"', svg))) >= 10


def test_captions_are_drawn_in_print_and_are_text_on_pages(runs: Runs, tmp_path: Path) -> None:
    """An SVG has its caption, here with the reduced scale, in its description only."""
    runs.add({"method": "A"}, rows=accuracies(0.1, 0.2))
    spec, numbers = figures.draw(runs.curves(scale="A & <B>"), runs.results)
    svg, png = tmp_path / "figure.svg", tmp_path / "figure.png"
    figures.save(spec, numbers, [svg, png])
    _, caption = size_and_caption(svg)
    assert caption.unescape() == note(spec) == "Reduced scale: A & <B>."
    assert "Reduced scale" not in svg.read_text().replace(f"<desc>{caption}</desc>", "")
    assert "Reduced scale" in " ".join(style.footnote(spec)["title"]["text"])
    with Image.open(png) as drawn:
        assert drawn.height > 2 * float(re.search(r' height="([\d.]+)"', svg.read_text())[1]) + 20
    assert size_and_caption(png) == ("", "")


# ---------------------------------------------------------------- curves
DRIFT = {"curve": "updates.drift", "label": "Drift"}
REDUCTION = {"curve": "updates.drift", "label": "Reduction", "reduction_from": {"method": "BP"}}


def test_curves_of_layers_or_blocks(runs: Runs) -> None:
    """A field of several numbers has one line for each, here divided by its own maximum."""
    rows = [
        {"round": number, "kind": "divergence", "blocks": {"stem": value, "head": 2 * value}}
        for number, value in enumerate((4.0, 2.0, 1.0), start=1)
    ]
    runs.add({"method": "BP"}, 0.5, rows=rows)
    panel = {"curve": "divergence.blocks", "label": "Divergence", "normalise": True}
    sheet = runs.curves("blocks", panels=[panel])
    assert {name: values.tolist() for name, values in frame(runs, sheet).items()} == {
        ("stem", 0): [1.0, 0.5, 0.25],
        ("head", 0): [1.0, 0.5, 0.25],
    }
    _, numbers = figures.draw(sheet, runs.results)
    assert numbers["series"].unique().tolist() == ["stem", "head"]


def test_curves_over_local_epochs(runs: Runs) -> None:
    runs.add({"method": "BP"}, 0.5, rows=drifts(1.0, 2.0))
    epochs = tiny().training.epochs
    assert frame(runs, runs.curves(panels=[DRIFT], over="epochs")).index.tolist() == [epochs, 2 * epochs]


def frame(runs: Runs, sheet: ItemJob) -> pd.DataFrame:
    assert isinstance(sheet.figure, Curves)
    return figures.curves(sheet, sheet.figure, sheet.figure.panels[0], runs.results.record, {})


def test_reductions_are_percentages_of_the_base_with_the_same_seed(runs: Runs) -> None:
    for method, values in (
        ("BP", (2.0, 4.0)),
        ("BP", (10.0, 10.0)),
        ("FLFA", (1.0, 5.0)),
        ("FLFA", (10.0, 1.0)),
    ):
        runs.add({"method": method}, 0.5, rows=drifts(*values))
    reductions = frame(runs, runs.curves(panels=[REDUCTION]))
    assert reductions.columns.tolist() == [("FLFA", 0), ("FLFA", 1)]
    assert reductions["FLFA", 0].tolist() == pytest.approx([50, -25])
    assert reductions["FLFA", 1].tolist() == pytest.approx([0, 90])


def test_differences_are_paired_by_seed_and_drawn_with_their_interval(runs: Runs) -> None:
    for base, *gains in ((2.0, 4.0, 0.01, 0.03), (9.0, 10.0, 0.01, 0.01), (5.0, 6.0, 0.01, 0.02)):
        first, second = base, gains.pop(0)
        runs.add({"method": "BP"}, 0.5, rows=drifts(first, second))
        runs.add({"method": "FLFA"}, 0.5, rows=drifts(first + gains[0], second + gains[1]))
    panel = {**DRIFT, "difference_from": {"method": "BP"}}
    sheet = runs.curves(panels=[panel])
    differences = frame(runs, sheet)
    assert differences["FLFA", 0].tolist() == pytest.approx([1, 3])
    assert differences["FLFA", 1].tolist() == pytest.approx([1, 1])
    (points,) = map(data, panels(figures.draw(sheet, runs.results)[0]).values())
    # Gains of 3, 1 and 2 in round 2; Student's factor for three seeds and 90 %, from a table: 2.920.
    half = 2.920 / 3**0.5
    assert points.loc[1, ["low", "high"]].tolist() == pytest.approx([2 - half, 2 + half], abs=0.01)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("base", [True, False], ids=["base", "other"])
def test_a_diverged_run_ends_its_curve_early(runs: Runs, rounds: int, base: bool) -> None:
    short, long = drifts(2.0, 4.0)[:rounds], drifts(1.0, 3.0, 6.0)
    for method in ("BP", "FLFA"):
        runs.add({"method": method}, 0.5, rows=long)
        is_short = (method == "BP") == base
        runs.add({"method": method}, DIVERGED if is_short else 0.5, rows=short if is_short else long)
    sheet = runs.curves(panels=[DRIFT, REDUCTION])
    curves = frame(runs, sheet)
    assert curves.index.tolist() == [1, 2, 3]
    assert curves["BP" if base else "FLFA", 1].count() == rounds
    assert frame(runs, runs.curves(panels=[REDUCTION]))["FLFA", 1].count() == rounds
    figures.draw(sheet, runs.results)


def test_panels_are_repeated_for_the_points_of_further_axes(runs: Runs) -> None:
    """Two rows, three columns; each panel has the curves of its own cells."""
    start = {"one": 1.0, "two": 2.0}
    for method, data, alpha in itertools.product(("BP", "FLFA"), ("one", "two"), ("0.1", "0.3", "1")):
        value = start[data] + float(alpha) + (method == "FLFA") / 2
        runs.add({"method": method, "data": data, "alpha": alpha}, 0.5, rows=drifts(value))
    sheet = runs.curves(panels=[DRIFT], rows="data", columns="alpha")
    spec, numbers = figures.draw(sheet, runs.results)
    assert numbers.iloc[0].tolist() == ["one, alpha 0.1, Drift", "BP", 0, 1, 1.1]
    assert len(numbers) == 12
    titles = [[" ".join(panel["title"]["text"]) for panel in row["hconcat"]] for row in spec["vconcat"]]
    assert titles == [[f"{data}, alpha {alpha}, Drift" for alpha in ("0.1", "0.3", "1")] for data in start]


def test_accuracy_curves_use_the_runs_own_test(runs: Runs) -> None:
    rows = [
        {"round": number, "kind": "evaluation", "split": split, "accuracy": accuracy}
        for number, pair in enumerate(((0.5, 0.1), (0.7, 0.2)), start=1)
        for split, accuracy in zip(("test", "cifar10_1"), pair, strict=True)
    ]
    run = runs.add({"method": "BP"}, 0.5, rows=rows)
    assert figures.curve(runs.results.record(run), "evaluation.accuracy")[""].tolist() == [0.5, 0.7]


def test_a_misspelt_field_of_a_method_is_named_with_the_recorded_ones(runs: Runs) -> None:
    rows = [{"round": 1, "kind": "fedema", "gap": 0.5, "norm": 1.0}, *accuracies(0.5)]
    record = runs.results.record(runs.add({"method": "FedEMA"}, 0.5, rows=rows))
    hints = {"gpa": r"; did you mean 'fedema\.gap'\?", "x": r".* \(known: fedema\.gap, fedema\.norm\)"}
    for field, words in hints.items():
        with pytest.raises(FltrainError, match=rf"has no 'fedema\.{field}'{words}$"):
            figures.curve(record, f"fedema.{field}")


# ---------------------------------------------------------------- images of each class at each client
IMAGES = {"few": ((12, 0, 0), (0, 7, 1)), "many": ((4, 5, 1), (8, 2, 0))}
"""Images of three classes at two clients."""


def test_areas_are_proportional_to_images_in_all_panels(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions with two seeds each, of which the first in the list is shown; no run has a record."""
    counts: list[np.ndarray] = []
    for label, images in IMAGES.items():
        for seed, of_seed in ((42, images), (7, images[::-1])):
            spec = tiny(seed=len(counts)).canonical
            runs.place({"alpha": label}, "never-trained", spec=spec, seed=seed)
            counts.append(np.array(of_seed, np.int64))
    monkeypatch.setattr(figures, "load_prepared", lambda *_: None)
    monkeypatch.setattr(
        figures, "partition", lambda division, _: SimpleNamespace(arrays={"counts": counts[division.seed]})
    )
    spec, numbers = figures.draw(runs.figure(kind="bubbles", columns="alpha"), runs.results)
    for label, images in IMAGES.items():
        rows = numbers[numbers["panel"] == label]
        assert rows["images"].tolist() == [*itertools.chain.from_iterable(images)]
    scales = [panel["layer"][0]["encoding"]["size"]["scale"] for panel in spec["vconcat"][0]["hconcat"]]
    assert scales[0]["domain"] == scales[1]["domain"] == [0, 12]
