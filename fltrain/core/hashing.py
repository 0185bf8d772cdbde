"""Digests, canonical JSON, and the short hash that names runs, partitions and prepared data."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def sha256(content: str | bytes) -> str:
    """Return the SHA-256 of a text or a file's content, as hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def canonical_json(data: Any) -> str:
    """JSON text that is equal for equal data: sorted keys, no spaces, shortest exact floats."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _positive(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _positive(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_positive(value) for value in data]
    return 0.0 if isinstance(data, float) and data == 0 else data


def short_hash(data: Any) -> str:
    """Ten hex digits of the SHA-256 of the canonical JSON of ``data``, with 0.0 for -0.0."""
    text = canonical_json(data)
    if "-0.0" in text:  # rare, and replacing takes as long as the rest
        text = canonical_json(_positive(data))
    return sha256(text)[:10]
