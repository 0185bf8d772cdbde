"""Datasets by name (``config/datasets.yaml``): sources, checksums, facts, normalisations, licences. No torch.

An entry needs three lines: a name, a reader and a path. Omitted facts are derived from the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fltrain.core.config import FileName, ListOf, Settings, check_known, file_name
from fltrain.core.errors import FltrainError, Problems, count
from fltrain.core.own import SHIPPED, own_folder, own_remedy
from fltrain.core.registry import choice
from fltrain.core.strict_yaml import read_plain
from fltrain.data.medmnist import medmnist_entry
from fltrain.data.readers import READERS, Facts, Reader

if TYPE_CHECKING:
    AnyReader: TypeAlias = Reader
else:
    AnyReader = choice(READERS, "reader")

PerChannel = ListOf[float]

UNIVERSAL = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}
"""Normalisations of every dataset: pixels from 0 to 1, or from -1 to 1."""


class RemoteFile(Settings):
    """A file to download.

    Attributes:
        name: its name on this machine, in the offline folder and on the mirror.
        urls: addresses in order of preference; empty if you have to download the file yourself.
        checksum: ``md5:`` or ``sha256:`` and the digits.
        bytes: its size, for messages.
    """

    name: FileName
    urls: ListOf[Annotated[str, Field(pattern=r"^https?://\S+$")]]
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
    std: ListOf[Annotated[float, Field(gt=0)]]

    @model_validator(mode="after")
    def _of_equal_length(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"'mean' has {count(len(self.mean), 'value')} and 'std' has {len(self.std)}; "
                "state one per channel"
            )
        return self


class DatasetEntry(Facts):
    """A dataset, with the facts that its files must have.

    Attributes:
        title: name for texts.
        reader: file format, with the options of its reader.
        files: files to download.
        path: folder or file of your own, relative to the working directory.
        obtain: instructions, if the dataset cannot be downloaded freely.
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
    files: ListOf[RemoteFile] = ()
    path: str | None = None
    obtain: str | None = None
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
        if reserved := {"default", *UNIVERSAL} & self.normalisations.keys():
            raise ValueError(
                f"normalisations: {reserved.pop()!r} is defined for every dataset; choose another name"
            )
        for name, normalisation in self.all_normalisations.items():
            if normalisation and self.channels not in (None, len(normalisation.mean)):
                raise ValueError(
                    f"normalisation {name!r} has {count(len(normalisation.mean), 'value')} "
                    f"for {count(self.channels, 'channel')}; state one per channel"
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

    @property
    def all_normalisations(self) -> dict[str, Normalisation | None]:
        """The entry's normalisations by name; None for a ``default`` that it does not state."""
        default = None if self.mean is None else Normalisation(mean=self.mean, std=self.std or ())
        return {"default": default, **self.normalisations}

    def normalisation(self, name: str = "default", channels: int | None = None) -> Normalisation | None:
        """Return a normalisation by name; None for a default that the entry does not state.

        Args:
            name: ``default``, ``unit``, ``half``, or one of ``normalisations``.
            channels: number of channels of the images, if the entry does not state it.
        """
        if name in UNIVERSAL:
            mean, std = UNIVERSAL[name]
            width = self.channels or channels or 1
            return Normalisation(mean=(mean,) * width, std=(std,) * width)
        names = ["default", *UNIVERSAL, *self.normalisations]
        check_known("dataset.normalisation: unknown normalisation", [name], names)
        return self.all_normalisations[name]


def load(path: Path, user_file: Path | None = None) -> dict[str, DatasetEntry]:
    """Read and validate a registry: a mapping from names to entries.

    The optional ``user_file`` adds entries or replaces them. With ``reader: medmnist``, the package medmnist
    states facts.
    """
    entries: dict[str, DatasetEntry] = {}
    problems = Problems()
    for source in (path, user_file) if user_file else (path,):
        data = read_plain(source)
        if not isinstance(data, Mapping):
            raise FltrainError(f"{source}: found no entries, expected a mapping from names to datasets")
        for name, entry in data.items():
            with problems.collected():
                entries[name] = _entry(name, entry, source)
        problems.refuse(str(source))
    return dict(sorted(entries.items()))


def _entry(name: str, entry: Any, source: Path) -> DatasetEntry:
    where = f"{source}: {file_name(name, f'name of a dataset in {source}')}"
    if name in ("test", "local_test", "validation"):
        raise FltrainError(f"{where}: this is the name of a split; choose another name")
    if isinstance(entry, Mapping) and entry.get("reader") in ("medmnist", {"name": "medmnist"}):
        own_source = {"path", "files"} & entry.keys()
        entry = {**({} if own_source else medmnist_entry(name, where)), **entry, "reader": "npz"}
    return DatasetEntry.parse(entry, where)


REGISTRY = SHIPPED / "datasets.yaml"
"""The registry of this project."""


@cache
def registry() -> dict[str, DatasetEntry]:
    """Return the entries of ``config/datasets.yaml``, and the user's in the own folder, which win."""
    return load(REGISTRY, _user_file())


def _user_file() -> Path | None:
    folder = own_folder()
    return folder / "datasets.yaml" if folder and (folder / "datasets.yaml").exists() else None


@cache
def _shipped() -> Any:
    return read_plain(REGISTRY)


def own_normalisation(name: str, normalisation: str) -> dict[str, Any] | None:
    """Return the normalisation of a dataset, if the registry of this project states none or another one.

    Returns:
        ``mean`` and ``std`` per channel, None for values to be measured. None if there is no difference.
    """
    entry = _shipped().get(name, {})
    if normalisation in UNIVERSAL or (entry and not _user_file()):
        return None
    stated = entry if normalisation == "default" else entry.get("normalisations", {}).get(normalisation, {})
    statistics = registry()[name].normalisation(normalisation)
    values = {key: list(getattr(statistics, key)) if statistics else None for key in ("mean", "std")}
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
    def _is_registered(cls, name: str) -> str:
        check_known("unknown dataset", [name], registry(), remedy=own_remedy())
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
