"""Selection of a part of a scale, from the command line or the workflow's configuration. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from fltrain.core.config import FileName, ListOf, Settings


def comma_separated(text: str) -> list[str]:
    """Return the names in a text, without the spaces around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _texts(value: Any) -> Any:
    """Refuse a condition without content, for example an unset variable; it would select everything."""
    texts = [value] if isinstance(value, str) else value
    if not texts or not any(text.strip() if isinstance(text, str) else True for text in texts):
        raise ValueError("is empty; leave it out to select everything")
    return texts


def _number(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise ValueError(
            "is a number: 3 takes the first three seeds of each cell (a scale's file can list seeds)"
        )
    return value


def _names(value: Any) -> Any:
    return _texts(comma_separated(value) if isinstance(value, str) else value)


class Selection(Settings):
    """Conditions on the cells of a scale, all of which must hold. An empty condition restricts nothing.

    Attributes:
        items: ``flfa/table1``, ``flfa_table1``, or a paper (``flfa``).
        seeds: maximum number of seeds.
        where: conditions on settings, see ``fltrain.runs.where``.
    """

    items: Annotated[ListOf[str], BeforeValidator(_names)] = ()
    seeds: Annotated[int | None, BeforeValidator(_number)] = Field(default=None, ge=1)
    where: Annotated[ListOf[str], BeforeValidator(_texts)] = ()


Resource = Literal["runtime", "mem_mb", "disk_mb"]
Amounts = dict[Resource, Annotated[int, Field(ge=1)]]


class JobResources(Settings):
    """Resources of training jobs: minutes until the limit, megabytes of memory and of disk.

    Attributes:
        default: amounts of every job.
        networks: differing amounts by name of the network.
    """

    default: Amounts = {"runtime": 720, "mem_mb": 12_000, "disk_mb": 2_000}
    networks: dict[str, Amounts] = {}

    def amount(self, resource: Resource, network: str, attempt: int) -> int:
        """Return the amount of a resource that attempt 1, 2 ... of a job requests: at most three times it."""
        amounts = {**self.default, **self.networks.get(network, {})}
        return min(attempt, 3) * amounts[resource]


class Request(Selection):
    """The workflow's configuration: a scale, a selection of it, and the resources of training jobs.

    With ``train: false``, tables and figures are made from existing records, and nothing is trained.
    """

    scale: FileName = "demo"
    train: Annotated[bool, Strict(False)] = True  # `snakemake --config train=false` passes a text
    resources: JobResources = JobResources()
