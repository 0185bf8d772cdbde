"""Error rates of the rule for verdicts, by simulated tables: ``python -m fltrain.reporting.characteristics``.

Each simulated table has 96 cells with a margin of one point. The paper's mean and our seeds are drawn from
normal distributions with the same spread; ours lie off by the true miss.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from fltrain.reporting.verdict import CellNumbers, compare

CELLS = 96
TABLES = 200
"""Tables that are simulated for a setting."""


class Setting(NamedTuple):
    """Our seeds and the paper's, standard deviation of a seed and true miss, both in points."""

    seeds: int
    published_seeds: int
    spread: float
    miss: float


SETTINGS: tuple[tuple[Setting, dict[str, float]], ...] = tuple(
    (Setting(*setting), dict(zip(("reproduced", "inconclusive", "not reproduced"), expected, strict=True)))
    for setting, expected in (
        ((3, 3, 0.3, 0), (0.98, 0.02, 0.00)),
        ((3, 1, 0.3, 0), (0.79, 0.21, 0.00)),
        ((3, 3, 0.5, 0), (0.57, 0.43, 0.00)),
        ((5, 5, 0.5, 0), (0.87, 0.13, 0.00)),
        ((3, 3, 0.5, 1), (0.05, 0.90, 0.05)),
        ((3, 3, 0.5, 2), (0.00, 0.21, 0.79)),
        ((3, 3, 0.5, 3), (0.00, 0.00, 1.00)),
        ((3, 1, 0.5, 3), (0.00, 0.04, 0.96)),
        ((5, 1, 0.5, 2), (0.00, 0.43, 0.57)),
        ((3, 3, 1.0, 3), (0.00, 0.21, 0.79)),
        ((3, 1, 1.0, 3), (0.00, 0.47, 0.53)),
    )
)
"""Settings with the rate of each verdict, rounded to a hundredth."""


def rates(setting: Setting, tables: int = TABLES, seed: int = 0) -> dict[str, float]:
    """Return the share of cells with each verdict over simulated tables."""
    draws = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(tables):
        ours = draws.normal(50 + setting.miss, setting.spread, (CELLS, setting.seeds)).tolist()
        theirs = draws.normal(50, setting.spread / setting.published_seeds**0.5, CELLS).tolist()
        cells = [
            CellNumbers(tuple(values), published=value, published_seeds=setting.published_seeds, floor=0.01)
            for values, value in zip(ours, theirs, strict=True)
        ]
        counts.update(str(one.verdict) for one in compare(cells))
    verdicts = ("reproduced", "inconclusive", "not reproduced")
    return {verdict: counts[verdict] / (tables * CELLS) for verdict in verdicts}


def main() -> None:
    """Print the table of error rates as Markdown."""
    print(
        "| our seeds | seeds of the paper | spread | true miss | reproduced | inconclusive | not reproduced |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for setting, _ in SETTINGS:
        found = rates(setting)
        numbers = (f"{rate:.3f}" for rate in found.values())
        columns = (setting.seeds, setting.published_seeds, setting.spread, f"{setting.miss:g}")
        print("|", " | ".join([*map(str, columns), *numbers]), "|")


if __name__ == "__main__":
    main()
