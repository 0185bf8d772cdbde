"""Export and import of records: one small file from which another machine makes tables and figures. No torch.

An archive is a gzipped tar file of ``<run id>/<file>`` for the files of complete records, without logs and
models. Equal records make equal archives, byte for byte. Imports unpack only these files, and accept a record
only if its ``check`` passes and it is not stale. Provenance is exported unchanged, with the name of the
machine.
"""

from __future__ import annotations

import filecmp
import gzip
import io
import math
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

from fltrain.core.config import similar
from fltrain.core.errors import FltrainError, as_mistake
from fltrain.core.files import replacing
from fltrain.core.shell import command
from fltrain.runs.record import RECORD_FILES, Record, Results, leased

NUMBERS = ("spec.json", "metrics.jsonl", "summary.json")
"""Files that are equal after the same training with the same arithmetic."""

_FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")
_MEMBER = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.+-]*/({'|'.join(map(re.escape, RECORD_FILES))})")


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
                status = command("fltrain status", record.folder.parent.parent)
                remedy = similar(record.folder) or f"; `{status}` lists the runs that have one"
                raise FltrainError(f"{record.run_id}: no complete record in {record.folder.parent}{remedy}")
            _check(record)
            for name in RECORD_FILES:
                content = (record.folder / name).read_bytes()
                member = tarfile.TarInfo(f"{record.run_id}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return len(wanted)


def import_records(path: Path, results: Results) -> Counter[str]:
    """Import the records of an archive. If one is invalid, none is imported; existing records stay.

    Returns:
        The number of records that are ``added``; ``unchanged``, because spec and numbers are equal, or
        equal up to rounding; and ``kept``, although their numbers differ.

    Raises:
        FltrainError: if the archive is invalid, a run is being trained, or a file cannot be written.
    """
    results.create()
    counts, outcome = Counter[str](), "nothing was imported"
    # On the same file system, so that a rename suffices, and under a name that no run has.
    with tempfile.TemporaryDirectory(prefix=".import-", dir=results.runs) as staging:
        try:
            _unpack(path, Path(staging))
            new = sorted(Path(staging).iterdir())
            for record in new:
                _check(Record(record))
            for record in new:
                counts[_receive(record, results)] += 1
                imported = f"{counts['added']} of {len(new)} records were imported"
                outcome = f"{imported}, the others are unchanged; solve this and import it again"
        except (FltrainError, OSError) as error:
            raise FltrainError(f"{path}: {as_mistake(error)}; {outcome}") from None
    return counts


def _receive(new: Path, results: Results) -> str:
    """Put a record into its place unless the run has one; return ``added``, ``unchanged`` or ``kept``."""
    place = results.run(new.name)
    if os.path.lexists(place) and not place.is_dir():
        raise FltrainError(f"{place} is not a folder; rename it")
    try:
        with leased(results.lease(new.name)):
            if (existing := results.record(new.name)).complete:
                equal_files, *_ = filecmp.cmpfiles(new, place, NUMBERS, shallow=False)
                rows = ((folder / "metrics.jsonl").read_text() for folder in (new, place))
                equal = len(equal_files) == len(NUMBERS) or (existing.usable and _close(*rows))
                return "unchanged" if equal else "kept"
            if place.exists():  # a training that was stopped
                shutil.rmtree(place)
            new.rename(place)
    except Timeout:
        raise FltrainError(f"{new.name} is being trained; stop it or wait for its end") from None
    return "added"


def _close(first: str, second: str) -> bool:
    """Return True if texts differ at most in the last digits of their floats."""
    pairs = zip(*(map(float, _FLOAT.findall(text)) for text in (first, second)), strict=False)
    equal_texts = _FLOAT.sub("#", first) == _FLOAT.sub("#", second)
    return equal_texts and all(math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-6) for pair in pairs)


def _unpack(path: Path, staging: Path) -> None:
    """Write the files of an archive below ``staging``."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            members = archive.getmembers()
            for member in members:
                if not (_MEMBER.fullmatch(member.name) and member.isreg()):
                    raise FltrainError(
                        f"not an archive of records: it holds {member.name[:200]!r}; allowed are the files "
                        f"<run id>/{{{', '.join(RECORD_FILES)}}}"
                    )
            archive.extractall(staging, filter="data")
    except FileNotFoundError:
        remedy = similar(path) or "; make one with `fltrain records export`, or use published/records.tar.gz"
        raise FltrainError(f"no such file{remedy}") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise FltrainError(f"not an archive of records: it cannot be read ({error})") from None
    if not members:
        raise FltrainError("not an archive of records: it is empty")


def _check(record: Record) -> None:
    """Refuse a damaged or stale record."""
    record.check()
    if record.stale:
        raise FltrainError(
            f"{record.run_id}: spec.json was written by another version of fltrain ({record.stale})"
        )
