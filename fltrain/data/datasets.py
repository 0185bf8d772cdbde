"""The data set of a run, by its name in the registry. No torch, so that the workflow can name it cheaply."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from pydantic import Field, field_validator

from fltrain.core.config import Settings, suggest
from fltrain.core.errors import FltrainError
from fltrain.data.registry import DatasetEntry, Normalisation, load

REGISTRY_VARIABLE = "FLTRAIN_DATASETS"


@cache
def registry() -> dict[str, DatasetEntry]:
    """Return the entries of the registry: the checkout's own, or the file that FLTRAIN_DATASETS names."""
    named = os.environ.get(REGISTRY_VARIABLE)
    return load(Path(named).expanduser() if named else Path(__file__).parents[2] / "config" / "datasets.yaml")


class Dataset(Settings):
    """A data set and the form in which its images are used.

    Attributes:
        name: its name in the registry.
        image_size: height and width to which images are brought once, at preparation (bilinear); without it
            they keep their native size.
        normalisation: ``default``, ``unit``, ``half``, or one that the registry names for this set.
    """

    name: str
    image_size: int | None = Field(default=None, ge=1, le=1024)
    normalisation: str = "default"

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in registry():
            hint = f"{suggest(name, registry())} (known: {', '.join(registry())})"
            raise FltrainError(f"unknown data set {name!r}{hint}")
        return name

    @property
    def entry(self) -> DatasetEntry:
        """What the registry says of it."""
        return registry()[self.name]

    @property
    def revision(self) -> int:
        """Raised in the registry whenever the entry's numbers change."""
        return self.entry.revision

    @property
    def prepared(self) -> Dataset:
        """The data set as it is prepared: settings that act later do not count."""
        return self.model_copy(update={"normalisation": "default"})

    @property
    def id(self) -> str:
        """File name stem of the prepared data set."""
        return self.name if self.image_size is None else f"{self.name}-{self.image_size}px"

    @property
    def side(self) -> int | None:
        """Height and width of the prepared images, in pixels; None if only the data can say."""
        return self.image_size or self.entry.side_read

    def normalise(self, channels: int) -> Normalisation | None:
        """Return the chosen normalisation; None for the default of a set whose registry entry has none.

        Raises:
            FltrainError: if there is none of that name.
        """
        return self.entry.normalisation(self.normalisation, channels)
