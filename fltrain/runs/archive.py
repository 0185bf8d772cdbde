"""Archives of records: what tables, figures and MLflow are made from, in one small file. No torch.

An archive is a gzipped tar file of ``<run id>/<file>`` for the files of complete records. Logs and models
stay behind. Equal records make equal archives, byte for byte. An archive from elsewhere is not trusted:
nothing is unpacked but these files, and a record comes in only if it is whole
(see ``fltrain.runs.integrity``) and its spec is what today's code would write. Provenance is exported
as it is, the machine's name included.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.runs.integrity import check_record
from fltrain.runs.record import RECORD_FILES, Record, Results
from fltrain.runs.status import held, settings_of

MAX_RUNS = 100_000
MAX_FILE_BYTES = 64 * 2**20
"""A file of a record; the largest of the papers' runs (500 rounds, all statistics) take a few MB."""
MAX_BYTES = 8 * 2**30
"""All that is unpacked from an archive."""

_RUN = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
_MEMBER = re.compile(rf"(?P<run>{_RUN})/(?P<file>[a-z]+\.jsonl?)")


@dataclass(frozen=True)
class Imported:
    """How many records an import added, replaced, and found to be there already."""

    added: int
    replaced: int
    unchanged: int


# ---------------------------------------------------------------------------------------------------- export
def named_records(results: Results, runs: Sequence[str]) -> list[Record]:
    """The records of these runs, each once.

    Raises:
        FltrainError: if a name is none that a run can have.
    """
    for run in runs:
        if not re.fullmatch(_RUN, run):
            raise FltrainError(f"{run!r} is no run id; `fltrain status` lists them")
    return [results.record(run) for run in dict.fromkeys(runs)]


def current_records(results: Results) -> tuple[list[Record], int]:
    """All records but those that are stale, and how many these are."""
    records = list(results.records())
    current = [record for record in records if (spec := settings_of(record)) and spec.run_id == record.run_id]
    return current, len(records) - len(current)


def export_records(records: Iterable[Record], path: Path) -> int:
    """Write complete records to an archive; return how many.

    Raises:
        FltrainError: if there is none, or one that an import would refuse; or if a folder is where the
            archive is to be.
    """
    wanted = sorted(records, key=lambda record: record.run_id)
    if not wanted:
        raise FltrainError("there are no records to export: nothing has been trained yet")
    if path.is_dir():
        raise FltrainError(
            f"{path}: is a folder; name a file to write, for example {path / 'records.tar.gz'}"
        )
    # No dates, owners or file names: equal records are equal archives.
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
    """Bring the records of an archive into the results folder: all that are new, or none if one is wrong.

    Args:
        path: an archive that ``export_records`` made, or that claims to be one.
        results: where to.
        replace: whether an archived record takes the place of a different one of the same run.

    Raises:
        FltrainError: if the archive is none, or holds anything but valid records; or if another record of one
            of its runs is there and ``replace`` is not set.
    """
    runs = results.run("-").parent
    runs.mkdir(parents=True, exist_ok=True)
    # On the same file system and under names that no run has, so that a record arrives by a rename.
    staging, aside = (Path(tempfile.mkdtemp(prefix=f".{use}-", dir=runs)) for use in ("import", "replaced"))
    try:
        names = _unpack(path, staging)
        try:
            for run_id in names:
                _check(staging / run_id)
        except FltrainError as error:
            raise FltrainError(f"{path}: {error}; nothing was imported") from None
        busy = [run_id for run_id in names if held(results.lease(run_id))]
        if busy:
            raise FltrainError(
                f"{path}: {busy[0]} is being trained; nothing was imported; wait for it to end, or stop it"
            )
        there = {run_id for run_id in names if results.record(run_id).complete}
        same = {run_id for run_id in there if _equal(staging / run_id, results.run(run_id))}
        different = sorted(there - same)
        if different and not replace:
            raise FltrainError(
                f"{path}: {len(different)} of its {len(names)} records differ from those in {runs}, for "
                f"example {different[0]}; nothing was imported (--replace takes the archived ones)"
            )
        places = {staging / run_id: results.run(run_id) for run_id in names if run_id not in same}
        try:
            _move(places, aside)
        except OSError as error:
            left = f"; {aside} keeps records that could not be put back" if any(aside.iterdir()) else ""
            raise FltrainError(f"{error.filename}: {error.strerror}; nothing was imported{left}") from None
        shutil.rmtree(aside)
        return Imported(len(names) - len(there), len(different), len(same))
    finally:
        shutil.rmtree(staging)
        with suppress(OSError):  # records that could not be put back stay
            aside.rmdir()


class _Bounded(gzip.GzipFile):
    """A gzip file of which nobody gets more than an archive may hold, whatever a header claims."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_FILE_BYTES or self.tell() > MAX_BYTES:
            raise tarfile.ReadError(f"more than {MAX_FILE_BYTES:,} bytes at once or {MAX_BYTES:,} in all")
        return super().read(size)


def _unpack(path: Path, staging: Path) -> list[str]:
    """Write the files of an archive below ``staging``; return the run ids."""

    def refuse(why: str) -> NoReturn:
        raise FltrainError(f"{path}: not an archive of records: {why}; nothing was imported")

    found: dict[str, set[str]] = {}
    total = 0
    try:
        with _Bounded(path) as packed, tarfile.open(fileobj=packed, mode="r:") as archive:
            for member in archive:
                place = _MEMBER.fullmatch(member.name)
                if place is None or place["file"] not in RECORD_FILES:
                    refuse(
                        f"it holds {member.name[:200]!r}; allowed are <run id>/{{{', '.join(RECORD_FILES)}}}"
                    )
                if not member.isreg() or member.issparse():
                    refuse(f"{member.name!r} is not an ordinary file")
                total += member.size
                if not 0 <= member.size <= MAX_FILE_BYTES or total > MAX_BYTES:
                    refuse(
                        f"{member.name!r} has {member.size:,} bytes; {MAX_FILE_BYTES:,} are allowed for a "
                        f"file, {MAX_BYTES:,} for all"
                    )
                files = found.setdefault(place["run"], set())
                if place["file"] in files:
                    refuse(f"{member.name!r} is there twice")
                if len(found) > MAX_RUNS:
                    refuse(f"it holds more than {MAX_RUNS:,} runs")
                files.add(place["file"])
                content = archive.extractfile(member)
                assert content is not None  # it is an ordinary file
                (staging / place["run"]).mkdir(exist_ok=True)
                (staging / member.name).write_bytes(content.read())
    except FileNotFoundError:
        raise FltrainError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        refuse(f"it cannot be read ({error})")
    if not found:
        refuse("it is empty")
    for run_id, files in found.items():
        if missing := [name for name in RECORD_FILES if name not in files]:
            refuse(f"{run_id} lacks {', '.join(missing)}")
    return sorted(found)


def _check(folder: Path) -> None:
    """Refuse a record that is not what its run id says, or not what today's code would write."""
    if stale := check_record(folder).stale:
        raise FltrainError(f"{folder.name}: spec.json is of another version of fltrain ({stale})")


def _equal(one: Path, other: Path) -> bool:
    return all(
        (other / name).exists() and (one / name).read_bytes() == (other / name).read_bytes()
        for name in RECORD_FILES
    )


def _move(places: Mapping[Path, Path], aside: Path) -> None:
    """Put folders into their places by renaming: all, or none if one cannot be.

    What was there, logs and models included, is in ``aside`` then; or again in its place, if one cannot be.
    """
    with ExitStack() as undo:
        for new, place in places.items():
            if place.exists():
                old = aside / place.name
                place.rename(old)
                undo.callback(old.rename, place)
            new.rename(place)
            undo.callback(place.rename, new)
        undo.pop_all()
