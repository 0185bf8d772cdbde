"""Unpack archives that are not trusted: inside one folder, completely or not at all."""

from __future__ import annotations

import secrets
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from fltrain.core.errors import FltrainError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")
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

    The folder appears when everything is in it.

    Raises:
        FltrainError: if the archive is damaged or truncated, or holds devices, links or paths that lead out
            of the folder; the folder does not exist then.
    """
    if _has_content(folder):
        return folder
    if not archive.name.lower().endswith(ARCHIVES):
        raise FltrainError(f"{archive}: unknown kind of archive (known: {', '.join(ARCHIVES)})")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.mkdir(parents=True)
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                file.extractall(temporary)
        else:
            _unpack_tar(archive, temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not _has_content(folder):  # else another process has unpacked it meanwhile
                raise
    except (OSError, *_DAMAGE) as error:
        if isinstance(error, OSError) and error.errno is not None:  # else from gzip or bz2, not from the disk
            raise FltrainError(
                f"{archive}: cannot be unpacked into {folder} ({error.strerror or error})"
            ) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FltrainError(
            f"{archive}: damaged, truncated or unsafe ({reason}); delete it and get it again"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _has_content(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
        # tarfile takes damage for the end, and leaves the checksum of the compression unread.
        content: Any = file.fileobj
        content.seek(file.offset)
        if content.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError(f"no member and no end after {file.offset} bytes")
        while content.read(1 << 20):
            pass
