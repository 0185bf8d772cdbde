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
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from filelock import Timeout

from fltrain.core.errors import FltrainError, as_mistake
from fltrain.core.files import flush, replacing
from fltrain.runs.record import RECORD_FILES, Record, Results, check_record, exchange, leased
from fltrain.runs.today import Stale

MAX_FILES = 500_000
"""Limit for the number of files; a run has five."""
MAX_FILE_BYTES = 64 * 2**20
"""Limit for one file; the papers' largest runs (500 rounds, all statistics) take a few MB."""
MAX_BYTES = 8 * 2**30
"""Limit for all unpacked files."""

NUMBERS = ("spec.json", "metrics.jsonl", "summary.json")
"""Files that are equal after the same training with the same arithmetic."""

RUN_ID = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
_MEMBER = re.compile(rf"({RUN_ID})/({'|'.join(map(re.escape, RECORD_FILES))})")


def export_records(records: Iterable[Record], path: Path) -> int:
    """Write complete records to an archive; return their number."""
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
        The number of records that are ``added``; ``replaced``; ``unchanged``, because spec and numbers are
        equal (with ``replace``, also costs and provenance); and ``kept``, although their numbers differ.

    Raises:
        FltrainError: if the archive is invalid, a run is being trained, or a file cannot be written.
    """
    results.create()
    # On the same file system, so that a rename suffices, and under a name that no run has.
    staging = results.runs / ".import-records"
    try:
        with leased(results.runs / ".import.lock"):
            results.recover()
            shutil.rmtree(staging, ignore_errors=True)  # of an import that was killed
            try:
                return _import(path, results, replace, staging)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except Timeout:
        raise FltrainError(f"{results.runs}: another import is running; wait until it has ended") from None


def _import(path: Path, results: Results, replace: bool, staging: Path) -> Counter[str]:
    done, outcome = Counter[str](), "nothing was imported"
    try:
        _unpack(path, staging)
        new = sorted(staging.glob("*"))
        for record in new:
            _check(record)
            if _receive(record, results, replace, commit=False) == "replaced":
                for file in record.iterdir():
                    flush(file)  # a full disk may show only now, and the old records must stay then
        for record in new:
            imported = f"{done['added'] + done['replaced']} of {len(new)} records were imported"
            outcome = f"{imported}, the others are unchanged; solve this and import it again"
            done[_receive(record, results, replace)] += 1
    except (FltrainError, OSError) as error:
        raise FltrainError(f"{path}: {as_mistake(error)}; {outcome}") from None
    return done


def _receive(new: Path, results: Results, replace: bool, commit: bool = True) -> str:
    """Put a record into its place, if it differs; return ``added``, ``replaced``, ``unchanged`` or ``kept``.

    Args:
        new: folder of the record, named by its run ID.
        results: the results folder.
        replace: replace another record.
        commit: False only checks what would happen.
    """
    place = results.run(new.name)
    if os.path.lexists(place) and not place.is_dir():
        raise FltrainError(f"{place} is not a folder; rename it")
    try:
        with leased(results.lease(new.name)):
            old = results.record(new.name).complete
            if old:
                compared = RECORD_FILES if replace else NUMBERS
                same, *_ = filecmp.cmpfiles(new, place, compared, shallow=False)
                if len(same) == len(compared):
                    return "unchanged"
                if not replace:
                    return "kept"
            if commit:
                exchange(new, place)
            return "replaced" if old else "added"
    except Timeout:
        raise FltrainError(f"{new.name} is being trained; stop it or wait for its end") from None


class _Bounded(gzip.GzipFile):
    """Gzip file that reads no more than an archive may hold, even if a header claims more."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_FILE_BYTES or self.tell() > MAX_BYTES:
            raise tarfile.ReadError(f"more than {MAX_FILE_BYTES:,} bytes at once, or {MAX_BYTES:,} in all")
        return super().read(size)


def _unpack(path: Path, staging: Path) -> None:
    """Write the files of an archive below ``staging``."""
    fault = "it is empty"
    try:
        if path.exists() and not path.is_file():  # a named pipe would block
            raise OSError("not an ordinary file")
        with _Bounded(path) as packed, tarfile.open(fileobj=packed, mode="r:") as archive:
            for number, member in enumerate(archive, start=1):
                fault, file = _fault(number, member, staging), staging / member.name
                if fault:
                    break
                file.parent.mkdir(parents=True, exist_ok=True)
                if content := archive.extractfile(member):
                    file.write_bytes(content.read())
    except FileNotFoundError:
        raise FltrainError("no such file") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        fault = f"it cannot be read ({error})"
    if fault:
        raise FltrainError(f"not an archive of records: {fault}")


def _fault(number: int, member: tarfile.TarInfo, staging: Path) -> str:
    """Return why a member is not a file of a record; empty if it is one."""
    if number > MAX_FILES:
        return f"it holds more than {MAX_FILES:,} files"
    if not _MEMBER.fullmatch(member.name):
        return f"it holds {member.name[:200]!r}; allowed are <run id>/{{{', '.join(RECORD_FILES)}}}"
    if not member.isreg() or member.issparse():
        return f"{member.name!r} is not an ordinary file"
    if not 0 <= member.size <= MAX_FILE_BYTES:
        return f"{member.name!r} has {member.size:,} bytes; {MAX_FILE_BYTES:,} are allowed"
    return f"it holds {member.name!r} twice" if (staging / member.name).exists() else ""


def _check(folder: Path) -> None:
    """Refuse a damaged or stale record."""
    check_record(folder)
    if stale := Stale.of(Record(folder)):
        raise FltrainError(
            f"{folder.name}: spec.json was written by another version of fltrain ({stale.revised})"
        )
