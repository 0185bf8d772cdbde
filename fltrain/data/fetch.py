"""Bring the raw files of a dataset to this machine, and verify their checksums.

A file is searched in the folder of earlier downloads, then in the folder in ``FLTRAIN_DATA``. Otherwise it is
downloaded: first from the server in ``FLTRAIN_MIRROR``, then from the addresses of the file. Pooch writes to
a temporary file and renames it when the checksum matches, so no file is ever half there.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import pooch
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fltrain.core.errors import FltrainError
from fltrain.data.readers.base import ARCHIVES, unpack
from fltrain.data.registry import DatasetEntry, RemoteFile

LOG = logging.getLogger("fltrain")
OFFLINE = "FLTRAIN_DATA"
MIRROR = "FLTRAIN_MIRROR"

ATTEMPTS = 4
"""Rounds in which every address is tried once, unless the name of its server is unknown."""
PAUSE = 1.0
"""Seconds between the first two rounds; doubled after each round."""
TIMEOUT = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes."""

PATIENCE, SLOWEST = 60.0, 1000
"""Seconds after which a download must have reached this mean speed, in bytes a second."""


def obtain(name: str, entry: DatasetEntry, downloads: Path, quiet: bool = False) -> Path:
    """Return the folder (or file) with the raw files of a dataset.

    Files with an address end up in ``downloads/<name>``; files from the offline folder are linked there.
    Other datasets are searched at the entry's ``path`` and in the offline folder, as a folder or an archive
    with the name of the dataset.
    """
    folder = downloads / name
    for file in entry.files:
        fetch(file, folder, name, quiet, entry.files)
    if entry.own_copy is not None:
        return entry.own_copy
    if entry.files or not entry.reader.needs_files:
        return folder
    brought = _offline(*_places(name))
    if brought is None:
        raise FltrainError(
            f"dataset {name!r} cannot be downloaded freely. {entry.obtain} Or put it into the folder that "
            f"{OFFLINE} names, as {name}/ or {name}.zip"
        )
    return brought if brought.name == name else unpack(brought, folder)


def whereabouts(name: str, entry: DatasetEntry, downloads: Path) -> str:
    """Return where the raw files are, or where they would come from; nothing is downloaded."""
    if not entry.reader.needs_files:
        return "ships with a dependency"
    if entry.own_copy is not None:
        return f"{entry.own_copy}{'' if entry.own_copy.exists() else ' (missing)'}"
    if entry.files and all((downloads / name / file.name).exists() for file in entry.files):
        return str(downloads / name)
    if all(_offline(*_places(name, file)) for file in entry.files or (None,)):
        return os.environ[OFFLINE]
    urls = [url for file in entry.files for url in file.urls]
    return f"download from {urlsplit(urls[0]).netloc}" if urls else "by hand"


def fetch(
    file: RemoteFile, folder: Path, dataset: str, quiet: bool = False, files: Sequence[RemoteFile] = ()
) -> None:
    """Put a file with the right checksum into a folder; download it if it is not on this machine.

    Args:
        file: name, addresses and checksum.
        folder: created if necessary.
        dataset: sub-folder of the offline folder to search first.
        quiet: show no progress bar.
        files: all files of the dataset, for the message.
    """
    path = folder / file.name
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f".{file.name}.lock"):
                if path.exists():
                    LOG.info("%s: another process has fetched it", file.name)
                elif brought := _offline(*_places(dataset, file)):
                    path.unlink(missing_ok=True)  # an old link may dangle
                    path.symlink_to(brought.resolve())
                else:
                    _download(file, folder, quiet, _by_hand(dataset, files or (file,), folder))
        except OSError as error:
            raise FltrainError(
                f"{file.name}: cannot be written to {folder} ({error.strerror or error}); "
                "make room or choose another folder"
            ) from None
    kind = file.checksum.partition(":")[0]
    found = f"{kind}:{pooch.file_hash(path, kind)}"
    if found != file.checksum:
        raise FltrainError(
            f"{path.resolve()}: damaged or another version: expected {file.identity}, found {found} "
            f"({path.stat().st_size:,} bytes); delete or replace it"
        )


def _places(name: str, file: RemoteFile | None = None) -> list[str]:
    """Return where the offline folder may have a file of a dataset, or the dataset as folder or archive."""
    return [f"{name}/{file.name}", file.name] if file else [name, *(name + ending for ending in ARCHIVES)]


def _offline(*places: str) -> Path | None:
    """Return the first of these places that exists in the folder ``FLTRAIN_DATA``; None if it is not set."""
    folder = os.environ.get(OFFLINE)
    if not folder:
        return None
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise FltrainError(f"{OFFLINE}: {folder}: no such folder; name the folder with your data or unset it")
    return next((root / place for place in places if (root / place).exists()), None)


def _by_hand(dataset: str, files: Sequence[RemoteFile], folder: Path) -> str:
    """Return instructions for files that cannot be downloaded; name those that the offline folder lacks."""
    if not (offline := os.environ.get(OFFLINE)):
        return f"get it by hand and name its folder in {OFFLINE}"
    lacking = (one for one in files if not (folder / one.name).exists())
    names = [one.name for one in lacking if not _offline(*_places(dataset, one))]
    return f"put it into {OFFLINE}={offline}, where neither the folder nor {dataset}/ has {', '.join(names)}"


def _download(file: RemoteFile, folder: Path, quiet: bool, by_hand: str) -> None:
    """Try every address in turn, for several rounds, until one delivers the file."""
    mirror = os.environ.get(MIRROR)
    urls = [*([f"{mirror.rstrip('/')}/{quote(file.name)}"] if mirror else []), *file.urls]
    reasons: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        if attempt and urls:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        for url in [*urls]:
            try:
                return _retrieve(file, url, folder, quiet)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # from the disk: network errors come wrapped, without a number
                cause = _root_cause(error)
                if isinstance(cause, socket.gaierror):  # offline, or a misspelt address
                    urls.remove(url)
                reasons[url] = _without_password(f"{url}: {str(cause) or type(cause).__name__}")
                LOG.info("%s: attempt %d: %s", file.name, attempt + 1, reasons[url])
    tried = "; ".join(reasons.values()) or "it has no public address"
    raise FltrainError(
        f"{file.name}: cannot be downloaded ({tried}); try again later, or {by_hand} "
        f"(expected: {file.identity})"
    )


def _retrieve(file: RemoteFile, url: str, folder: Path, quiet: bool) -> None:
    """Download from one address, with a progress bar."""
    size = "" if file.bytes is None else f" {decimal(file.bytes)}"
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    http = pooch.HTTPDownloader(
        chunk_size=1 << 16,
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        hooks={"response": _as_sent},
    )

    def download(url: str, path: str, _: Any) -> None:
        with (
            open(path, "wb") as out,
            Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar,
        ):
            task, start = bar.add_task(file.name, total=file.bytes), time.monotonic()

            def write(chunk: bytes) -> None:
                if not out.tell():
                    LOG.info("%s: downloading%s from %s", file.name, size, _without_password(url))
                out.write(chunk)
                if file.bytes is not None and out.tell() > file.bytes:
                    raise ValueError(f"sends more than the {file.bytes:,} bytes of the file")
                if (seconds := time.monotonic() - start) > PATIENCE and out.tell() < SLOWEST * seconds:
                    raise ValueError(f"sends less than {SLOWEST} bytes a second")
                bar.advance(task, len(chunk))

            http(url, SimpleNamespace(write=write, flush=out.flush), None)

    pooch.get_logger().setLevel("WARNING")  # its messages show passwords
    path = Path(pooch.retrieve(url, file.checksum, file.name, folder, downloader=download))
    path.chmod(folder.stat().st_mode & 0o666)  # as readable as its folder; pooch makes it private
    LOG.info("%s: downloaded, checksum verified", file.name)


def _as_sent(response: Any, **_: Any) -> None:
    """Ignore a header for which requests would decompress ``.gz`` files; pass on bytes as they arrive."""
    raw = response.raw
    raw.headers.pop("Content-Encoding", None)
    raw.stream = lambda size, **_: iter(lambda: raw.read1(size), b"")


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost cause."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text)
