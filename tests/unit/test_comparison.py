"""Verdicts on published values: the rule against theory, its error rates, and tables by hand."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fltrain.core.errors import FltrainError
from fltrain.core.statistics import (
    Sample,
    Spread,
    contrast,
    discoveries,
    moderated,
)
from fltrain.experiments.layout import ItemJob
from fltrain.experiments.published import Published
from fltrain.reporting.pages import tone
from fltrain.reporting.tables import write as tables
from fltrain.reporting.tables.cells import cells as table_cells
from fltrain.reporting.tables.render import gain_text, published_text, value_text
from fltrain.reporting.tables.table_cell import TableCell, read_csv, to_csv
from fltrain.reporting.text import number_text
from fltrain.reporting.verdict import Judgeable, compare
from fltrain.runs.measures import measure

from .helpers import DIVERGED, MISSING, Cells

CONFIG = Path(__file__).parents[2] / "config"
REPORTED = CONFIG / "reported"
AUDIT = (CONFIG.parent / "docs" / "protocol-audit.md").read_text(encoding="utf-8")
NEVER = math.inf
VALUES = (61.2, 59.8, 62.9, 60.1)
Yaml = dict[str, Any]
FloatArray = NDArray[np.float64]
REDUCED: Yaml = {"reduced": True}


@pytest.mark.parametrize("point", [60.0, 75.0])
def test_a_contrast_with_a_number_is_a_t_test(point: float) -> None:
    theirs, ours = stats.ttest_1samp(VALUES, point), contrast(Sample(VALUES), point)
    assert ours is not None
    interval = theirs.confidence_interval(0.9)
    assert ours.interval == pytest.approx((interval.low - point, interval.high - point))
    assert ours.p_above() == pytest.approx(stats.ttest_1samp(VALUES, point, alternative="greater").pvalue)
    assert ours.p_below() == pytest.approx(stats.ttest_1samp(VALUES, point, alternative="less").pvalue)


def test_a_contrast_with_a_margin_is_two_one_sided_tests() -> None:
    for margin in (0.5, 1.5, 3.0):
        ours = contrast(Sample(VALUES), 60.5, region=(-margin, margin))
        assert ours is not None
        above = stats.ttest_1samp(VALUES, 60.5 - margin, alternative="greater").pvalue
        below = stats.ttest_1samp(VALUES, 60.5 + margin, alternative="less").pvalue
        assert (ours.p_above(-margin), ours.p_below(margin)) == pytest.approx((above, below))
        assert ours.p_inside == pytest.approx(max(above, below))
        assert (ours.position == "inside") == (max(above, below) <= 0.05)


@pytest.mark.parametrize("values", [(), (60.0,), (60.0, 61.0), (60.0, 61.0, NEVER), (60.0, 60.0, 60.0)])
def test_no_contrast_without_two_degrees_of_freedom_or_without_any_spread(values: Sequence[float]) -> None:
    assert contrast(Sample(values)) is None


LIMMA: list[tuple[list[float], list[int], float, float, list[float]]] = [
    (
        [0.25, 0.09, 1.44, 0.64, 0.16, 4.0, 0.36, 0.04],
        [2] * 8,
        4.3584120896480059,
        0.47722263195318421,
        [
            *(0.40575112971345978, 0.35542409908249689, 0.78005842003124626, 0.52842326687643182),
            *(0.37744217498354310, 1.58529091012665280, 0.44035096327224671, 0.33969690201032099),
        ],
    ),
    (
        [0.25, 0.09, 1.44, 0.64, 0.16, 4.0, 0.36, 0.04],
        [2, 4, 2, 1, 3, 2, 9, 2],
        2.954902433968245,
        0.40505331314171483,
        [
            *(0.34246749426514134, 0.22385547973834644, 0.82279985836659209, 0.46445975635516878),
            *(0.28159873977513716, 1.85611990214786471, 0.37113586207801419, 0.25770295942370886),
        ],
    ),
    (
        [27.3, 0.31, 0.0025, 14.2],
        [4] * 4,
        0.4931510602469153,
        0.054079831029106219,
        [24.3095921017192715, 0.2819111819357282, 0.0081612048022179414, 12.6473979539176984],
    ),
    ([0.25, 0.26, 0.24, 0.27, 0.23], [4] * 5, math.inf, 0.25, [0.25] * 5),
]
"""Variances, degrees of freedom, and limma 3.54.1's ``squeezeVar``: df.prior, var.prior, var.post."""


def sample(square: float, df: int) -> Sample:
    """A sample with this variance and these degrees of freedom."""
    values = np.arange(df + 1.0)
    return Sample((60 + (values - values.mean()) * math.sqrt(square / np.var(values, ddof=1))).tolist())


@pytest.mark.parametrize(("squares", "df", "prior_df", "prior", "posterior"), LIMMA)
def test_moderated_spreads_are_limmas(
    squares: list[float], df: list[int], prior_df: float, prior: float, posterior: list[float]
) -> None:
    samples = moderated([sample(*pair) for pair in zip(squares, df, strict=True)])
    estimated = samples[0].prior
    assert (estimated.df, estimated.variance) == pytest.approx((prior_df, prior), rel=1e-9)
    spreads = [member.spread for member in samples]
    assert [spread.std**2 for spread in spreads] == pytest.approx(posterior, rel=1e-9)
    # As in limma's eBayes, a moderated variance has at most the degrees of freedom of all cells together.
    assert [spread.df for spread in spreads] == pytest.approx([min(d + prior_df, sum(df)) for d in df])


def spreads(*samples: Sample) -> list[Spread]:
    """Spreads of samples of one family."""
    return [member.spread for member in moderated(samples)]


def test_equal_spreads_are_pooled_and_few_cells_are_not_moderated() -> None:
    samples = [sample(square, df) for square, df in zip((0.25, 0.26, 0.24, 0.27), (4, 4, 2, 9), strict=True)]
    pooled = (0.25 * 4 + 0.26 * 4 + 0.24 * 2 + 0.27 * 9) / 19
    assert spreads(*samples) == [Spread(pytest.approx(math.sqrt(pooled)), 19, 4)] * 4
    assert [spread.df for spread in spreads(*samples[:3])] == [4, 4, 2]


def test_diverged_cells_have_their_own_spread_and_change_no_other() -> None:
    calm = [sample(square, 2) for square in (0.25, 0.36, 0.16, 0.2)]
    wild = Sample((60.0, 10.0, 60.0), diverged=True)
    *others, wild_spread = spreads(*calm, wild)
    assert others == spreads(*calm)
    assert wild_spread == Spread(pytest.approx(np.std(wild.values, ddof=1)), 2, 1)


def numbers(
    values: Sequence[float],
    published: float | None = 60.0,
    floor: float = 0.01,
    base: str | None = None,
    published_gain_stds: tuple[float | None, float | None] = (None, None),
    gain_margin: float | None = None,
    **changes: Any,
) -> Judgeable:
    """A cell as the rule gets it, with these fields changed."""
    fields = {"measure": "final_accuracy", "seeds": len(values), "published_seeds": 3, "margin": 1.0}
    cell = TableCell(values=values, published=published, **{**fields, **changes})
    shares, diverged = measure(cell.measure).margin.relative, bool(cell.diverged)
    return Judgeable(
        cell,
        Sample(values, floor, diverged, shares),
        Sample(cell.gains, floor, diverged or bool(cell.base_diverged), base=base),
        published_gain_stds,
        gain_margin=gain_margin,
    )


def judged(values: Sequence[float], published: float | None = 60.0, **changes: Any) -> TableCell:
    return compare([numbers(values, published, **changes)])[0]


@pytest.mark.parametrize(
    ("cell", "verdict", "detail"),
    [
        (numbers((59.9, 60.0, 60.1)), "reproduced", ""),
        (numbers((65.0, 65.1, 65.2)), "not reproduced", "better"),
        (numbers((55.0, 55.1, 55.2)), "not reproduced", "worse"),
        (numbers((58.0, 62.0, 66.0)), "inconclusive", ""),
        (numbers((65.0,)), "inconclusive", "one seed"),
        (numbers((65.0, 65.2)), "inconclusive", "too few seeds"),
        (numbers(()), "not run", ""),
        (numbers((), seeds=3, diverged=3), "inconclusive", "diverged"),
        (numbers((60.0, 10.0, 10.0), diverged=2), "inconclusive", ""),
        (numbers((10.0, 10.0, 10.0), None, diverged=3, published_failed=True), "reproduced", ""),
        (numbers((10, 60, 60), None, diverged=1, published_failed=True), "inconclusive", "some runs fail"),
        (numbers((10.0,), None, diverged=1, published_failed=True), "inconclusive", "one seed"),
        (numbers((10, 60), None, diverged=1, published_failed=True), "inconclusive", "some runs fail"),
        (numbers((60.0, 60.1, 60.2), None, published_failed=True), "not reproduced", "better"),
        (numbers((), None, published_failed=True), "not run", ""),
        (numbers((NEVER, NEVER, 90), None, over_seeds="median", published_failed=True), "reproduced", ""),
        (numbers((58, 59, 60, 61, 62), over_seeds="median", margin=12.0), "reproduced", ""),
        (numbers((58, 59, 61, 62), over_seeds="median", margin=12.0), "inconclusive", "too few seeds"),
        (numbers((98, 99, 99, 99, 99), over_seeds="max", margin=12.0), "not reproduced", "better"),
        (numbers((NEVER,) * 5, over_seeds="median", margin=12.0), "not reproduced", "better"),
        (numbers((50, 50, 51), margin=3.0, measure="rounds_to_target"), "not reproduced", "fewer"),
        (numbers((70, 70, 71), margin=2.0, measure="selection_share"), "not reproduced", "more"),
        (numbers((58, 59, 60, NEVER, NEVER), over_seeds="median", margin=12.0), "inconclusive", ""),
        (
            numbers((NEVER, 5, 6), 6.0, margin=1.2, measure="rounds_to_target"),
            "inconclusive",
            "target missed",
        ),
    ],
)
def test_verdicts_of_cells(cell: Judgeable, verdict: str, detail: str) -> None:
    (result,) = compare([cell])
    assert (result.verdict, result.side or result.reason) == (verdict, detail)


def test_one_seed_decides_nothing_whatever_the_spread_of_other_cells() -> None:
    """Neither the value nor the gains; a single seed changes no other cell."""
    three = [
        numbers((60.0, 60.1 + step, 59.9), None, gains=(1.0, 1.1 + step, 0.9), gain_margin=0.5)
        for step in (0.0, 0.1, 0.2, 0.3)
    ]
    single = (
        numbers((65.0,), gains=(5.0,), gain_margin=0.5),
        numbers((65.0,), gains=(5.0,), published_gain=9.0),
    )
    *others, ours, printed = compare([*three, *single])
    assert all(cell.spread_cells == 4 for cell in others) and others == compare(three)
    for cell in (ours, printed):
        assert (cell.full_verdict, cell.gain_verdict) == ("inconclusive (one seed)", "inconclusive")
        assert not any(map(cell.interval, ("", "difference_", "gain_"))) and cell.spread is cell.p is None


def test_the_spread_of_rounds_is_moderated_as_a_share_of_the_mean() -> None:
    """Cells with tens and with thousands of rounds, all with a deviation of a tenth."""
    cells = [
        numbers((0.9 * mean, mean, 1.1 * mean), measure="rounds_to_target")
        for mean in (50.0, 5000.0, 70.0, 300.0)
    ]
    results = compare(cells)
    assert [cell.spread for cell in results] == pytest.approx([5.0, 500.0, 7.0, 30.0])
    assert {(cell.spread_df, cell.spread_cells) for cell in results} == {(8, 4)}


def test_gains_over_one_base_do_not_moderate_each_other() -> None:
    """They share the luck of the base's seeds, so they are not independent."""
    gains = [(0.9, 1.0, 1.1), (0.8, 1.0, 1.3), (0.7, 1.0, 1.2), (0.9, 1.0, 1.3)]
    for base, is_equal in (("FedAvg", True), (None, False)):
        results = compare([numbers((60, 61, 62), gains=values, base=base) for values in gains])
        for cell, values in zip(results, gains, strict=True):
            alone = stats.ttest_1samp(values, 0).confidence_interval(0.9)
            assert (cell.interval("gain_") == pytest.approx(tuple(alone))) == is_equal


def test_without_a_published_value_there_is_no_verdict() -> None:
    cell = judged((1.0, 2.0, 3.0), None)
    assert (cell.verdict, cell.interval("difference_")) == (None, None)
    low, high = stats.t.interval(0.9, 2, 2.0, 1 / math.sqrt(3))
    assert cell.interval() == pytest.approx((low, high))


def test_the_interval_is_a_prediction_interval() -> None:
    """Variance s^2 / n of ours and s_p^2 / m of the paper; s_p is ours unless the paper prints it."""
    half = stats.t.isf(0.05, 2)
    for changes, variance in (({}, 1 / 3), ({"published_std": 4.0}, 16 / 3), ({"published_seeds": None}, 1)):
        cell, error = judged((61.0, 62.0, 63.0), **changes), math.sqrt(1 / 3 + variance)
        assert cell.interval("difference_") == pytest.approx((2 - half * error, 2 + half * error))
        assert cell.p == pytest.approx(stats.t.sf((2 - 1) / error, 2))


@pytest.mark.parametrize(("theirs", "decided"), [(100, True), (1, False)])
def test_the_number_of_seeds_needed_for_a_verdict(theirs: int, decided: bool) -> None:
    """With one seed fewer the cell stays open, for an unchanged difference and spread."""
    cell = judged((59.0, 60.0, 61.5), published_seeds=theirs)
    assert cell.verdict == "inconclusive" and cell.seeds_needed is not None
    if not decided:
        assert cell.seeds_needed == NEVER, "with one seed of the paper, the interval exceeds the margin"
        return
    needed, difference = int(cell.seeds_needed), cell.difference or 0.0

    def is_open(seeds: int) -> bool:
        error = cell.spread * math.sqrt(1 / seeds + 1 / theirs)
        return abs(abs(difference) - 1) < stats.t.isf(0.05, cell.spread_df + seeds - 3) * error

    assert is_open(needed - 1) and not is_open(needed)


@pytest.mark.parametrize(
    ("gains", "published", "verdict"),
    [
        ((1.9, 2.0, 2.1), 2.0, "size reproduced"),
        ((0.6, 0.7, 0.8), 2.0, "direction reproduced"),
        ((-0.6, -0.7, -0.8), 2.0, "opposite"),
        ((-0.6, 0.1, 0.8), 2.0, "inconclusive"),
        ((0.01, 0.0, -0.01), 0.0, "size reproduced"),
        ((3.0, 3.1, 3.2), 0.0, "inconclusive"),
        ((2.0,), 2.0, "inconclusive"),
    ],
)
def test_verdicts_on_gains(gains: Sequence[float], published: float, verdict: str) -> None:
    values = [60 + gain for gain in gains]
    cell = judged(values, gains=gains, published_gain=published, published_gain_stds=(0.1, 0.1))
    assert cell.gain_verdict == verdict
    if cell.interval("gain_difference_"):  # the p value belongs to the interval against the margin
        low, high = cell.interval("gain_difference_")
        beyond = low > cell.gain_margin or high < -cell.gain_margin
        assert (cell.gain_p < 0.05) == beyond
    else:
        assert cell.gain_p is None


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.9, 1.0, 1.1), "better"),
        ((-0.9, -1.0, -1.1), "worse"),
        ((0.2, 0.1, 0.0), "equivalent"),
        ((0.3, 0.5, 0.9), "inconclusive"),
        ((2.0,), "inconclusive"),
        ((2.0, math.inf), "inconclusive"),
    ],
)
def test_verdicts_on_differences_among_our_own_runs(gains: Sequence[float], verdict: str) -> None:
    values = [60 + gain for gain in gains]
    cell = judged(values, None, gains=gains, gain_margin=0.5)
    assert (cell.gain_verdict, cell.gain_margin) == (verdict, 0.5)
    if cell.interval("gain_"):  # alone, the verdict follows from the 90 % interval
        low, high = cell.interval("gain_")
        beyond, inside = low > 0.5 or high < -0.5, low > -0.5 and high < 0.5
        assert (beyond, inside) == (verdict in ("better", "worse"), verdict == "equivalent")
        assert (cell.gain_p <= 0.05) == (beyond or inside)
    else:
        assert cell.gain_p is None
    assert not cell.reason, "a single test has no correction"


def test_a_published_gain_has_its_own_margin_and_judging_twice_changes_nothing() -> None:
    case = numbers((65.0, 65.1, 64.9), gains=(3.0, 3.1, 2.9), published_gain=-8.0, gain_margin=0.5)
    (cell,) = compare([case])
    assert (cell.gain_verdict, cell.gain_margin) == ("opposite", 4.0)
    assert compare([replace(case, cell=cell)]) == [cell]


def test_a_difference_that_only_the_correction_leaves_open_has_a_reason() -> None:
    """The others have an interval that reaches across the margin, or none."""
    options: dict[str, Any] = {"gain_margin": 0.5, "floor": 0.0, "base": "FedAvg"}
    gains = [(0.8, 1.0, 1.2), (0.3, 0.5, 0.9), *[(0.4, 0.5, 0.6)] * 4, (2.0,)]
    alone, *others, single = compare([numbers(values, None, gains=values, **options) for values in gains])
    assert alone.gain_low > 0.5 and alone.gain_p == pytest.approx(stats.t.sf(0.5 * math.sqrt(3) / 0.2, 2))
    for cell in (alone, *others, single):
        assert cell.gain_verdict == "inconclusive"
    assert alone.full_gain_verdict == f"inconclusive ({alone.reason})" and "correction" in alone.reason
    assert alone.full_verdict == "", "the reason is of the gain"
    assert {cell.reason for cell in (*others, single)} == {""} and single.gain_p is None


def test_false_discoveries_among_our_own_differences_are_rare() -> None:
    """Of 20 methods, half differ by exactly the margin, where every verdict but inconclusive is false."""
    random, shares, powers = np.random.default_rng(0), [], []
    true = np.repeat([0.5, 1.5], 10)
    for _ in range(400):
        drawn = random.normal(true[:, None], 0.3, (20, 5))
        cells = [numbers(gains, None, gains=gains, gain_margin=0.5, floor=0.0) for gains in drawn.tolist()]
        verdicts = [cell.gain_verdict for cell in compare(cells)]
        false = sum(verdict != "inconclusive" for verdict in verdicts[:10])
        hits = sum(verdict == "better" for verdict in verdicts[10:])
        shares.append(false / max(1, false + hits))
        powers.append(hits / 10)
    # At the margin both sides are false, at 5 % of the list each; half of the list is true.
    assert np.mean(shares) < 0.05 + 0.01 and np.mean(powers) > 0.95


def test_the_size_of_a_gain_allows_for_both_published_means() -> None:
    gains = {"gains": (1.0, 2.0, 3.0), "published_gain": 2.5, "published_gain_stds": (0.3, None)}
    cell = judged((61, 62, 63), **gains)
    half = stats.t.isf(0.05, 2)
    assert cell.interval("gain_") == pytest.approx((2 - half / math.sqrt(3), 2 + half / math.sqrt(3)))
    error = math.sqrt(1 / 3 + (0.09 + 1) / 3)
    differences = cell.gain_difference_low, cell.gain_difference_high
    assert differences == pytest.approx((-0.5 - half * error, -0.5 + half * error))


def test_the_list_of_deviations_limits_the_false_discovery_rate() -> None:
    ps = [0.001, 0.02, None, 0.04, 0.9]
    # Benjamini and Hochberg: 0.001 <= 0.0125 and 0.02 <= 0.025, but 0.04 > 0.0375.
    assert discoveries(ps) == [True, True, False, False, False]
    near = numbers((62.4, 62.5, 62.6))
    alone, among = compare([near])[0], compare([near, *[numbers((59.9, 60.0, 60.1))] * 40])[0]
    assert alone.verdict == among.verdict == "not reproduced", "labels are not corrected"
    assert not alone.dropped and not among.dropped
    doubtful = [numbers((61.8, 62.5, 63.0)), *[numbers(tuple(60 + np.array([-0.6, 0.1, 0.5])))] * 200]
    first = compare(doubtful)[0]
    assert first.verdict == "not reproduced" and first.p is not None
    assert first.dropped == (first.p * 201 > 0.05)


RATES = re.findall(r"^\| (\d+) \| (\d+) \| (\S+) \| (\d) \| (\S+) \| (\S+) \| (\S+) \|$", AUDIT, re.MULTILINE)
"""Rows of the documented table: our seeds, the paper's seeds, spread, true deviation, rates of verdicts."""

DAILY = ("3", "3", "0.5", "0")
"""An exact replication."""
assert len(RATES) == 11 and DAILY in [row[:4] for row in RATES]


def simulated(
    draws: np.random.Generator, spreads: FloatArray, miss: float, seeds: int = 3, theirs: int = 3
) -> list[TableCell]:
    """A table whose cells have these spreads, and whose published values are wrong by ``miss``."""
    ours = draws.normal(50 + miss, spreads[:, None], (len(spreads), seeds)).tolist()
    published = draws.normal(50, spreads / math.sqrt(theirs)).tolist()
    return compare(
        [
            numbers(values, value, published_seeds=theirs)
            for values, value in zip(ours, published, strict=True)
        ]
    )


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if row[:4] == DAILY else pytest.mark.slow) for row in RATES],
    ids=" ".join,
)
def test_error_rates_are_those_of_the_documentation(row: tuple[str, ...]) -> None:
    """200 simulated tables of 96 cells with a margin of one point; our means have the true deviation."""
    seeds, published_seeds, spread, miss, *documented = map(float, row)
    draws = np.random.default_rng(0)
    counts: Counter[str | None] = Counter()
    for _ in range(200):
        table = simulated(draws, np.full(96, spread), miss, int(seeds), int(published_seeds))
        counts.update(cell.verdict for cell in table)
    rates = [counts[verdict] / counts.total() for verdict in ("reproduced", "inconclusive", "not reproduced")]
    assert rates == pytest.approx(documented, abs=0.0006), "docs/protocol-audit.md is out of date"
    reproduced, _, missed = rates
    assert miss != 0 or missed <= 0.01
    assert miss != 1 or max(reproduced, missed) <= 0.06
    assert (miss, spread) != (3, 0.5) or missed >= 0.9


SPREADS: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "all 0.5": lambda draws: np.full(96, 0.5),
    "0.3 to 0.8": lambda draws: draws.uniform(0.3, 0.8, 96),
    "half 0.5, half 5": lambda draws: np.repeat([0.5, 5.0], 48),
    "log-normal, factor 3": lambda draws: 0.5 * np.exp(draws.normal(0, np.log(3), 96)),
    "12 cells, half 0.5, half 5": lambda draws: np.repeat([0.5, 5.0], 6),
}
MODERATED = {"all 0.5": (0.54, 1.00), "0.3 to 0.8": (0.45, 0.99), "half 0.5, half 5": (0.02, 0.57)}
MODERATED |= {"12 cells, half 0.5, half 5": (0.06, 0.56)}
"""Rates of an independent simulation: "reproduced" at a true value, "not reproduced" at a miss of 3."""
NAMES = "|".join(SPREADS)
UNEQUAL = re.findall(rf"^\| ({NAMES}) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", AUDIT, re.MULTILINE)
"""Rows of the table on unequal spreads: rates at a true value, of the wider cells, and at a miss of 3."""
assert len(UNEQUAL) == len(SPREADS)


@pytest.mark.slow
@pytest.mark.parametrize("row", UNEQUAL, ids=" ".join)
def test_error_rates_with_unequal_spreads_are_those_of_the_documentation(row: tuple[str, ...]) -> None:
    """100 simulated tables a line; three seeds on both sides, a margin of one point."""
    name, *documented = row
    draws = np.random.default_rng(0)
    rates: list[list[float]] = []
    for _ in range(100):
        spreads = SPREADS[name](draws)
        wide = spreads > np.median(spreads)
        true, missed = simulated(draws, spreads, 0.0), simulated(draws, spreads, 3.0)
        false = np.array([cell.verdict == "not reproduced" for cell in true])
        rates.append(
            [
                np.mean([cell.verdict == "reproduced" for cell in true]),
                false.mean(),
                false[wide].mean() if wide.any() else false.mean(),
                np.mean([cell.verdict == "not reproduced" for cell in missed]),
            ]
        )
    means = np.mean(rates, axis=0)
    shares = [float(share) for share in documented]
    assert means == pytest.approx(shares, abs=0.0006), "docs/protocol-audit.md is out of date"
    if name in MODERATED:
        assert (means[0], means[3]) == pytest.approx(MODERATED[name], abs=0.04)


BASELINES = re.findall(r"^\| (one|separate) \| (\S+) \| (\S+) \|$", AUDIT, re.MULTILINE)
"""Rows of the table on differences from one baseline: baselines, false tables and false cells."""
assert len(BASELINES) == 2


@pytest.mark.slow
@pytest.mark.parametrize("row", BASELINES, ids=" ".join)
def test_error_rates_with_a_shared_baseline_are_those_of_the_documentation(row: tuple[str, ...]) -> None:
    """1,000 simulated tables of 15 differences of 0, whose baseline varies more than the methods do."""
    baselines, *documented = row
    draws = np.random.default_rng(0)
    deviations = np.resize([1.0, 2.5], 15)[:, None]
    false = []
    for _ in range(1000):
        methods = draws.normal(0, deviations, (15, 5))
        gains = methods - draws.normal(0, 6.8, (1 if baselines == "one" else 15, 5))
        base = "FedAvg" if baselines == "one" else None
        table = [
            numbers(values, None, gains=tuple(values), gain_margin=0.5, base=base)
            for values in gains.tolist()
        ]
        false.append(sum(cell.gain_verdict in ("better", "worse") for cell in compare(table)))
    rates = [np.mean([count > 0 for count in false]), np.mean(false) / 15]
    assert rates == pytest.approx([float(rate) for rate in documented], abs=0.0006), (
        "docs/protocol-audit.md is out of date"
    )


def test_the_sensitivity_table_of_the_fair_table_is_that_of_its_cells() -> None:
    """Its last column and its intervals are the published ones: each difference has its own spread."""
    docs = (CONFIG.parent / "docs" / "fair-table.md").read_text(encoding="utf-8")
    published = read_csv(CONFIG.parent / "published" / "fair" / "accuracy.csv")
    rows = re.findall(
        r"^\| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \| (?:better|worse) \| (.+) \|$", docs, re.MULTILINE
    )
    assert len(rows) == 10
    changed = []
    for row, panel, column, gain, p, verdict in rows:
        (cell,) = (cell for cell in published if (cell.row, cell.panel, cell.column) == (row, panel, column))
        assert gain == number_text(cell.gain, 2, "+", None, cell.interval("gain_"))
        gains = np.sign(cell.gain) * np.array(cell.gains)
        assert p == f"{stats.ttest_1samp(gains, 0.5, alternative='greater').pvalue:.3f}"
        assert verdict == cell.gain_verdict
        changed += [(f"{panel} / {row} / {column}", cell.exploratory)] if verdict == "inconclusive" else []
    assert len(changed) == 7 and all(exploratory for _, exploratory in changed)
    assert "Seven verdicts changed, all of `fair/accuracy`: FedDyn was" in AUDIT
    assert {cell.place for cell in published if cell.exploratory} == {place for place, _ in changed}


@pytest.mark.parametrize("miss", [0.0, 2.0])
def test_printed_chance_and_power_equal_simulated_ones(miss: float) -> None:
    """The probabilities on the pages equal the rates of simulated tables."""
    draws = np.random.default_rng(3)
    cells, detectable = [], 0.0
    for _ in range(20):
        ours, theirs = draws.normal(50, 0.5, (96, 3)), draws.normal(50, 0.5 / math.sqrt(3), 96)
        pairs = zip((ours + miss).tolist(), theirs.tolist(), strict=True)
        results = compare([numbers(values, published) for values, published in pairs])
        cells += results
        detectable = results[0].detectable or 0.0
    rate = np.mean([cell.verdict == "reproduced" for cell in cells])
    expected = np.mean([cell.expected_reproduced for cell in cells])
    assert (rate == pytest.approx(expected, abs=0.03)) == (miss == 0)
    if miss:
        power = np.mean([cell.verdict == "not reproduced" for cell in cells])
        assert abs(detectable - miss) < 0.1 and power == pytest.approx(0.8, abs=0.06)


def table_cell(values: Sequence[float], published: float, **changes: Any) -> TableCell:
    return judged(values, published, measure="final_accuracy", label="accuracy", **changes)


class Toy(Cells):
    """A table of methods by plug-in, of hand-made records."""

    def fill(self, method: str, plugin: str, *accuracies: float | str) -> None:
        labels = {"method": method, "plugin": plugin}
        self.add(labels, *accuracies, reported={"dataset": "toy", **labels})

    def sheet(
        self,
        order_by: str | None = None,
        restricted: Sequence[str] = (),
        changes: Yaml | None = None,
        **measured: Any,
    ) -> ItemJob:
        measure = {"measure": "final_accuracy", "reported": "acc", "gain_over": {"plugin": "none"}}
        table = {"rows": "method", "columns": "plugin", "measures": [{**measure, **measured}]}
        return super().sheet(
            id="toy/table",
            table={**table, "order_by": order_by},
            reported="toy_table.csv",
            reported_seeds=3,
            restricted=[{"to": text} for text in restricted],
            assumptions=["F-1: something is assumed."],
            **{"reduced": False, **(changes or {})},
        )


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path / "results")
    made.fill("c", "none", MISSING, MISSING, MISSING)
    made.fill("c", "x", DIVERGED, DIVERGED, DIVERGED)
    made.fill("a", "none", 0.60, 0.61, 0.62)
    made.fill("a", "x", 0.63, 0.63, 0.66)
    made.fill("b", "none", 0.70, DIVERGED, DIVERGED)
    made.fill("b", "x", 0.72, MISSING, 0.74)
    return made


PUBLISHED = """\
paper,table,dataset,method,plugin,variant,metric,value,std,unit,note,doubt
toy,table,toy,a,none,,acc,0.605,,fraction,as printed,
toy,table,toy,a,x,,acc,0.70,0.005,fraction,,the two are alike
toy,table,toy,b,none,,acc,0.70,,fraction,,
toy,table,toy,b,x,,acc,0.73,,fraction,,the two are alike
toy,table,toy,c,none,,acc,0.50,,fraction,,
toy,table,toy,c,x,,acc,,,fraction,failed to converge; 3 seeds,
toy,table,toy,d,none,,acc,0.4,,fraction,,
toy,table,toy,d,x,,acc,,,fraction,not reported,
toy,table,other,a,none,,acc,0.4,,fraction,,
toy,table,toy,,x,,avg_gain,2.5,,points,mean over two,
toy,table,,centralised,none,,acc,0.9,,fraction,,
"""


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    (tmp_path / "toy_table.csv").write_text(PUBLISHED)
    return tmp_path / "toy_table.csv"


def cells(toy: Toy, sheet: ItemJob, printed: Path) -> dict[tuple[str, str], TableCell]:
    results = table_cells(sheet, toy.results.record, Published.read(printed))
    return {(cell.row, cell.column): cell for cell in results}


def test_cells_are_compared_in_per_cent(toy: Toy, printed: Path) -> None:
    sheet = toy.sheet(order_by="final_accuracy", interval=True)
    by_place = cells(toy, sheet, printed)
    assert [row for row, column in by_place if column == "x"] == ["a", "b", "c"], "the best first"
    assert {place: (cell.full_verdict, value_text(cell)) for place, cell in by_place.items()} == {
        ("a", "none"): ("inconclusive", "61.00 ± 1.00"),
        ("a", "x"): ("not reproduced (worse)", "64.00 ± 1.73"),
        ("b", "none"): ("inconclusive", "2 of 3 diverged; 30.00 ± 34.64"),
        ("b", "x"): ("inconclusive (too few seeds)", "73.00 ± 1.41 (1 of 3 not run)"),
        ("c", "none"): ("not run", "not run"),
        ("c", "x"): ("reproduced", "3 of 3 diverged"),
    }
    # Seeds 0 and 2 of both: 72 - 70 and 74 - 10, the accuracy of chance among ten classes.
    assert by_place["b", "x"].gains == pytest.approx((2.0, 64.0)), "diverged seeds count in the gain"
    better = by_place["a", "x"]
    # Gains of 3, 2 and 4.
    assert gain_text(better) == "+3.00 [+1.31, +4.69]"
    assert (better.published, better.published_std, better.published_seeds) == (70, 0.5, 3)
    # Three cells did not diverge, too few for a prior.
    assert (better.spread, better.spread_df) == (pytest.approx(math.sqrt(3)), 2)
    half = stats.t.isf(0.05, 2) * math.sqrt(3 / 3 + 0.25 / 3)
    assert (better.difference_low, better.difference_high) == pytest.approx((-6 - half, -6 + half))
    # Half of the published gain of 9.5 points is more than one point.
    assert (better.margin, better.anomalies) == (1.0, ("the two are alike",))
    assert better.gain_verdict == "direction reproduced"


@pytest.fixture
def lost(tmp_path: Path) -> Toy:
    """All runs of the base diverged, all of the plug-in, and one of each."""
    made = Toy(tmp_path / "results")
    made.fill("a", "none", DIVERGED, DIVERGED, DIVERGED)
    made.fill("a", "x", 0.90, 0.91, 0.905)
    made.fill("b", "none", 0.70, 0.71, 0.72)
    made.fill("b", "x", DIVERGED, DIVERGED, DIVERGED)
    made.fill("c", "none", DIVERGED, 0.60, 0.60)
    made.fill("c", "x", 0.62, DIVERGED, 0.63)
    return made


@pytest.mark.parametrize("changes", [{}, REDUCED], ids=["full", "reduced"])
@pytest.mark.parametrize("margin", [None, 0.5], ids=["published gains", "own margin"])
def test_a_gain_is_no_measurement_if_all_runs_of_a_side_diverged(
    lost: Toy, printed: Path, tmp_path: Path, changes: Yaml, margin: float | None
) -> None:
    """Chance accuracy has no spread, so that its intervals would be narrow. The CSV file has the numbers."""
    sheet = lost.sheet(changes=changes, gain_margin=margin)
    over, of, part = (cells(lost, sheet, printed)[method, "x"] for method in "abc")
    assert (over.gain, of.gain, part.gain) == pytest.approx((80.5, -61, (52 - 50 + 3) / 3))
    assert over.interval("gain_") == pytest.approx((80.5 - 0.843, 80.5 + 0.843), abs=0.001)
    assert [(cell.diverged, cell.base_diverged) for cell in (over, of, part)] == [(0, 3), (3, 0), (1, 1)]
    assert [cell.lost_gain for cell in (over, of, part)] == ["base diverged", "diverged", ""]
    assert [gain_text(cell) for cell in (over, of)] == ["base diverged", "diverged"]
    assert gain_text(part) == "1 of 3 of the base diverged; +1.67 [-84.33, +87.67]"
    assert value_text(of) == "3 of 3 diverged" and value_text(over) == "90.50 ± 0.50"
    assert over.gain_verdict is of.gain_verdict is None
    assert (part.gain_verdict is None) == (margin is None), "the paper's run failed"
    outputs = {form: tmp_path / f"table.{form}" for form in ("md", "tex", "csv", "html")}
    tables.write(sheet, lost.results.record, printed, outputs)
    texts = {form: path.read_text().replace("\N{NO-BREAK SPACE}", " ") for form, path in outputs.items()}
    assert [cell.lost_gain for cell in read_csv(outputs["csv"]) if cell.column == "x"] == [
        *("base diverged", "diverged", "")
    ]
    for form, end in {"md": " |", "tex": " ", "html": "</td>"}.items():
        assert f"base diverged{end}" in texts[form] and "84.33, +87.67]" in texts[form]
        assert not re.search(r"80\.50|61\.00", texts[form].replace("71.00", "")), form
        assert "all runs of a cell or of its base diverged, there is no gain" in texts[form]
    assert not re.search(r'class="gain (good|bad)', texts["html"])
    assert not re.search(r'data-value="-?(10\.0|80\.5|61)', texts["html"]), "they sort as gaps"
    assert "(base diverged)" not in texts["md"]


def test_an_average_over_rows_with_a_lost_gain_is_lost(lost: Toy, printed: Path) -> None:
    average = cells(lost, lost.sheet(average={"of": "gain", "reported": "avg_gain"}), printed)["average", "x"]
    assert (average.diverged, average.base_diverged, average.lost_gain) == (3, 3, "diverged")
    assert (gain_text(average), average.gain_verdict) == ("diverged", None)
    assert average.gain == pytest.approx((80.5 - 61 + 5 / 3) / 3)


def test_one_seed_ranks_nothing(tmp_path: Path, printed: Path) -> None:
    sentence = "Rows are ordered by their mean final accuracy over all columns."
    for seeds, order in ((1, ["a", "b"]), (2, ["b", "a"])):
        toy = Toy(tmp_path / str(seeds))
        toy.fill("a", "x", *[0.5] * seeds)
        toy.fill("b", "x", *[0.6] * seeds)
        sheet, path = toy.sheet(order_by="final_accuracy"), {"md": tmp_path / "table.md"}
        assert [row for row, _ in cells(toy, sheet, printed)] == order
        tables.write(sheet, toy.results.record, printed, path)
        text = path["md"].read_text()
        assert re.findall(r"^\| ([ab]) ", text, re.M) == order
        assert (sentence in text) == (seeds > 1) != ("ordered" not in text)


def test_a_reduced_scale_has_no_verdict(toy: Toy, printed: Path) -> None:
    sheet = toy.sheet(changes=REDUCED)
    by_place = cells(toy, sheet, printed)
    for cell in by_place.values():
        assert (cell.verdict, cell.gain_verdict, cell.difference, cell.p, cell.margin) == (None,) * 5
        assert cell.expected_reproduced is cell.expected_size is None
    better = by_place["a", "x"]
    assert better.published == 70, "published values are shown"
    assert better.low is not None and better.gain_low is not None, "intervals of our numbers are shown"


def test_verdicts_by_a_rule_written_after_the_runs_are_exploratory(toy: Toy, printed: Path) -> None:
    for day, exploratory in (("2026-11-23", True), ("2026-11-24", False), (None, False)):
        cell = cells(toy, toy.sheet(changes={"seen": day}), printed)["a", "x"]
        assert cell.exploratory == exploratory
    reduced = cells(toy, toy.sheet(changes={**REDUCED, "seen": "2026-11-23"}), printed)
    assert not any(cell.exploratory for cell in reduced.values()), "no verdict, no mark"


def test_files_have_all_digits_of_numbers(toy: Toy, printed: Path, tmp_path: Path) -> None:
    rows = list(cells(toy, toy.sheet(), printed).values())
    odd = {"row": "=1+1", "panel": "+ FLFA", "values": (1e300, NEVER, -0.5)}
    strange = rows[0].model_copy(update=odd)
    path = tmp_path / "table.csv"
    path.write_text(to_csv([*rows, strange]), encoding="utf-8")
    assert read_csv(path) == [*rows, strange]
    text = path.read_text()
    assert set(TableCell.model_json_schema()["properties"]) == set(text.splitlines()[0].split(","))
    path.write_text("row,mean\na,no number\n")
    with pytest.raises(FltrainError, match=r"table\.csv: cannot be read"):
        read_csv(path)


def test_average_gains_are_paired_over_seeds(tmp_path: Path, printed: Path) -> None:
    toy = gaining(tmp_path, {"a": (2.0, 1.0, 3.0), "b": (4.0, 3.0, 2.0)})
    by_place = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)
    assert ("average", "none") not in by_place
    average = by_place["average", "x"]
    # Per seed (2 + 4) / 2, (1 + 3) / 2, (3 + 2) / 2.
    assert average.gains == pytest.approx((3.0, 2.0, 2.5))
    low, high = stats.t.interval(0.9, 2, 2.5, 0.5 / math.sqrt(3))
    assert (average.gain_low, average.gain_high) == pytest.approx((low, high))
    assert (value_text(average), gain_text(average), average.published_gain) == (
        "",
        "+2.50 [+1.66, +3.34]",
        2.5,
    )
    assert (average.verdict, average.gain_margin) == (None, 1.25)


def gaining(root: Path, gains: dict[str, Sequence[float | str]]) -> Toy:
    """Methods at 60 % with gains of this many points."""
    toy = Toy(root / "results")
    for method, points in gains.items():
        toy.fill(method, "none", *[0.6] * len(points))
        toy.fill(method, "x", *[gain if isinstance(gain, str) else 0.6 + gain / 100 for gain in points])
    return toy


AVERAGE_GAIN = {"average": {"of": "gain", "reported": "avg_gain"}}


def test_an_average_of_a_restricted_plan_is_not_compared(tmp_path: Path, printed: Path) -> None:
    """The paper's average includes rows that the restricted plan lacks."""
    toy = gaining(tmp_path, {"a": (2.5, 2.6, 2.4), "b": (2.4, 2.5, 2.6)})
    full = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    assert (full.gain_verdict, published_text(full)) == ("size reproduced", ""), "a printed gain has no note"
    part = cells(toy, toy.sheet(restricted=["methods a, b"], **AVERAGE_GAIN), printed)
    average = part["average", "x"]
    assert average.gain_verdict is None
    assert average.gain == full.gain and average.published_gain == 2.5, "both are shown"
    assert part["a", "x"].verdict is not None, "single cells have a verdict"


def test_an_average_counts_diverged_rows_as_chance_and_needs_all_runs(tmp_path: Path, printed: Path) -> None:
    toy = gaining(tmp_path / "diverged", {"a": (2.0, 3.0), "b": (DIVERGED, DIVERGED)})
    average = cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"]
    # From 60 % to the 10 % of chance.
    assert average.gains == pytest.approx(((2 - 50) / 2, (3 - 50) / 2))
    toy = gaining(tmp_path / "missing", {"a": (2.0, 3.0), "b": (MISSING, MISSING)})
    assert cells(toy, toy.sheet(**AVERAGE_GAIN), printed)["average", "x"].gain is None


@pytest.mark.parametrize("reduced", [False, True])
def test_doubts_and_assumptions_are_listed(toy: Toy, printed: Path, tmp_path: Path, reduced: bool) -> None:
    outputs = {form: tmp_path / f"table.{form}" for form in ("md", "tex", "csv")}
    sheet = toy.sheet(changes={"reduced": reduced})
    tables.write(sheet, toy.results.record, printed, outputs)
    texts = {form: path.read_text().replace("{[}", "[") for form, path in outputs.items()}
    for form in ("md", "tex"):
        assert texts[form].count("70.00 ± 0.50 [3]") == 1
        assert "[3] Doubtful as published: the two are alike." in texts[form]
        assert "F-1: something is assumed." in texts[form]
        assert ("Assumptions at full scale about" in texts[form]) == reduced
        assert ("The margin is " in texts[form]) != reduced
    assert [cell.anomalies for cell in read_csv(outputs["csv"])].count(("the two are alike",)) == 2


def test_doubts_about_copies_concern_equal_values() -> None:
    checked = 0
    for path in REPORTED.glob("*_table*.csv"):
        rows = Published.read(path).rows
        for doubt in {doubt for row in rows for doubt in row.anomalies}:
            if "a copy" in doubt or "the same number of rounds" in doubt:
                values = Counter(row.value for row in rows if doubt in row.anomalies)
                assert min(values.values()) > 1, (path.name, doubt)
                checked += 1
    assert checked


# ---------------------------------------------------------------- controls: tables with a known truth
def control(name: str) -> list[TableCell]:
    """The cells of a published control; CI makes its file again from the records."""
    return read_csv(CONFIG.parent / "published" / "controls" / f"{name}.csv")


def test_published_controls_are_judged_correctly() -> None:
    """Half of the values of ``spiked`` are three points above the true ones."""
    assert {cell.verdict for name in ("positive", "positive_bare") for cell in control(name)} == {
        "inconclusive"
    }
    true = {(cell.row, cell.measure): cell.published for cell in control("positive")}
    spiked = control("spiked")
    false = [cell for cell in spiked if cell.published == pytest.approx(true[cell.row, cell.measure] + 3)]
    assert len(false) == len(spiked) / 2
    assert {cell.full_verdict for cell in false} == {"not reproduced (as intended)"}
    assert {cell.verdict for cell in spiked if cell not in false} == {"inconclusive"}
    assert {tone(cell.full_verdict) for cell in false} == {"good"}
    assert tone("not reproduced (worse)") == "bad", "a true value that is rejected"
    assert {cell.verdict for cell in control("flower")} == {"reproduced"}
    assert [cell.gains for cell in control("neutral") if cell.gains] == [(0.0,) * 5] * 3


def test_a_twentieth_of_gains_without_an_effect_looks_positive() -> None:
    """2,000 gains of A/A tables: five cells with three seeds each, drawn from 60 runs of one setting."""
    (cell,) = control("other_seeds")
    draws, verdicts, tables = np.random.default_rng(0), Counter[str | None](), 400
    for _ in range(tables):
        first, second = draws.permutation(cell.values)[:30].reshape(2, 5, 3)
        results = compare(
            [
                numbers(values, None, floor=0.0, gains=gains, published_gain=1.0)
                for values, gains in zip(first.tolist(), (first - second).tolist(), strict=True)
            ]
        )
        verdicts.update(cell.gain_verdict for cell in results)
    positive = verdicts["size reproduced"] + verdicts["direction reproduced"]
    assert verdicts.total() == 2000 and 0.03 < positive / verdicts.total() < 0.07
    assert f"{positive} gains look positive, {verdicts['opposite']} negative" in AUDIT
