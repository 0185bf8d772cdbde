"""Comparison with published values: tests against SciPy and theory, verdicts and tables by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fltrain.core.errors import FltrainError
from fltrain.core.statistics import OverSeeds, Statistic, against_point, against_sample, holm, one_sided
from fltrain.experiments.layout import Restriction, Sheet
from fltrain.experiments.plan import plan
from fltrain.reporting.numbers.comparison import Facing, compare, margin_of_gain, rank_correlation
from fltrain.reporting.numbers.published import FAILURES, Published, PublishedValue, read_anomalies
from fltrain.reporting.tables import write as tables
from fltrain.runs.record import Record, Results, write_record

from .helpers import tiny

CONFIG = Path(__file__).parents[2] / "config"
REPORTED = CONFIG / "reported"
NEVER = math.inf
VALUES = (61.2, 59.8, 62.9, 60.1)


# ---------------------------------------------------------------- tests
@pytest.mark.parametrize("point", [60.0, 61.0, 75.0])
def test_a_mean_against_a_point_is_scipy_s_t_test(point: float) -> None:
    theirs = stats.ttest_1samp(VALUES, point)
    ours = against_point(VALUES, point)
    assert ours.p == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval()
    assert ours.interval == pytest.approx((interval.low - point, interval.high - point))


def test_differences_of_pairs_against_zero_are_the_paired_t_test() -> None:
    others = (60.0, 60.0, 61.0, 59.0)
    differences = [one - other for one, other in zip(VALUES, others, strict=True)]
    assert against_point(differences, 0).p == pytest.approx(stats.ttest_rel(VALUES, others).pvalue)


@pytest.mark.parametrize(("std", "n"), [(0.5, 3), (4.0, 3), (0.0, 5)])
def test_a_mean_against_a_printed_sample_is_welch_s_test(std: float, n: int) -> None:
    mean, own = float(np.mean(VALUES)), float(np.std(VALUES, ddof=1))
    theirs = stats.ttest_ind_from_stats(mean, own, len(VALUES), 63.0, std, n, equal_var=False)
    ours = against_sample(VALUES, 63.0, std, n)
    assert (ours.test, ours.p) == ("Welch t", pytest.approx(theirs.pvalue))
    assert ours.interval is not None
    low, high = ours.interval
    assert (low + high) / 2 == pytest.approx(mean - 63)
    # An interval that just touches zero belongs to p = 0.05.
    shifted = against_sample([value - low for value in VALUES], 63.0, std, n)
    assert shifted.p == pytest.approx(0.05)


def test_one_sided_tests_are_scipy_s() -> None:
    for point in (59.0, 61.0, 64.0):
        sides = one_sided(VALUES, point)
        assert sides is not None
        assert sides.above == pytest.approx(stats.ttest_1samp(VALUES, point, alternative="greater").pvalue)
        assert sides.below == pytest.approx(stats.ttest_1samp(VALUES, point, alternative="less").pvalue)


@pytest.mark.parametrize(("value", "p"), [(60.0, 1.0), (60.5, 0.0)])
def test_seeds_without_any_spread_leave_no_doubt(value: float, p: float) -> None:
    outcome = against_point([value] * 3, 60.0)
    assert (outcome.p, outcome.interval) == (p, (value - 60, value - 60))


@pytest.mark.parametrize("values", [(), (60.0,), (60.0, math.nan), (60.0, NEVER)])
def test_fewer_than_two_finite_seeds_allow_no_test(values: Sequence[float]) -> None:
    assert against_point(values, 50.0).p is None
    assert against_point(values, 50.0).test == "none"


def test_holm_by_hand() -> None:
    # Sorted: .01 x 4, .02 x 3, .03 x 2, .5 x 1, each at least as large as the one before.
    assert holm([0.03, None, 0.01, 0.5, 0.02]) == [
        pytest.approx(0.06),
        None,
        pytest.approx(0.04),
        pytest.approx(0.5),
        pytest.approx(0.06),
    ]
    assert holm([None]) == [None]


@pytest.mark.parametrize(("effect", "rate"), [(0.0, 0.05), (3.0, 0.8)], ids=["null", "true gain"])
def test_rates_of_rejection(effect: float, rate: float) -> None:
    """Three seeds and an effect of three deviations: what theory says, by the noncentral t distribution."""
    critical = stats.t.isf(0.025, 2)
    shift = effect * math.sqrt(3)
    theory = stats.nct.sf(critical, 2, shift) + stats.nct.cdf(-critical, 2, shift) if effect else 0.05
    if effect:
        assert theory == pytest.approx(rate, abs=0.12)
    draws = np.random.default_rng(0).normal(effect, 1.0, (1500, 3))
    rejected = np.mean([(against_point(gains, 0.0).p or 0.0) < 0.05 for gains in draws])
    assert rejected == pytest.approx(theory, abs=3 * math.sqrt(theory * (1 - theory) / 1500))


def test_holm_keeps_the_rate_over_a_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no true difference, a table of ten cells rejects any at most in one of twenty simulations."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # statsmodels does so at every call, which takes long
    draws = np.random.default_rng(1).normal(size=(300, 10, 3))
    tables_ = [holm([against_point(cell, 0.0).p for cell in table]) for table in draws]
    rate = np.mean([min(p for p in table if p is not None) < 0.05 for table in tables_])
    assert rate <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


# ---------------------------------------------------------------- verdicts
def facing(
    values: Sequence[float],
    published: float | None,
    *,
    over_seeds: OverSeeds = "mean",
    std: float | None = None,
    note: str = "",
    **changes: Any,
) -> Facing:
    numbers: dict[str, Any] = {
        "ours": Statistic.of(values, over_seeds),
        "values": tuple(values),
        "published": PublishedValue(published, std, (note,) if note else (), ()),
        "seeds": 3,
        "margin": 1.0,
        "gain": None,
        "published_gain": None,
        "of_gains": False,
        "complete": len(values),
        "diverged": 0,
        "group": "all",
    }
    return Facing(**{**numbers, **changes})


@pytest.mark.parametrize(
    ("pair", "verdict"),
    [
        (facing((60.9, 61.0, 61.1), 60.0), "match"),
        (facing((61.0,), 60.0), "match"),
        (facing((58.0, 62.0, 66.0), 60.0), "within noise"),
        (facing((65.0, 65.1, 65.2), 60.0), "differs"),
        (facing((65.0,), 60.0), "differs"),
        (facing((65.0, 65.1, 65.2), 60.0, gain=2.0, published_gain=0.1), "trend only"),
        (facing((65.0, 65.1, 65.2), 60.0, gain=-2.0, published_gain=0.1), "differs"),
        (facing((65.0, 65.1, 65.2), 60.0, gain=0.0, published_gain=0.0), "differs"),
        (facing((), 60.0, complete=0), "not run"),
        (facing((), 60.0, complete=3, diverged=3), "diverged"),
        (facing((60.0,), 60.0, complete=3, diverged=2), "diverged"),
        (facing((60.0, 60.2), 60.0, complete=3, diverged=1), "match"),
        (facing((), None, complete=3, diverged=3, note="failed to converge"), "match"),
        (facing((60.0, 60.2), None, note="failed to converge"), "differs"),
        (facing((NEVER, NEVER, 90), None, over_seeds="median", note="not reached"), "match"),
        (facing((NEVER, NEVER, 90), 100.0, over_seeds="median", margin=20.0), "differs"),
        (facing((90, 110, NEVER), 100.0, over_seeds="median", margin=20.0), "match"),
    ],
)
def test_verdicts(pair: Facing, verdict: str) -> None:
    (compared,) = compare([pair])
    assert compared.verdict == verdict


@pytest.mark.parametrize(
    ("gains", "published", "verdict"),
    [
        ((0.31, 0.30, 0.29), 0.3, "match"),
        ((0.9, 1.0, 1.1), 0.3, "match"),
        ((-0.31, -0.30, -0.29), 0.3, "differs"),
        ((0.31, 0.30, 0.29), -0.3, "differs"),
        ((-0.9, 0.2, 0.1), 0.3, "within noise"),
        ((-0.3,), 0.3, "differs"),
        ((-0.31, -0.30, -0.29), 0.0, "match"),
        ((0.0, 0.0, 0.0), 0.3, "differs"),
    ],
)
def test_a_gain_matches_only_with_the_published_sign(
    gains: Sequence[float], published: float, verdict: str
) -> None:
    """The margin is one point: a loss of 0.3 is near a gain of 0.3, and the opposite all the same."""
    own = float(np.mean(gains))
    pair = facing(gains, published, of_gains=True, gain=own, published_gain=published)
    assert compare([pair])[0].verdict == verdict
    assert compare([facing(gains, published)])[0].verdict == "match", "other numbers need no sign"


def test_a_maximum_is_not_tested() -> None:
    (compared,) = compare([facing((), 60.0, ours=Statistic(65.0, None, 3), complete=3)])
    assert (compared.p, compared.interval, compared.verdict) == (None, None, "differs")


def test_a_spread_of_the_paper_widens_what_counts_as_noise() -> None:
    values = (62.0, 62.2, 62.4)
    assert [
        (compared.test, compared.verdict)
        for pair in (facing(values, 60.0), facing(values, 60.0, std=3.0))
        for compared in compare([pair])
    ] == [("one-sample t", "differs"), ("Welch t", "within noise")]
    # Without the number of seeds, a deviation is of no use.
    (compared,) = compare([facing(values, 60.0, std=3.0, seeds=None)])
    assert compared.test == "one-sample t"


def test_the_correction_is_over_the_table() -> None:
    doubtful = facing((61.0, 62.0, 61.5), 60.0)
    alone, *_ = compare([doubtful])
    among, *_ = compare([doubtful] * 10)
    assert alone.p == among.p
    assert alone.p is not None and alone.p < 0.05
    assert among.p_holm == pytest.approx(10 * alone.p)
    assert (alone.verdict, among.verdict) == ("differs", "within noise")


def test_without_gains_the_rank_within_the_group_is_the_trend() -> None:
    ours = {"a": 80.0, "b": 70.0, "c": 60.0}
    published = {"a": 90.0, "b": 40.0, "c": 50.0}
    pairs = [facing((value - 0.1, value + 0.1), published[name]) for name, value in ours.items()]
    # The best is the best, the others have changed places.
    corrected = [one.verdict for one in compare(pairs)]
    assert corrected == ["trend only", "differs", "differs"]
    apart = [facing((ours[name],), published[name], group=name) for name in ours]
    assert {one.verdict for one in compare(apart)} == {"differs"}, "alone there is no order"


def test_equal_published_numbers_share_their_ranks() -> None:
    """Of two that are printed as equal, ours can be in either order."""
    pairs = [facing((value,), printed) for value, printed in ((90.0, 50.0), (80.0, 40.0), (70.0, 40.0))]
    assert [one.verdict for one in compare(pairs)] == ["trend only"] * 3
    apart = [facing((value,), printed) for value, printed in ((70.0, 50.0), (80.0, 40.0), (90.0, 40.0))]
    assert [one.verdict for one in compare(apart)] == ["differs", "trend only", "differs"]


def test_the_margin_of_a_gain_is_half_of_it_at_most() -> None:
    assert [margin_of_gain(1.0, published) for published in (0.3, -0.3, 5.0, 0.0)] == [0.15, 0.15, 1.0, 1.0]


def test_rank_correlation_is_the_mean_over_groups() -> None:
    orders = {"same": (1, 2, 3, 4), "reversed": (4, 3, 2, 1), "pair": (1, 2)}
    pairs = [
        facing((float(own),), float(rank), group=group)
        for group, values in orders.items()
        for rank, own in enumerate(values, start=1)
    ]
    found = rank_correlation(pairs)
    assert found is not None
    assert (found.spearman, found.kendall, found.n) == (pytest.approx(0), pytest.approx(0), 2)
    assert rank_correlation(pairs[:4]).spearman == pytest.approx(1)  # type: ignore[union-attr]
    assert rank_correlation([facing((5.0,), 1.0), facing((5.0,), 2.0), facing((5.0,), 3.0)]) is None
    assert rank_correlation(pairs[-2:]) is None


# ---------------------------------------------------------------- tables
OTHER_PARTS = {
    "fed2/table1": 8,  # CIFAR-100
    "fed2/table1_cifar100": 16,
    "fedimpro/table1": 4,  # centralised training
    "fedimpro/centralised": 96,
    "fedimpro/table10": 5,  # other methods, quoted from their own papers
}
"""Published values that another item shows, or none."""

DIVERGED, MISSING = "diverged", "missing"


class Toy:
    """A table of methods by plug-in, of hand-made records."""

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.cells: list[dict[str, Any]] = []

    def add(self, method: str, plugin: str, *accuracies: float | str) -> None:
        names = {"dataset": "toy", "method": method, "plugin": plugin}
        for seed, accuracy in enumerate(accuracies):
            run = f"run-{len(self.cells)}"
            if accuracy != MISSING:
                diverged = accuracy == DIVERGED
                summary = {
                    "status": "diverged" if diverged else "completed",
                    "accuracy": {"final": None if diverged else accuracy},
                }
                write_record(self.results.run(run), tiny(), [], summary, {}, {})
            labels = {"method": method, "plugin": plugin}
            places = {"labels": labels, "reported": names, "seed": seed, "run": run, "partition": "any"}
            self.cells.append(places)

    def sheet(
        self,
        reduced: bool = False,
        order_by: str | None = None,
        restricted: Sequence[str] = (),
        **measured: Any,
    ) -> Sheet:
        axes: dict[str, list[str]] = {"method": [], "plugin": []}
        for cell in self.cells:
            for axis, labels in axes.items():
                if cell["labels"][axis] not in labels:
                    labels.append(cell["labels"][axis])
        measure = {"measure": "final_accuracy", "reported": "acc", "gain_over": {"plugin": "none"}}
        table = {"rows": "method", "columns": "plugin", "measures": [{**measure, **measured}]}
        return Sheet.parse(
            {
                "id": "toy/table",
                "paper": "A toy",
                "title": "A toy",
                "caption": "",
                "scale": "toy",
                "reduced": reduced,
                "axes": axes,
                "table": {**table, "order_by": order_by},
                "figure": None,
                "reported": "toy_table.csv",
                "reported_seeds": 3,
                "restricted": [{"to": one} for one in restricted],
                "assumptions": ["F-1: something is assumed."],
                "cells": self.cells,
            },
            "sheet",
        )

    def record(self, run: str) -> Record:
        return self.results.record(run)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path / "results")
    made.add("a", "none", 0.60, 0.61, 0.62)
    made.add("a", "x", 0.63, 0.63, 0.66)
    made.add("b", "none", 0.70, DIVERGED, DIVERGED)
    made.add("b", "x", 0.72, MISSING, 0.74)
    made.add("c", "none", MISSING, MISSING, MISSING)
    made.add("c", "x", DIVERGED, DIVERGED, DIVERGED)
    return made


PUBLISHED = """\
paper,table,dataset,method,plugin,variant,metric,value,std,unit,note
toy,table,toy,a,none,,acc,0.605,,fraction,as printed
toy,table,toy,a,x,,acc,0.70,0.005,fraction,
toy,table,toy,b,none,,acc,0.70,,fraction,
toy,table,toy,b,x,,acc,0.73,,fraction,
toy,table,toy,c,none,,acc,0.50,,fraction,
toy,table,toy,c,x,,acc,,,fraction,failed to converge; 3 seeds
toy,table,toy,d,none,,acc,0.4,,fraction,
toy,table,toy,d,x,,acc,,,fraction,not reported
toy,table,other,a,none,,acc,0.4,,fraction,
toy,table,toy,,x,,avg_gain,2.5,,points,mean over two
toy,table,,centralised,none,,acc,0.9,,fraction,
"""
ANOMALIES = """\
paper,item,match,reason
toy,table,method=a|b; plugin=x; metric=acc,the two are alike
toy,other,method=a,of another file
"""


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    (tmp_path / "toy_table.csv").write_text(PUBLISHED)
    (tmp_path / "anomalies.csv").write_text(ANOMALIES)
    return tmp_path / "toy_table.csv"


def read(printed: Path) -> Published:
    return Published.read(printed, printed.parent / "anomalies.csv")


def cells(toy: Toy, sheet: Sheet, printed: Path) -> dict[tuple[str, str], tables.Shown]:
    return {(cell.row, cell.column): cell for cell in tables.cells(sheet, toy.record, read(printed))}


def test_cells_are_compared_in_per_cent(toy: Toy, printed: Path) -> None:
    shown = cells(toy, toy.sheet(), printed)
    verdicts = {place: cell.compared.verdict for place, cell in shown.items() if cell.compared}
    assert verdicts == {
        ("a", "none"): "match",
        ("a", "x"): "within noise",
        ("b", "none"): "diverged",
        ("b", "x"): "match",
        ("c", "none"): "not run",
        ("c", "x"): "match",
    }
    better = shown["a", "x"].compared
    assert better is not None
    assert (better.published, better.published_std, better.published_seeds) == (70, 0.5, 3)
    assert better.difference == pytest.approx(-6)
    welch = stats.ttest_ind_from_stats(64, math.sqrt(3), 3, 70, 0.5, 3, equal_var=False)
    assert (better.test, better.p) == ("Welch t", pytest.approx(welch.pvalue))
    assert (better.margin, better.anomalies) == (1.0, ("the two are alike",))


def test_runs_that_are_not_there_are_said(toy: Toy, printed: Path) -> None:
    texts = {place: cell.text for place, cell in cells(toy, toy.sheet(), printed).items()}
    assert texts == {
        ("a", "none"): "61.00 ± 1.00",
        ("a", "x"): "64.00 ± 1.73",
        ("b", "none"): "70.00 (2 of 3 diverged)",
        ("b", "x"): "73.00 ± 1.41 (1 of 3 not run)",
        ("c", "none"): "not run",
        ("c", "x"): "diverged",
    }


def test_a_table_without_any_run(tmp_path: Path, printed: Path) -> None:
    toy = Toy(tmp_path / "results")
    for method in ("a", "b"):
        for plugin in ("none", "x"):
            toy.add(method, plugin, MISSING)
    shown = cells(toy, toy.sheet(), printed)
    assert {(cell.text, cell.compared and cell.compared.verdict) for cell in shown.values()} == {
        ("not run", "not run")
    }


def test_a_reduced_scale_has_no_verdict(toy: Toy, printed: Path) -> None:
    sheet = toy.sheet(reduced=True)
    shown = cells(toy, sheet, printed)
    assert {cell.compared for cell in shown.values()} == {None}
    assert shown["a", "x"].published == 70, "what is published is shown all the same"
    assert tables.absent(sheet, read(printed), shown.values()) == []
    frame = tables.to_frame(shown.values())
    assert set(frame["verdict"]) == {""} and frame["difference"].isna().all()


def test_margins_are_declared(toy: Toy, printed: Path) -> None:
    cell = cells(toy, toy.sheet(margin=7.0), printed)["a", "x"].compared
    assert cell is not None and (cell.margin, cell.verdict) == (7.0, "match")


def test_published_values_without_a_cell(toy: Toy, printed: Path) -> None:
    sheet = toy.sheet()
    found = tables.absent(sheet, read(printed), cells(toy, sheet, printed).values())
    named = [(names["method"], names["plugin"]) for names in found]
    assert named == [("d", "none")], (
        "neither another data set's nor one without a setting, nor one not printed"
    )
    frame = tables.to_frame([], found)
    assert frame["verdict"].tolist() == ["not run"]


def test_sheets_know_what_they_are_restricted_to() -> None:
    item = plan(CONFIG, "demo").items[0]
    assert item.sheet.restricted == ()
    restricted = (Restriction(to="1 seed"),)
    assert replace(item, restricted=restricted).sheet.restricted == restricted


def test_a_restricted_plan_lacks_nothing(toy: Toy, printed: Path) -> None:
    """What it leaves out is left out on purpose, and said in the heading."""
    sheet = toy.sheet(restricted=["data set toy"])
    assert tables.absent(sheet, read(printed), cells(toy, sheet, printed).values()) == []


TEST_SETS = """\
method,plugin,variant,metric,value,note
a,none,v4 new,acc,50,
a,none,v6 new,acc,40,
a,none,v4 old,acc,30,
b,none,v4 new,acc,20,
"""


@pytest.mark.parametrize(
    ("shown", "lacking"),
    [("— new", {"v4 new", "v6 new"}), ("v4 new", {"v6 new"}), ("v6 new", {"v4 new"})],
    ids=["no run tells the test sets", "one of them", "the other"],
)
def test_published_values_of_test_sets_that_no_run_has(tmp_path: Path, shown: str, lacking: set[str]) -> None:
    """Declared are the values of any new test set, for method a; the others are another table's."""
    path = tmp_path / "toy.csv"
    path.write_text(TEST_SETS)
    declared = {"method": "a", "plugin": "none", "variant": "{test_set} new"}
    found = Published.read(path).absent("acc", [declared], [{**declared, "variant": shown}])
    assert [names["method"] for names in found] == ["a"] * len(found)
    assert {names["variant"] for names in found} == lacking


def test_without_runs_every_published_value_is_not_run(tmp_path: Path) -> None:
    """None goes uncounted, but those of the parts that other items show."""
    uncounted: dict[str, int] = {}
    for sheet in (item.sheet for item in plan(CONFIG, "paper").items):
        if sheet.table and sheet.reported:
            published = Published.read(REPORTED / sheet.reported)
            shown = tables.cells(sheet, Results(tmp_path).record, published)
            verdicts = [cell.compared.verdict for cell in shown if cell.compared]
            assert set(verdicts) <= {"not run"}
            metrics = {measured.reported for measured in sheet.table.measures}
            metrics |= {one.average.reported for one in sheet.table.measures if one.average}
            rows = published.rows[published.rows["metric"].isin(metrics)]
            printed = int((rows["value"].notna() | rows["note"].str.startswith(FAILURES)).sum())
            uncounted[sheet.id] = printed - len(verdicts) - len(tables.absent(sheet, published, shown))
    assert {item: number for item, number in uncounted.items() if number} == OTHER_PARTS


def test_several_published_values_for_one_cell_are_a_mistake(printed: Path) -> None:
    with pytest.raises(FltrainError, match=r"toy_table\.csv: 2 published values of 'acc' fit .*method=a"):
        read(printed).find("acc", {"method": "a", "plugin": "none"})
    assert read(printed).find("acc", {"method": "z"}) is None


def test_average_gains_are_paired_over_seeds(tmp_path: Path, printed: Path) -> None:
    toy = Toy(tmp_path / "results")
    for method, base, better in (
        ("a", (0.60, 0.61, 0.62), (0.62, 0.62, 0.65)),
        ("b", (0.70, 0.80, 0.90), (0.74, 0.83, 0.92)),
    ):
        toy.add(method, "none", *base)
        toy.add(method, "x", *better)
    shown = cells(toy, toy.sheet(average={"of": "gain", "reported": "avg_gain"}), printed)
    assert ("average", "none") not in shown
    average = shown["average", "x"]
    # Per seed (2 + 4) / 2, (1 + 3) / 2, (3 + 2) / 2.
    assert average.gains == pytest.approx((3.0, 2.0, 2.5))
    assert average.gain_test.p == pytest.approx(stats.ttest_1samp((3.0, 2.0, 2.5), 0).pvalue)
    assert (average.text, average.gain_text, average.published_gain) == ("", "+2.50 ± 0.50", 2.5)
    assert average.compared is not None
    assert (average.compared.verdict, average.compared.difference) == ("match", pytest.approx(0))


def test_an_average_gain_matches_within_half_of_the_published_one(tmp_path: Path, printed: Path) -> None:
    for gain, verdict in ((3.7, "match"), (3.8, "trend only")):
        toy = gaining(tmp_path / str(gain), {"a": (gain, gain), "b": (gain, gain)})
        average = cells(toy, toy.sheet(margin=9.0, **AVERAGE_GAIN), printed)["average", "x"]
        assert average.compared is not None and average.published_gain == 2.5
        assert (average.compared.margin, average.compared.verdict) == (1.25, verdict)


def test_averages_show_the_printed_gain_and_no_note_on_it(tmp_path: Path, printed: Path) -> None:
    toy = gaining(tmp_path, {"a": (2.5, 2.6), "b": (2.4, 2.5)})
    average = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    assert average.published_notes, "as the file has one"
    shown = average.quantities(reduced=False, marks={})
    assert (shown["published"], shown["published gain"]) == ("", "+2.50")


def test_an_average_needs_all_rows_of_a_seed(toy: Toy, printed: Path) -> None:
    average = cells(toy, toy.sheet(average={"of": "value"}), printed)["average", "x"]
    assert (average.value, average.missing + average.diverged) == (None, 3)


def gaining(root: Path, gains: dict[str, Sequence[float | str]]) -> Toy:
    """Methods at 60 % that gain so many points."""
    toy = Toy(root / "results")
    for method, own in gains.items():
        toy.add(method, "none", *[0.6] * len(own))
        toy.add(method, "x", *[gain if isinstance(gain, str) else 0.6 + gain / 100 for gain in own])
    return toy


AVERAGE_GAIN = {"average": {"of": "gain", "reported": "avg_gain"}}


def test_an_average_of_a_restricted_plan_is_not_compared(tmp_path: Path, printed: Path) -> None:
    """The paper's average is over rows that ours then lacks."""
    toy = gaining(tmp_path, {"a": (2.5, 2.6), "b": (2.4, 2.5)})
    whole = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    assert whole.compared is not None and whole.compared.verdict == "match"
    part = cells(toy, toy.sheet(restricted=["methods a, b"], **AVERAGE_GAIN), printed)
    average = part["average", "x"]
    assert (average.facing, average.compared) == (None, None)
    assert average.gain == whole.gain and average.published_gain == 2.5, "both are shown all the same"
    assert part["a", "x"].compared is not None, "a single cell is what it is"


@pytest.mark.parametrize(("lost", "verdict"), [(DIVERGED, None), (MISSING, "not run")])
def test_an_average_without_one_of_its_rows_is_not_compared(
    tmp_path: Path, printed: Path, lost: str, verdict: str | None
) -> None:
    toy = gaining(tmp_path, {"a": (2.5, 2.6), "b": (lost, lost)})
    average = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    assert (average.gain, average.compared and average.compared.verdict) == (None, verdict)


def test_an_average_of_a_seed_needs_the_rows_that_other_seeds_have(tmp_path: Path, printed: Path) -> None:
    """A budget can leave the last seeds of some rows out."""
    toy = gaining(tmp_path, {"a": (2.0, 9.0), "b": (4.0,)})
    average = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    assert average.gains == pytest.approx((3.0,))
    assert average.missing == 1


def test_rows_by_rank(toy: Toy, printed: Path) -> None:
    sheet = toy.sheet(order_by="final_accuracy", average={"of": "value"})
    rows = list(dict.fromkeys(row for row, _ in cells(toy, sheet, printed)))
    assert rows == ["b", "a", "c", "average"], "the best first, those without a number and averages last"
    with pytest.raises(FltrainError, match=r"toy/table: order_by names 'best_accuracy'"):
        cells(toy, toy.sheet(order_by="best_accuracy"), printed)


def test_intervals_in_place_of_deviations(toy: Toy, printed: Path) -> None:
    shown = cells(toy, toy.sheet(interval=True), printed)
    # Student's factor for three seeds, from a table: 4.303; 4.303 / sqrt(3) = 2.484.
    assert shown["a", "none"].text == "61.00 [58.52, 63.48]"
    gain = shown["a", "x"]
    paired = stats.ttest_rel((63, 63, 66), (60, 61, 62)).pvalue
    assert gain.gain_test.p == pytest.approx(paired)
    # The other gain has one pair, so the table has one test.
    assert gain.gain_text == f"+3.00 [+0.52, +5.48], p {paired:.3f}"


@pytest.mark.parametrize("reduced", [False, True])
def test_doubts_and_assumptions_stand_below(toy: Toy, printed: Path, tmp_path: Path, reduced: bool) -> None:
    outputs = {form: tmp_path / f"table.{form}" for form in ("md", "tex", "csv")}
    tables.write(toy.sheet(reduced), toy.record, printed, outputs, printed.parent / "anomalies.csv")
    texts = {form: path.read_text() for form, path in outputs.items()}
    for form in ("md", "tex"):
        assert texts[form].count("70.00 ± 0.50 [1]" if form == "md" else r"70.00 $\pm$ 0.50 [1]") == 1
        assert "[1] Doubtful as published: the two are alike." in texts[form]
        assert "F-1: something is assumed." in texts[form]
        assert ("within the margin (accuracy" in texts[form]) != reduced
        assert ("without a run here: 1" in texts[form]) != reduced
    frame = pd.read_csv(outputs["csv"])
    assert (frame["anomalies"] == "the two are alike").sum() == 2


# ---------------------------------------------------------------- anomalies
ALL = read_anomalies(REPORTED / "anomalies.csv")


@pytest.mark.parametrize("number", range(len(ALL)))
def test_every_anomaly_concerns_published_values(number: int) -> None:
    rows = Published.read(REPORTED / ALL[number].file).rows
    assert ALL[number].concerns(rows).any(), ALL[number]


def test_copies_that_anomalies_speak_of_are_there() -> None:
    copies = [one for one in ALL if "a copy" in one.reason or "the same number of rounds" in one.reason]
    assert len(copies) > 10
    for one in copies:
        rows = Published.read(REPORTED / one.file).rows
        values = rows.loc[one.concerns(rows), "value"]
        assert (values.value_counts() > 1).all(), one


def test_anomalies_that_name_no_column(tmp_path: Path, printed: Path) -> None:
    path = tmp_path / "anomalies.csv"
    path.write_text("paper,item,match,reason\ntoy,table,methd=a,why\n")
    with pytest.raises(FltrainError, match=r"toy_table\.csv has no column 'methd'.*method"):
        read(printed)
    path.write_text("paper,item,match,reason\ntoy,table,method,why\n")
    with pytest.raises(FltrainError, match="write column=text"):
        read(printed)
