"""The dataset of a run, by its name in the registry. Does not import torch, because planning uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from fltrain.core.config import Settings, check_known
from fltrain.core.own import own_folder
from fltrain.core.strict_yaml import read_plain
from fltrain.data.registry import UNIVERSAL, DatasetEntry, load

REGISTRY_VARIABLE = "FLTRAIN_DATASETS"
SHIPPED = Path(__file__).parents[2] / "config" / "datasets.yaml"
"""The registry of this project."""


@cache
def registry() -> dict[str, DatasetEntry]:
    """Return the entries of ``config/datasets.yaml`` and of the user's own registries, which win."""
    return load(SHIPPED, _own())


def _own() -> list[Path]:
    """Return the user's registries: ``datasets.yaml`` of the own folder, and ``FLTRAIN_DATASETS``."""
    folder, given = own_folder(), os.environ.get(REGISTRY_VARIABLE)
    found = [folder / "datasets.yaml"] if folder and (folder / "datasets.yaml").exists() else []
    return [*found, Path(given).expanduser()] if given else found


@cache
def _shipped() -> Mapping[str, Any]:
    found = read_plain(SHIPPED) if SHIPPED.is_file() else {}
    return found if isinstance(found, Mapping) else {}


def own_normalisation(name: str, normalisation: str) -> dict[str, Any] | None:
    """Return the normalisation of a dataset, if the registry of this project states none or another one.

    Returns:
        ``mean`` and ``std`` per channel, None for values to be measured. None if there is no difference.
    """
    entry = _shipped().get(name, {})
    if normalisation in UNIVERSAL or (entry and not _own()):
        return None
    stated = entry if normalisation == "default" else entry.get("normalisations", {}).get(normalisation, {})
    own = registry()[name].normalisation(normalisation)
    values = {key: list(getattr(own, key)) if own else None for key in ("mean", "std")}
    return None if values == {key: stated.get(key) for key in values} else values


class Dataset(Settings):
    """A dataset, with the size and normalisation of its images.

    Attributes:
        name: its name in the registry.
        image_size: height and width in pixels; images are resized bilinearly when the dataset is prepared
            (default: the native size).
        normalisation: ``default``, ``unit``, ``half``, or a normalisation of the registry entry.
    """

    name: str
    image_size: int | None = Field(default=None, ge=1, le=1024)
    normalisation: str = "default"

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        check_known("unknown dataset", [name], registry())
        return name

    @property
    def entry(self) -> DatasetEntry:
        """Registry entry of the dataset."""
        return registry()[self.name]

    @property
    def revision(self) -> int:
        """Revision of the entry; every change of its numbers increases it."""
        return self.entry.revision

    @property
    def prepared(self) -> Dataset:
        """The dataset without the settings that have no effect on its prepared files."""
        return self.model_copy(update={"normalisation": "default"})

    @property
    def id(self) -> str:
        """File name stem of the prepared dataset."""
        return self.name if self.image_size is None else f"{self.name}-{self.image_size}px"

    @property
    def side(self) -> int | None:
        """Height and width of the prepared images in pixels; None if they depend on the files."""
        return self.image_size or self.entry.side_read
