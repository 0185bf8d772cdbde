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
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.runs.integrity import check_record
from fltrain.runs.record import RECORD_FILES, Record, Results
from fltrain.runs.status import held

MAX_RUNS = 100_000
MAX_FILE_BYTES = 64 * 2**20
"""Limit for one file; the papers' largest runs (500 rounds, all statistics) take a few MB."""
MAX_BYTES = 8 * 2**30
"""Limit for all unpacked files."""

_RUN = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
_MEMBER = re.compile(rf"(?P<run>{_RUN})/(?P<file>[a-z]+\.jsonl?)")
_STAGING, _ASIDE = ".import-", ".replaced-"


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

    A kill leaves each record old or new, never lost: see ``recover_records``.

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
            _recover(results)
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
    training = [run_id for run_id in names if held(results.lease(run_id))]
    if training:
        raise FltrainError(
            f"{path}: {training[0]} is being trained; nothing was imported; stop it or wait for its end"
        )
    present = {run_id for run_id in names if results.record(run_id).complete}
    equal = {run_id for run_id in present if _equal(staging / run_id, results.run(run_id))}
    different = sorted(present - equal)
    if different and not replace:
        raise FltrainError(
            f"{path}: {len(different)} of its {len(names)} records differ from those in {results.runs}, for "
            f"example {different[0]}; nothing was imported (--replace imports the archived ones)"
        )
    arriving = [run_id for run_id in names if run_id not in equal]
    for number, run_id in enumerate(arriving):
        try:
            _replace(staging / run_id, results.run(run_id))
        except OSError as error:
            _recover(results)
            raise FltrainError(
                f"{error.filename}: {error.strerror}; {number} of {len(arriving)} records were imported, the "
                "others are unchanged; solve this and import the archive again"
            ) from None
    return Imported(len(names) - len(present), len(different), len(equal))


def _replace(new: Path, place: Path) -> None:
    """Rename a record into its place; move an old one, with its log and models, aside and delete it last."""
    if not place.exists():
        new.rename(place)
        return
    aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=place.parent))
    place.rename(aside / place.name)
    new.rename(place)
    shutil.rmtree(aside)


def moved_records(results: Results) -> list[Path]:
    """Return the folders of records that an interrupted import moved aside."""
    return sorted(results.runs.glob(f"{_ASIDE}*/*"))


def recover_records(results: Results) -> None:
    """Put back the records that an interrupted import moved aside and did not replace."""
    if moved_records(results):
        with suppress(Timeout), _import_lock(results):  # otherwise an import is running
            _recover(results)


def _recover(results: Results) -> None:
    for old in moved_records(results):
        place = results.run(old.name)
        if not place.exists() or (Record(old).complete and not Record(place).complete):
            shutil.rmtree(place, ignore_errors=True)
            old.rename(place)
    for aside in results.runs.glob(f"{_ASIDE}*"):
        shutil.rmtree(aside)


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
    if stale := check_record(folder).stale:
        raise FltrainError(f"{folder.name}: spec.json was written by another version of fltrain ({stale})")


def _equal(one: Path, other: Path) -> bool:
    _, different, unreadable = filecmp.cmpfiles(one, other, RECORD_FILES, shallow=False)
    return not different and not unreadable
