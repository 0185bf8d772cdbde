"""Claims judged on hand-made runs: supported if true, contradicted if false, else left open."""

from collections.abc import Mapping, Sequence
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
from fltrain.experiments.claims import Claim, Printed, quantities
from fltrain.experiments.layout import Curves, ItemJob
from fltrain.experiments.published import Published, Statement, read_claims
from fltrain.reporting.claims import Judge, printed_cell, to_markdown
from fltrain.reporting.summary import paper_summary
from fltrain.reporting.tables.cells import cells as table_cells
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.runs.record import Results

from .helpers import DIVERGED, MISSING, Cells, accuracies, drifts, shipped

ROOT = Path(__file__).parents[2]
Number = float | str
Yaml = dict[str, Any]

SIDES: Yaml = {"item": "toy", "measure": "final_accuracy"}
GAIN: Yaml = {**SIDES, "over": {"plugin": "none"}}
POSITIVE: Yaml = {"kind": "positive", **GAIN}
FAILS: Yaml = {"kind": "fails", **SIDES, "at_most": 10.0}
ABOVE: Yaml = {"kind": "positive", **SIDES, "at": {"plugin": "x"}, "minus": {"plugin": "none"}}
SIMILAR: Yaml = {**ABOVE, "kind": "similar"}


class Runs(Cells):
    """Records with a final accuracy in per cent, and the table cells that they fill."""

    def pairs(self, gains: Mapping[str, Sequence[Number]], base: float = 50.0) -> None:
        """For each method, runs without a plug-in, and runs with one and these gains."""
        for method, values in gains.items():
            self.add({"method": method, "plugin": "none"}, *[base + seed for seed in range(len(values))])
            ends = [gain if isinstance(gain, str) else base + seed + gain for seed, gain in enumerate(values)]
            self.add({"method": method, "plugin": "x"}, *ends)

    def sheet(self, reduced: bool = False, restricted: Sequence[Yaml | str] = (), **table: Any) -> ItemJob:
        layout = {"rows": "method", "columns": "plugin", "measures": [{"measure": "final_accuracy"}], **table}
        parts = [part if isinstance(part, dict) else {"to": part} for part in restricted]
        return super().sheet(id="paper/toy", reduced=reduced, table=layout, restricted=parts)

    def judge(
        self,
        *tests: Yaml,
        stated: float | None = None,
        unit: str = "points",
        decided: str | None = None,
        exploratory: bool = False,
        **changes: Any,
    ) -> Any:
        """Judge claims with these tests; all claims share one statement."""
        others, cells = changes.pop("others", ()), changes.pop("cells", {})
        sheet = changes.pop("sheet", None) or self.sheet(**changes)
        written = {"where": "sec. 1", "claim": "so it is", "decided": decided, "exploratory": exploratory}
        claims = [Claim.parse({**written, "test": test}, "claim") for test in tests]
        statement = Statement("sec. 1", "so it is", stated, unit)
        nothing = Published.read(None)
        sheets, records = [sheet, *others], self.results.record
        judge = Judge(sheets, records, lambda _: nothing, sheet.reduced, cells)
        judged = judge.judge(claims, [statement])
        return list(judged.itertuples())

    def judged(self, test: Yaml, stated: float | None = None, unit: str = "points", **changes: Any) -> Any:
        (claim,) = self.judge(test, stated=stated, unit=unit, **changes)
        return claim


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "results", full=100.0, rounds=10)


CLEAR, OPPOSITE, NOISE = (2.0, 2.1, 2.2), (-2.0, -2.1, -2.2), (-2.0, 0.5, 2.0)


@pytest.mark.parametrize("judge", ["average", "every"])
@pytest.mark.parametrize(
    ("gains", "verdict"),
    [(CLEAR, "supported"), (OPPOSITE, "contradicted"), (NOISE, "inconclusive"), ((0.0,) * 3, "inconclusive")],
)
def test_gains_at_one_place(runs: Runs, gains: Sequence[float], verdict: str, judge: str) -> None:
    runs.pairs({"a": gains})
    claim = runs.judged({**POSITIVE, "judge": judge})
    assert claim.verdict == verdict
    if any(gains):
        side = "less" if verdict == "contradicted" else "greater"
        assert claim.p == pytest.approx(stats.ttest_1samp(gains, 0, alternative=side).pvalue)
    mirrored = {"supported": "contradicted", "contradicted": "supported"}.get(verdict, verdict)
    assert runs.judged({**POSITIVE, "kind": "negative", "judge": judge}).verdict == mirrored
    turned = {"at": ABOVE["minus"], "minus": ABOVE["at"], "judge": judge}
    assert runs.judged({**ABOVE, "judge": judge}).verdict == verdict
    assert runs.judged({**ABOVE, **turned}).verdict == mirrored


def test_a_reversed_gain_is_one_method_minus_each_rival(runs: Runs) -> None:
    """Only the sign of the number changes: the gain below zero has the same verdict and p value."""
    runs.pairs({"a": CLEAR, "b": (0.5, 0.6, 0.7)})
    gain = {**GAIN, "over": {"plugin": "x"}, "judge": "every"}
    below, above = (
        runs.judged({**gain, "kind": kind, "reverse": kind == "positive"})
        for kind in ("negative", "positive")
    )
    assert (above.verdict, above.p) == (below.verdict, pytest.approx(below.p)) == ("supported", above.p)
    assert (above.estimate, above.low, above.high) == pytest.approx(
        (-below.estimate, -below.high, -below.low)
    )
    assert below.number.startswith("final accuracy, none minus x, average of 2 cases: -1.35 points [-1.")
    assert above.number.startswith("final accuracy, x minus none, average of 2 cases: +1.35 points [+1.")
    assert (below.needed, above.needed) == ("below 0 in each of 2 cases", "above 0 in each of 2 cases")
    assert "; weakest of 2 cases (b): +0.60 points [+" in above.number
    assert (above.case, above.estimate) == ("weakest of 2 cases (b)", pytest.approx(0.6)), "as its p value"
    assert "The difference is positive in 2 of 2 cases, from +0.60 (b) to +2.10 (a)." in above.evidence


def test_the_region_that_is_tested_stands_beside_the_number(runs: Runs) -> None:
    """Both ends of a range are with one number."""
    runs.pairs({"a": CLEAR})
    between = {"kind": "all", "tests": [{**POSITIVE, "by": 1.0}, {**NEGATIVE, "by": -2.5}]}
    plain = runs.judged(POSITIVE)
    assert (plain.number, plain.needed) == (
        "final accuracy, x minus none: +2.10 points [+1.93, +2.27]",
        "above 0",
    )
    claim = runs.judged(between)
    assert (claim.number, claim.needed) == (plain.number, "1 to 2.5 points")
    numbers = ["estimate", "low", "high", "unit"]
    assert [getattr(claim, name) for name in numbers] == [getattr(plain, name) for name in numbers]
    assert claim.estimate == pytest.approx(2.1) and claim.unit == "points"
    assert runs.judged({**SIMILAR, "by": 3.0}).needed == "within 3 points"
    assert runs.judged({**POSITIVE, "by": 1.0}).needed == "above 1 point"
    assert runs.judged({**NEGATIVE, "by": 0.5}).needed == "below -0.5 points"
    value = runs.judged({**GAIN, "kind": "value"}, 2.0)
    assert value.needed == "within 1 point of the paper's +2 points"
    assert runs.judged({**SIDES, "kind": "value", "by": 0.1}, 53.0).needed == (
        "within 0.1 points of the paper's 53 %"
    )
    for test in (POSITIVE, {**POSITIVE, "by": 1.0}, between):
        reduced = runs.judged(test, reduced=True)
        assert (reduced.number, reduced.needed) == (plain.number, "")


def test_the_weakest_case_stands_beside_the_average(runs: Runs) -> None:
    """All of them decide, so the mean alone could seem to decide an inconclusive claim."""
    runs.pairs({"a": CLEAR, "b": NOISE, "c": (1.0, 1.2, 1.1)})
    for weakest, verdict, places in (("b", "inconclusive", "abc"), ("c", "supported", "ac")):
        claim = runs.judged({**EVERY, "at": {"method": [*places]}})
        _, alone = runs.judged({**EVERY, "at": {"method": weakest}}).number.split(": ")
        assert claim.verdict == verdict
        average, worst = claim.number.split("; ")
        assert average.startswith(f"final accuracy, x minus none, average of {len(places)} cases: +1.")
        assert worst == f"weakest of {len(places)} cases ({weakest}): {alone}"
        assert (claim.needed, claim.reason) == (f"above 0 in each of {len(places)} cases", "")
        assert f"Test: above 0 in each of {len(places)} cases, largest one-sided p " in claim.evidence
    reduced = runs.judged(EVERY, reduced=True)
    assert reduced.number == runs.judged(POSITIVE).number == runs.judged(EVERY).number.split("; ")[0]
    assert (reduced.needed, reduced.reason) == ("", "")
    claim = runs.judged({**EVERY, "by": 1.0})
    average, worst = claim.number.split("; ")
    assert average.startswith("final accuracy, x minus none, average of 3 cases: +1.1")
    assert worst.startswith("weakest of 3 cases (b): +0.2 points [-")
    assert claim.needed == "above 1 point in each of 3 cases"
    assert "Test: above 0 on average, one-sided p " in runs.judged(POSITIVE).evidence
    assert runs.judged(POSITIVE).needed == "above 0"
    restricted = runs.judged(EVERY, restricted=["3 seeds"])
    assert restricted.number == runs.judged(EVERY).number
    assert (restricted.needed, restricted.reason) == (
        "above 0 in each of 3 cases",
        "inconclusive, because the runs cover only 3 seeds",
    )


def test_a_label_that_lacks_a_part_is_a_variant(runs: Runs) -> None:
    for name, value in (("whole", 52), ("without memory", 50)):
        runs.add({"method": "a", "plugin": name}, *[value + seed for seed in range(3)])
    number = runs.judged({**POSITIVE, "over": {"plugin": "without memory"}}).number
    assert number.startswith("final accuracy, whole minus the variant without memory: +2.000 points [+")


def test_a_deciding_case_among_several_others_is_named(runs: Runs) -> None:
    """The paper's method x is better than y, but not clearly better than z."""
    for plugin, gains in {"x": (2.0, 2.1, 2.2), "y": (0.0, 0.1, 0.3), "z": (3.0, 0.5, 2.8)}.items():
        runs.add({"method": "a", "plugin": plugin}, *[50 + seed + gain for seed, gain in enumerate(gains)])
    test = {"kind": "positive", **SIDES, "over": {"plugin": "x"}, "reverse": True, "judge": "every"}
    claim = runs.judged(test)
    average, worst = claim.number.split("; ")
    assert (claim.verdict, claim.needed) == ("inconclusive", "above 0 in each of 2 cases")
    assert average.startswith("final accuracy, x minus the others, average of 2 cases: +1.0 points [")
    assert worst.startswith("weakest of 2 cases (z): 0.0 points [-")
    against = runs.judged({**test, "kind": "negative"})
    assert (against.verdict, against.needed) == ("contradicted", "below 0 in each of 2 cases")
    assert against.number.split("; ")[1].startswith("weakest of 2 cases (y): +1.967 points [+")


def test_an_inconclusive_claim_has_its_reason(runs: Runs) -> None:
    """If its interval does not show it."""
    runs.pairs({"a": CLEAR})
    between = {"kind": "all", "tests": [{**POSITIVE, "by": 1.0}, {**NEGATIVE, "by": -2.1}]}
    plain = runs.judged(POSITIVE).number
    mixed = runs.judged(between)
    assert (mixed.verdict, mixed.needed, mixed.reason) == ("inconclusive", "1 to 2.1 points", "")
    assert mixed.number == plain, "the interval lies across an end of the range"
    part = runs.judged({"kind": "all", "tests": [POSITIVE, {"kind": "not_judged", "why": "No."}]})
    assert (part.verdict, part.number) == ("inconclusive", plain)
    assert (part.needed, part.reason) == ("above 0", "1 part is not judged")
    absent = {"kind": "all", "tests": [POSITIVE, *[{**POSITIVE, "item": "table9"}] * 2]}
    assert runs.judged(absent).reason == "2 parts are not run"
    signs = runs.judged({"kind": "all", "tests": [POSITIVE, {**SIMILAR, "by": 2.1}]})
    assert (signs.number, signs.needed) == (plain, "above 0 and within 2.1 points")
    restricted = runs.judged(POSITIVE, restricted=["method a"])
    assert (restricted.number, restricted.reason) == (
        plain,
        "inconclusive, because the runs cover only method a",
    )
    runs.pairs({"c": (MISSING,) * 3})
    lacking = runs.judged(EVERY)
    assert (lacking.number, lacking.reason) == (plain, "1 case without a number")
    assert runs.judged(POSITIVE).reason == "no test, because an average needs a number in every case"
    runs.pairs({"b": (1.0,)})
    untestable = runs.judged({**POSITIVE, "at": {"method": "b"}})
    assert untestable.number == "final accuracy, x minus none, b: +1.00 points"
    assert untestable.reason == "no test, because it needs three seeds that differ"
    lost = {"d": (2.0, 2.1, 2.2, DIVERGED)}
    runs.pairs(lost)
    assert runs.judged({**POSITIVE, "at": {"method": "d"}}).reason == "1 run diverged"


def test_numbers_of_parts_with_several_verdicts_have_them(runs: Runs) -> None:
    """Numbers that share a text, or a verdict, stand once or alone."""
    runs.pairs({"a": CLEAR, "b": NOISE})
    at_a, at_b = ({**POSITIVE, "at": {"method": method}} for method in "ab")
    first, second = (runs.judged(test).number for test in (at_a, at_b))
    joint = runs.judged({"kind": "all", "tests": [at_a, at_b]})
    assert joint.number == f"{first} (supported); {second} (inconclusive)"
    assert joint.needed == "above 0" and pd.isna(joint.estimate), "two numbers have no common estimate"
    reduced = runs.judged({"kind": "all", "tests": [at_a, at_b]}, reduced=True)
    assert (reduced.number, reduced.needed, reduced.reason) == (f"{first}; {second}", "", "")
    extended = runs.judged({"kind": "all", "tests": [at_a, at_b, {**SIMILAR, **AT_B_X, "by": 9.0}]})
    assert extended.number == f"{first} (supported); {second} (inconclusive, supported)"
    assert extended.needed == "above 0; above 0 and within 9 points"


def test_a_correction_that_leaves_a_claim_inconclusive_is_its_reason(runs: Runs) -> None:
    weak = "the evidence is too weak to contradict the claim"
    parts, cases = f"{weak} (Bonferroni's correction for 3 parts)", f"{weak} (Holm's correction for 4 tests)"
    runs.pairs({"a": (-1.0, -1.2, -0.5), "b": CLEAR, "c": NOISE})
    assert runs.judged({**EVERY, **AT_A}).verdict == "contradicted"
    for test, words in (
        (EVERY, cases),
        ({"kind": "all", "tests": [{**POSITIVE, "at": {"method": method}} for method in "abc"]}, parts),
    ):
        claim = runs.judged(test)
        assert (claim.verdict, claim.reason) == ("inconclusive", words)


def test_places_name_the_axis_of_a_number(runs: Runs) -> None:
    runs.pairs({"3": CLEAR, "5": NOISE})
    claim = runs.judged(EVERY)
    assert "; weakest of 2 cases (method 5): +0.2 " in claim.number
    assert "to +2.1 (method 3)." in claim.evidence
    assert runs.judged({**POSITIVE, "at": {"method": "3"}}).number.startswith(
        "final accuracy, x minus none, method 3: +2.1"
    )


def test_failures_count_the_places_that_decide(runs: Runs) -> None:
    for method, ends in (("a", (9.0, 9.0, 60.0)), ("b", (9.0, 60.0, 60.0))):
        runs.add({"method": method, "plugin": "none"}, *ends)
    overall, single = runs.judged(FAILS), runs.judged({**FAILS, **AT_A})
    assert overall.number == "failed runs: 3 of 6; cases in which most runs failed: 1 of 2"
    assert single.number == "failed runs: 2 of 3"
    assert (overall.needed, single.needed) == ("most runs fail in each of 2 cases", "most runs fail")


def test_a_plugin_is_compared_with_runs_without_it(runs: Runs) -> None:
    for name, value in (("BP", 50), ("+ FLFA", 52)):
        runs.add({"method": "a", "plugin": name}, *[value + seed for seed in range(3)])
    number = runs.judged({**POSITIVE, "over": {"plugin": "BP"}}).number
    assert number.startswith("final accuracy, gain with FLFA: +2.000 points [+")
    claim = runs.judged({**NEGATIVE, "over": {"plugin": "+ FLFA"}})
    assert claim.number.startswith(
        "final accuracy, training without FLFA minus training with it: -2.000 points [-"
    )
    for name, value in (("BP", 50), ("+ FLFA", 51)):
        runs.add({"method": "b", "plugin": name}, *[value + seed for seed in range(3)])
    gain = {**POSITIVE, "over": {"plugin": "BP"}}
    change = {**gain, "at": {"method": "b"}, "minus": {"method": "a"}}
    number = runs.judged(change).number
    assert number.startswith("final accuracy, gain with FLFA at b minus at a: -1.000 points [-")
    evidence = runs.judged({**gain, "judge": "every"}).evidence
    assert "The gain is positive in 2 of 2 cases, from +1" in evidence


EVERY: Yaml = {**POSITIVE, "judge": "every"}
NEGATIVE: Yaml = {**POSITIVE, "kind": "negative"}
AT_A: Yaml = {"at": {"method": "a"}}
AT_B_X: Yaml = {"at": {"method": "b", "plugin": "x"}}
MIXED = {"a": CLEAR, "b": NOISE}
LACKING = {"a": CLEAR, "b": (MISSING,) * 3}
SINGLE = {f"method {number}": (1.0 + number / 10,) for number in range(8)}
NO_NUMBER = "1 case without a number"
ALIKE: Yaml = {**SIMILAR, "by": 1.0}


@pytest.mark.parametrize(
    ("gains", "test", "verdict", "evidence"),
    [
        (MIXED, EVERY, "inconclusive", ""),
        (MIXED, {**EVERY, **AT_A}, "supported", ""),
        ({"a": CLEAR}, {**ABOVE, "by": 1.0}, "supported", "Test: above 1, one-sided p 0.0"),
        ({"a": CLEAR}, {**ABOVE, "by": 2.1}, "inconclusive", ""),
        (
            {"a": CLEAR},
            {**ABOVE, "by": 3.0},
            "contradicted",
            "Test against the claim: not above 3, one-sided p 0.0",
        ),
        # At most one point worse, or better.
        ({"a": (-0.2, -0.3, -0.1)}, {**ABOVE, "by": -1.0}, "supported", ""),
        ({"a": (-1.0, -1.1, -0.9)}, {**POSITIVE, "by": -1.0}, "inconclusive", ""),
        ({"a": (-0.1, 0.0, 0.2), "b": (-0.1, 0.0, 0.2)}, {**ALIKE, "judge": "every"}, "supported", ""),
        ({"a": CLEAR, "b": OPPOSITE}, {**ALIKE, "judge": "every"}, "contradicted", ""),
        ({"a": CLEAR}, ALIKE, "contradicted", ""),
        ({"a": NOISE}, ALIKE, "inconclusive", ""),
        # Places share runs, such as their common baseline, so they are not a sample.
        (SINGLE, POSITIVE, "inconclusive", "it needs three seeds"),
        (SINGLE, EVERY, "inconclusive", "The difference is positive in 8 of 8 cases"),
        # The average over all cases is unknown for any numbers of the others.
        (LACKING, POSITIVE, "inconclusive", NO_NUMBER),
        (LACKING, NEGATIVE, "inconclusive", NO_NUMBER),
        (LACKING, {**SIMILAR, "by": 0.1}, "inconclusive", NO_NUMBER),
        (LACKING, {**NEGATIVE, **AT_A}, "contradicted", ""),
        (LACKING, EVERY, "inconclusive", NO_NUMBER),
        (LACKING, {**NEGATIVE, "judge": "every"}, "contradicted", ""),
        (LACKING, {**POSITIVE, "item": "table9"}, "not run", "Its runs are not made here."),
        (
            LACKING,
            {**POSITIVE, "at": {"method": ["z", "y"]}},
            "not run",
            "its runs have no method 'z' or 'y'.",
        ),
        (LACKING, {**POSITIVE, "over": {"plugin": "y"}}, "not run", "its runs have no plugin 'y'."),
        (
            LACKING,
            {**POSITIVE, "at": {"method": "b"}},
            "not run",
            "No complete run, or pair of runs, that it needs has final_accuracy.",
        ),
        (LACKING, {"kind": "tested", "by": "tests/x.py"}, "by definition", ""),
        (LACKING, {"kind": "not_judged", "why": "No."}, "not judged", "No."),
    ],
)
def test_verdicts(runs: Runs, gains: dict[str, Any], test: Yaml, verdict: str, evidence: str) -> None:
    runs.pairs(gains)
    claim = runs.judged(test)
    assert (claim.verdict, evidence in claim.evidence) == (verdict, True), claim.evidence


def test_evidence_contains_the_numbers(runs: Runs) -> None:
    runs.pairs({"a": (1.0, 2.0, 3.0), "b": (-1.0, 0.0, 1.0)})
    claim = runs.judged(POSITIVE)
    # Per seed 0, 1, 2. Student's factor for three seeds and 90 %, from a table: 2.920.
    assert claim.estimate == pytest.approx(1)
    assert (claim.low, claim.high) == pytest.approx((1 - 1.686, 1 + 1.686), abs=1e-3)
    assert claim.number == "final accuracy, x minus none, average of 2 cases: +1.0 points [-0.7, +2.7]"
    assert claim.evidence == (
        "3 seeds. The difference is positive in 1 of 2 cases, from 0.0 (b) to +2.0 (a). "
        "Test: above 0 on average, one-sided p 0.113."
    )


def test_the_average_can_contradict_a_claim_on_every_place(runs: Runs) -> None:
    """The loss is not significant in any single case, but in all cases together."""
    draws = np.random.default_rng(0).normal(0, 1, (6, 5))
    runs.pairs({f"method {number}": tuple(-1.0 + draw - draw.mean()) for number, draw in enumerate(draws)})
    claim = runs.judged({**POSITIVE, "judge": "every"})
    assert claim.verdict == "contradicted"
    assert "not above 0 on average" in claim.evidence


@pytest.mark.parametrize("test", [{}, {"kind": "similar", "by": 1.0}])
def test_the_place_that_contradicts_a_claim_stands_beside_the_average(runs: Runs, test: Yaml) -> None:
    """The claim has its estimate and its interval."""
    runs.pairs({"a": OPPOSITE, "b": NOISE, "c": (2.9, 2.1, 2.2)})
    claim = runs.judged({**POSITIVE, **test, "judge": "every"})
    alone = runs.judged({**POSITIVE, "at": {"method": "a"}})
    assert claim.verdict == "contradicted" and "for a, one-sided" in claim.evidence
    assert (claim.estimate, claim.low, claim.high) == pytest.approx((alone.estimate, alone.low, alone.high))
    average, weakest = claim.number.split("; ")
    assert claim.case == "weakest of 3 cases (a)" and claim.unit == "points"
    assert weakest == "weakest of 3 cases (a): " + alone.number.split(": ")[1]
    assert average.startswith("final accuracy, x minus none, average of 3 cases: +0.16 points [")
    region = "within 1 point" if test else "above 0"
    assert claim.needed == f"{region} in each of 3 cases"


def test_diverged_seeds_count_as_chance_and_missing_seeds_leave_claims_open(runs: Runs) -> None:
    """A diverged run counts as chance: 10 % among ten classes, 41 points below the base of its seed."""
    runs.pairs({"a": (2.0, DIVERGED, 2.1, 2.2), "b": (2.0, 2.0, MISSING, 2.2)})
    claim = runs.judged(POSITIVE)
    assert (claim.verdict, claim.estimate) == ("inconclusive", pytest.approx((2.0 + (2 - 41) / 2 + 2.2) / 3))
    assert claim.evidence.startswith("3 seeds."), "seeds of both methods"
    assert "1 run diverged, 1 run missing" in claim.evidence


@pytest.mark.parametrize("judge", ["average", "every"])
def test_a_gain_over_a_base_that_diverged_is_no_number(runs: Runs, judge: str) -> None:
    """All runs of a side: chance accuracy has no spread, so that its difference would be significant."""
    for base, better in (((DIVERGED,) * 3, (90.0, 91.0, 90.5)), ((50.0, 51.0, 52.0), (DIVERGED,) * 3)):
        runs.cells.clear()
        for plugin, values in {"none": base, "x": better}.items():
            runs.add({"method": "a", "plugin": plugin}, *values)
        for kind in ("positive", "negative"):
            claim = runs.judged({**POSITIVE, "kind": kind, "judge": judge})
            assert (claim.verdict, claim.number) == ("inconclusive", "") and pd.isna(claim.estimate)
            assert "3 runs diverged, 1 case without a number" in claim.evidence
        stated = runs.judged({"kind": "value", **GAIN}, stated=80.0)
        assert (stated.verdict, stated.number) == ("inconclusive", "")
    runs.pairs({"b": CLEAR, "c": CLEAR, "d": CLEAR})
    claim = runs.judged({**POSITIVE, "judge": judge})
    assert (claim.verdict, claim.estimate) == ("inconclusive", pytest.approx(2.1))
    assert "3 runs diverged, 1 case without a number" in claim.evidence


def test_a_gain_over_the_mean_of_several_cells(runs: Runs) -> None:
    """On the sets u and v, method a gains 3 and 13 over the mean of b and c."""
    for name, a in (("u", 61.0), ("v", 71.0)):
        for method, *reached in (("a", a, a + 0.5, a + 1), ("b", 50, 50, 50), ("c", 66, 66, 66)):
            runs.add({"set": name, "method": method}, *reached)
    sheet = runs.sheet(rows="set", columns="method")
    over_mean = {"kind": "positive", **SIDES, "at": {"method": "a"}, "over": {"method": ["b", "c"]}}
    claim = runs.judged(over_mean, sheet=sheet)
    # Seeds: 8, 8.5, 9; sets: 3.5 and 13.5.
    assert claim.estimate == pytest.approx(8.5)
    assert claim.number.startswith(
        "final accuracy, a minus the mean of b and c, average of 2 cases: +8.50 points [+"
    )
    assert "The difference is positive in 2 of 2 cases, from +3.50 (u) to +13.50 (v)" in claim.evidence


def test_every_average_over_an_axis(runs: Runs) -> None:
    """Method b alone loses; the averages over methods are positive, and v has the smallest."""
    for name, a, b in (("u", 6.0, -2.0), ("v", 4.0, -2.0)):
        for method, gain in (("a", a), ("b", b)):
            runs.add({"set": name, "method": method, "plugin": "none"}, 50, 51, 52)
            runs.add({"set": name, "method": method, "plugin": "x"}, 50 + gain, 51.1 + gain, 52.2 + gain)
    sheet = runs.sheet(panels="set")
    test = {**POSITIVE, "judge": "every"}
    assert runs.judged(test, sheet=sheet).verdict == "contradicted"
    averaged = runs.judged({**test, "mean_over": ["method"]}, sheet=sheet)
    assert averaged.verdict == "supported"
    assert "from +1.10 (v) to +2.10 (u)" in averaged.evidence
    value = {**GAIN, "kind": "value", "mean_over": ["method"]}
    for extreme, estimate in {"smallest": 1.1, "largest": 2.1}.items():
        claim = runs.judged({**value, "judge": extreme}, 0.0, sheet=sheet)
        assert claim.estimate == pytest.approx(estimate)
    compared = {**ABOVE, "mean_over": ["method"], "judge": "every"}
    assert runs.judged(compared, sheet=sheet).evidence == averaged.evidence


def test_multiples_name_their_cell(runs: Runs) -> None:
    runs.pairs({"a": (10, 20, 40)})
    measured = {"measure": "final_accuracy", "relative_to": {"plugin": "none"}}
    assert runs.judged(ABOVE).number == "final accuracy, x minus none: +23 points [-2, +49]"
    assert runs.judged(ABOVE, measures=[measured]).number.startswith(
        "final accuracy (relative to none), x minus none: +45 % [-"
    )


def test_relative_gains_and_differences(runs: Runs) -> None:
    """From 40 to 50 is 25 % more; from 50 to 40 is 20 % less."""
    runs.add({"method": "a", "plugin": "none"}, 40, 40, 80)
    runs.add({"method": "a", "plugin": "x"}, 50.04, 50, 99.92)
    gain = {**POSITIVE, "relative": True}
    claim = runs.judged(gain)
    assert claim.estimate == pytest.approx(25)
    assert claim.number == "final accuracy, x relative to none: +25.00 % [+24.83, +25.17]"
    assert runs.judged({**gain, "over": {"plugin": "x"}}).estimate == pytest.approx(-20, abs=1e-3)
    similar = {**GAIN, "kind": "similar", "relative": True, "over": {"plugin": "x"}}
    verdicts = [runs.judged({**similar, "by": margin}).verdict for margin in (19.0, 21.0)]
    assert verdicts == ["contradicted", "supported"]
    assert runs.judged({**gain, "kind": "value", "by": 1.0}, 25.5, "%").verdict == "supported"


PARTS = {
    "supported": {**POSITIVE, "at": {"method": "gains"}},
    "contradicted": {**POSITIVE, "at": {"method": "loses"}},
    "inconclusive": {**POSITIVE, "at": {"method": "either"}},
    "not run": {**POSITIVE, "item": "table9"},
    "not judged": {"kind": "not_judged", "why": "The text has no number"},
}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "contradicted"], "contradicted"),
        (["not run", "contradicted"], "contradicted"),
        (["supported", "inconclusive"], "inconclusive"),
        (["not run", "not run"], "not run"),
        (["supported", "not judged"], "inconclusive"),
        (["not judged", "not judged"], "not run"),
    ],
)
def test_all_parts_of_a_claim_must_hold(runs: Runs, parts: list[str], verdict: str) -> None:
    runs.pairs({"gains": CLEAR, "loses": OPPOSITE, "either": NOISE})
    for order in (parts, parts[::-1]):
        claim = runs.judged({"kind": "all", "tests": [PARTS[part] for part in order]})
        assert claim.verdict == verdict
        if len(set(order)) > 1:
            assert claim.evidence.startswith(f"(1) {order[0]}: ")
            assert f" (2) {order[1]}: " in claim.evidence


def test_more_parts_need_stronger_evidence_against_one(runs: Runs) -> None:
    """A p of about 0.02 is enough among two parts, but not among three."""
    losses = (-1.0, -1.2, -0.55)
    p = stats.ttest_1samp(losses, 0, alternative="less").pvalue
    assert 0.05 / 3 < p < 0.05 / 2
    runs.pairs({"gains": CLEAR, "loses": losses})
    refuted, holds = PARTS["contradicted"], PARTS["supported"]
    verdicts = [
        runs.judged({"kind": "all", "tests": tests}).verdict
        for tests in ([refuted, holds], [refuted, holds, holds], [refuted] * 3)
    ]
    assert verdicts == ["contradicted", "inconclusive", "inconclusive"]


@pytest.mark.parametrize(
    ("gains", "stated", "verdict"),
    [
        (CLEAR, 2.5, "supported"),
        (CLEAR, 5.0, "contradicted"),
        (NOISE, 4.0, "inconclusive"),
        ((-0.29, -0.30, -0.31), 0.3, "contradicted"),
        ((0.29, 0.30, 0.31), 0.3, "supported"),
    ],
)
def test_stated_values(runs: Runs, gains: Sequence[float], stated: float, verdict: str) -> None:
    """The margin of a gain is half of the stated gain, at least a quarter of a point."""
    runs.pairs({"a": gains})
    value = {**GAIN, "kind": "value"}
    claim = runs.judged(value, stated)
    assert (claim.verdict, runs.judged(value, stated / 100, "fraction").verdict) == (verdict, verdict)
    reduced = runs.judged(value, stated, reduced=True)
    assert (reduced.verdict, "full protocol" in reduced.evidence) == ("not run", True)
    if len(gains) > 2:
        error = max(np.std(gains, ddof=1), 0.01) * (1 / 3 + 1) ** 0.5
        half = stats.t.isf(0.05, 2) * error
        assert (claim.low, claim.high) == pytest.approx((np.mean(gains) - half, np.mean(gains) + half))


def test_claims_have_the_intervals_of_the_table(runs: Runs) -> None:
    """Of values in points, and of times, whose spreads are shares of the mean; one place has one seed."""
    for method, scale in (("a", 1.0), ("b", 3.0), ("c", 10.0), ("d", 40.0)):
        for seed in range(3):
            value = scale * (1 + 0.1 * (seed - 1) + 0.01 * scale * seed)
            runs.add({"method": method, "plugin": "x"}, value, seconds=(value,))
    runs.add({"method": "e", "plugin": "x"}, 50.0, seconds=(2.0,))
    for measure in ("final_accuracy", "round_seconds"):
        sheet = runs.sheet(measures=[{"measure": measure}])
        for cell in table_cells(sheet, runs.results.record, Published.read(None)):
            test = {"kind": "positive", "item": "toy", "measure": measure, "at": {"method": cell.row}}
            claim = runs.judged(test, sheet=sheet)
            if cell.row == "e":
                assert cell.interval() is None and pd.isna(claim.low) and claim.verdict == "inconclusive"
            else:
                assert cell.spread_cells == 4
                assert (claim.low, claim.high) == pytest.approx(cell.interval())


def test_a_supported_value_has_the_p_of_its_support(runs: Runs) -> None:
    """Two one-sided tests put the gain inside the margin of 1.25 around 2.5."""
    runs.pairs({"a": CLEAR})
    claim = runs.judged({**GAIN, "kind": "value"}, 2.5)
    error = np.std(CLEAR, ddof=1) * (1 / 3 + 1) ** 0.5
    p = stats.t.sf((np.mean(CLEAR) - (2.5 - 1.25)) / error, 2)
    assert (claim.verdict, claim.p) == ("supported", pytest.approx(p))


@pytest.mark.parametrize(
    ("published", "verdict"), [(52.0, "supported"), (56.5, "contradicted"), (52.7, "inconclusive")]
)
def test_a_claim_about_a_printed_gain_has_its_verdict(
    runs: Runs, tmp_path: Path, published: float, verdict: str
) -> None:
    """The same interval as on the table's page, with the published deviations."""
    path = tmp_path / "toy.csv"
    rows = ["a,none,acc,51.5,0.01,", f"a,x,acc,{published},0.01,", "b,none,acc,1,,", "b,x,acc,2,,"]
    path.write_text("method,plugin,metric,value,std,note\n" + "\n".join(rows) + "\n")
    for method, base in (("a", 51.4), ("b", 60.0)):
        for plugin, gain in (("none", 0.0), ("x", 0.6)):
            names = {"method": method, "plugin": plugin}
            values = [base + gain + step for step in (-0.1, 0.0, 0.12)]
            runs.add(names, *values, reported=names)
    measured = {"measure": "final_accuracy", "reported": "acc", "gain_over": {"plugin": "none"}}
    sheet = runs.sheet(measures=[measured])
    cells = table_cells(sheet, runs.results.record, Published.read(path))
    cell = next(cell for cell in cells if (cell.row, cell.column) == ("a", "x"))
    test = {"kind": "cell", **SIDES, "at": {"method": "a", "plugin": "x"}, "over": {"plugin": "none"}}
    claim = runs.judged(test, sheet=sheet, cells={sheet.id: cells})
    assert claim.verdict == verdict and (cell.gain_verdict == "size reproduced") == (verdict == "supported")
    assert claim.p == cell.gain_p if verdict == "contradicted" else pd.isna(claim.p)
    stated = published - 51.5
    ends = (stated + cell.gain_difference_low, stated + cell.gain_difference_high)
    assert (claim.low, claim.high) == pytest.approx(ends)
    interval = f"[{claim.low:+.3f}, {claim.high:+.3f}]"
    assert claim.number == f"final accuracy, x minus none, a: +0.600 points {interval}"
    assert claim.needed == f"within {cell.gain_margin:.3g} points of the paper's {stated:+.4g} points"
    with pytest.raises(FltrainError, match="prints no such gain"):
        runs.judged({**test, "at": {"method": "a"}}, sheet=sheet, cells={sheet.id: cells})


def test_a_claim_about_a_printed_average_gain_has_its_verdict(runs: Runs, tmp_path: Path) -> None:
    """The average over the rows, which ``mean_over`` names, is a cell of its own."""
    path = tmp_path / "toy.csv"
    path.write_text("method,plugin,metric,value,std,note\n,x,avg_gain,1.0,,\n")
    for method, gain in (("a", 0.5), ("b", 1.5)):
        for plugin, more in (("none", 0.0), ("x", gain)):
            names = {"method": method, "plugin": plugin}
            values = [50 + more + step for step in (-0.01, 0.0, 0.01)]
            runs.add(names, *values, reported={"plugin": plugin})
    average = {"of": "gain", "reported": "avg_gain"}
    sheet = runs.sheet(
        measures=[{"measure": "final_accuracy", "gain_over": {"plugin": "none"}, "average": average}]
    )
    cells = table_cells(sheet, runs.results.record, Published.read(path))
    test = {"kind": "cell", **GAIN, "at": {"plugin": "x"}, "mean_over": ["method"]}
    claim = runs.judged(test, sheet=sheet, cells={sheet.id: cells})
    assert claim.verdict == "supported" and claim.estimate == pytest.approx(1.0)
    assert "The cell average / x of " in claim.evidence


def test_a_claim_about_a_printed_gain_over_a_base_that_diverged_stays_open(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    cell = TableCell(row="a", column="x", measure="final_accuracy", published_gain=2.0, gains=(80.0,) * 3)
    test = {"kind": "cell", **SIDES, "at": {"method": "a", "plugin": "x"}, "over": {"plugin": "none"}}
    claim = runs.judged(test, cells={"paper/toy": [cell.replace(gain=80.0, base_diverged=3)]})
    assert (claim.verdict, claim.number) == ("inconclusive", "") and pd.isna(claim.estimate)
    assert claim.evidence == "base diverged in all seeds. No test, because there is no gain."


def test_claims_about_printed_cells_state_what_the_table_prints(tmp_path: Path) -> None:
    """Each names one cell, whose printed gain rounds to the claim's number."""
    reported, count = ROOT / "config" / "reported", 0
    for item in shipped("paper").items:
        name = item.id.partition("/")[2]
        for claim in item.paper.claims:
            tests = [sub for sub in quantities(claim.test) if isinstance(sub, Printed) and sub.item == name]
            for test in tests:
                statements = read_claims(reported / f"{item.paper.paper}_claims.csv")
                (stated,) = (
                    row.value for row in statements if (row.where, row.claim) == (claim.where, claim.claim)
                )
                published = Published.read(reported / str(item.sheet.reported))
                cell = printed_cell(
                    item.sheet, test, table_cells(item.sheet, Results(tmp_path).record, published)
                )
                assert cell.published_gain == pytest.approx(stated, abs=0.05), claim.claim
                count += 1
    assert count == 6


def test_the_test_of_a_selected_place_allows_for_the_selection(runs: Runs) -> None:
    """The largest of several cases differs from the stated value by chance, more so with more cases."""
    gains, value = (4.0, 4.4, 5.0), {**GAIN, "kind": "value", "judge": "largest"}
    runs.pairs({"a": gains, "b": (0.0, 0.1, 0.2)})
    verdicts = [runs.judged(test, 1.5).verdict for test in ({**value, "at": {"method": "a"}}, value)]
    assert verdicts == ["contradicted", "inconclusive"]
    alone = runs.judged({**value, "at": {"method": "a"}}, 0.5)
    two = runs.judged(value, 0.5)
    error = np.std(gains, ddof=1) * (1 / 3 + 1) ** 0.5
    p = stats.t.sf((np.mean(gains) - 0.5 - 0.25) / error, 2)
    assert (alone.p, two.p) == (pytest.approx(p), pytest.approx(2 * p))
    half = stats.t.isf(0.05 / 2, 2) * error
    assert (two.low, two.high) == pytest.approx((np.mean(gains) - half, np.mean(gains) + half))
    assert (
        two.number.startswith("final accuracy, x minus none, largest of 2 cases (a): +4.5 points [+")
        and "largest" not in alone.number
    )
    chosen = "The interval is wider, because we chose the largest of 2 cases (Bonferroni's correction)."
    assert chosen in two.evidence and "chose" not in alone.evidence
    assert "(with Bonferroni's correction for 2 cases)" in two.evidence and "Bonferroni" not in alone.evidence


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({**GAIN, "kind": "value"}, "'so it is': it states no number"),
        ({**POSITIVE, "measure": "best_of_all_seeds", "over": {}}, "is one number over all seeds"),
    ],
)
def test_claims_that_cannot_be_judged_are_refused(runs: Runs, test: Yaml, message: str) -> None:
    runs.pairs({"a": CLEAR})
    with pytest.raises(FltrainError, match=message):
        runs.judged(test)


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((DIVERGED, DIVERGED, 60.0), "supported"),
        ((9.0, DIVERGED, 10.0), "supported"),
        ((60.0, 61.0, 62.0), "contradicted"),
        ((60.0, 61.0, DIVERGED), "inconclusive"),
    ],
)
def test_claims_on_diverged_runs_are_judged(runs: Runs, ends: Sequence[Number], verdict: str) -> None:
    runs.add({"method": "a", "plugin": "none"}, *ends)
    assert runs.judged(FAILS).verdict == verdict
    runs.add({"method": "b", "plugin": "none"}, DIVERGED)
    assert runs.judged(FAILS).verdict == verdict, "every place counts"
    runs.add({"method": "c", "plugin": "none"}, MISSING, MISSING)
    claim = runs.judged(FAILS)
    assert (claim.verdict, "1 case without any run" in claim.reason) == ("inconclusive", True)


@pytest.mark.parametrize("test", [POSITIVE, NEGATIVE, {**GAIN, "kind": "value"}, FAILS])
def test_restricted_runs_decide_no_claim(runs: Runs, test: Yaml) -> None:
    runs.pairs({"a": CLEAR})
    claim = runs.judged(test, 2.1)
    assert claim.verdict in ("supported", "contradicted")
    part = runs.judged(test, 2.1, restricted=["method a", "3 seeds"])
    assert part.verdict == "inconclusive"
    assert part.reason == "inconclusive, because the runs cover only method a and 3 seeds"
    assert (part.estimate, part.needed) == (claim.estimate, claim.needed), "the numbers are shown"
    assert part.number == claim.number


A_OVER_B: Yaml = {**GAIN, "kind": "positive", "at": {"method": "a"}, "minus": {"method": "b"}}


@pytest.mark.parametrize(
    ("test", "decided"), [({**POSITIVE, **AT_A}, True), (POSITIVE, False), (A_OVER_B, True)]
)
def test_a_part_of_the_runs_decides_claims_on_that_part_only(runs: Runs, test: Yaml, decided: bool) -> None:
    runs.pairs({"a": (4.0, 4.1, 4.2), "b": CLEAR})
    restriction = {"to": "method a; b", "axis": "method"}
    assert runs.judged(test).verdict == "supported"
    claim = runs.judged(test, restricted=[restriction])
    assert (claim.verdict == "supported") == decided == ("cover only" not in claim.reason)
    part = runs.judged(test, restricted=[restriction, "3 seeds"])
    limits = "3 seeds" if decided else "method a or b and 3 seeds"
    reason = f"inconclusive, because the runs cover only {limits}"
    assert (part.verdict, part.reason) == ("inconclusive", reason)


def test_a_named_place_that_a_scale_leaves_out_is_missed(runs: Runs) -> None:
    runs.pairs({"a": CLEAR})
    runs.add({"method": "b", "plugin": "none"}, 50.0, 51.0, 52.0)
    assert runs.judged({**POSITIVE, **AT_A}).verdict == "supported"
    claim = runs.judged({**POSITIVE, "at": {"method": ["a", "b"]}})
    assert claim.verdict == "inconclusive"
    assert claim.reason == "inconclusive, because there is no number at b"


ECGR_GAIN: Yaml = {"over": {"plugin": "base"}}
LATER: Yaml = {"rounds": [0.1, 0.2], "minus_rounds": [0.0, 0.1]}
AT_B: Yaml = {"at": {"method": "b"}, "minus": {"method": "a"}}
TIMES: Yaml = {"measure": "final_accuracy", "relative_to": {"method": "a", "plugin": "base"}}


@pytest.mark.parametrize(
    ("test", "number"),
    [
        ({**SIDES, **ECGR_GAIN, **AT_A}, "final accuracy, gain with ECGR, a: -2.00 points"),
        ({**SIDES, **ECGR_GAIN, **AT_B}, "final accuracy, gain with ECGR at b minus at a: +5.00 points"),
        ({**ECGR_GAIN, **AT_A}, "mean drift, change with ECGR, a: -0.50"),
        ({**ECGR_GAIN, "at": {"method": "b"}}, "mean drift, change with ECGR, b: +1.00"),
        (
            {**ECGR_GAIN, **AT_A, **LATER},
            "mean drift, change with ECGR between 10 and 20 % of rounds minus in the first 10 %, a: -1.00",
        ),
        ({"over": {"method": "a"}, "at": {"plugin": "base"}}, "mean drift, b minus a, base: +1.00"),
        (
            {**LATER, "at": {"method": "a", "plugin": "base"}},
            "mean drift between 10 and 20 % of rounds minus in the first 10 %, a, base: +2.00",
        ),
        (
            {"over": {"method": "a"}, "minus": {"plugin": "base"}, "at": {"plugin": "+ ECGR"}},
            "mean drift, (b minus a) at + ECGR minus at base: +1.50",
        ),
    ],
)
def test_numbers_have_the_names_of_their_sides(runs: Runs, test: Yaml, number: str) -> None:
    for method, plugin, accuracy, drift in (
        ("a", "base", 50, (1, 3)),
        ("a", "+ ECGR", 48, (1, 2)),
        ("b", "base", 50, (2, 4)),
        ("b", "+ ECGR", 53, (3, 5)),
    ):
        runs.add({"method": method, "plugin": plugin}, accuracy, rows=drifts(*drift))
    measured = {"curve": "updates.drift"} if "measure" not in test else {}
    claim = {"kind": "positive", "item": "toy", **measured, **test}
    assert runs.judged(claim).number == number
    panels = [{"curve": "updates.drift", "label": "(b) Local drift"}]
    figure = Curves.parse({"kind": "curves", "series": "method", "panels": panels}, "figure")
    sheet = runs.sheet().model_copy(update={"figure": figure})
    assert runs.judged(claim, sheet=sheet).number == number.replace("drift", "local drift")


def test_a_side_with_a_plus_is_subtracted_in_parentheses(runs: Runs) -> None:
    for plugin, value in (("A", 50), ("A + B", 52)):
        runs.add({"method": "a", "plugin": plugin}, *[value + seed for seed in range(3)])
    for less, more, number in (
        ("A", "A + B", "final accuracy, A + B minus A: +2.000 points [+"),
        ("A + B", "A", "final accuracy, A minus (A + B): -2.000 points [-"),
    ):
        claim = runs.judged({"kind": "positive", **SIDES, "at": {"plugin": more}, "minus": {"plugin": less}})
        assert claim.number.startswith(number)


@pytest.mark.parametrize(("gain", "change"), [(5, "+10.0"), (-5, "-10.0")])
def test_a_gain_in_multiples_names_what_they_are_of(runs: Runs, gain: int, change: str) -> None:
    runs.add({"method": "a", "plugin": "base"}, 50)
    runs.add({"method": "a", "plugin": "+ ECGR"}, 50 + gain)
    number = runs.judged({"kind": "positive", **SIDES, **ECGR_GAIN}, measures=[TIMES]).number
    assert number == f"final accuracy (relative to a, base), change with ECGR: {change} %"


@pytest.mark.parametrize(
    ("rounds", "mean", "share"),
    [
        ([0.0, 1.0], 5.5, "in the first 100 %"),
        ([0.5, 1.0], 8.0, "in the last 50 %"),
        ([0.3334, 1.0], 7.0, "in the last 66.7 %"),
        ([0.0, 0.1], 1.0, "in the first 10 %"),
        ([0.0, 0.001], 1.0, "in the first 0.1 %"),
        ([0.2, 0.4], 3.5, "between 20 and 40 %"),
    ],
)
def test_curves_over_a_share_of_the_rounds(runs: Runs, rounds: list[float], mean: float, share: str) -> None:
    """Ten rounds with the values 1 to 10."""
    runs.add({"method": "a", "plugin": "none"}, 50, rows=drifts(*range(1, 11)))
    runs.add({"method": "b", "plugin": "none"}, 50, rows=drifts(*range(1, 11), part="stem"))
    curve = {"kind": "positive", "item": "toy", "curve": "updates.drift", "rounds": rounds}
    assert runs.judged({**curve, "at": {"method": "a"}}).estimate == pytest.approx(mean)
    stem = {**curve, "part": "stem", "at": {"method": "b"}}
    assert runs.judged(stem).estimate == pytest.approx(mean)
    assert runs.judged({**stem, "part": "x"}).evidence == (
        "No complete run, or pair of runs, that it needs has updates.drift of x."
    )
    change = runs.judged({**curve, "at": {"method": "a"}, "minus_rounds": [0.0, 0.2]})
    assert change.estimate == pytest.approx(mean - 1.5)
    change_text = f"mean drift {share} of rounds minus in the first 20 %, a: {mean - 1.5:+.2f}"
    assert change.number == change_text


PARTS_OF_RUNS = {
    "a": [{"stem": 1.0, "head": 4.0}, {"stem": 2.0, "head": 6.0}],
    "b": [{"stem": 3.0}, {"stem": 5.0}],
}


@pytest.mark.parametrize(("by", "verdict"), [(0.05, "supported"), (0.015, "inconclusive")])
def test_accuracies_of_a_curve_vary_by_one_test_image_at_least(runs: Runs, by: float, verdict: str) -> None:
    """Here 1 of 100 images. Without it, runs with equal curves could not be tested."""
    for plugin in ("none", "x"):
        rows = [{**row, "images": 100} for row in accuracies(0.5, 0.6)]
        runs.add({"method": "a", "plugin": plugin}, 60, 60, 60, rows=rows)
    alike = {**SIMILAR, "measure": None, "curve": "evaluation.accuracy", "by": by}
    claim = runs.judged(alike)
    assert claim.verdict == verdict
    assert "mean test accuracy, x minus none: 0.0 points [-1." in claim.number, "as tables of accuracies"
    assert f"within {100 * by:g}, one-sided" in claim.evidence
    assert abs(claim.low) < 5 and claim.unit == "points"


def test_curves_of_network_parts_are_summed(runs: Runs) -> None:
    """Of two seeds, one has a network without the second part."""
    for method, values in PARTS_OF_RUNS.items():
        rows = [
            {"round": number, "kind": "updates", "drift": drift} for number, drift in enumerate(values, 1)
        ]
        runs.add({"method": method, "plugin": "none"}, 50, rows=rows)
    test = {"kind": "positive", "item": "toy", "curve": "updates.drift", "part": ["stem", "head"]}
    claim = runs.judged(test)
    assert (claim.estimate, "1 case without a number" in claim.evidence) == (6.5, True)
    assert claim.number == "mean drift summed over stem and head: 6.50"
    assert claim.reason.startswith("no test") and "By part: stem 2.75, head 5.00." in claim.evidence
    assert runs.judged({**test, "part": ["stem"]}).estimate == pytest.approx(2.75)
    assert "updates.drift of stem, tail" in runs.judged({**test, "part": ["stem", "tail"]}).evidence


def test_the_traffic_of_a_run_that_misses_the_target_is_no_number(runs: Runs) -> None:
    """Only rounds have one: a round more than the run was to do. The claim stays inconclusive."""
    runs.summary["bytes"] = {"down": 1, "up": 1}
    for method, rows in (("slow", accuracies(0.1, 0.6)), ("never", accuracies(0.5))):
        runs.add({"method": method, "plugin": "none"}, 60, rows=rows)
    test = {"kind": "positive", "item": "toy", "measure": "traffic_to_target"}
    sheet = runs.sheet(measures=[{"measure": "traffic_to_target", "target_of": {"method": "slow"}}])
    claim = runs.judged(test, sheet=sheet)
    assert (claim.verdict, "1 case without a number" in claim.evidence) == ("inconclusive", True)


def selections(runs: Runs, method: str, shares: Mapping[str, int]) -> None:
    """Add a run that selected layers of each block ``shares[block]`` times."""
    runs.summary["layers"] = [f"{block}.0" for block in shares]
    selected = [f"{block}.0" for block, times in shares.items() for _ in range(times)]
    runs.add({"method": method, "plugin": "x"}, 50, rows=[{"round": 1, "kind": "flfa", "selected": selected}])


def test_shares_of_network_parts_are_summed(runs: Runs) -> None:
    selections(runs, "a", {"stem": 5, "stage": 3, "head": 2})
    share = {"kind": "positive", "item": "toy", "measure": "selection_share", "part": ["stem", "stage"]}
    assert runs.judged(share).estimate == pytest.approx(80)
    selections(runs, "b", {"stem": 10})
    claim = runs.judged(share)
    assert claim.estimate == pytest.approx(80), "the other network has no such stage"
    assert "1 case without a number" in claim.evidence
    assert runs.judged({**share, "part": "stem"}).estimate == pytest.approx(75)


def test_rounds_to_target_use_the_targets_of_the_table(runs: Runs) -> None:
    """The target is FedAvg's best; a run that never reaches it counts as the round after the last."""
    runs.add({"method": "slow", "plugin": "none"}, 60, rows=accuracies(0.1, 0.2, 0.60))
    runs.add({"method": "fast", "plugin": "none"}, 60, rows=accuracies(0.60, 0.2))
    runs.add({"method": "never", "plugin": "none"}, 60, rows=accuracies(0.59))
    sheet = runs.sheet(measures=[{"measure": "rounds_to_target", "target_of": {"method": "slow"}}])
    rounds = {"kind": "positive", "item": "toy", "measure": "rounds_to_target"}
    claims = [
        runs.judged({**rounds, "at": {"method": method}}, sheet=sheet) for method in ("slow", "fast", "never")
    ]
    assert [claim.estimate for claim in claims] == [3, 1, 4], "a run has three rounds"
    late = "A run that misses the target counts as its planned rounds plus one (in 1 of {})."
    assert [late.format("1 value") in claim.evidence for claim in claims] == [False, False, True]
    over = runs.judged({**rounds, "over": {"method": "fast"}}, sheet=sheet)
    assert late.format("2 values") in over.evidence
    sides = {**rounds, "over": {"method": "fast"}, "at": {"method": "slow"}}
    for changes, words in (
        ({}, "slow minus fast: +2.00 rounds"),
        ({"relative": True}, "rounds to target, slow relative to fast: +200 %"),
        ({"over": sides["at"], "at": sides["over"]}, "fast minus slow: -2.00 rounds"),
    ):
        claim = runs.judged({**sides, **changes}, sheet=sheet)
        assert claim.number == words and claim.reason.startswith("no test")
    with pytest.raises(FltrainError, match="no target"):
        runs.judged(rounds)


def test_rounds_that_every_run_reaches(runs: Runs) -> None:
    runs.add({"method": "a", "plugin": "none"}, *[60] * 3, rows=accuracies(0.1, 0.2, 0.60))
    settled = {"kind": "value", "item": "toy", "measure": "rounds_to_settle", "by": 1.0}
    assert runs.judged(settled, 3).estimate == 3


@pytest.mark.parametrize(
    "test",
    [
        {"kind": "value", "item": "toy", "curve": "updates.drift"},
        {**SIMILAR, "by": None},
        {**SIMILAR, "by": 0.0},
        {**POSITIVE, "judge": "largest"},
        {**GAIN, "kind": "value", "judge": "every"},
        {"kind": "cell", "item": "toy", "curve": "updates.drift", "over": {"plugin": "none"}},
        {"kind": "cell", "item": "toy", "measure": "final_accuracy"},
        {"kind": "positive", "item": "toy"},
        {"kind": "positive", "item": "toy", "curve": "a.b", "rounds": [0.5, 0.5]},
        {"kind": "positive", "item": "toy", "curve": "a.b", "minus_rounds": [0.5, 0.2]},
        {"kind": "positive", "item": "toy", "measure": "fall", "minus_rounds": [0.0, 0.2]},
        {"kind": "positive", "item": "toy", "measure": "fall", "relative": True},
        {"kind": "positive", "item": "toy", "measure": "fall", "reverse": True},
        {**POSITIVE, "over": {"plugin": []}},
        {"kind": "all", "tests": [POSITIVE, {"kind": "tested", "by": "tests/x.py"}]},
    ],
)
def test_invalid_claims_are_refused(test: Yaml) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(tests_of_claims.Test).validate_python(test)


def test_claim_files_are_written(runs: Runs, tmp_path: Path) -> None:
    runs.pairs({"a": CLEAR})
    claim = Claim.parse({"where": "sec. 1", "claim": "a | b", "test": POSITIVE}, "claim")
    stated = tmp_path / "claims.csv"
    stated.write_text("where,claim,value,unit\nsec. 1,a | b,2.5,points\n")
    sheet, nothing = runs.sheet(reduced=True), Published.read(None)
    judge = Judge([sheet], runs.results.record, lambda _: nothing, True)
    judged = judge.judge([claim], read_claims(stated))
    other = sheet.model_copy(update={"id": "toy/other", "title": "Another", "scale": "other"})
    *markdown, first, second = to_markdown("A toy", [sheet, other], judged).splitlines()
    assert markdown[0] == "**Claims of A toy.**"
    assert (first, second) == (f"* {sheet.title}: {sheet.scale_note}", "* Another: Reduced scale: other.")
    (heading, *_) = to_markdown("A toy", [sheet], judged).splitlines()
    assert heading == f"**Claims of A toy.** {sheet.scale_note}"
    assert markdown[4] == (
        r"| sec. 1 | a \| b | 2.5 points | reduced scale | "
        f"final accuracy, x minus none: +2.10 points [+1.93, +2.27] |  | 3 seeds. | {sheet.title} |"
    )
    (line,) = judged.to_dict("records")
    assert (line["verdict"], line["reduced"], line["stated"]) == ("reduced scale", True, "2.5 points")
    heading = {"paper": "toy", "title": "A toy", "kind": "paper", "scale": "demo", "reduced": True}
    cells = {sheet.id: table_cells(sheet, runs.results.record, nothing)}
    summary = paper_summary(heading, [sheet], judged, cells)
    write_json(tmp_path / "summary.json", summary)
    assert summary["counts"] == {"claims": ({"reduced scale": 1}, {})}
    number = "final accuracy, x minus none: +2.10 points [+1.93, +2.27]"
    assert summary["examples"] == [("reduced scale", "a | b (sec. 1)", [number])]
    assert [row["verdict"] for row in summary["claims"]] == ["reduced scale"]


@pytest.mark.parametrize(("verdict", "picture"), [("inconclusive", ""), ("supported", "curves")])
def test_a_card_shows_the_figure_of_a_decided_claim(runs: Runs, verdict: str, picture: str) -> None:
    """Among confirmatory claims; without any, the first figure would do."""
    runs.pairs({"a": CLEAR})
    panels = [{"curve": "test.accuracy", "label": "a"}]
    curves = Curves.parse({"kind": "curves", "series": "method", "panels": panels}, "figure")
    sheet = runs.sheet().model_copy(update={"id": "toy/curves", "table": None, "figure": curves})
    judged = pd.DataFrame(runs.judge(POSITIVE)).assign(verdict=verdict, item="curves", exploratory=False)
    heading = {"paper": "toy", "title": "A toy", "kind": "paper", "scale": "demo", "reduced": False}
    assert paper_summary(heading, [sheet], judged, {})["picture"] == picture


@pytest.mark.parametrize("reduced", [True, False])
def test_at_a_reduced_scale_a_card_shows_the_claim_of_its_figure(runs: Runs, reduced: bool) -> None:
    runs.pairs({"a": CLEAR})
    panels = [{"curve": "test.accuracy", "label": "a"}]
    curves = Curves.parse({"kind": "curves", "series": "method", "panels": panels}, "figure")
    sheet = runs.sheet().model_copy(update={"id": "toy/curves", "table": None, "figure": curves})
    verdict = "reduced scale" if reduced else "supported"
    judged = pd.DataFrame(2 * runs.judge(POSITIVE)).assign(verdict=verdict, exploratory=False)
    judged = judged.assign(claim=["1", "2"], item=["b", "a, curves"])
    heading = {"paper": "toy", "title": "A toy", "kind": "paper", "scale": "demo", "reduced": reduced}
    summary = paper_summary(heading, [sheet], judged, {})
    assert summary["examples"][0][1] == ("2 (sec. 1)" if reduced else "1 (sec. 1)")
    assert [claim["claim"] for claim in summary["claims"]] == ["1", "2"]


@pytest.mark.parametrize("test", [POSITIVE, FAILS, {"kind": "all", "tests": [POSITIVE, POSITIVE]}])
def test_a_reduced_scale_decides_nothing(runs: Runs, test: Yaml) -> None:
    """Numbers and intervals are shown, without the words supported or contradicted."""
    runs.pairs({"a": CLEAR})
    claim = runs.judged(test, reduced=True)
    assert (claim.verdict, pd.isna(claim.p)) == ("reduced scale", True)
    assert not any(word in claim.evidence for word in ("supported", "contradicted", "opposite", "p 0"))
    assert (claim.needed, claim.reason) == ("", "")
    assert "3 seeds" in claim.evidence or "0 of 6" in claim.number


@pytest.mark.parametrize(
    ("seen", "decided", "other", "exploratory"),
    [
        ("2026-11-23", None, "2026-11-24", True),
        ("2026-11-24", None, "2026-11-23", False),
        ("2026-11-24", "2026-11-30", "2026-12-01", True),
    ],
)
def test_a_test_written_after_its_own_runs_is_exploratory(
    runs: Runs, seen: str, decided: str | None, other: str, exploratory: bool
) -> None:
    """The paper's other items may have been seen on another day."""
    runs.pairs({"a": CLEAR})
    toy = runs.sheet().model_dump(mode="json")
    sheet = ItemJob.parse({**toy, "seen": seen}, "sheet")
    others = [ItemJob.parse({**toy, "id": "paper/other", "seen": other}, "sheet")]
    (claim,) = runs.judge(POSITIVE, sheet=sheet, others=others, decided=decided)
    assert claim.exploratory == exploratory
    declared, open_ = runs.judge(POSITIVE, {**POSITIVE, "item": "none"}, sheet=sheet, exploratory=True)
    assert declared.exploratory and not open_.exploratory, "no verdict, no mark"


def test_the_list_of_contradicted_claims_limits_the_false_discovery_rate(runs: Runs) -> None:
    """A p of 0.03 alone is listed; among many claims that hold it is greyed, with the same verdict.

    Claims of any verdict enter the list, also those with several parts.
    """
    runs.pairs({"a": (-1.0, -1.2, -0.5), "b": CLEAR})
    near, holds = ({**POSITIVE, "at": {"method": method}} for method in "ab")
    for others, dropped in ((0, False), (3, True)):
        joint = {"kind": "all", "tests": [holds, holds]}
        first, *_ = runs.judge(near, *[holds, joint, joint] * others)
        assert (first.verdict, first.dropped) == ("contradicted", dropped)


NIGHTLY = [pytest.param(name, marks=pytest.mark.slow) for name in ("flfa", "ecgr", "fed2", "fedimpro")]


@pytest.mark.parametrize("paper", ["fedfcd", *NIGHTLY])
def test_the_papers_claims_are_judged_without_any_run(paper: str, tmp_path: Path) -> None:
    items = [item for item in shipped("paper").items if item.paper.paper == paper]
    reported = ROOT / "config" / "reported"

    def published(sheet: ItemJob) -> Published:
        return Published.read(reported / sheet.reported if sheet.reported else None)

    claims, stated = items[0].paper.claims, read_claims(reported / f"{paper}_claims.csv")
    sheets = [item.sheet for item in items]
    judged = Judge(sheets, Results(tmp_path).record, published, False).judge(claims, stated)
    assert len(judged) == len(claims)
    assert {*judged["verdict"]} <= {"not run", "by definition", "not judged"}
