"""What is wanted of a scale, from the command line or the workflow's configuration. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from fltrain.core.config import FileName, Settings
from fltrain.runs.spec import RunSpec


def _names(value: Any) -> Any:
    """Names can be written as one text with commas, as a command line has it."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return () if value is None else value


Names = Annotated[tuple[str, ...], Strict(False), BeforeValidator(_names)]


@dataclass(frozen=True)
class Demand:
    """What cells have to meet, in words and as a test; and whether what they are compared with stays, too."""

    why: str
    met: Callable[[RunSpec], bool]
    references: bool = False


class Selection(Settings):
    """What is wanted of a scale; a cell has to meet all that is said, and what is not said restricts nothing.

    With the cells that ``methods`` names stay those that the layout compares them with (``gain_over``,
    ``relative_to``, ``target_of``, ``reduction_from``), for example the base methods behind the gains of a
    plug-in: without these there would be nothing to say of it.

    Attributes:
        papers: for example ``flfa``.
        items: ``flfa/table1``, ``flfa_table1``, or a paper.
        datasets: names of data sets.
        methods: names of base methods or plug-ins; a run fits if one of its own is named.
        seeds: at most so many.
        hours: a budget for what is still to be trained, see ``Plan.restricted``.
    """

    papers: Names = ()
    items: Names = ()
    datasets: Names = ()
    methods: Names = ()
    seeds: int | None = Field(default=None, ge=1)
    hours: float | None = Field(default=None, gt=0)

    def wants(self, names: Set[str]) -> bool:
        """Whether an item that goes by these names is wanted."""
        return all(not named or names & set(named) for named in (self.papers, self.items))

    @property
    def named(self) -> list[str]:
        """In words, the papers and items that are wanted."""
        named = {"paper": self.papers, "item": self.items}
        return [_listed(what, names) for what, names in named.items() if names]

    @property
    def demands(self) -> Iterator[Demand]:
        """What is demanded of cells' runs."""
        if self.datasets:
            yield Demand(_listed("data set", self.datasets), lambda spec: spec.dataset.name in self.datasets)
        if self.methods:
            yield Demand(
                _listed("method", self.methods),
                lambda spec: any(method.name in self.methods for method in spec.composition.methods),
                references=True,
            )
        if (seeds := self.seeds) is not None:
            yield Demand(f"{seeds} seed{'s' if seeds > 1 else ''}", lambda spec: spec.seed < seeds)


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _truth(value: Any) -> Any:
    """Snakemake hands over what it reads as text unless it is a number."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


class Request(Selection):
    """What the workflow is asked for: a scale, possibly restricted.

    Without ``train`` nothing is trained: tables and figures are made from the records that exist.
    """

    scale: FileName = "demo"
    train: Annotated[bool, BeforeValidator(_truth)] = True

    @model_validator(mode="after")
    def _budget_is_for_training(self) -> Self:
        if self.hours is not None and not self.train:
            raise ValueError("'hours' is a budget for training; leave it out with 'train: false'")
        return self

    @property
    def selection(self) -> Selection:
        """What is wanted of the scale."""
        return Selection(**{name: getattr(self, name) for name in Selection.model_fields})


def budget_note(hours: float) -> str:
    """What sheets say of cells that a budget leaves out."""
    return f"what fits into {hours:g} hours"
