"""Claims judged on hand-made runs: supported if true, contradicted if false, else left open."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from fltrain.core.errors import FltrainError
from fltrain.core.files import write_json
from fltrain.experiments import claims as tests_of_claims
from fltrain.experiments.claims import Claim
from fltrain.experiments.layout import Sheet
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.published import Published, Statement, read_claims
from fltrain.reporting.claims import judge as judgement
from fltrain.reporting.claims.judge import Finding
from fltrain.reporting.summary import summarise
from fltrain.reporting.tables.cells import cells as table_cells
from fltrain.runs.record import Record, Results, write_record

from .helpers import tiny

ROOT = Path(__file__).parents[2]
DIVERGED, MISSING = "diverged", "missing"
Number = float | str
Yaml = dict[str, Any]

GAIN: Yaml = {"item": "toy", "measure": "final_accuracy", "over": {"plugin": "none"}}
POSITIVE: Yaml = {"kind": "positive", **GAIN}


class Runs:
    """Records with a final accuracy in per cent and the cells of a table that they fill."""

    def __init__(self, root: Path) -> None:
        self.results = Results(root)
        self.cells: list[Yaml] = []

    def add(self, labels: Mapping[str, str], *accuracies: Number, rows: Iterable[Yaml] = ()) -> None:
        for seed, accuracy in enumerate(accuracies):
            run = f"run-{len(self.cells)}"
            if accuracy != MISSING:
                value = None if isinstance(accuracy, str) else accuracy / 100
                summary = {
                    "status": "completed" if value is not None else "diverged",
                    "rounds": 10,
                    "accuracy": {"final": value, "best": value},
                }
                write_record(self.results.run(run), tiny(), rows, summary, {}, {})
            self.cells.append(
                {"labels": labels, "reported": {}, "seed": seed, "run": run, "partition": "any"}
            )

    def pairs(self, gains: Mapping[str, Sequence[Number]], base: float = 50.0) -> None:
        """For each method, runs without a plug-in, and with one that gains so much."""
        for method, own in gains.items():
            self.add({"method": method, "plugin": "none"}, *[base + seed for seed in range(len(own))])
            better = [gain if isinstance(gain, str) else base + seed + gain for seed, gain in enumerate(own)]
            self.add({"method": method, "plugin": "x"}, *better)

    def sheet(self, reduced: bool = False, restricted: Sequence[Yaml | str] = (), **table: Any) -> Sheet:
        axes: dict[str, list[str]] = {}
        for axis, label in itertools.chain.from_iterable(cell["labels"].items() for cell in self.cells):
            if label not in axes.setdefault(axis, []):
                axes[axis].append(label)
        layout = {"rows": "method", "columns": "plugin", "measures": [{"measure": "final_accuracy"}], **table}
        data = {"id": "paper/toy", "paper": "A", "title": "A toy", "caption": "", "scale": "toy"}
        more = {"reduced": reduced, "axes": axes, "table": layout, "figure": None, "reported": None}
        parts = [one if isinstance(one, dict) else {"to": one} for one in restricted]
        return Sheet.parse({**data, **more, "restricted": parts, "cells": self.cells}, "sheet")

    def record(self, run: str) -> Record:
        return self.results.record(run)

    def judged(
        self, test: Yaml, stated: float | None = None, unit: str = "points", **changes: Any
    ) -> Finding:
        sheet = changes.pop("sheet", None) or self.sheet(**changes)
        claim = Claim.parse({"where": "sec. 1", "claim": "so it is", "test": test}, "claim")
        statement = Statement("sec. 1", "so it is", stated, unit)
        nothing = Published.read(None)
        (one,) = judgement.judge([claim], [statement], [sheet], self.record, lambda _: nothing, sheet.reduced)
        assert one.reduced == sheet.reduced
        return one.finding


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "results")


CLEAR, OPPOSITE, NOISE = (2.0, 2.1, 2.2), (-2.0, -2.1, -2.2), (-2.0, 0.5, 2.0)


# ---------------------------------------------------------------- positive, negative, above
@pytest.mark.parametrize("judge", ["average", "every"])
@pytest.mark.parametrize(
    ("gains", "verdict"),
    [(CLEAR, "supported"), (OPPOSITE, "contradicted"), (NOISE, "undecided"), ((0.0,) * 3, "undecided")],
)
def test_gains_at_one_place(runs: Runs, gains: Sequence[float], verdict: str, judge: str) -> None:
    runs.pairs({"a": gains})
    found = runs.judged({**POSITIVE, "judge": judge})
    assert found.verdict == verdict
    if any(gains):
        side = "less" if verdict == "contradicted" else "greater"
        assert found.p == pytest.approx(stats.ttest_1samp(gains, 0, alternative=side).pvalue)
    mirrored = {"supported": "contradicted", "contradicted": "supported"}.get(verdict, verdict)
    assert runs.judged({**POSITIVE, "kind": "negative", "judge": judge}).verdict == mirrored
    turned = {"kind": "above", **GAIN, "over": {}, "judge": judge}
    assert runs.judged({**turned, "higher": {"plugin": "x"}, "lower": {"plugin": "none"}}).verdict == verdict
    assert runs.judged({**turned, "higher": {"plugin": "none"}, "lower": {"plugin": "x"}}).verdict == mirrored


def test_evidence_has_the_numbers(runs: Runs) -> None:
    runs.pairs({"a": (1.0, 2.0, 3.0), "b": (-1.0, 0.0, 1.0)})
    found = runs.judged(POSITIVE)
    # Per seed 0, 1, 2. Student's factor for three seeds and 90 %, from a table: 2.920.
    assert found.estimate == pytest.approx(1)
    assert found.interval == pytest.approx((1 - 1.686, 1 + 1.686), abs=1e-3)
    assert found.evidence == (
        "mean +1 [-0.6859, +2.686] over 3 seeds, positive at 1 of 2 places, from +0 (b) to +2 (a); "
        "one-sided p 0.113."
    )


def test_places_make_up_for_one_another_on_average_only(runs: Runs) -> None:
    runs.pairs({"a": (5.0, 5.1, 5.2), "b": (-1.0, -1.1, -1.2)})
    assert runs.judged(POSITIVE).verdict == "supported"
    every = runs.judged({**POSITIVE, "judge": "every"})
    assert every.verdict == "contradicted"
    assert "opposite at b" in every.evidence


def test_every_place_has_to_be_significant(runs: Runs) -> None:
    runs.pairs({"a": CLEAR, "b": NOISE})
    assert runs.judged({**POSITIVE, "judge": "every"}).verdict == "undecided"
    assert runs.judged({**POSITIVE, "judge": "every", "at": {"method": "a"}}).verdict == "supported"


def test_the_average_alone_can_refute_every_place(runs: Runs) -> None:
    """At no single place is the loss significant, but all of them lose."""
    draws = np.random.default_rng(0).normal(0, 1, (6, 3))
    runs.pairs({f"method {number}": tuple(-1.5 + draw - draw.mean()) for number, draw in enumerate(draws)})
    found = runs.judged({**POSITIVE, "judge": "every"})
    assert found.verdict == "contradicted"
    assert "opposite at the average" in found.evidence


def test_a_difference_has_to_exceed_what_is_said(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    above = {"kind": "above", "item": "toy", "measure": "final_accuracy"}
    above |= {"higher": {"plugin": "x"}, "lower": {"plugin": "none"}}
    found = [runs.judged({**above, "by": by}) for by in (1.0, 2.1, 3.0)]
    assert [one.verdict for one in found] == ["supported", "undecided", "contradicted"]
    assert "; above 1: one-sided p 0.0" in found[0].evidence, "what p is about"
    assert "; opposite: not above 3, one-sided p 0.0" in found[2].evidence


def test_gains_that_grow(runs: Runs) -> None:
    """A difference of differences: the gain over a base, at one label against another."""
    for method, gain in (("few", 1.0), ("many", 4.0)):
        runs.add({"method": method, "plugin": "none"}, 50, 60, 70)
        runs.add({"method": method, "plugin": "x"}, 50 + gain, 60.1 + gain, 70.2 + gain)
    grows = {"kind": "above", **GAIN, "at": {"plugin": "x"}}
    assert runs.judged({**grows, "higher": {"method": "many"}, "lower": {"method": "few"}}).estimate == (
        pytest.approx(3)
    )


def test_one_seed_is_not_tested_however_many_places_there_are(runs: Runs) -> None:
    """Places share runs, such as the one that they are compared with, so that they are no sample."""
    runs.pairs({f"method {number}": (1.0 + number / 10,) for number in range(8)})
    for judge in ("average", "every"):
        found = runs.judged({**POSITIVE, "judge": judge})
        assert (found.verdict, found.p) == ("undecided", None)
        assert "it takes two seeds" in found.evidence and "positive at 8 of 8 places" in found.evidence


def test_seeds_that_diverged_or_are_not_there(runs: Runs) -> None:
    """A diverged run counts as chance: 10 % among ten classes, 41 points below the base of its seed."""
    runs.pairs({"a": (2.0, DIVERGED, 2.1, 2.2), "b": (2.0, 2.0, MISSING, 2.2)})
    found = runs.judged(POSITIVE)
    assert (found.verdict, found.estimate) == ("undecided", pytest.approx((2.0 + (2 - 41) / 2 + 2.2) / 3))
    assert "over 3 seeds" in found.evidence, "those that both methods have"
    assert "1 diverged, 1 not run" in found.evidence


@pytest.mark.parametrize("kind", ["positive", "negative", "similar"])
def test_a_place_without_runs_keeps_averages_open(runs: Runs, kind: str) -> None:
    """The average over all places is unknown, whatever the numbers of the others."""
    runs.pairs({"a": CLEAR, "b": (MISSING,) * 3})
    test = POSITIVE | {"kind": kind}
    if kind == "similar":
        test = {"kind": kind, "item": "toy", "measure": "final_accuracy", "margin": 0.1}
        test |= {"one": {"plugin": "x"}, "other": {"plugin": "none"}}
    found = runs.judged(test)
    assert (found.verdict, "1 place without a number" in found.evidence) == ("undecided", True)
    alone = runs.judged({**test, "at": {"method": "a"}}).verdict
    assert alone == ("supported" if kind == "positive" else "contradicted")


def test_a_place_without_runs_keeps_every_open_unless_another_one_refutes_it(runs: Runs) -> None:
    runs.pairs({"a": CLEAR, "b": (MISSING,) * 3})
    found = runs.judged({**POSITIVE, "judge": "every"})
    assert (found.verdict, "1 place without a number" in found.evidence) == ("undecided", True)
    assert runs.judged({**POSITIVE, "kind": "negative", "judge": "every"}).verdict == "contradicted"


@pytest.mark.parametrize(("effect", "wanted"), [(0.0, "neither"), (3.0, "supported")])
def test_rates_of_verdicts(effect: float, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an effect, each side is found one time in twenty; a large one is nearly always found."""
    monkeypatch.setattr("gc.collect", lambda: 0)
    test = TypeAdapter(tests_of_claims.Test).validate_python(POSITIVE)
    draws = np.random.default_rng(2).normal(effect, 1.0, (1000, 5))
    found = [
        judgement._directed(judgement.Evidence(pd.DataFrame({"all": gains}), {}), test).verdict  # type: ignore[arg-type]
        for gains in draws
    ]
    rate = found.count("supported") / len(found)
    if wanted == "supported":
        power = stats.nct.sf(stats.t.isf(0.05, 4), 4, effect * 5**0.5)
        assert rate == pytest.approx(power, abs=0.01)
    else:
        slack = 3 * (0.05 * 0.95 / len(found)) ** 0.5
        assert rate == pytest.approx(0.05, abs=slack)
        assert found.count("contradicted") / len(found) == pytest.approx(0.05, abs=slack)


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.2, "supported"), (-3.0, "supported"), (1.0, "undecided"), (2.0, "contradicted")]
)
def test_as_good_within_a_margin_or_better(runs: Runs, loss: float, verdict: str) -> None:
    runs.pairs({"a": (-loss, -loss - 0.1, -loss + 0.1)})
    better = {"kind": "above", "item": "toy", "measure": "final_accuracy", "by": -1.0}
    better |= {"higher": {"plugin": "x"}, "lower": {"plugin": "none"}}
    assert runs.judged(better).verdict == verdict
    assert runs.judged({**POSITIVE, "by": -1.0}).verdict == verdict


@pytest.mark.parametrize(("by", "verdict"), [(50.0, "supported"), (55.0, "contradicted")])
def test_a_number_has_to_exceed_what_is_said(runs: Runs, by: float, verdict: str) -> None:
    runs.add({"method": "a", "plugin": "none"}, 51, 52, 53)
    number = {"kind": "positive", "item": "toy", "measure": "final_accuracy", "by": by}
    assert runs.judged(number).verdict == verdict


# ---------------------------------------------------------------- means of cells
def three_methods(runs: Runs, *, last: Number = 66.0) -> None:
    """On the sets u and v, method a gains 3 and 13 over the mean of b and c."""
    for name, a in (("u", 61.0), ("v", 71.0)):
        runs.add({"set": name, "method": "a"}, a, a + 0.5, a + 1)
        runs.add({"set": name, "method": "b"}, 50, 50, 50)
        runs.add({"set": name, "method": "c"}, 66, 66, last)


def by_set(runs: Runs) -> Sheet:
    return runs.sheet(rows="set", columns="method")


OVER_MEAN: Yaml = {"kind": "positive", "item": "toy", "measure": "final_accuracy", "at": {"method": "a"}}
OVER_MEAN |= {"over": {"method": ["b", "c"]}}


def test_a_gain_over_the_mean_of_several_cells(runs: Runs) -> None:
    three_methods(runs)
    found = runs.judged(OVER_MEAN, sheet=by_set(runs))
    # Seeds: 8, 8.5, 9; sets: 3.5 and 13.5.
    assert found.estimate == pytest.approx(8.5)
    assert "over 3 seeds, positive at 2 of 2 places, from +3.5 (u) to +13.5 (v)" in found.evidence
    value = {**OVER_MEAN, "kind": "value", "at": {"method": "a", "set": "u"}}
    assert runs.judged(value, 3.5, sheet=by_set(runs)).estimate == pytest.approx(3.5)


def test_cells_that_are_compared_with_do_not_count(runs: Runs) -> None:
    three_methods(runs)
    gain = {**OVER_MEAN, "at": {}, "kind": "value"}
    assert runs.judged(gain, 8.5, sheet=by_set(runs)).estimate == pytest.approx(8.5)


def test_a_mean_needs_all_its_cells(runs: Runs) -> None:
    three_methods(runs, last=MISSING)
    found = runs.judged(OVER_MEAN, sheet=by_set(runs))
    assert found.estimate == pytest.approx(8.25)
    assert (
        "over 2 seeds, positive at 2 of 2 places, from +3.25 (u) to +13.25 (v), 2 not run" in found.evidence
    )


def test_labels_of_a_mean_that_a_scale_lacks(runs: Runs) -> None:
    three_methods(runs)
    fewer = {**OVER_MEAN, "over": {"method": ["b", "z"]}}
    assert runs.judged(fewer, sheet=by_set(runs)).estimate == pytest.approx(16.5)
    none = runs.judged({**OVER_MEAN, "over": {"method": ["y", "z"]}}, sheet=by_set(runs))
    assert (none.verdict, "toy has no method 'y' or 'z'" in none.evidence) == ("not run", True)


def test_every_average_over_an_axis(runs: Runs) -> None:
    """Method b loses on its own; the averages over methods are positive, and smallest is that of v."""
    for name, a, b in (("u", 6.0, -2.0), ("v", 4.0, -2.0)):
        for method, gain in (("a", a), ("b", b)):
            runs.add({"set": name, "method": method, "plugin": "none"}, 50, 51, 52)
            runs.add({"set": name, "method": method, "plugin": "x"}, 50 + gain, 51.1 + gain, 52.2 + gain)
    sheet = runs.sheet(panels="set")
    every = {**POSITIVE, "judge": "every"}
    assert runs.judged(every, sheet=sheet).verdict == "contradicted"
    averaged = runs.judged({**every, "mean_over": ["method"]}, sheet=sheet)
    assert averaged.verdict == "supported"
    assert "from +1.1 (v) to +2.1 (u)" in averaged.evidence
    value = {**GAIN, "kind": "value", "mean_over": ["method"]}
    assert [
        runs.judged({**value, "extreme": extreme}, 0.0, sheet=sheet).estimate
        for extreme in ("smallest", "largest")
    ] == [pytest.approx(1.1), pytest.approx(2.1)]
    only = runs.judged({**every, "mean_over": ["method"], "at": {"method": "b"}}, sheet=sheet)
    assert only.verdict == "contradicted", "the mean is over the cells that the claim is about"
    compared = {"kind": "above", "item": "toy", "measure": "final_accuracy", "mean_over": ["method"]}
    compared |= {"higher": {"plugin": "x"}, "lower": {"plugin": "none"}, "judge": "every"}
    assert runs.judged(compared, sheet=sheet).evidence == averaged.evidence
    unknown = runs.judged({**every, "mean_over": ["methods"]}, sheet=sheet)
    assert (unknown.verdict, "no axis 'methods'" in unknown.evidence) == ("not run", True)


# ---------------------------------------------------------------- per cent
def test_relative_gains_and_differences(runs: Runs) -> None:
    """From 40 to 50 is a quarter more; from 50 to 40 a fifth less."""
    runs.add({"method": "a", "plugin": "none"}, 40, 40, 80)
    runs.add({"method": "a", "plugin": "x"}, 50.04, 50, 99.92)
    gain = {**POSITIVE, "relative": True}
    found = runs.judged(gain)
    assert found.estimate == pytest.approx(25)
    assert found.evidence.startswith("mean +25 % [+24.83, +25.17] over 3 seeds")
    assert runs.judged({**gain, "over": {"plugin": "x"}}).estimate == pytest.approx(-20, abs=1e-3)
    sides = {"one": {"plugin": "none"}, "other": {"plugin": "x"}}
    similar = {"kind": "similar", "item": "toy", "measure": "final_accuracy", "relative": True, **sides}
    verdicts = [runs.judged({**similar, "margin": margin}).verdict for margin in (19.0, 21.0)]
    assert verdicts == ["contradicted", "supported"]
    value = {**gain, "kind": "value", "margin": 1.0}
    assert runs.judged(value, 25.5, "%").verdict == "supported"


def test_a_relative_gain_at_one_label_against_another(runs: Runs) -> None:
    """Gains of 10 % and 40 %: their difference is 30, and not relative once more."""
    for method, better in (("few", 55.0), ("many", 70.0)):
        runs.add({"method": method, "plugin": "none"}, 50, 50)
        runs.add({"method": method, "plugin": "x"}, better, better)
    grows = {"kind": "above", **GAIN, "relative": True, "at": {"plugin": "x"}}
    grows |= {"higher": {"method": "many"}, "lower": {"method": "few"}}
    assert runs.judged(grows).estimate == pytest.approx(30)


def test_nothing_is_relative_to_zero(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, 0, 0, 40)
    runs.add({"method": "a", "plugin": "x"}, 0, 50, 50)
    found = runs.judged({**POSITIVE, "relative": True})
    assert found.estimate == pytest.approx(25)
    assert "over 1 seed" in found.evidence


# ---------------------------------------------------------------- several things
PARTS = {
    "supported": {**POSITIVE, "at": {"method": "gains"}},
    "contradicted": {**POSITIVE, "at": {"method": "loses"}},
    "undecided": {**POSITIVE, "at": {"method": "either"}},
    "not run": {**POSITIVE, "item": "table9"},
}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "contradicted"], "contradicted"),
        (["not run", "contradicted"], "contradicted"),
        (["undecided", "contradicted"], "contradicted"),
        (["supported", "undecided"], "undecided"),
        (["supported", "not run"], "undecided"),
        (["undecided", "not run"], "undecided"),
        (["not run", "not run"], "not run"),
    ],
)
def test_all_parts_of_a_claim_have_to_hold(runs: Runs, parts: list[str], verdict: str) -> None:
    runs.pairs({"gains": CLEAR, "loses": OPPOSITE, "either": NOISE})
    for order in (parts, parts[::-1]):
        found = runs.judged({"kind": "all", "tests": [PARTS[part] for part in order]})
        assert found.verdict == verdict
        assert found.evidence.startswith(f"(1) {order[0]}: ")
        assert f" (2) {order[1]}: " in found.evidence


def test_a_part_is_refuted_less_easily_the_more_there_are(runs: Runs) -> None:
    """A p of some 0.02 is enough among two parts, not among three."""
    losses = (-1.0, -1.2, -0.55)
    p = stats.ttest_1samp(losses, 0, alternative="less").pvalue
    assert 0.05 / 3 < p < 0.05 / 2
    runs.pairs({"gains": CLEAR, "loses": losses})
    refuted, holds = PARTS["contradicted"], PARTS["supported"]
    verdicts = [
        runs.judged({"kind": "all", "tests": tests}).verdict
        for tests in ([refuted, holds], [refuted, holds, holds], [refuted] * 3)
    ]
    assert verdicts == ["contradicted", "undecided", "undecided"]


# ---------------------------------------------------------------- similar
@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((-0.1, 0.0, 0.2), "supported"),
        (CLEAR, "contradicted"),
        (OPPOSITE, "contradicted"),
        (NOISE, "undecided"),
    ],
)
def test_similar(runs: Runs, gains: Sequence[float], verdict: str) -> None:
    runs.pairs({"a": gains})
    similar = {"kind": "similar", "item": "toy", "measure": "final_accuracy", "margin": 1.0}
    similar |= {"one": {"plugin": "x"}, "other": {"plugin": "none"}}
    found = runs.judged(similar)
    assert found.verdict == verdict
    if verdict == "supported":
        low = stats.ttest_1samp(gains, -1, alternative="greater").pvalue
        high = stats.ttest_1samp(gains, 1, alternative="less").pvalue
        assert found.p == pytest.approx(max(low, high))
    runs.pairs({"b": OPPOSITE if verdict == "contradicted" and gains == CLEAR else gains})
    assert runs.judged({**similar, "judge": "every"}).verdict == verdict


# ---------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("gains", "stated", "verdict"),
    [
        (CLEAR, 2.5, "supported"),
        (CLEAR, 5.0, "contradicted"),
        (NOISE, 4.0, "undecided"),
        ((2.0, 2.1), 2.0, "undecided"),
        ((-0.29, -0.30, -0.31), 0.3, "contradicted"),
        ((0.29, 0.30, 0.31), 0.3, "supported"),
        ((0.74, 0.75, 0.76), 0.3, "contradicted"),
    ],
)
def test_values(runs: Runs, gains: Sequence[float], stated: float, verdict: str) -> None:
    """The margin of a gain is half of the stated one, at least a quarter of a point."""
    runs.pairs({"a": gains})
    value = {**GAIN, "kind": "value"}
    found = runs.judged(value, stated)
    assert (found.verdict, runs.judged(value, stated / 100, "fraction").verdict) == (verdict, verdict)
    reduced = runs.judged(value, stated, reduced=True)
    assert (reduced.verdict, "this one is reduced" in reduced.evidence) == ("not run", True)
    if len(gains) > 2:
        error = max(np.std(gains, ddof=1), 0.01) * (1 / 3 + 1) ** 0.5
        half = stats.t.isf(0.05, 2) * error
        assert found.interval == pytest.approx((np.mean(gains) - half, np.mean(gains) + half))


def test_the_largest_of_several_values(runs: Runs) -> None:
    runs.pairs({"a": (1.0, 1.2), "b": (4.0, 4.2), "c": (-3.0, -3.2)})
    value = {**GAIN, "kind": "value"}
    assert [
        runs.judged({**value, **more}, 0.0).estimate
        for more in ({"extreme": "largest"}, {"extreme": "smallest"}, {})
    ] == [pytest.approx(4.1), pytest.approx(-3.1), pytest.approx(0.7)]


def test_a_chosen_place_is_not_tested_as_if_it_were_the_only_one(runs: Runs) -> None:
    """Of several places the largest is far from the stated number by chance, the more easily the more."""
    gains, value = (4.0, 4.4, 5.0), {**GAIN, "kind": "value", "extreme": "largest"}
    runs.pairs({"a": gains, "b": (0.0, 0.1, 0.2)})
    alone = runs.judged({**value, "at": {"method": "a"}}, 1.5)
    two = runs.judged(value, 1.5)
    error = np.std(gains, ddof=1) * (1 / 3 + 1) ** 0.5
    p = stats.t.sf((np.mean(gains) - 1.5 - 0.75) / error, 2)
    assert (alone.p, two.p) == (pytest.approx(p), pytest.approx(2 * p))
    half = stats.t.isf(0.05 / 2, 2) * error
    assert two.interval == pytest.approx((np.mean(gains) - half, np.mean(gains) + half))
    assert "Bonferroni over 2 places" in two.evidence and "Bonferroni" not in alone.evidence


@pytest.mark.parametrize("extreme", [None, "largest"])
@pytest.mark.parametrize("stated", [2.1, 9.0])
def test_a_value_needs_all_places(runs: Runs, extreme: str | None, stated: float) -> None:
    """The average, or the largest, could be another one with the place that is lost."""
    runs.pairs({"a": CLEAR, "b": (MISSING,) * 3})
    found = runs.judged({**GAIN, "kind": "value", "extreme": extreme}, stated)
    assert (found.verdict, found.estimate) == ("undecided", pytest.approx(2.1))
    assert "3 not run, 1 place without a number" in found.evidence


def test_a_claim_without_a_number_cannot_be_judged_by_it(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    with pytest.raises(FltrainError, match="'so it is': it states no number"):
        runs.judged({**GAIN, "kind": "value"})


# ---------------------------------------------------------------- failures
@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((DIVERGED, DIVERGED, 60.0), "supported"),
        ((9.0, DIVERGED, 10.0), "supported"),
        ((60.0, 61.0, 62.0), "contradicted"),
        ((60.0, 61.0, DIVERGED), "undecided"),
    ],
)
def test_failures(runs: Runs, ends: Sequence[Number], verdict: str) -> None:
    runs.add({"method": "a", "plugin": "none"}, *ends)
    fails = {"kind": "fails", "item": "toy", "measure": "final_accuracy", "at_most": 10.0}
    assert runs.judged(fails).verdict == verdict
    runs.add({"method": "b", "plugin": "none"}, DIVERGED)
    assert runs.judged(fails).verdict == verdict, "every place counts"


def test_failures_of_a_single_place_are_shares_of_its_runs(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, 60.0, DIVERGED, DIVERGED)
    fails = {"kind": "fails", "item": "toy", "measure": "final_accuracy", "at_most": 10.0}
    found = runs.judged({**fails, "mean_over": ["method", "plugin"]})
    assert (found.verdict, "at 1 of 1 place" in found.evidence) == ("supported", True)


@pytest.mark.parametrize("ends", [(DIVERGED, DIVERGED), (60.0, 61.0)])
def test_failures_need_runs_at_all_places(runs: Runs, ends: Sequence[Number]) -> None:
    runs.add({"method": "a", "plugin": "none"}, *ends)
    runs.add({"method": "b", "plugin": "none"}, MISSING, MISSING)
    fails = {"kind": "fails", "item": "toy", "measure": "final_accuracy", "at_most": 10.0}
    found = runs.judged(fails)
    assert found.verdict == "undecided"
    assert "2 runs not there or without a number, 1 place without any run" in found.evidence
    assert runs.judged({**fails, "at": {"method": "a"}}).verdict != "undecided"


# ---------------------------------------------------------------- restricted plans
@pytest.mark.parametrize(
    ("test", "stated"),
    [
        (POSITIVE, None),
        ({**POSITIVE, "judge": "every"}, None),
        ({**POSITIVE, "kind": "negative"}, None),
        ({**GAIN, "kind": "value"}, 2.1),
        ({"kind": "fails", "item": "toy", "measure": "final_accuracy", "at_most": 10.0}, None),
        ({"kind": "all", "tests": [POSITIVE, POSITIVE]}, None),
    ],
    ids=["supported", "every", "contradicted", "value", "fails", "all"],
)
def test_a_part_of_the_runs_decides_nothing(runs: Runs, test: Yaml, stated: float | None) -> None:
    runs.pairs({"a": CLEAR})
    whole = runs.judged(test, stated)
    assert whole.verdict in ("supported", "contradicted")
    part = runs.judged(test, stated, restricted=["method a", "3 seeds"])
    assert part.verdict == "undecided"
    assert "ndecided, as the runs are restricted to method a, 3 seeds." in part.evidence
    assert part.estimate == whole.estimate, "the numbers are shown all the same"


@pytest.mark.parametrize(
    ("test", "decided"),
    [
        ({**POSITIVE, "at": {"method": "a"}}, True),
        ({**POSITIVE, "at": {"method": ["a", "z"]}}, False),
        (POSITIVE, False),
        ({**GAIN, "kind": "above", "higher": {"method": "a"}, "lower": {"method": "b"}}, True),
        ({**POSITIVE, "over": {"method": "b"}, "at": {"plugin": "x"}}, False),
    ],
    ids=["at it", "at more", "at all", "between two", "over one"],
)
def test_a_part_of_the_runs_decides_what_is_said_of_that_part(runs: Runs, test: Yaml, decided: bool) -> None:
    runs.pairs({"a": (4.0, 4.1, 4.2), "b": CLEAR})
    shown = {"to": "method a; b", "axis": "method"}
    assert runs.judged(test).verdict == "supported"
    found = runs.judged(test, restricted=[shown])
    assert (found.verdict == "supported") == decided == ("restricted" not in found.evidence)
    assert runs.judged(test, restricted=[shown, "3 seeds"]).verdict == "undecided"


def test_a_label_that_a_restriction_left_out(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    found = runs.judged({**POSITIVE, "at": {"method": "z"}}, restricted=["method a"])
    assert found == Finding("not run", "toy has no method 'z' at this scale, restricted to method a.")


def test_the_heading_says_what_is_restricted(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    whole, part = runs.sheet(), runs.sheet(restricted=["method a", "1 seed"])
    assert judgement.scale_note("On toys.", [whole]) == "On toys."
    assert judgement.scale_note("On toys.", [whole, part]) == (
        "On toys. Claims about runs that these items lack are left undecided, "
        "restricted to method a, 1 seed: toy."
    )


# ---------------------------------------------------------------- not run
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"item": "table9"}, "table9 is not among the items made here"),
        ({"at": {"method": ["z", "y"]}}, "toy has no method 'z' or 'y' at this scale"),
        ({"over": {"plugin": "y"}}, "toy has no plugin 'y' at this scale"),
        ({"at": {"method": "b"}}, "No run, or pair of runs, that it needs is complete"),
    ],
)
def test_what_was_not_run(runs: Runs, changes: Yaml, told: str) -> None:
    runs.pairs({"a": CLEAR})
    for plugin in ("none", "x"):
        runs.add({"method": "b", "plugin": plugin}, MISSING)
    found = runs.judged({**POSITIVE, **changes})
    assert found.verdict == "not run"
    assert told in found.evidence


def test_runs_without_those_that_they_are_compared_with(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, MISSING, MISSING)
    runs.add({"method": "a", "plugin": "x"}, 60, 61)
    assert runs.judged(POSITIVE).evidence == "No run, or pair of runs, that it needs is complete."


def test_a_maximum_over_seeds_is_no_number_of_a_run(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    with pytest.raises(FltrainError, match="'best_of_all_seeds' is one number over all seeds"):
        runs.judged({"kind": "positive", "item": "toy", "measure": "best_of_all_seeds"})


def test_labels_that_are_there_count(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    assert runs.judged({**POSITIVE, "at": {"method": ["a", "z"]}}).verdict == "supported"


def test_claims_that_need_no_runs(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    assert runs.judged({"kind": "tested", "by": "tests/x.py"}).verdict == "tested"
    assert runs.judged({"kind": "not_judged", "why": "No."}) == Finding("not judged", "No.")


def test_a_claim_that_the_paper_does_not_make(runs: Runs) -> None:
    claim = Claim.parse({"where": "sec. 1", "claim": "so it iss", "test": POSITIVE}, "claim")
    with pytest.raises(FltrainError, match=r"no claim 'so it iss' in 'sec\. 1'.*'so it is'"):
        judgement.judge(
            [claim],
            [Statement("sec. 1", "so it is", None, "")],
            [],
            runs.record,
            lambda _: None,
            True,  # type: ignore[arg-type,return-value]
        )


# ---------------------------------------------------------------- numbers
def drift(*values: float, part: str | None = None) -> list[Yaml]:
    return [
        {"round": number, "kind": "updates", "drift": {part: value, "other": 0.0} if part else value}
        for number, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(
    ("rounds", "mean"),
    [([0.0, 1.0], 5.5), ([0.0, 0.5], 3.0), ([0.5, 1.0], 8.0), ([0.0, 0.1], 1.0), ([0.0, 0.001], 1.0)],
)
@pytest.mark.parametrize("part", [None, "stem"])
def test_curves_over_a_share_of_the_rounds(
    runs: Runs, rounds: list[float], mean: float, part: str | None
) -> None:
    """Ten rounds with the values 1 to 10."""
    runs.add({"method": "a", "plugin": "none"}, 50, 50, rows=drift(*range(1, 11), part=part))
    curve = {"kind": "positive", "item": "toy", "curve": "updates.drift", "part": part, "rounds": rounds}
    assert runs.judged(curve).estimate == pytest.approx(mean)


def test_a_part_that_the_network_does_not_have(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, 50, rows=drift(1.0, part="stem"))
    found = runs.judged({"kind": "positive", "item": "toy", "curve": "updates.drift", "part": "stage9"})
    assert (found.verdict, found.evidence) == ("not run", "None of its runs has updates.drift of stage9.")


PARTS_OF_RUNS = [[{"stem": 1.0, "head": 4.0}, {"stem": 2.0, "head": 6.0}], [{"stem": 3.0}, {"stem": 5.0}]]


def test_parts_of_a_curve_are_added(runs: Runs) -> None:
    """Of two seeds, one has a network without the second part."""
    rows = [
        [{"round": number, "kind": "updates", "drift": drifts} for number, drifts in enumerate(run, start=1)]
        for run in PARTS_OF_RUNS
    ]
    for method, of_run in zip("ab", rows, strict=True):
        runs.add({"method": method, "plugin": "none"}, 50, rows=of_run)
    both = {"kind": "positive", "item": "toy", "curve": "updates.drift", "part": ["stem", "head"]}
    found = runs.judged(both)
    assert (found.estimate, "1 place without a number" in found.evidence) == (6.5, True)
    assert runs.judged({**both, "part": ["stem"]}).estimate == pytest.approx(2.75)
    assert "updates.drift of stem, tail" in runs.judged({**both, "part": ["stem", "tail"]}).evidence


def selections(runs: Runs, method: str, shares: Mapping[str, int], **summary: Any) -> None:
    """A run that selected layers of each block so many times."""
    run = f"run-{len(runs.cells)}"
    selected = [f"{block}.0" for block, times in shares.items() for _ in range(times)]
    layers = {"layers": [f"{block}.0" for block in shares]}
    accuracy = {"accuracy": {"final": 0.5, "best": 0.5}}
    rows = [{"round": 1, "kind": "flfa", "selected": selected}]
    write_record(
        runs.results.run(run),
        tiny(),
        rows,
        {"status": "completed", "rounds": 1, **accuracy, **layers},
        {},
        {},
    )
    labels = {"method": method, "plugin": "x"}
    runs.cells.append({"labels": labels, "reported": {}, "seed": 0, "run": run, "partition": "any"})


def test_parts_of_a_measure_are_added(runs: Runs) -> None:
    selections(runs, "a", {"stem": 5, "stage": 3, "head": 2})
    share = {"kind": "positive", "item": "toy", "measure": "selection_share", "part": ["stem", "stage"]}
    assert runs.judged(share).estimate == pytest.approx(80)
    selections(runs, "b", {"stem": 10})
    found = runs.judged(share)
    assert found.estimate == pytest.approx(80), "the other network has no such stage"
    assert "1 place without a number" in found.evidence
    assert runs.judged({**share, "part": "stem"}).estimate == pytest.approx(75)


def test_parts_of_runs_that_are_not_there(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, MISSING)
    share = {"kind": "positive", "item": "toy", "measure": "selection_share", "part": ["stem", "stage"]}
    assert runs.judged(share) == Finding("not run", "No run, or pair of runs, that it needs is complete.")


def test_a_statistic_that_the_records_do_not_have(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, 50, 50, rows=drift(1.0, 2.0))
    curve = {"kind": "positive", "item": "toy", "curve": "separability.ratio"}
    assert runs.judged(curve) == Finding("not run", "None of its runs has separability.ratio.")


@pytest.mark.parametrize(
    ("values", "rounds", "oscillation"),
    [
        ((1, 2, 3, 4), [0.0, 1.0], 0.0),
        ((4, 3, 2), [0.0, 1.0], 0.0),
        # Steps 2, -2, 2, -2 have the mean size 2 and the mean 0; without the last one, a mean of 2/3.
        ((1, 3, 1, 3, 1), [0.0, 1.0], 2.0),
        ((1, 3, 1, 3, 1), [0.0, 0.4], 2 - 2 / 3),
    ],
)
def test_how_much_a_curve_goes_back_and_forth(
    runs: Runs, values: tuple[float, ...], rounds: list[float], oscillation: float
) -> None:
    """A run has ten rounds."""
    runs.add({"method": "a", "plugin": "none"}, 50, rows=drift(*values))
    curve = {"kind": "positive", "item": "toy", "curve": "updates.drift", "rounds": rounds}
    assert runs.judged({**curve, "oscillation": True}).estimate == pytest.approx(oscillation)


def test_targets_and_multiples_are_those_of_the_table(runs: Runs) -> None:
    """A target is FedAvg's best; one that is never reached counts as the round after the last."""

    def accuracies(*values: float) -> list[Yaml]:
        return [
            {"round": number, "kind": "evaluation", "split": "test", "view": "global", "accuracy": value}
            for number, value in enumerate(values, start=1)
        ]

    runs.add({"method": "slow", "plugin": "none"}, 60, rows=accuracies(0.1, 0.2, 0.60))
    runs.add({"method": "fast", "plugin": "none"}, 60, rows=accuracies(0.60, 0.2))
    runs.add({"method": "never", "plugin": "none"}, 60, rows=accuracies(0.59))
    target = {"measure": "rounds_to_target", "target_of": {"method": "slow"}}
    sheet = runs.sheet(measures=[target])
    rounds = {"kind": "positive", "item": "toy", "measure": "rounds_to_target"}
    means = [
        runs.judged({**rounds, "at": {"method": method}}, sheet=sheet).estimate
        for method in ("slow", "fast", "never")
    ]
    assert means == [3, 1, 11], "a run has ten rounds"
    with pytest.raises(FltrainError, match="no target"):
        runs.judged(rounds)
    multiples = runs.sheet(measures=[{"measure": "final_accuracy", "relative_to": {"method": "slow"}}])
    one = {"kind": "positive", "item": "toy", "measure": "final_accuracy", "at": {"method": "fast"}}
    assert runs.judged(one, sheet=multiples).estimate == pytest.approx(1.0)


@pytest.mark.parametrize(
    "test",
    [
        {"kind": "value", "item": "toy", "curve": "updates.drift"},
        {"kind": "positive", "item": "toy"},
        {"kind": "positive", "item": "toy", "curve": "a.b", "rounds": [0.5, 0.5]},
        {"kind": "positive", "item": "toy", "measure": "fall", "oscillation": True},
        {"kind": "positive", "item": "toy", "measure": "fall", "relative": True},
        {"kind": "above", **GAIN, "higher": {"a": "1"}, "lower": {"a": "2"}, "mean_over": ["a"]},
        {**POSITIVE, "over": {"plugin": []}},
        {"kind": "all", "tests": [POSITIVE]},
        {"kind": "all", "tests": [POSITIVE, {"kind": "tested", "by": "tests/x.py"}]},
    ],
    ids=[
        *("value of a curve without a margin", "no source", "no round", "no curve to oscillate"),
        *("relative to nothing", "a mean over what is compared", "over none", "one of one", "not by runs"),
    ],
)
def test_claims_that_cannot_be(test: Yaml) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(tests_of_claims.Test).validate_python(test)


# ---------------------------------------------------------------- files
def test_files(runs: Runs, tmp_path: Path) -> None:
    runs.pairs({"a": CLEAR})
    claim = Claim.parse({"where": "sec. 1", "claim": "a | b", "test": POSITIVE}, "claim")
    stated = tmp_path / "claims.csv"
    stated.write_text("where,claim,value,unit\nsec. 1,a | b,2.5,points\n")
    sheet, nothing = runs.sheet(reduced=True), Published.read(None)
    judged = judgement.judge([claim], read_claims(stated), [sheet], runs.record, lambda _: nothing, True)
    markdown = judgement.to_markdown("A toy", "Reduced scale: toy.", judged).splitlines()
    assert markdown[0] == "**Claims of A toy. Reduced scale: toy.**"
    assert markdown[4] == (
        r"| sec. 1 | a \| b | 2.5 points | reduced scale | mean +2.1 [+1.931, +2.269] over 3 seeds. | toy |"
    )
    (line,) = judgement.to_frame(judged).to_dict("records")
    assert (line["verdict"], line["reduced"], line["stated"]) == ("reduced scale", True, "2.5 points")
    heading = {"paper": "toy", "title": "A toy", "scale": "demo", "reduced": True}
    cells = {sheet.id: table_cells(sheet, runs.record, nothing)}
    summary = summarise(heading, [sheet], judged, cells)
    write_json(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    empty: Yaml = {"verdicts": {}, "expected": {}, "gains": {}, "expected_gains": {}}
    assert summary["totals"] == {**empty, "claims": {"reduced scale": 1}}
    (item,) = summary["items"]
    assert item == {
        **{"id": "paper/toy", "name": "toy", "title": "A toy", "kind": "table", "cells": 2},
        **{**empty, "rank_correlation": None},
    }


@pytest.mark.parametrize("kind", ["positive", "negative", "fails", "all"])
def test_a_reduced_scale_decides_nothing(runs: Runs, kind: str) -> None:
    """Numbers and intervals stay; no word says that a claim is supported or contradicted."""
    runs.pairs({"a": CLEAR})
    test: Yaml = {**POSITIVE, "kind": kind}
    if kind == "fails":
        test = {"kind": kind, "item": "toy", "measure": "final_accuracy", "at_most": 10.0}
    if kind == "all":
        test = {"kind": kind, "tests": [POSITIVE, POSITIVE]}
    found = runs.judged(test, reduced=True)
    assert (found.verdict, found.p, found.p_contradicted) == ("reduced scale", None, None)
    assert not any(word in found.evidence for word in ("supported", "contradicted", "opposite", "p 0"))
    assert "3 seeds" in found.evidence or "6 runs" in found.evidence


@pytest.mark.parametrize(
    ("seen", "decided", "exploratory"),
    [("2026-11-23", None, True), ("2026-11-24", None, False), ("2026-11-24", "2026-11-30", True)],
)
def test_a_test_that_is_younger_than_the_runs_is_exploratory(
    runs: Runs, seen: str, decided: str | None, exploratory: bool
) -> None:
    runs.pairs({"a": CLEAR})
    sheet = Sheet.parse({**runs.sheet().model_dump(mode="json"), "seen": seen}, "sheet")
    written = {"where": "sec. 1", "claim": "so it is", "test": POSITIVE, "decided": decided}
    statement = Statement("sec. 1", "so it is", None, "")
    nothing = Published.read(None)
    claim = Claim.parse(written, "claim")
    (one,) = judgement.judge([claim], [statement], [sheet], runs.record, lambda _: nothing, False)
    assert one.exploratory == exploratory
    assert ("exploratory" in one.verdict) == exploratory


def test_the_list_of_contradicted_claims_has_a_false_discovery_rate(runs: Runs) -> None:
    """A p of 0.03 alone is on the list; among many claims that hold it is greyed, not renamed."""
    runs.pairs({"a": (-1.0, -1.2, -0.5), "b": CLEAR})
    near = {**POSITIVE, "at": {"method": "a"}}
    holds = {**POSITIVE, "at": {"method": "b"}}
    nothing = Published.read(None)
    for others, listed in ((0, True), (9, False)):
        tests = [near, *[holds] * others]
        claims = [Claim.parse({"where": "s", "claim": "c", "test": test}, "claim") for test in tests]
        statement = Statement("s", "c", None, "")
        first = judgement.judge(claims, [statement], [runs.sheet()], runs.record, lambda _: nothing, False)[0]
        assert (first.finding.verdict, first.listed) == ("contradicted", listed)


@pytest.fixture(scope="module")
def papers() -> Plan:
    """The papers' own protocol."""
    return plan(ROOT / "config", "paper")


@pytest.mark.parametrize("paper", ["flfa", "ecgr", "fed2", "fedfcd", "fedimpro"])
def test_the_papers_claims_are_judged_without_any_run(papers: Plan, paper: str, tmp_path: Path) -> None:
    items = [item for item in papers.items if item.paper.paper == paper]
    reported = ROOT / "config" / "reported"

    def published(sheet: Sheet) -> Published:
        return Published.read(reported / sheet.reported if sheet.reported else None)

    judged = judgement.judge(
        items[0].paper.claims,
        read_claims(reported / f"{paper}_claims.csv"),
        [item.sheet for item in items],
        Results(tmp_path).record,
        published,
        False,
    )
    assert len(judged) == len(items[0].paper.claims)
    assert {one.finding.verdict for one in judged} <= {"not run", "tested", "not judged"}
