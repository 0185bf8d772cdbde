"""Client states between rounds: equal in memory and in a file."""

import errno
import math
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.engine.client_store import ClientStore
from fltrain.engine.train import Execution, train
from fltrain.runs.record import Results

from .helpers import tiny

P = 5000
"""Numbers of a large tensor."""
SIZE = (4 + 2) * P
"""Bytes of a client's large tensors."""


def client_state(seed: int, size: int = P) -> dict[str, dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return {
        "method": {
            "weights": torch.randn(size, generator=random),
            "shaped": torch.randn(20, size // 20, generator=random).half(),
            "counter": torch.tensor(seed),
        },
        "other": {},
    }


def assert_same(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> None:
    assert one.keys() == other.keys()
    for method in one:
        assert one[method].keys() == other[method].keys()
        for name, tensor in one[method].items():
            assert tensor.dtype == other[method][name].dtype
            assert torch.equal(tensor, other[method][name]), name


@pytest.mark.parametrize("limit", [10**9, 70_000, 0])
def test_stored_states_are_read_back(tmp_path: Path, limit: int) -> None:
    store = ClientStore(tmp_path, limit)
    for client in (3, 0, 7):
        store[client] = client_state(client)
    store[3] = client_state(30)
    assert sorted(store) == [0, 3, 7] and len(store) == 3 and 5 not in store
    for client, seed in ((3, 30), (0, 0), (7, 7)):
        assert_same(dict(store[client]), client_state(seed))
    assert store.spilled == (limit < 3 * SIZE)
    assert store.get(5) is None
    assert store.bytes == 3 * (SIZE + 8)


def test_the_file_has_every_large_tensor_once_and_no_name(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    for _ in range(3):
        for client in range(4):
            store[client] = client_state(client)
    assert not list(tmp_path.iterdir())
    assert 4 * SIZE <= store._free.storage_offset() < 4 * SIZE + 1000
    store[1] = client_state(9, size=2 * P)  # larger than its old place in the file
    assert_same(dict(store[1]), client_state(9, size=2 * P))
    assert_same(dict(store[2]), client_state(2))


def test_client_state_in_a_file_belongs_to_the_device_of_the_run(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0, "meta")
    store[0] = client_state(0)
    assert store.stored(0)["method"]["weights"].device.type == "cpu"
    assert store[0]["method"]["weights"].device.type == "meta"


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = ClientStore(tmp_path, 0)
    store[0] = client_state(0)
    monkeypatch.setattr("os.posix_fallocate", full)
    store[0] = client_state(2)  # fits into its old place
    with pytest.raises(FltrainError, match=r"No space left on device\); free some .* --client-memory"):
        store[1] = client_state(1)


@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl"])
def test_a_run_does_not_depend_on_the_place_of_states(
    tmp_path: Path, method: str, device: torch.device
) -> None:
    spec = tiny(method=method, local_test={"fraction": 0.25}, batchnorm="local", model="mlp")
    runs = [
        train(spec, Results(tmp_path / str(memory)), Execution(device, client_memory=memory))
        for memory in (4, 0, math.inf)
    ]
    files = [{path.name: path for path in run.folder.iterdir()} for run in runs]
    assert files[0].keys() == files[1].keys() == files[2].keys()
    for name in ("metrics.jsonl", "summary.json"):
        assert len({names[name].read_bytes() for names in files}) == 1
