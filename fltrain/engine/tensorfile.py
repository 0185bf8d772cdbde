"""A tree of named tensors in one file that says itself whether it is whole.

The file is a safetensors file. Its metadata hold a description, and a digest of everything in the file.
Tensors are written one after the other, so that a tree that is larger than the memory, and yields its parts
when they are asked for, can be written, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrain.core.files import replacing

Tree: TypeAlias = Mapping[str, Union[Tensor, "Tree"]]

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
DEVICE, HOST = "device", "host"
_NO_DIGEST = b"0" * 64
_CHUNK = 2**20


class NotWhole(Exception):
    """The file is not what was written."""


def write(path: Path, tree: Tree, about: Mapping[str, Any], device: torch.device) -> None:
    """Write a tree, whose names hold no slash, and a description that can be JSON.

    What lies on ``device`` can come back to another one; what does not, is kept on the host on purpose.

    Raises:
        FltrainError: if the file cannot be written; what was there before stays.
    """
    header: dict[str, Any] = {}
    outline: dict[str, Any] = {}
    offset = 0
    for name, tensor in _leaves(tree, device, outline):
        place = [offset, offset := offset + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
    described = {"about": json.dumps(about, allow_nan=False), "outline": json.dumps(outline)}
    header["__metadata__"] = {"digest": _NO_DIGEST.decode(), **described}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with replacing(path) as temporary, temporary.open("wb") as file:
        digest = hashlib.sha256()
        for part in (len(encoded).to_bytes(8, "little"), encoded):
            digest.update(part)
            file.write(part)
        for _, tensor in _leaves(tree, device, {}):
            content = memory_of(tensor.detach().cpu().contiguous()).data
            digest.update(content)
            file.write(content)
        file.seek(8 + encoded.index(_NO_DIGEST))
        file.write(digest.hexdigest().encode())


def read(path: Path, device: torch.device) -> tuple[dict[str, Any], Tree]:
    """Return description and tree; tensors are read when they are looked at, to ``device`` or the host.

    Raises:
        NotWhole: if the file is not what was written.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            encoded = file.read(length) if length <= path.stat().st_size else b""
            header = json.loads(encoded)
            metadata = header["__metadata__"]
            if _digest(file, encoded, metadata["digest"]) != metadata["digest"]:
                raise NotWhole("its digest is another one")
        content = np.memmap(path, np.uint8, "r", offset=8 + length)
        return json.loads(metadata["about"]), _Stored(
            content, header, json.loads(metadata["outline"]), device
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotWhole(f"it cannot be read: {error!r}") from None


def memory_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor in host memory; they are not copied."""
    return tensor.view(-1).view(torch.uint8).numpy()


def _digest(file: BinaryIO, header: bytes, written: str) -> str:
    """Digest of a file that has been read up to the end of its header."""
    digest = hashlib.sha256(len(header).to_bytes(8, "little"))
    digest.update(header.replace(written.encode(), _NO_DIGEST, 1))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _leaves(
    tree: Tree, device: torch.device, outline: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree by their paths; the outline gets the names, and where each lies."""
    for name, part in tree.items():
        if isinstance(part, Tensor):
            outline[name] = DEVICE if part.device.type == device.type else HOST
            yield prefix + name, part
        else:
            yield from _leaves(part, device, outline.setdefault(name, {}), f"{prefix}{name}/")


class _Stored(Mapping[str, "Tensor | Tree"]):
    """A tree in a file."""

    def __init__(
        self,
        content: NDArray[np.uint8],
        header: Mapping[str, Any],
        outline: Mapping[str, Any],
        device: torch.device,
        prefix: str = "",
    ) -> None:
        self._content, self._header, self._outline = content, header, outline
        self._device, self._prefix = device, prefix

    def __getitem__(self, name: str) -> Tensor | Tree:
        part, path = self._outline[name], self._prefix + name
        if not isinstance(part, str):
            return _Stored(self._content, self._header, part, self._device, f"{path}/")
        about = self._header[path]
        start, stop = about["data_offsets"]
        tensor = torch.empty(about["shape"], dtype=_DTYPES[about["dtype"]])
        memory_of(tensor)[:] = self._content[start:stop]
        return tensor.to(self._device) if part == DEVICE else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._outline)

    def __len__(self) -> int:
        return len(self._outline)
