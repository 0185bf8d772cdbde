"""Export and import of records: one small file from which another machine makes tables and figures. No torch.

An archive is a gzipped tar file of ``<run id>/<file>`` for the files of complete records, without logs and
models. Equal records make equal archives, byte for byte. Imports do not trust archives: they unpack only
these files, and accept a record only if ``check_record`` does and it is not stale. Provenance is exported
unchanged, with the name of the machine.
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
from collections import Counter
from collections.abc import Iterable, Sequence
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


def named_records(results: Results, runs: Sequence[str]) -> list[Record]:
    """Return the records of these runs, each once; refuse names that are not run IDs."""
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


def import_records(path: Path, results: Results, replace: bool = False) -> Counter[str]:
    """Import the records of an archive. If one is invalid, none is imported.

    A kill leaves each record old or new, never lost: see ``Results.recover``.

    Args:
        path: the archive.
        results: the results folder.
        replace: replace records that differ from the archived ones.

    Returns:
        The number of records that are ``added``, ``replaced``, and ``unchanged`` because they were equal.

    Raises:
        FltrainError: if the archive is invalid; if records differ and ``replace`` is False; if a run is being
            trained; or if a file cannot be written.
    """
    results.create()
    lock = FileLock(results.runs / ".import.lock", timeout=0)
    try:
        with lock:
            results.recover()
            for left in results.runs.glob(f"{_STAGING}*"):  # from an import that was killed
                shutil.rmtree(left)
            # On the same file system, so that a rename suffices, and under names that no run has.
            with tempfile.TemporaryDirectory(prefix=_STAGING, dir=results.runs) as staging:
                try:
                    return _import(path, results, replace, Path(staging))
                finally:
                    Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        raise FltrainError(f"{results.runs}: another import is running; wait until it has ended") from None


def _import(path: Path, results: Results, replace: bool, staging: Path) -> Counter[str]:
    done = Counter[str]()
    try:
        names = _unpack(path, staging)
        for run in names:
            _check(staging / run)
            if os.path.lexists(place := results.run(run)) and not place.is_dir():
                raise FltrainError(f"{place} is not a folder; rename it")
            if held(results.lease(run)):
                raise FltrainError(f"{run} is being trained; stop it or wait for its end")
        different = [run for run in names if _there(staging / run, results) == "different"]
        if different and not replace:
            raise FltrainError(
                f"{len(different)} of its {len(names)} records differ from those in {results.runs}, for "
                f"example {different[0]} (--replace imports the archived ones)"
            )
        for file in (file for run in different for file in (staging / run).iterdir()):
            flush(file)  # a full disk may show only now, and the old records must stay then
    except (FltrainError, OSError) as error:
        raise FltrainError(f"{path}: {_line(error)}; nothing was imported") from None
    try:
        for run in names:
            done[_arrive(staging / run, results, replace)] += 1
    except (FltrainError, OSError) as error:
        imported = f"{done['added'] + done['replaced']} of {len(names)} records were imported"
        raise FltrainError(
            f"{path}: {_line(error)}; {imported}, the others are unchanged; solve this and import it again"
        ) from None
    return done


def _arrive(new: Path, results: Results, replace: bool) -> str:
    """Put a record into its place, unless another process trains the run, or has trained it meanwhile."""
    try:
        with leased(results.lease(new.name)):
            there = _there(new, results)
            if there == "equal":
                return "unchanged"
            if there and not replace:
                raise FltrainError(
                    f"{new.name} was trained meanwhile (--replace imports the archived record)"
                )
            exchange(new, results.run(new.name))
            return "replaced" if there else "added"
    except Timeout:
        raise FltrainError(f"{new.name} is being trained; stop it or wait for its end") from None


def _there(new: Path, results: Results) -> str:
    """Compare the record in the place of a new one: ``equal``, ``different``, or empty if there is none."""
    old = results.record(new.name)
    if not old.complete:
        return ""
    _, different, unreadable = filecmp.cmpfiles(new, old.folder, RECORD_FILES, shallow=False)
    return "different" if different or unreadable else "equal"


def _line(error: FltrainError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error)


class _Bounded(gzip.GzipFile):
    """Gzip file that reads no more than an archive may hold, even if a header claims more."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_FILE_BYTES or self.tell() > MAX_BYTES:
            raise tarfile.ReadError(f"more than {MAX_FILE_BYTES:,} bytes at once, or {MAX_BYTES:,} in all")
        return super().read(size)


def _unpack(path: Path, staging: Path) -> list[str]:
    """Write the files of an archive below ``staging``; return the run IDs."""

    def refuse(why: str) -> NoReturn:
        raise FltrainError(f"not an archive of records: {why}")

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
        raise FltrainError("no such file") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        refuse(f"it cannot be read ({error})")
    return sorted(runs) or refuse("it is empty")


def _check(folder: Path) -> None:
    """Refuse a damaged or stale record."""
    if check_record(folder).current:
        return
    if stale := Stale.of(Record(folder)):
        raise FltrainError(
            f"{folder.name}: spec.json was written by another version of fltrain ({stale.revised})"
        )
