"""Export and import of records: one small file from which another machine makes tables and figures. No torch.

An archive is a gzipped tar file of ``<run id>/<file>`` for the files of complete records, without logs and
models. Equal records make equal archives, byte for byte. Imports do not trust archives: they unpack only
these files, and accept a record only if it passes ``fltrain.runs.integrity`` and is not stale. Provenance is
exported unchanged, with the name of the machine.
"""

from __future__ import annotations

import filecmp
import gzip
import io
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.runs.integrity import check_record
from fltrain.runs.record import RECORD_FILES, Record, Results
from fltrain.runs.status import held

MAX_BYTES = 8 * 2**30
"""Limit for all unpacked files."""

_RUN = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
_MEMBER = re.compile(rf"(?P<run>{_RUN})/(?P<file>[a-z]+\.jsonl?)")


@dataclass(frozen=True)
class Imported:
    """Number of records that an import added, replaced, and skipped because they were equal."""

    added: int
    replaced: int
    unchanged: int


# ---------------------------------------------------------------------------------------------------- export
def named_records(results: Results, runs: Sequence[str]) -> list[Record]:
    """Return the records of these runs, each once.

    Raises:
        FltrainError: if a name is not a run ID.
    """
    for run in runs:
        if not re.fullmatch(_RUN, run):
            raise FltrainError(f"{run!r} is not a run ID; `fltrain status` lists them")
    return [results.record(run) for run in dict.fromkeys(runs)]


def current_records(results: Results) -> tuple[list[Record], int]:
    """Return all records that are not stale, and the number of stale ones."""
    records = list(results.records())
    current = [record for record in records if (spec := record.run_spec) and spec.run_id == record.run_id]
    return current, len(records) - len(current)


def export_records(records: Iterable[Record], path: Path) -> int:
    """Write complete records to an archive; return their number.

    Raises:
        FltrainError: if there is no record, if an import would refuse a record, or if ``path`` is a folder.
    """
    wanted = sorted(records, key=lambda record: record.run_id)
    if not wanted:
        raise FltrainError("there are no records to export: train runs first")
    if path.is_dir():
        raise FltrainError(f"{path}: is a folder; name a file, for example {path / 'records.tar.gz'}")
    # Without dates, owners and file names, equal records make equal archives.
    with (
        replacing(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for record in wanted:
            if not record.complete:
                raise FltrainError(f"{record.run_id}: no complete record in {record.folder.parent}")
            _check(record.folder)
            for name in RECORD_FILES:
                content = (record.folder / name).read_bytes()
                member = tarfile.TarInfo(f"{record.run_id}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return len(wanted)


# ---------------------------------------------------------------------------------------------------- import
def import_records(path: Path, results: Results, replace: bool = False) -> Imported:
    """Import the records of an archive. If one is invalid, none is imported.

    If the import is killed, import the archive again.

    Args:
        path: the archive.
        results: the results folder.
        replace: replace records that differ from the archived ones.

    Raises:
        FltrainError: if the archive is invalid; if records differ and ``replace`` is False; if a run is being
            trained; or if a file cannot be written.
    """
    results.runs.mkdir(parents=True, exist_ok=True)
    # On the same file system, so that a rename suffices, and under a name that no run has.
    with tempfile.TemporaryDirectory(prefix=".import-", dir=results.runs) as folder:
        try:
            return _import(_unpack(path, Path(folder)), Path(folder), results, replace)
        except FltrainError as error:
            raise FltrainError(f"{path}: {error}") from None


def _import(names: list[str], staging: Path, results: Results, replace: bool) -> Imported:
    """Move unpacked records of these names from ``staging`` to the results."""
    try:
        for run_id in names:
            _check(staging / run_id)
    except FltrainError as error:
        raise FltrainError(f"{error}; nothing was imported") from None
    training = [run_id for run_id in names if held(results.lease(run_id))]
    if training:
        raise FltrainError(
            f"{training[0]} is being trained; nothing was imported; stop it or wait for its end"
        )
    present = {run_id for run_id in names if results.record(run_id).complete}
    equal = {run_id for run_id in present if _equal(staging / run_id, results.run(run_id))}
    different = sorted(present - equal)
    if different and not replace:
        raise FltrainError(
            f"{len(different)} of its {len(names)} records differ from those in {results.runs}, for "
            f"example {different[0]}; nothing was imported (--replace imports the archived ones)"
        )
    arriving = [run_id for run_id in names if run_id not in equal]
    for number, run_id in enumerate(arriving):
        try:
            _move(staging / run_id, results.run(run_id))
        except OSError as error:
            raise FltrainError(
                f"{error.filename}: {error.strerror}; {number} of {len(arriving)} records were imported, the "
                "others are unchanged; solve this and import the archive again"
            ) from None
    return Imported(len(names) - len(present), len(different), len(equal))


def _move(new: Path, place: Path) -> None:
    """Rename a record into its place; an old one, with its log and models, is moved to the staging folder."""
    aside = new.with_name(f".{new.name}")
    if place.exists():
        place.rename(aside)
    try:
        new.rename(place)
    except OSError:
        if aside.exists():
            aside.rename(place)
        raise


def _unpack(path: Path, staging: Path) -> list[str]:
    """Write the files of an archive below ``staging``; return the run IDs."""
    members: dict[str, set[str]] = {}
    total = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                place = _MEMBER.fullmatch(member.name)
                if place is None or place["file"] not in RECORD_FILES:
                    allowed = f"<run id>/{{{', '.join(RECORD_FILES)}}}"
                    raise ValueError(f"it holds {member.name[:200]!r}; allowed are {allowed}")
                if not member.isreg() or member.issparse():
                    raise ValueError(f"{member.name!r} is not an ordinary file")
                total += member.size
                if total > MAX_BYTES:
                    raise ValueError(f"it holds more than {MAX_BYTES:,} bytes")
                files = members.setdefault(place["run"], set())
                if place["file"] in files:
                    raise ValueError(f"it holds {member.name!r} twice")
                files.add(place["file"])
                content = archive.extractfile(member)
                assert content is not None  # an ordinary file
                (staging / place["run"]).mkdir(exist_ok=True)
                (staging / member.name).write_bytes(content.read())
        if not members:
            raise ValueError("it is empty")
        for run_id, files in members.items():
            if missing := [name for name in RECORD_FILES if name not in files]:
                raise ValueError(f"{run_id} lacks {', '.join(missing)}")
    except FileNotFoundError:
        raise FltrainError("no such file") from None
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise FltrainError(f"not an archive of records: {error}; nothing was imported") from None
    return sorted(members)


def _check(folder: Path) -> None:
    """Refuse a damaged or stale record."""
    if stale := check_record(folder).stale:
        raise FltrainError(f"{folder.name}: spec.json is of another version of fltrain ({stale})")


def _equal(one: Path, other: Path) -> bool:
    return not any(filecmp.cmpfiles(one, other, RECORD_FILES, shallow=False)[1:])
