"""Download one file of a dataset, or find it on this machine, and verify its checksum.

``fetch`` searches the target folder, then the folder in ``FLTRAIN_DATA``. Otherwise it downloads: first from
the server in ``FLTRAIN_MIRROR``, then from the addresses of the file. Pooch writes to a temporary file and
renames it when the checksum matches, so no file is ever half there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pooch
from filelock import FileLock
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fltrain.core.errors import FltrainError
from fltrain.data.registry import RemoteFile

LOG = logging.getLogger("fltrain")
OFFLINE = "FLTRAIN_DATA"
MIRROR = "FLTRAIN_MIRROR"

ATTEMPTS = 4
"""Rounds in which every address is tried once."""
PAUSE = 1.0
"""Seconds between the first two rounds; doubled after each round."""
TIMEOUT = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes."""
SIZE_LIMIT = 4 << 30
"""Bytes that a download may have if its size is not registered."""
_TRANSIENT_CLIENT_ERRORS = (408, 425, 429)


class _DownloadError(Exception):
    """One address did not deliver the file. ``final``: trying this address again is pointless."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def fetch(file: RemoteFile, folder: Path, dataset: str | None = None, quiet: bool = False) -> Path:
    """Return the path of a file with the right checksum; download it if it is not on this machine.

    Args:
        file: name, addresses and checksum.
        folder: target of a download; created if necessary.
        dataset: sub-folder of the offline folder to search first.
        quiet: show no progress bar.

    Raises:
        FltrainError: if the local copy has another checksum, no address delivers the file, or it cannot be
            written.
    """
    path = folder / file.name
    local = path if os.path.exists(path) else _offline_copy(file, dataset)
    if local is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f".{file.name}.lock"):
                if not path.exists():  # else another process has downloaded it meanwhile
                    _download(file, folder, quiet)
        except OSError as error:
            raise FltrainError(
                f"{file.name}: cannot be written to {folder} ({error.strerror or error}); "
                "make room or choose another folder"
            ) from None
        local = path
    _verify(local, file)
    return local


def _verify(path: Path, file: RemoteFile) -> None:
    kind = file.checksum.partition(":")[0]
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise FltrainError(f"{path}: cannot be read ({error.strerror or error})") from None
    if f"{kind}:{digest}" != file.checksum:
        raise FltrainError(
            f"{path}: damaged or another version: expected {file.identity}, found {kind}:{digest} "
            f"({path.stat().st_size:,} bytes); delete or replace it"
        )


def offline_folder() -> Path | None:
    """Return the folder in ``FLTRAIN_DATA``, which is searched before downloading; None if it is not set.

    Raises:
        FltrainError: if the folder does not exist.
    """
    folder = os.environ.get(OFFLINE)
    if not folder:
        return None
    root = Path(folder).expanduser()
    if not os.path.isdir(root):
        raise FltrainError(f"{OFFLINE}: {folder}: no such folder; name the folder with your data or unset it")
    return root


def _offline_copy(file: RemoteFile, dataset: str | None) -> Path | None:
    root = offline_folder()
    if root is None:
        return None
    places = [root / dataset / file.name] if dataset else []
    return next((path for path in (*places, root / file.name) if os.path.exists(path)), None)


def _download(file: RemoteFile, folder: Path, quiet: bool) -> None:
    """Try every address in turn, for several rounds, until one delivers the file."""
    mirror = os.environ.get(MIRROR)
    urls = [f"{mirror.rstrip('/')}/{quote(file.name)}", *file.urls] if mirror else list(file.urls)
    reasons: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        if attempt and urls:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        for url in urls.copy():
            try:
                _retrieve(file, url, folder, quiet)
                return
            except _DownloadError as error:
                reasons[_without_password(url)] = str(error)
                LOG.info("%s: attempt %d: %s: %s", file.name, attempt + 1, _without_password(url), error)
                if error.final:
                    urls.remove(url)
    tried = "; ".join(f"{url}: {reason}" for url, reason in reasons.items()) or "it has no public address"
    raise FltrainError(
        f"{file.name}: cannot be downloaded ({tried}); try again later, or get it by hand and name its "
        f"folder in {OFFLINE} (expected: {file.identity})"
    )


def _retrieve(file: RemoteFile, url: str, folder: Path, quiet: bool) -> None:
    """Download from one address.

    Raises:
        _DownloadError: if the address does not deliver the file.
        OSError: if the file cannot be written.
    """
    size = "" if file.bytes is None else f" {decimal(file.bytes)}"
    LOG.info("%s: downloading%s from %s", file.name, size, _without_password(url))
    pooch.get_logger().setLevel("WARNING")  # its messages show passwords
    try:
        pooch.retrieve(url, file.checksum, file.name, folder, downloader=_BoundedDownloader(file, quiet))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # from the disk: network errors come wrapped, without a number
        response = getattr(error, "response", None)
        if response is not None:
            status = response.status_code
            final = 400 <= status < 500 and status not in _TRANSIENT_CLIENT_ERRORS
            raise _DownloadError(f"{status} {response.reason}", final) from None
        raise _DownloadError(_root_cause(error)) from None
    path = folder / file.name
    path.chmod(folder.stat().st_mode & 0o666)  # as readable as its folder; pooch makes it private
    LOG.info("%s: downloaded, checksum verified", file.name)


class _BoundedDownloader:
    """Pooch's HTTP downloader with a progress bar; stops a server that sends too much."""

    def __init__(self, file: RemoteFile, quiet: bool) -> None:
        self._file = file
        self._quiet = quiet

    def __call__(self, url: str, output_file: Any, _: Any) -> None:
        file = self._file
        download = pooch.HTTPDownloader(
            chunk_size=1 << 16,
            timeout=TIMEOUT,
            headers={"Accept-Encoding": "identity"},
            hooks={"response": self._check_headers},
        )
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        disabled = self._quiet or not console.is_terminal
        with open(output_file, "wb") as out, Progress(*columns, console=console, disable=disabled) as bar:
            task = bar.add_task(file.name, total=file.bytes)

            def write(chunk: bytes) -> None:
                if out.tell() + len(chunk) > (limit := file.bytes or SIZE_LIMIT):
                    raise _DownloadError(f"the server sends more than {limit:,} bytes")
                out.write(chunk)
                bar.advance(task, len(chunk))

            download(url, SimpleNamespace(write=write, flush=out.flush), None)

    def _check_headers(self, response: Any, **_: Any) -> None:
        """Refuse a wrong size before the first byte arrives."""
        response.raw.headers.pop("Content-Encoding", None)  # or .gz files would be decompressed
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            response.headers.pop("Content-Length", None)
        elif response.status_code == 200 and self._file.bytes not in (None, int(length)):
            raise _DownloadError(f"the server sends {int(length):,} bytes, expected {self._file.bytes:,}")


def _root_cause(error: BaseException) -> str:
    """Return the message of the innermost cause, on one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    reason = error.strerror if isinstance(error, OSError) and isinstance(error.strerror, str) else str(error)
    return " ".join(reason.split(". ")[0].split()) or type(error).__name__


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
