"""Bring the raw files of a dataset to this machine, and verify their checksums.

A file is searched in the folder of earlier downloads, then in the folder in ``FLTRAIN_DATA``. Otherwise it is
downloaded: first from the server in ``FLTRAIN_MIRROR``, then from the addresses of the file. A download gets
its name when its checksum matches, so no file is ever half there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.filesize import decimal

from fltrain.core.errors import FltrainError
from fltrain.core.files import locked, replacing
from fltrain.data.datasets import DatasetEntry, RemoteFile
from fltrain.data.readers.base import ARCHIVES, readable, unpack

LOG = logging.getLogger("fltrain")
OFFLINE = "FLTRAIN_DATA"
MIRROR = "FLTRAIN_MIRROR"

TIMEOUT = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes."""

LOG_SECONDS = 15.0
"""Seconds between two messages on the progress of a download."""


class _Failed(Exception):
    """A failed attempt to download, with the reason."""


def obtain(name: str, entry: DatasetEntry, downloads: Path) -> Path:
    """Return the folder (or file) with the raw files of a dataset.

    Files with an address end up in ``downloads/<name>``; files from the offline folder are linked there.
    Other datasets are searched at the entry's ``path`` and in the offline folder, as a folder or an archive
    with the name of the dataset.
    """
    folder = downloads / name
    for file in entry.files:
        fetch(file, folder, entry.files)
    if entry.own_copy is not None:
        return entry.own_copy
    if entry.files or not entry.reader.needs_files:
        return folder
    source = _offline(name)
    if source is None:
        raise FltrainError(
            f"dataset {name!r} cannot be downloaded freely. {entry.obtain} Or put it into the folder that "
            f"{OFFLINE} names, as {name}/ or {name}.zip"
        )
    return source if source.name == name else unpack(source, folder)


def whereabouts(name: str, entry: DatasetEntry, downloads: Path) -> str:
    """Return where the raw files are, or where they would come from; nothing is downloaded."""
    if not entry.reader.needs_files:
        return "ships with a dependency"
    if entry.own_copy is not None:
        return f"{entry.own_copy}{'' if entry.own_copy.exists() else ' (missing)'}"
    if entry.files and all((downloads / name / file.name).exists() for file in entry.files):
        return str(downloads / name)
    if all(_offline(name, file) for file in entry.files or (None,)):
        return os.environ[OFFLINE]
    urls = [url for file in entry.files for url in file.urls]
    return f"download from {urlsplit(urls[0]).netloc}" if urls else "by hand"


def fetch(file: RemoteFile, folder: Path, files: Sequence[RemoteFile] = ()) -> None:
    """Put a file with the right checksum into a folder; download it if it is not on this machine.

    Args:
        file: name, addresses and checksum.
        folder: named like the dataset; created if necessary.
        files: all files of the dataset, for the message.
    """
    path = folder / file.name
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f".{file.name}.lock", f"fetching {file.name}"):
                if path.exists():
                    LOG.info("%s: another process has fetched it", file.name)
                elif source := _offline(folder.name, file):
                    path.unlink(missing_ok=True)  # an old link may dangle
                    path.symlink_to(source.resolve())
                else:
                    _download(file, path, files or (file,))
        except OSError as error:
            raise FltrainError(
                f"{file.name}: cannot be written to {folder} ({error.strerror or error}); "
                "make room or choose another folder"
            ) from None
    checksum = _checksum(file, path)
    if checksum != file.checksum:
        raise FltrainError(
            f"{path.resolve()}: damaged or another version: expected {file.identity}, found {checksum} "
            f"({path.stat().st_size:,} bytes); delete or replace it"
        )


def _checksum(file: RemoteFile, path: Path) -> str:
    """Return the checksum of a local file, of the kind that ``file`` states."""
    kind = file.checksum.partition(":")[0]
    with readable(path, "a file"), path.open("rb") as content:
        return f"{kind}:{hashlib.file_digest(content, kind).hexdigest()}"


def _offline(name: str, file: RemoteFile | None = None) -> Path | None:
    """Return a file of a dataset in ``FLTRAIN_DATA``, or the dataset as folder or archive; None if absent."""
    value = os.environ.get(OFFLINE)
    if not value:
        return None
    root = Path(value).expanduser()
    if not root.is_dir():
        raise FltrainError(f"{OFFLINE}: {value}: no such folder; name the folder with your data or unset it")
    places = [f"{name}/{file.name}", file.name] if file else [name, *(name + ending for ending in ARCHIVES)]
    return next((root / place for place in places if (root / place).exists()), None)


def _download(file: RemoteFile, path: Path, files: Sequence[RemoteFile]) -> None:
    """Try every address in turn, until one delivers the file."""
    mirror = os.environ.get(MIRROR)
    reasons = []
    for url in [*([f"{mirror.rstrip('/')}/{quote(file.name)}"] if mirror else []), *file.urls]:
        try:
            with replacing(path) as temporary:
                _receive(file, url, temporary)
        except _Failed as error:
            reasons.append(_without_password(f"{url}: {error}"))
        else:
            failed = f" (failed before: {'; '.join(reasons)})" if reasons else ""
            LOG.info("%s: downloaded, checksum verified%s", file.name, failed)
            return
    attempts = "; ".join(reasons) or "it has no public address"
    dataset = path.parent.name
    missing = [file for file in files if not (path.with_name(file.name).exists() or _offline(dataset, file))]
    names = ", ".join(file.name for file in missing)
    by_hand = f"get {names} by hand and name the folder in {OFFLINE}"
    if offline := os.environ.get(OFFLINE):
        by_hand = f"put it into {OFFLINE}={offline}, where neither the folder nor {dataset}/ has {names}"
    raise FltrainError(
        f"{file.name}: cannot be downloaded ({attempts}); try again later, or {by_hand} "
        f"(expected of {file.name}: {file.identity})"
    )


def _receive(file: RemoteFile, url: str, path: Path) -> None:
    """Write what an address sends to a file, and verify its checksum.

    Raises:
        _Failed: if it cannot be reached, or sends nothing, a part of the file, or another file.
    """
    import requests  # planning does not need it
    from urllib3.exceptions import HTTPError

    size = "" if file.bytes is None else f" {decimal(file.bytes)}"
    received, log_time = 0, time.monotonic()
    try:
        # Bytes as the server has them: requests would decompress .gz files.
        response = requests.get(url, stream=True, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"})
        with response, path.open("wb") as out:
            response.raise_for_status()
            LOG.info("%s: downloading%s from %s", file.name, size, _without_password(url))
            while chunk := response.raw.read1(1 << 16, decode_content=False):
                received += len(chunk)
                out.write(chunk)
                if time.monotonic() > log_time + LOG_SECONDS:
                    LOG.info("%s: %s of%s received", file.name, decimal(received), size or " an unknown size")
                    log_time = time.monotonic()
    except (requests.RequestException, HTTPError) as error:
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        text = str(cause).partition(" for url: ")[0]  # our message begins with the address
        raise _Failed(text or type(cause).__name__) from None
    if (checksum := _checksum(file, path)) != file.checksum:
        raise _Failed(f"sends another file: expected {file.checksum}, found {checksum}")


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text)
