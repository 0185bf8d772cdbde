"""A cell of a table with its numbers and verdicts, and its row in a CSV file.

``verdicts.csv`` and the CSV file of each table hold these cells, one row each, with the fields as columns.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.core.statistics import Interval, OverSeeds

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
Side = Literal["better", "worse", "more", "less", "fewer", ""]
GainVerdict = Literal[
    "size reproduced", "direction reproduced", "opposite", "better", "equivalent", "worse", "inconclusive"
]

AVERAGE = "average"
"""Label of the row of averages."""

CORRECTED = "not significant after correction"
"""Reason of a gain whose own test is significant, but not after the correction for all gains of the table."""

OF_VALUE = ("n", "mean", "std", "low", "high", "difference", "difference_low", "difference_high")
OF_GAIN = ("gain", "gain_std", "gain_low", "gain_high")
"""Columns with numbers that are no measurement if all runs diverged."""


def _split(separator: str) -> BeforeValidator:
    return BeforeValidator(lambda text: text.split(separator) if isinstance(text, str) else text)


def _joined(separator: str) -> PlainSerializer:
    def join(values: Sequence[object]) -> str:
        return separator.join(f"{value:.10g}" if isinstance(value, float) else str(value) for value in values)

    return PlainSerializer(join, return_type=str)


Floats = Annotated[tuple[float, ...], _split(" "), _joined(" ")]
Integers = Annotated[tuple[int, ...], _split(" "), _joined(" ")]
Words = Annotated[tuple[str, ...], _split(" "), _joined(" ")]
Texts = Annotated[tuple[str, ...], _split("; "), _joined("; ")]
Doubts = Annotated[tuple[str, ...], _split(" | "), _joined(" | ")]
"""Texts between which files of published values have the same separators."""
Number = float | None


def _column(description: str, default: Any = None) -> Any:
    return Field(default, description=description)


class TableCell(BaseModel):
    """One cell of a table for one measure, with our numbers, the published ones and the verdicts.

    Accuracies, differences, gains and margins are in percentage points, other numbers in the unit of the
    measure. All intervals have a level of 90 %. Empty columns do not apply to the cell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: str = _column("name of the paper", "")
    item: str = _column("name of the table", "")
    row: str = _column("label of the row", "")
    column: str = _column("label of the column", "")
    panel: str = _column("label of the panel", "")
    measure: str = _column("name of the measure", "")
    label: str = _column("heading of the measure", "")
    decimals: int = _column("decimals that tables show", 2)
    names: str = _column("the cell in the published table: column=text; ...", "")
    best: str = _column("label of the axis not shown (rates) with which the cell is best", "")
    best_at_end: bool = _column("this label is the first or last of its axis", False)
    over_seeds: OverSeeds = _column("summary of the seeds", "mean")
    seeds: int = _column("seeds that were planned", 0)
    n: int = _column("seeds with a value, diverged ones included", 0)
    diverged: int = _column("seeds whose run diverged; they count as chance accuracy", 0)
    base_diverged: int | None = _column("of the seeds of the gain: those whose run of the base diverged")
    damaged: int = _column("seeds whose record is damaged", 0)
    missing: int = _column("seeds without a record", 0)
    value_seeds: Integers = _column("seeds of the values", ())
    values: Floats = _column("our value of each seed", ())
    mean: Number = _column("our mean (median, maximum) over seeds")
    std: Number = _column("standard deviation over the seeds of this cell")
    low: Number = _column("lower end of the interval of our mean")
    high: Number = _column("upper end of the interval of our mean")
    spread: Number = _column("moderated standard deviation of one seed, which the verdict uses")
    spread_df: Number = _column("its degrees of freedom")
    spread_cells: int | None = _column("number of cells that moderate it; 1: the cell's own")
    plugin: str = _column("plug-ins that the cell adds to its base method; empty: another method", "")
    base_values: Floats = _column("values of the base method that the gain is over", ())
    gain_seeds: Integers = _column("seeds of the gains", ())
    gains: Floats = _column("our gain over the base method, one per seed", ())
    gain: Number = _column("mean of the gains")
    gain_std: Number = _column("standard deviation of the gains")
    gain_low: Number = _column("lower end of the interval of the gain")
    gain_high: Number = _column("upper end of the interval of the gain")
    published: Number = _column("published value")
    published_std: Number = _column("published standard deviation")
    published_seeds: int | None = _column("seeds of the paper, if it states them")
    published_failed: bool = _column("the paper says that its own runs failed", False)
    falsified: bool = _column("a control has made the published value false on purpose", False)
    published_gain: Number = _column("published gain over the base method")
    published_notes: Texts = _column("notes on the published value", ())
    anomalies: Doubts = _column("reasons to doubt the published value", ())
    margin: Number = _column("margin around the published value")
    difference: Number = _column("our mean (median, maximum) minus the published value")
    difference_low: Number = _column("lower end of the interval of the difference")
    difference_high: Number = _column("upper end of the interval of the difference")
    verdict: Verdict | None = _column("verdict on the value; empty at a reduced scale")
    side: Side = _column("side on which a value is not reproduced", "")
    reason: str = _column("reason of an inconclusive verdict, if its interval does not show it", "")
    seeds_needed: Number = _column("seeds of ours that would decide an inconclusive cell; inf: none would")
    p: Number = _column("one-sided p value against a true difference within the margin")
    dropped: bool = _column(
        "True: not reproduced, but not significant after the correction for the number of cells", False
    )
    detectable: Number = _column("difference that is called not reproduced with a probability of 80 %")
    expected_reproduced: Number = _column("probability of 'reproduced' if the published value were true")
    expected_not_reproduced: Number = _column("the same of 'not reproduced'")
    gain_margin: Number = _column("margin around the published gain, or around no gain")
    gain_difference_low: Number = _column("lower end of the interval of our gain minus the published one")
    gain_difference_high: Number = _column("upper end of that interval")
    gain_p: Number = _column(
        "one-sided p value against a true gain within the margin of the published one; among our own runs: "
        "p value of the verdict's test, before the correction"
    )
    gain_verdict: GainVerdict | None = _column("verdict on the gain; empty at a reduced scale")
    expected_size: Number = _column("probability of 'size reproduced' if the published gain were true")
    expected_direction: Number = _column("the same of 'direction reproduced'")
    expected_opposite: Number = _column("the same of 'opposite'")
    exploratory: bool = _column("the rule or margin was changed after the runs had been seen", False)
    runs: Words = _column("IDs of the runs", ())

    @property
    def place(self) -> str:
        """The cell's labels: panel, row, column."""
        return " / ".join(filter(None, (self.panel, self.row, self.column)))

    @property
    def anchor(self) -> str:
        """Anchor of the section about the cell's place on the page of its table."""
        return f"cell-{short_hash([self.panel, self.row, self.column])}"

    def interval(self, of: Literal["", "gain_", "difference_", "gain_difference_"] = "") -> Interval | None:
        """Return the interval of our mean or gain, or of its difference to the published one."""
        low, high = getattr(self, f"{of}low"), getattr(self, f"{of}high")
        return None if low is None or high is None else (low, high)

    @property
    def complete(self) -> int:
        """Number of runs with a record."""
        return self.seeds - self.damaged - self.missing

    @property
    def failed(self) -> bool:
        """More than half of the runs diverged or never reached the target."""
        never = sum(map(math.isinf, self.values))
        return 2 * max(self.diverged, never) > self.complete

    @property
    def lost(self) -> bool:
        """All runs diverged, so that their value, chance accuracy, is no measurement."""
        return 0 < self.diverged == self.complete

    @property
    def lost_gain(self) -> Literal["", "diverged", "base diverged"]:
        """Side of which all runs diverged, so that the gain is no measurement; empty if there is none."""
        if self.lost:
            return "diverged"
        return "base diverged" if 0 < (self.base_diverged or 0) == len(self.gains) else ""

    def measured(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return some columns of the cell; numbers that are no measurement are None."""
        unmeasured = (*OF_VALUE * self.lost, *OF_GAIN * bool(self.lost_gain))
        return {name: None if name in unmeasured else getattr(self, name) for name in columns}

    @property
    def judged(self) -> bool:
        """Our runs have a verdict on the value or on the gain."""
        return self.verdict not in (None, "not run") or self.gain_verdict is not None

    @property
    def among_own(self) -> bool:
        """The gain is a difference among our own runs, with a declared margin."""
        return bool(self.gain_margin) and self.published_gain is None

    @property
    def intended(self) -> bool:
        """The rule rejects a value that a control has made false."""
        return self.falsified and self.verdict == "not reproduced"

    @property
    def full_verdict(self) -> str:
        """The verdict with the side of the miss or the reason for the lack of an interval."""
        reason = self.reason if self.reason != CORRECTED else ""
        detail = "as intended" if self.intended else self.side or reason
        return f"{self.verdict} ({detail})" if self.verdict and detail else self.verdict or ""

    @property
    def full_gain_verdict(self) -> str:
        """The verdict on the gain, and whether only the correction for several tests left it inconclusive."""
        corrected = self.gain_verdict and self.reason == CORRECTED
        return f"{self.gain_verdict} ({CORRECTED})" if corrected else self.gain_verdict or ""

    def replace(self, **columns: Any) -> Self:
        """Return the cell with other numbers in these columns."""
        return self.model_copy(update=columns)


# ---------------------------------------------------------------- files
def to_csv(cells: Iterable[TableCell]) -> str:
    """Return the text of a CSV file with one row for each cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(TableCell.model_fields)
    for cell in cells:
        writer.writerow(cell.model_dump().values())
    return file.getvalue()


def from_csv(text: str) -> list[TableCell]:
    """Return the cells in the text of a CSV file.

    Raises:
        ValueError: if it is not a table.
    """
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [TableCell.model_validate({key: text for key, text in row.items() if text}) for row in rows]


def read_csv(path: Path) -> list[TableCell]:
    """Read the cells of a table from its CSV file.

    Raises:
        FltrainError: if it cannot be read.
    """
    try:
        return from_csv(path.read_bytes().decode())
    except (OSError, ValueError) as error:
        raise FltrainError(f"{path}: cannot be read ({error}); make the table again") from None
