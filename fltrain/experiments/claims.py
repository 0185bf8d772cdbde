"""Claims: statements of a paper's text, each with the test on our runs that decides it. No torch.

The statements are data, ``config/reported/<paper>_claims.csv``; their tests are declared in the file of the
paper in ``config/papers``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from fltrain.core.config import ListOf, Settings

LabelNames = Annotated[
    tuple[str, ...],
    Field(strict=False, min_length=1),
    BeforeValidator(
        lambda names: (names,) if isinstance(names, str) else names,
        json_schema_input_type=str | Annotated[tuple[str, ...], Field(min_length=1)],
    ),
]
"""A name, or several."""

LabelChoice = dict[str, LabelNames]
"""On each axis one label, or any of several. Labels that an item lacks at a reduced scale are ignored."""

Share = Annotated[tuple[float, float], Field(strict=False)]
"""A share of the rounds, from 0 to 1."""


class Quantity(Settings):
    """A number of every run of an item, for a claim.

    Attributes:
        item: name of the paper's item whose runs are used, for example ``table1``.
        measure: name of a measure (see ``fltrain.runs.measures``), in the form of the item's table if it
            shows the measure: as a multiple of a cell, against a target; else a curve is given. A target that
            is never reached counts as reached one round after the last.
        curve: ``kind.field`` of the rows in ``metrics.jsonl``; the number is its mean over rounds.
        part: the layer or block, if each has a number; the numbers of several parts are added.
        rounds: share of the rounds of a curve that counts: rounds r of R with first < r / R <= second, or if
            there is none, the next one with a value.
        minus_rounds: the number of a curve is the difference from its mean over this share of the rounds.
        over: the number is the gain over the cell with these labels, or over the mean of several, paired over
            seeds; those cells themselves do not count.
        minus: the number is the difference from the number (or gain) of the cell with these labels, all else
            equal; ``at`` names the labels on the other side.
        reverse: the number has the other sign: the cell in ``over`` (or ``minus``) minus each other cell, for
            a method that is compared with several rivals.
        at: only cells with these labels.
        mean_over: axes over which the number (or gain) is averaged.
        relative: the gain is in per cent of the number of its baseline.
    """

    item: str
    measure: str | None = None
    curve: str | None = None
    part: LabelNames | None = None
    rounds: Share = (0.0, 1.0)
    minus_rounds: Share | None = None
    over: LabelChoice = {}
    minus: LabelChoice = {}
    reverse: bool = False
    at: LabelChoice = {}
    mean_over: ListOf[str] = ()
    relative: bool = False

    @property
    def choices(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each axis on which cells are chosen, with the labels: ``over``, ``minus`` and ``at``."""
        return (
            (axis, names) for choice in (self.over, self.minus, self.at) for axis, names in choice.items()
        )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.measure is None) == (self.curve is None):
            raise ValueError("a claim is about either a 'measure' or a 'curve'; name one of them")
        for name, share in (("rounds", self.rounds), ("minus_rounds", self.minus_rounds)):
            if share and not 0 <= share[0] < share[1] <= 1:
                raise ValueError(
                    f"{name}: write two ascending shares of the rounds, from 0 to 1, not {list(share)}"
                )
        if self.minus_rounds and self.curve is None:
            raise ValueError("minus_rounds: only a 'curve' has rounds; a measure is one number")
        if self.relative and not self.over:
            raise ValueError("relative: it needs a number to compare with; set 'over'")
        if self.reverse and bool(self.over) == bool(self.minus):
            raise ValueError("reverse: it turns one difference; set either 'over' or 'minus'")
        return self


class InRegion(Quantity):
    """The number (most often a gain ``over`` other cells) lies in a region.

    A *place* is a cell of the item without the axes in ``mean_over``. All tests are one-sided t tests at 5 %;
    a region with two ends needs two. Values are judged at full scale only. The claim is

    * supported if all tests show that the number is inside the region, and every place has a number. This
      needs no correction;
    * contradicted if one test shows that the number is outside. The average is tested, too, for ``positive``
      and ``negative``. Holm's correction allows for the number of tests;
    * inconclusive otherwise.

    In accuracies and rounds to a target, a diverged run counts as chance or as a target that is never
    reached. In curves and other measures, it has no number, like a missing run. A gain, a mean or a sum has
    no number if one of its runs has none.

    Attributes:
        kind: ``positive``: the number exceeds ``by``; a negative ``by`` allows a deficit. ``negative``: the
            same with the other sign. ``similar``: it lies between ``-by`` and ``by``. ``value``: it lies
            within ``by`` of the stated number, whose spread over the paper's seeds counts, too.
        judge: ``average`` tests the averages over places, one for each seed that has a number in all of them;
            each place needs a number of some seed. ``every`` tests each place over seeds. ``largest`` and
            ``smallest`` (of a value) test this place, corrected for the number of places (Bonferroni).
        by: size of the region (default: 0 for ``positive`` and ``negative``; for a value, the margin of the
            measure, or half of a stated gain, at least 0.25).
    """

    kind: Literal["positive", "negative", "similar", "value"]
    judge: Literal["average", "every", "largest", "smallest"] = "average"
    by: float | None = None

    def region(self, margin: float) -> tuple[float, float]:
        """Return the open interval, around zero or the stated number, in which the claim puts the number."""
        ends = {"positive": (margin, math.inf), "negative": (-math.inf, -margin)}
        return ends.get(self.kind, (-margin, margin))

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.kind == "similar" and self.by is None:
            raise ValueError("by: 'similar' needs the largest difference that does not matter")
        if self.kind == "value" and self.curve is not None and self.by is None:
            raise ValueError("by: a value of a curve needs the largest difference that does not matter")
        if self.kind in ("similar", "value") and self.by is not None and self.by <= 0:
            raise ValueError(f"by: the margin of '{self.kind}' must be above 0")
        if self.judge != "average" and (self.judge == "every") == (self.kind == "value"):
            raise ValueError(f"judge: a claim of kind '{self.kind}' cannot be judged by '{self.judge}'")
        return self


class Printed(Quantity):
    """The claim states the gain of a cell ``over`` the baseline of the item's table.

    It has the cell's verdict on the gain, at full scale only. ``at`` names the cell by a label for each axis
    of the table. To name a cell of the row of averages, put the axis of the rows into ``mean_over``.
    """

    kind: Literal["cell"]
    measure: str
    over: Annotated[LabelChoice, Field(min_length=1)]


class Fails(Quantity):
    """The runs fail: they diverge, or their number is at most ``at_most``.

    Supported if more than half of the runs fail at every place. Contradicted if none fails at one place.
    Inconclusive otherwise, and always if a place has no run that diverged or has a number.

    Attributes:
        at_most: largest number of a failed run, in the measure's unit.
    """

    kind: Literal["fails"]
    at_most: float


class Tested(Settings):
    """The claim follows from the definition, which a test of this project checks.

    Attributes:
        by: path of this test.
    """

    kind: Literal["tested"]
    by: str


class NotJudged(Settings):
    """The claim cannot be judged from runs.

    Attributes:
        why: the reason, which pages show.
    """

    kind: Literal["not_judged"]
    why: str


TestOfPart = Annotated[InRegion | Printed | Fails | NotJudged, Field(discriminator="kind")]


class All(Settings):
    """The claim has several parts, all of which must hold.

    Supported if all parts are supported, which needs no correction. Contradicted if a part is contradicted,
    with its p value corrected for the number of parts (Bonferroni). Not run if none of the parts that need
    runs was run. Inconclusive otherwise.

    Attributes:
        tests: the test of each part.
    """

    kind: Literal["all"]
    tests: Annotated[ListOf[TestOfPart], Field(min_length=2)]


Test = Annotated[InRegion | Printed | Fails | All | Tested | NotJudged, Field(discriminator="kind")]


def cited_paper(where: str) -> str:
    """Return the paper that ``where`` of a comparison's claim names before a comma, for example ``FLFA``."""
    paper, comma, _ = where.partition(",")
    return paper if comma else ""


def quantities(test: Test) -> Iterator[Quantity]:
    """Yield all numbers of runs that a test needs."""
    for part in test.tests if isinstance(test, All) else (test,):
        if isinstance(part, Quantity):
            yield part


class Claim(Settings):
    """A row of the file of claims, and its test.

    Attributes:
        where: column ``where`` of the row: the place in the paper. In a comparison, the name of a paper
            before a comma (``FLFA, table 1``) puts the claim on a card of that paper.
        claim: column ``claim`` of the row: the text.
        test: how our runs judge it.
        decided: day on which the test was last changed, if that was after the rule for verdicts. If the runs
            had been seen by that day, the verdict is exploratory.
        exploratory: if True, the verdict is exploratory in any case.
    """

    where: str
    claim: str
    test: Test
    decided: Annotated[datetime.date, Strict(False)] | None = None
    exploratory: bool = False
