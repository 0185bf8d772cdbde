"""Selection of a part of a scale, from the command line or the workflow's configuration. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from fltrain.core.config import FileName, Settings
from fltrain.core.errors import count
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import Condition, begins, parse_where, settings_text, short_names


def _names(value: Any) -> Any:
    """Return the names in a comma-separated text."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return () if value is None else value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else () if value is None else value


Names = Annotated[tuple[str, ...], Strict(False), BeforeValidator(_names)]


@dataclass(frozen=True)
class Demand:
    """A condition on the runs of cells.

    Attributes:
        why: the condition in words.
        holds: returns True for runs to keep, given the spec and the position of the seed in the item.
        references: also keep the cells with which those are compared.
    """

    why: str
    holds: Callable[[RunSpec, int], bool]
    references: bool = False


class Selection(Settings):
    """Conditions on the cells of a scale, all of which must hold. An empty condition restricts nothing.

    Attributes:
        items: ``flfa/table1``, ``flfa_table1``, or a paper (``flfa``).
        seeds: maximum number of seeds.
        where: conditions on settings, see ``fltrain.runs.where``. Conditions on ``method`` or ``plugins``
            also keep the cells with which the layout compares those that meet them (``gain_over``,
            ``relative_to``, ``target_of``, ``reduction_from``), for example the base methods behind a
            plug-in's gain.
    """

    items: Names = ()
    seeds: int | None = Field(default=None, ge=1)
    where: Annotated[tuple[str, ...], Strict(False), BeforeValidator(_texts)] = ()

    def wants(self, names: Set[str]) -> bool:
        """Return True if an item with these names is selected."""
        return not self.items or bool(names & set(self.items))

    @property
    def named(self) -> list[str]:
        """The selected items in words."""
        return [f"item{'s' if len(self.items) > 1 else ''} {', '.join(self.items)}"] if self.items else []

    @property
    def demands(self) -> Iterator[Demand]:
        """The conditions on runs."""
        if (seeds := self.seeds) is not None:
            yield Demand(count(seeds, "seed"), lambda _, number: number < seeds)
        for condition in parse_where(self.where):
            compared = begins(condition.key, ("method", "plugins"))
            yield Demand(str(condition), partial(_meets, condition), references=compared)


def _meets(condition: Condition, spec: RunSpec, _: int) -> bool:
    names = short_names(spec)
    return condition.meets(names if condition.key in names else settings_text(spec))


def _truth(value: Any) -> Any:
    """Return the truth value in a text; ``snakemake --config train=false`` passes a text."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


Resource = Literal["runtime", "mem_mb", "disk_mb"]
Amounts = dict[Resource, Annotated[int, Field(ge=1)]]


class JobResources(Settings):
    """Resources of training jobs: minutes until the limit, megabytes of memory and of disk.

    Attributes:
        default: amounts of every job.
        networks: differing amounts by name of the network.
        growth: maximum multiple of these amounts; attempt N requests N times as much.
    """

    default: Amounts = {"runtime": 720, "mem_mb": 12_000, "disk_mb": 2_000}
    networks: dict[str, Amounts] = {}
    growth: int = Field(default=3, ge=1)

    def amount(self, resource: Resource, network: str, attempt: int) -> int:
        """Return the amount of a resource that a job requests at an attempt (1, 2 ...)."""
        amounts = {**self.default, **self.networks.get(network, {})}
        return min(attempt, self.growth) * amounts[resource]


class Request(Selection):
    """The workflow's configuration: a scale, a selection of it, and the resources of training jobs.

    With ``train: false``, tables and figures are made from existing records, and nothing is trained.
    """

    scale: FileName = "demo"
    train: Annotated[bool, BeforeValidator(_truth)] = True
    resources: JobResources = JobResources()

    @property
    def selection(self) -> Selection:
        """The selection of the scale."""
        return Selection(**{name: getattr(self, name) for name in Selection.model_fields})
