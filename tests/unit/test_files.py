"""Files are complete or absent; digests cover everything; sums of floats have the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fltrain.core.errors import FltrainError
from fltrain.core.files import digest, read_arrays, read_json, replacing, write_arrays, write_json, write_text
from fltrain.core.floats import average, total

ARRAYS = {"a": np.arange(12, dtype=np.uint8).reshape(3, 4), "b": np.arange(3)}


@pytest.mark.parametrize(
    "changed",
    [
        {"a": ARRAYS["a"].reshape(4, 3), "b": ARRAYS["b"]},
        {"a": ARRAYS["a"].view(np.int8), "b": ARRAYS["b"]},
        {"a": ARRAYS["a"], "c": ARRAYS["b"]},
        {"a": ARRAYS["a"]},
        {"a": ARRAYS["a"], "b": np.array([0, 1, 3])},
    ],
)
def test_names_types_shapes_and_content_change_the_digest(changed: dict[str, Any]) -> None:
    assert digest(changed) != digest(ARRAYS)


def test_order_and_memory_layout_do_not_change_the_digest() -> None:
    other = {"b": ARRAYS["b"], "a": np.asfortranarray(ARRAYS["a"])}
    assert digest(other) == digest(ARRAYS)


@pytest.mark.parametrize("kind", ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_arrays_of_every_type_are_read_back(tmp_path: Path, kind: str) -> None:
    """Methods choose the types of their state, which is part of a checkpoint."""
    written = {"state": np.arange(3).astype(kind)}
    write_arrays(tmp_path / "file", written, {})
    arrays, _ = read_arrays(tmp_path / "file", "checkpoint")
    assert arrays["state"].dtype == written["state"].dtype
    assert arrays["state"].tolist() == written["state"].tolist()


def test_a_failure_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "file", {"loss": float("nan")})
    with pytest.raises(RuntimeError), replacing(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_json_is_read_back_or_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"name": "Nøkland", "values": [1, 2.5, None]})
    assert read_json(tmp_path / "file.json") == {"name": "Nøkland", "values": [1, 2.5, None]}
    (tmp_path / "bad.json").write_text('{"half": ')
    for name in ("none.json", "bad.json", "."):
        with pytest.raises(FltrainError, match="cannot be read") as caught:
            read_json(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ") and "\n" not in str(caught.value)


def test_a_sum_is_rounded_after_each_addition() -> None:
    """Since Python 3.12, the built-in ``sum`` is not."""
    assert (total([0.1] * 10), total([])) == (0.9999999999999999, 0.0)
    assert average([0.1] * 10) == 0.09999999999999999
