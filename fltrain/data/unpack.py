"""Unpack archives that are not trusted: inside one folder, of bounded size, completely or not at all."""

from __future__ import annotations

import bz2
import gzip
import secrets
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import IO, Any

from fltrain.core.errors import FltrainError

BLOCK = 4096
"""Bytes that even an empty file takes on a disk."""
USUAL_EXPANSION = 100
ALWAYS_ALLOWED = 1 << 30

_TAR_OPENERS: dict[str, Callable[..., Any]] = {
    ".tar": open,
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
}
ARCHIVES = (".zip", *_TAR_OPENERS)
"""Endings of the archives that can be unpacked."""

_DAMAGE = (
    EOFError,
    LookupError,  # zipfile: a name that cannot be decoded
    RuntimeError,  # zipfile: a password, or an unsupported compression
    ValueError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive into ``folder``, unless the folder already has content, and return ``folder``.

    The folder appears when everything is in it. The content may take 100 times the size of the archive, or
    1 GiB if that is more.

    Raises:
        FltrainError: if the archive is damaged, truncated, too large when unpacked, or contains links,
            devices or paths outside the folder; the folder does not exist then.
    """
    if _has_content(folder):
        return folder
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        limit = max(USUAL_EXPANSION * archive.stat().st_size, ALWAYS_ALLOWED)
        temporary.mkdir(parents=True)
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, temporary, limit)
        else:
            _unpack_tar(archive, temporary, limit)
        try:
            temporary.rename(folder)
        except OSError:
            if not _has_content(folder):  # else another process has unpacked it meanwhile
                raise
    except FltrainError as error:
        raise FltrainError(f"{archive}: {error}") from None
    except OSError as error:
        if error.errno is None:  # from gzip or bz2, not from the disk
            raise _damaged(archive, error) from None
        raise FltrainError(
            f"{archive}: cannot be unpacked into {folder} ({error.strerror or error})"
        ) from None
    except _DAMAGE as error:
        raise _damaged(archive, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _damaged(archive: Path, error: Exception) -> FltrainError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return FltrainError(f"{archive}: damaged or truncated ({reason}); delete it and get it again")


def _has_content(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _unpack_zip(archive: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check_member(member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
        # zipfile reads no more of a member than its declared size.
        _check_size(sum(max(member.file_size, BLOCK) for member in members), limit)
        file.extractall(folder)


def _unpack_tar(archive: Path, folder: Path, limit: int) -> None:
    ending = next((ending for ending in _TAR_OPENERS if archive.name.lower().endswith(ending)), None)
    if ending is None:
        raise FltrainError(f"unknown kind of archive (known: {', '.join(ARCHIVES)})")
    total = 0
    with _TAR_OPENERS[ending](archive, "rb") as content:
        stream: Any = _BoundedStream(content, limit)
        with tarfile.open(fileobj=stream, mode="r:") as file:
            for member in file:
                _check_member(member.name, member.isreg() or member.isdir())
                total += max(member.size, BLOCK)  # sparse members are larger than their bytes in the stream
                _check_size(total, limit)
                file.extract(member, folder, filter="data")
            # tarfile takes damage for the end, and leaves the checksum of the compression unread.
            stream.seek(file.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError(f"no member and no end after {file.offset} bytes")
            while stream.read(1 << 20):
                pass


class _BoundedStream:
    """The decompressed content of an archive, refused beyond ``limit`` bytes."""

    def __init__(self, content: IO[bytes], limit: int) -> None:
        self._content, self._limit = content, limit
        self.tell = content.tell

    def seek(self, position: int) -> int:
        _check_size(position, self._limit)
        return self._content.seek(position)

    def read(self, size: int) -> bytes:
        _check_size(self.tell() + size - (1 << 20), self._limit)
        return self._content.read(size)


def _check_member(name: str, plain: bool) -> None:
    path = PureWindowsPath(name)  # splits at both kinds of slashes
    if path.drive or path.root or ".." in path.parts:
        raise FltrainError(f"refused: member {name!r} would be written outside the folder")
    if not plain:
        raise FltrainError(f"refused: member {name!r} is a link or device, not a file or folder")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise FltrainError(f"refused: it takes more than {limit:,} bytes when unpacked")
