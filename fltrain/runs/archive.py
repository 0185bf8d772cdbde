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
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import flush, replacing
from fltrain.runs.record import RECORD_FILES, Record, Results, check_record, exchange, held, leased
from fltrain.runs.status import Stale

MAX_RUNS = 100_000
MAX_FILE_BYTES = 64 * 2**20
"""Limit for one file; the papers' largest runs (500 rounds, all statistics) take a few MB."""
MAX_BYTES = 8 * 2**30
"""Limit for all unpacked files."""

_RUN = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
_MEMBER = re.compile(rf"(?P<run>{_RUN})/(?P<file>[a-z]+\.jsonl?)")
_STAGING = ".import-"


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

    A kill leaves each record old or new, never lost: see ``Results.recover``.

    Args:
        path: the archive.
        results: the results folder.
        replace: replace records that differ from the archived ones.

    Raises:
        FltrainError: if the archive is invalid; if records differ and ``replace`` is False; if a run is being
            trained; or if a file cannot be written.
    """
    results.create()
    try:
        with _import_lock(results):
            results.recover()
            for left in results.runs.glob(f"{_STAGING}*"):  # from an import that was killed
                shutil.rmtree(left)
            # On the same file system, so that a rename suffices, and under names that no run has.
            with tempfile.TemporaryDirectory(prefix=_STAGING, dir=results.runs) as staging:
                return _import(path, results, replace, Path(staging))
    except Timeout:
        raise FltrainError(f"{results.runs}: another import is running; wait until it has ended") from None


def _import(path: Path, results: Results, replace: bool, staging: Path) -> Imported:
    names = _unpack(path, staging)
    try:
        for run_id in names:
            _check(staging / run_id)
    except FltrainError as error:
        raise FltrainError(f"{path}: {error}; nothing was imported") from None
    for run_id in names:
        place = results.run(run_id)
        if os.path.lexists(place) and not place.is_dir():
            raise FltrainError(f"{path}: {place} is not a folder; nothing was imported; rename it")
        if held(results.lease(run_id)):
            raise FltrainError(
                f"{path}: {run_id} is being trained; nothing was imported; stop it or wait for its end"
            )
    present = {run_id for run_id in names if results.record(run_id).complete}
    equal = {run_id for run_id in present if _equal(staging / run_id, results.run(run_id))}
    if not replace and (different := sorted(present - equal)):
        raise FltrainError(
            f"{path}: {len(different)} of its {len(names)} records differ from those in {results.runs}, for "
            f"example {different[0]}; nothing was imported (--replace imports the archived ones)"
        )
    counts = {"added": 0, "replaced": 0, "unchanged": len(equal)}
    arriving = [run_id for run_id in names if run_id not in equal]
    try:
        for run_id in arriving:
            for file in (*(staging / run_id).iterdir(), staging / run_id):
                flush(file)
        for run_id in arriving:
            counts[_arrive(staging / run_id, results, replace)] += 1
    except (OSError, FltrainError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        done = f"{counts['added'] + counts['replaced']} of {len(arriving)} records were imported"
        raise FltrainError(
            f"{path}: {why}; {done}, the others are unchanged; solve this and import the archive again"
        ) from None
    return Imported(**counts)


def _arrive(new: Path, results: Results, replace: bool) -> str:
    """Put a record into its place, unless another process has trained or begun the run meanwhile."""
    run_id = new.name
    try:
        with leased(results.lease(run_id), lambda lock: lock.acquire(timeout=0)):
            there = results.record(run_id).complete
            if there and _equal(new, results.run(run_id)):
                return "unchanged"
            if there and not replace:
                raise FltrainError(f"{run_id} was trained meanwhile (--replace imports the archived record)")
            exchange(new, results.run(run_id))
            return "replaced" if there else "added"
    except Timeout:
        raise FltrainError(f"{run_id} is being trained; stop it or wait for its end") from None


@contextmanager
def _import_lock(results: Results) -> Iterator[None]:
    """Hold the lock of imports, and delete its file at the end.

    Raises:
        Timeout: if another import is running.
    """
    with FileLock(results.runs / ".import.lock", timeout=0) as lock:
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)


class _Bounded(gzip.GzipFile):
    """Gzip file that reads no more than an archive may hold, even if a header claims more."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_FILE_BYTES or self.tell() > MAX_BYTES:
            raise tarfile.ReadError(f"more than {MAX_FILE_BYTES:,} bytes at once, or {MAX_BYTES:,} in all")
        return super().read(size)


def _unpack(path: Path, staging: Path) -> list[str]:
    """Write the files of an archive below ``staging``; return the run IDs."""

    def refuse(why: str) -> NoReturn:
        raise FltrainError(f"{path}: not an archive of records: {why}; nothing was imported")

    runs: set[str] = set()
    if path.exists() and not path.is_file():  # a named pipe would block
        refuse("it is not an ordinary file")
    try:
        with _Bounded(path) as packed, tarfile.open(fileobj=packed, mode="r:") as archive:
            for member in archive:
                place = _MEMBER.fullmatch(member.name)
                if place is None or place["file"] not in RECORD_FILES:
                    allowed = f"<run id>/{{{', '.join(RECORD_FILES)}}}"
                    refuse(f"it holds {member.name[:200]!r}; allowed are {allowed}")
                if not member.isreg() or member.issparse():
                    refuse(f"{member.name!r} is not an ordinary file")
                if not 0 <= member.size <= MAX_FILE_BYTES:
                    refuse(f"{member.name!r} has {member.size:,} bytes; {MAX_FILE_BYTES:,} are allowed")
                if (staging / member.name).exists():
                    refuse(f"it holds {member.name!r} twice")
                runs.add(place["run"])
                if len(runs) > MAX_RUNS:
                    refuse(f"it holds more than {MAX_RUNS:,} runs")
                content = archive.extractfile(member)
                assert content is not None  # an ordinary file
                (staging / place["run"]).mkdir(exist_ok=True)
                (staging / member.name).write_bytes(content.read())
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        refuse(f"it cannot be read ({error})")
    if not runs:
        refuse("it is empty")
    return sorted(runs)


def _check(folder: Path) -> None:
    """Refuse a damaged or stale record."""
    check_record(folder)
    if stale := Stale.of(Record(folder)):
        raise FltrainError(
            f"{folder.name}: spec.json was written by another version of fltrain ({stale.revised})"
        )


def _equal(one: Path, other: Path) -> bool:
    _, different, unreadable = filecmp.cmpfiles(one, other, RECORD_FILES, shallow=False)
    return not different and not unreadable
