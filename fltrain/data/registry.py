"""The registry of datasets (``config/datasets.yaml``): sources, checksums, facts, normalisations, licences.

An entry needs three lines: a name, a reader and a path. Omitted facts are derived from the data. This module
does not import torch, because planning uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import BeforeValidator, Field, Strict, model_validator

from fltrain.core.config import FileName, Settings, check_known, file_name
from fltrain.core.errors import FltrainError
from fltrain.core.registry import choice, external
from fltrain.core.strict_yaml import read_plain
from fltrain.data.medmnist import medmnist_entry
from fltrain.data.readers import READERS, Facts, Reader

if TYPE_CHECKING:
    AnyReader: TypeAlias = Reader
else:
    AnyReader = choice(READERS, "reader")

PerChannel = Annotated[tuple[float, ...], Strict(False)]


class RemoteFile(Settings):
    """A file to download.

    Attributes:
        name: its name on this machine, in the offline folder and on the mirror.
        urls: addresses in order of preference; empty if you have to download the file yourself.
        checksum: ``md5:`` or ``sha256:`` and the digits.
        bytes: its size, for messages.
    """

    name: FileName
    urls: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://\S+$")], ...], Strict(False)]
    checksum: Annotated[
        str,
        Field(pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$"),
        BeforeValidator(lambda digits: digits.lower() if isinstance(digits, str) else digits),
    ]
    bytes: Annotated[int, Field(gt=0)] | None = None

    @property
    def identity(self) -> str:
        """Checksum and size, for messages."""
        return self.checksum if self.bytes is None else f"{self.checksum} ({self.bytes:,} bytes)"


class Normalisation(Settings):
    """Mean and standard deviation of each channel, for pixels from 0 to 1."""

    mean: PerChannel
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Strict(False)]

    @model_validator(mode="after")
    def _of_equal_length(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"'mean' has {len(self.mean)} values and 'std' has {len(self.std)}; state one per channel"
            )
        return self


UNIVERSAL = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}
"""Normalisations of every dataset: pixels from 0 to 1, or from -1 to 1."""


class DatasetEntry(Facts):
    """A dataset, with the facts that its files must have.

    Attributes:
        title: name for texts.
        reader: file format, with the options of its reader.
        files: files to download.
        path: folder or file of your own, relative to the working directory.
        obtain: instructions, if the dataset cannot be downloaded freely.
        of: for a test set only: the dataset whose models it tests.
        mean: mean of each channel, for pixels from 0 to 1.
        std: standard deviation of each channel.
        normalisations: alternatives to ``mean`` and ``std``, by name.
        horizontal_flip: a mirrored image still belongs to its class.
        licence: terms of use.
        citation: paper to cite.
        revision: increase it with every change of the numbers.
    """

    title: str | None = None
    reader: AnyReader
    files: Annotated[tuple[RemoteFile, ...], Strict(False)] = ()
    path: str | None = None
    obtain: str | None = None
    of: str | None = None
    mean: PerChannel | None = None
    std: PerChannel | None = None
    normalisations: dict[str, Normalisation] = {}
    horizontal_flip: bool = False
    licence: str | None = None
    citation: str | None = None
    revision: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.files and self.path is not None:
            raise ValueError("either 'files' or 'path', not both; leave one out")
        if self.reader.needs_files and not self.files and self.path is None and self.obtain is None:
            raise ValueError(f"reader {self.reader.name!r} needs 'files', a 'path', or at least 'obtain'")
        return self

    @model_validator(mode="after")
    def _normalisations_fit(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("'mean' and 'std' belong together; state both or neither")
        reserved = {"default", *UNIVERSAL} & self.normalisations.keys()
        if reserved:
            raise ValueError(
                f"normalisations: {reserved.pop()!r} is defined for every dataset; choose another name"
            )
        for name, normalisation in {"default": self.normalisation(), **self.normalisations}.items():
            if normalisation and self.channels not in (None, len(normalisation.mean)):
                raise ValueError(
                    f"normalisation {name!r} has {len(normalisation.mean)} values "
                    f"for {self.channels} channel(s); state one per channel"
                )
        return self

    @property
    def own_copy(self) -> Path | None:
        """Expanded ``path``; None if the entry has none."""
        return None if self.path is None else Path(self.path).expanduser()

    @property
    def side_read(self) -> int | None:
        """Height and width of the images before resizing; None if they depend on the files."""
        return getattr(self.reader, "side", None) or self.side

    def normalisation(self, name: str = "default", channels: int | None = None) -> Normalisation | None:
        """Return a normalisation by name; None for a default that the entry does not state.

        Args:
            name: ``default``, ``unit``, ``half``, or one of ``normalisations``.
            channels: number of channels of the images, if the entry does not state it.
        """
        if name == "default":
            return None if self.mean is None else Normalisation(mean=self.mean, std=self.std or ())
        if name in UNIVERSAL:
            mean, std = UNIVERSAL[name]
            width = self.channels or channels or 1
            return Normalisation(mean=(mean,) * width, std=(std,) * width)
        check_known("unknown normalisation", [name], ["default", *UNIVERSAL, *self.normalisations])
        return self.normalisations[name]


def load(path: Path, own: Sequence[Path] = ()) -> dict[str, DatasetEntry]:
    """Read and validate a registry: a mapping from names to entries.

    Packages add entries with entry points ``fltrain.datasets``: mappings, or paths of YAML files. The user's
    ``own`` files add entries or replace them; the last one wins.
    """
    entries: dict[str, DatasetEntry] = {}
    named = [(str(one), one) for one in own]
    for source, given in ((str(path), path), *external("fltrain.datasets"), *named):
        data = read_plain(Path(given)) if isinstance(given, str | Path) else given
        if not isinstance(data, Mapping):
            raise FltrainError(f"{source}: found no entries, expected a mapping from names to datasets")
        for name, entry in data.items():
            if name in entries and given not in own:
                raise FltrainError(f"{source}: dataset {name!r} is in {path}, too; choose another name")
            entries[name] = _entry(name, entry, source)
    for name, one in entries.items():
        if one.of is not None:
            _check_relation(f"{path}: {name}: of", one, one.of, entries)
    return dict(sorted(entries.items()))


def _entry(name: str, entry: Any, source: str) -> DatasetEntry:
    """Return a validated entry of a registry; the package medmnist states the facts of its sets."""
    where = f"{source}: {file_name(name, f'name of a dataset in {source}')}"
    if name in ("test", "local_test", "validation"):
        raise FltrainError(f"{where}: this is the name of a split; choose another name")
    stated = entry if isinstance(entry, Mapping) else {}
    if stated.get("reader") in ("medmnist", {"name": "medmnist"}) and not {"path", "files"} & stated.keys():
        entry = {**medmnist_entry(name, where), **stated}
    return DatasetEntry.parse(entry, where)


def _check_relation(where: str, entry: DatasetEntry, other: str, entries: Mapping[str, DatasetEntry]) -> None:
    """Refuse a test set whose images or classes differ from those of its dataset, ``other``."""
    check_known(f"{where}: unknown dataset", [other], entries)
    for key in ("classes", "channels", "side"):
        mine, theirs = getattr(entry, key), getattr(entries[other], key)
        if mine != theirs:
            raise FltrainError(f"{where}: {key} is {mine}, but {other} has {theirs}; state the same")
