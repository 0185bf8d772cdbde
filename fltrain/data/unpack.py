"""Unpack archives that are not trusted: inside one folder, of bounded size, and wholly or not at all."""

from __future__ import annotations

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

from fltrain.core.errors import FltrainError

_CHUNK = 1 << 20
_BLOCK = 4096  # what even an empty file takes on a disk
_USUAL_EXPANSION = 100
_ALWAYS_ALLOWED = 1 << 30
_DAMAGE = (
    EOFError,
    LookupError,  # zipfile, of names without a letter
    RuntimeError,  # zipfile: a password, or a kind of compression that is not supported
    ValueError,
    gzip.BadGzipFile,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def unpack(archive: Path, folder: Path, limit: int | None = None) -> Path:
    """Unpack a .zip, .tar, .tar.gz, .tgz or (one file) .gz into ``folder``, and return ``folder``.

    The folder appears when everything is in it. A folder that has something in it was unpacked before and is
    returned as it is: delete it to have it made again.

    Args:
        archive: the archive; its name tells its kind.
        folder: where its content goes.
        limit: bytes that it may take when unpacked; by default 100 times the archive, at least 1 GiB.

    Raises:
        FltrainError: if it is damaged, truncated, too large when unpacked, of an unknown kind, or holds
            links, devices or paths that lead out of the folder; the folder does not exist then.
    """
    if _filled(folder):
        return folder
    unpacker = next(
        (make for suffix, make in _UNPACKERS.items() if archive.name.lower().endswith(suffix)), None
    )
    if unpacker is None:
        raise FltrainError(f"{archive}: unknown kind of archive; known: {', '.join(_UNPACKERS)}")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.mkdir(parents=True)
        unpacker(archive, temporary, limit or max(_USUAL_EXPANSION * archive.stat().st_size, _ALWAYS_ALLOWED))
        _rename(temporary, folder)
    except FltrainError as error:
        raise FltrainError(f"{archive}: {error}") from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FltrainError(
            f"{archive}: damaged or truncated ({reason}); delete it and get it again"
        ) from None
    except OSError as error:
        raise FltrainError(
            f"{archive}: cannot be unpacked into {folder} ({error.strerror or error})"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _rename(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not _filled(folder):  # else another process unpacked it meanwhile
            raise


def _unpack_zip(archive: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check_member(member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
        # zipfile reads no more of a member than the size declared for it.
        _check_size([member.file_size for member in members], limit)
        file.extractall(folder)


def _unpack_tar(archive: Path, folder: Path, limit: int) -> None:
    with tarfile.open(archive, "r:") as file:
        members = file.getmembers()
        for member in members:
            _check_member(member.name, member.isreg() or member.isdir())
        _check_size([member.size for member in members], limit)
        _check_end(archive, file.offset)
        file.extractall(folder, members, filter="data")


def _check_end(archive: Path, offset: int) -> None:
    """Refuse a tar file without a mark of its end; tarfile takes any damage for the end."""
    with archive.open("rb") as stream:
        stream.seek(offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError(f"no member and no end after {offset} bytes")


def _unpack_tar_gz(archive: Path, folder: Path, limit: int) -> None:
    # Unzipped first: gzip then checks all of it, and the tar file within is of known size.
    plain = folder.with_name(f"{folder.name}.tar")
    try:
        _unzip(archive, plain, limit)
        _unpack_tar(plain, folder, limit)
    finally:
        plain.unlink(missing_ok=True)


def _unpack_gz(archive: Path, folder: Path, limit: int) -> None:
    _unzip(archive, folder / archive.stem, limit)


def _unzip(archive: Path, target: Path, limit: int) -> None:
    if not archive.stat().st_size:
        raise EOFError("empty file")  # which gzip takes for a packed empty file
    written = 0
    with gzip.open(archive) as source, target.open("wb") as out:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            _check_size([written], limit)
            out.write(chunk)


def _check_member(name: str, plain: bool) -> None:
    path = PureWindowsPath(name)  # knows both kinds of slashes
    if path.drive or path.root or ".." in path.parts:
        raise FltrainError(f"refused: member {name!r} would be written outside the folder")
    if not plain:
        raise FltrainError(f"refused: member {name!r} is a link or device, not a file or folder")


def _check_size(sizes: list[int], limit: int) -> None:
    if sum(max(size, _BLOCK) for size in sizes) > limit:
        raise FltrainError(f"refused: it takes more than {limit:,} bytes when unpacked")


_UNPACKERS: dict[str, Callable[[Path, Path, int], None]] = {
    ".zip": _unpack_zip,
    ".tar.gz": _unpack_tar_gz,
    ".tgz": _unpack_tar_gz,
    ".tar": _unpack_tar,
    ".gz": _unpack_gz,
}
