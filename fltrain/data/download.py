"""Bring one remote file to this machine: whole, checked, and once.

``fetch`` looks in the folder it is given, then in the folder that the environment variable ``FLTRAIN_DATA``
names, and only then downloads: from the server that ``FLTRAIN_MIRROR`` names, then from the file's own
addresses. Nothing is returned whose checksum is not the expected one, and a file appears under its own name
only when it is complete. What arrived before a connection broke is kept beside it (``<name>.part``), and the
next attempt, in this process or a later one, asks for the rest only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from pydantic import Field, Strict
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fltrain.core.config import FileName, Settings
from fltrain.core.errors import FltrainError
from fltrain.core.files import read_json, write_json

if TYPE_CHECKING:
    import requests

LOG = logging.getLogger("fltrain")
LOG_EVERY_SECONDS = 15.0
OFFLINE = "FLTRAIN_DATA"
MIRROR = "FLTRAIN_MIRROR"
_CHUNK = 1 << 16
_WORTH_ANOTHER_TRY = (408, 425, 429)  # of the errors that HTTP blames on the client


class RemoteFile(Settings):
    """A file, where it can be had, and how to recognise it.

    Attributes:
        name: its name here, in the offline folder and on the mirror.
        urls: addresses in order of preference; none, if it can only be provided by hand.
        checksum: ``md5:`` or ``sha256:`` and the digits.
        bytes: its size, for showing progress.
    """

    name: FileName
    urls: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://\S+$")], ...], Strict(False)]
    checksum: Annotated[str, Field(pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$")]
    bytes: Annotated[int, Field(gt=0)] | None = None


@dataclass(frozen=True)
class Patience:
    """How often a download is tried and how long is waited, in seconds.

    In each of ``attempts`` rounds every address is tried once; the pause between rounds doubles from
    ``pause`` up to ``longest_pause``. ``connect`` and ``read`` bound the silence of a server.
    """

    attempts: int = 5
    pause: float = 1.0
    longest_pause: float = 30.0
    connect: float = 10.0
    read: float = 60.0


def fetch(
    file: RemoteFile,
    folder: Path,
    dataset: str | None = None,
    patience: Patience = Patience(),
    quiet: bool = False,
) -> Path:
    """Return the path of a file whose checksum is right, after downloading it if it is not on this machine.

    Args:
        file: what is wanted.
        folder: where it is kept once downloaded; made if necessary.
        dataset: name of the sub-folder of the offline folder that is looked into first.
        patience: attempts, pauses and timeouts.
        quiet: show no bar on a terminal; progress goes to the log only.

    Raises:
        FltrainError: if a local file is not the one wanted, no address gives it, or it cannot be written.
    """
    path = folder / file.name
    if os.path.exists(path):
        return _checked(path, file)
    offline = _offline(file, dataset)
    if offline is not None:
        return _checked(offline, file)
    partial = _Partial(path, file.checksum)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if not path.exists():
                _download(file, partial, patience, quiet)
                return path
    except OSError as error:
        raise FltrainError(
            f"{file.name}: cannot be written to {folder} ({error.strerror or error}); make room or choose "
            f"another folder{partial.kept}"
        ) from None
    return _checked(path, file)  # another process brought it meanwhile


def _checked(path: Path, file: RemoteFile) -> Path:
    """Return ``path`` if it is the file wanted."""
    try:
        found = _digest(path, file.checksum)
    except OSError as error:
        raise FltrainError(f"{path}: cannot be read ({error.strerror or error})") from None
    if found != file.checksum:
        raise FltrainError(
            f"{path}: damaged or another version: expected {_described(file.checksum, file.bytes)}, found "
            f"{_described(found, path.stat().st_size)}; delete or replace it"
        )
    return path


def _digest(path: Path, like: str) -> str:
    """Return the checksum of a file, of the kind and in the form of the checksum ``like``."""
    kind = like.partition(":")[0]
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"


def _described(checksum: str, size: int | None) -> str:
    return checksum if size is None else f"{checksum} ({size:,} bytes)"


def offline_folder() -> Path | None:
    """Return the folder that is looked into before anything is downloaded, None if none is named.

    Raises:
        FltrainError: if there is no such folder.
    """
    folder = os.environ.get(OFFLINE)
    if not folder:
        return None
    root = Path(folder).expanduser()
    if not os.path.isdir(root):
        raise FltrainError(
            f"{OFFLINE}: {folder}: no such folder; name the one that holds the data, or unset it"
        )
    return root


def _offline(file: RemoteFile, dataset: str | None) -> Path | None:
    """Return the path of the file in the offline folder, if it is there."""
    root = offline_folder()
    if root is None:
        return None
    places = ([root / dataset] if dataset else []) + [root]
    return next((place / file.name for place in places if os.path.exists(place / file.name)), None)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from downloading the same file to the same folder."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        LOG.info("%s: waiting for another process that downloads it", path.name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Failed(Exception):
    """An address did not give the file; ``again`` says whether it may do so later."""

    def __init__(self, reason: str, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class _Partial:
    """What has arrived of a file (``<name>.part``), and of which file and version (``<name>.part.json``)."""

    def __init__(self, target: Path, checksum: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._target = target
        self._note = target.with_name(f"{target.name}.part.json")
        self._checksum = checksum

    @property
    def size(self) -> int:
        return os.path.getsize(self.path) if os.path.exists(self.path) else 0

    @property
    def kept(self) -> str:
        """The end of a message: how much is there for the next attempt."""
        size = self.size
        return f"; {decimal(size)} are kept for the next attempt in {self.path}" if size else ""

    @property
    def _origin(self) -> dict[str, Any]:
        try:
            note = read_json(self._note)
        except FltrainError:
            return {}
        return note if isinstance(note, dict) else {}

    def request(self, url: str) -> dict[str, str]:
        """Return the headers that ask for what is missing, provided that the file has not changed."""
        origin = self._origin
        if self.size and origin.get("checksum") != self._checksum:
            self.discard()
        if not self.size:
            return {}
        headers = {"Range": f"bytes={self.size}-"}
        if origin.get("url") == _without_password(url) and origin.get("version"):
            headers["If-Range"] = str(origin["version"])
        return headers

    def start(self, url: str, version: str | None) -> None:
        """Begin anew with what ``url`` sends."""
        self.path.write_bytes(b"")
        note = {"checksum": self._checksum, "url": _without_password(url), "version": version}
        write_json(self._note, note)

    def discard(self) -> None:
        """Forget what has arrived."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give it the name of the file."""
        self.path.replace(self._target)
        self._note.unlink(missing_ok=True)


def _download(file: RemoteFile, partial: _Partial, patience: Patience, quiet: bool) -> None:
    """Try the addresses in turn until one gives the file."""
    mirror = os.environ.get(MIRROR)
    urls = [f"{mirror.rstrip('/')}/{quote(file.name)}", *file.urls] if mirror else list(file.urls)
    reasons: dict[str, str] = {}
    for attempt in range(patience.attempts):
        if attempt and urls:
            time.sleep(min(patience.pause * 2 ** (attempt - 1), patience.longest_pause))
        for url in urls.copy():
            try:
                _receive(file, url, partial, patience, quiet)
                _accept(file, partial)
                return
            except _Failed as failure:
                reasons[_without_password(url)] = str(failure)
                LOG.info("%s: attempt %d: %s: %s", file.name, attempt + 1, _without_password(url), failure)
                if not failure.again:
                    urls.remove(url)
    tried = "; ".join(f"{url}: {reason}" for url, reason in reasons.items()) or "it has no public address"
    raise FltrainError(
        f"{file.name}: cannot be downloaded ({tried}); try again later, or get it by hand and name its "
        f"folder in {OFFLINE} (expected: {_described(file.checksum, file.bytes)}){partial.kept}"
    )


def _accept(file: RemoteFile, partial: _Partial) -> None:
    """Give a complete file its name, or throw it away if it is not the one wanted."""
    found, size = _digest(partial.path, file.checksum), partial.size
    if found != file.checksum:
        partial.discard()
        expected = _described(file.checksum, file.bytes)
        raise _Failed(f"another file was sent: expected {expected}, found {_described(found, size)}")
    partial.finish()
    LOG.info("%s: downloaded, %s, checksum verified", file.name, decimal(size))


def _receive(file: RemoteFile, url: str, partial: _Partial, patience: Patience, quiet: bool) -> None:
    """Append to what has arrived what is missing, or start anew if the server does not allow that.

    Raises:
        _Failed: if the server cannot be reached, refuses, or goes silent.
        OSError: if what arrives cannot be written.
    """
    headers = partial.request(url)
    offset = partial.size
    with _answer(url, headers, patience) as response:
        status = response.status_code
        if status == 416 and offset:
            return  # there is nothing after what has arrived; the checksum tells whether that is right
        if status == 206 and offset:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                partial.discard()
                raise _Failed("another part of the file was sent than the one asked for")
        elif status == 200:
            offset = 0
            partial.start(url, _version(response.headers))
        else:
            again = status >= 500 or status in _WORTH_ANOTHER_TRY
            raise _Failed(f"{status} {response.reason}", again)
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length else file.bytes
        with partial.path.open("ab") as out, _progress(file.name, url, offset, total, quiet) as report:
            for chunk in _body(response):
                out.write(chunk)
                report(len(chunk))
        if length and partial.size < offset + int(length):  # urllib3 tells since its version 2
            raise _Failed(f"the connection ended after {partial.size:,} bytes")


def _answer(url: str, headers: Mapping[str, str], patience: Patience) -> requests.Response:
    import requests  # takes long, and most runs download nothing

    # Without "identity" a server may pack the file once more, and a range would count packed bytes.
    headers = {"Accept-Encoding": "identity", **headers}
    try:
        return requests.get(url, headers=headers, stream=True, timeout=(patience.connect, patience.read))
    except OSError as error:  # as all of requests are; those about a wrong address are ValueErrors too
        raise _Failed(_reason(error), again=not isinstance(error, ValueError)) from None


def _body(response: requests.Response) -> Iterator[bytes]:
    """Yield what arrives as it was stored: never decoded, even if it is called encoded."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.raw.stream(_CHUNK, decode_content=False)
    except HTTPError as error:
        raise _Failed(_reason(error)) from None


def _version(headers: Mapping[str, str]) -> str | None:
    """Return what identifies the version of a file on its server; weak tags do not allow ranges."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")


def _reason(error: BaseException) -> str:
    """Return what the innermost cause of a network error says, on one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    said = error.strerror if isinstance(error, OSError) and isinstance(error.strerror, str) else str(error)
    return " ".join(said.split()) or type(error).__name__


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


@contextmanager
def _progress(
    name: str, url: str, offset: int, total: int | None, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """Show progress: a bar on a terminal, elsewhere a plain line now and then.

    Yields a function to be called with the number of bytes that have arrived since the last call.
    """
    size = "" if total is None else decimal(total)
    here = f", {decimal(offset)} are here" if offset else ""
    LOG.info("%s: downloading%s from %s%s", name, size and f" {size}", _without_password(url), here)
    console = Console(stderr=True)
    if console.is_terminal and not quiet:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(name, total=total, completed=offset)
            yield lambda count: bar.advance(task, count)
        return

    done, last = offset, time.monotonic()

    def line(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= LOG_EVERY_SECONDS:
            last = time.monotonic()
            LOG.info("%s: %s%s", name, decimal(done), size and f" of {size}")

    yield line
