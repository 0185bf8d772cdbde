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
from collections.abc import Iterable
from pathlib import Path

from filelock import Timeout

from fltrain.core.errors import FltrainError, as_mistake
from fltrain.core.files import replacing
from fltrain.runs.record import RECORD_FILES, Record, Results, check_record, leased
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


def import_records(path: Path, results: Results) -> Counter[str]:
    """Import the records of an archive. If one is invalid, none is imported; existing records stay.

    Returns:
        The number of records that are ``added``; ``unchanged``, because spec and numbers are equal; and
        ``kept``, although their numbers differ.

    Raises:
        FltrainError: if the archive is invalid, a run is being trained, or a file cannot be written.
    """
    results.create()
    done, outcome = Counter[str](), "nothing was imported"
    # On the same file system, so that a rename suffices, and under a name that no run has.
    with tempfile.TemporaryDirectory(prefix=".import-", dir=results.runs) as staging:
        try:
            _unpack(path, Path(staging))
            new = sorted(Path(staging).iterdir())
            for record in new:
                _check(record)
            for record in new:
                done[_receive(record, results)] += 1
                imported = f"{done['added']} of {len(new)} records were imported"
                outcome = f"{imported}, the others are unchanged; solve this and import it again"
        except (FltrainError, OSError) as error:
            raise FltrainError(f"{path}: {as_mistake(error)}; {outcome}") from None
    return done


def _receive(new: Path, results: Results) -> str:
    """Put a record into its place unless the run has one; return ``added``, ``unchanged`` or ``kept``."""
    place = results.run(new.name)
    if os.path.lexists(place) and not place.is_dir():
        raise FltrainError(f"{place} is not a folder; rename it")
    try:
        with leased(results.lease(new.name)):
            if results.record(new.name).complete:
                same, *_ = filecmp.cmpfiles(new, place, NUMBERS, shallow=False)
                return "unchanged" if len(same) == len(NUMBERS) else "kept"
            if place.exists():  # a training that was stopped
                shutil.rmtree(place)
            new.rename(place)
    except Timeout:
        raise FltrainError(f"{new.name} is being trained; stop it or wait for its end") from None
    return "added"


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
