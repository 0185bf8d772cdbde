"""Content of a scale for its overview, as plain data for a job of the workflow. Does not import pandas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

from fltrain.core.config import Settings
from fltrain.experiments.plan import Plan

Texts = Annotated[tuple[str, ...], Strict(False)]


class ListedPaper(Settings):
    """A paper with the title and the run IDs of each table and figure; ``tables`` names the tables."""

    name: str
    title: str
    titles: dict[str, str]
    items: dict[str, Texts]
    tables: Texts


class Listing(Settings):
    """All that a scale consists of.

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
        papers = []
        for name, paper in {item.paper.paper: item.paper for item in plan.items}.items():
            items = [item for item in plan.items if item.paper.paper == name]
            papers.append(
                ListedPaper(
                    name=name,
                    title=paper.title,
                    titles={item.name: item.item.title for item in items},
                    items={item.name: tuple(item.run_ids) for item in items},
                    tables=tuple(item.name for item in items if item.item.table),
                )
            )
        return cls(
            scale=plan.scale.scale,
            title=titles.pop() if len(titles) == 1 else "",
            reduced=plan.scale.reduced,
            restrictions=plan.restrictions,
            papers=tuple(papers),
        )
