"""Content of a scale for the overview, as plain data for a job of the workflow. Does not import pandas."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Strict

from fltrain.core.config import Settings
from fltrain.experiments.plan import Plan

Texts = Annotated[tuple[str, ...], Strict(False)]


class ListedItem(Settings):
    """A table or figure, with the IDs of its runs."""

    name: str
    title: str
    caption: str
    kind: Literal["table", "figure"]
    covers: Texts
    assumptions: Texts
    runs: Texts
    scale: str = ""


class ListedPaper(Settings):
    """A paper and its items; ``untrained`` are its other tables and figures, and why there are no runs."""

    name: str
    title: str
    citation: str
    kind: Literal["paper", "comparison", "control"] = "paper"
    items: Annotated[tuple[ListedItem, ...], Strict(False)]
    untrained: dict[str, str]


class Listing(Settings):
    """All that a scale consists of, as plain data that a workflow can hand to a job.

    ``title`` is empty if items have different scales. ``restrictions`` list the requested parts of the
    scale, if not all of it.
    """

    scale: str
    title: str
    reduced: bool
    restrictions: Texts = ()
    papers: Annotated[tuple[ListedPaper, ...], Strict(False)]

    @classmethod
    def of(cls, plan: Plan) -> Listing:
        """List the items of a plan by paper, in the plan's order."""
        titles = {item.scale_title for item in plan.items}
        papers = {item.paper.paper: item.paper for item in plan.items}
        return cls(
            scale=plan.scale.scale,
            title=titles.pop() if len(titles) == 1 else "",
            reduced=plan.scale.reduced,
            restrictions=plan.restrictions,
            papers=tuple(
                ListedPaper(
                    name=name,
                    title=paper.title,
                    citation=paper.citation,
                    kind=paper.kind,
                    untrained=paper.untrained,
                    items=tuple(
                        ListedItem(
                            name=item.name,
                            title=item.item.title,
                            caption=f"{item.item.caption} {item.sheet.scale_note}".strip(),
                            kind="table" if item.item.table else "figure",
                            covers=item.item.covers,
                            assumptions=item.assumptions,
                            runs=tuple(item.run_ids),
                            scale=item.scale_title,
                        )
                        for item in plan.items
                        if item.paper.paper == name
                    ),
                )
                for name, paper in papers.items()
            ),
        )
