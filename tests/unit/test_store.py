"""What clients keep between rounds: the same in memory and in a file."""

import errno
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fltrain import train as training
from fltrain.engine.store import ClientStore
from fltrain.errors import FltrainError
from fltrain.records import Results
from fltrain.train import Execution

from .helpers import CPU, tiny, trained

P = 5000
"""Numbers of a large tensor."""


def kept(seed: int, size: int = P) -> dict[str, dict[str, Tensor]]:
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
def test_what_is_put_in_comes_out(tmp_path: Path, limit: int) -> None:
    store = ClientStore(tmp_path, limit)
    for client in (3, 0, 7):
        store[client] = kept(client)
    store[3] = kept(30)
    assert sorted(store) == [0, 3, 7] and len(store) == 3 and 5 not in store
    for client, seed in ((3, 30), (0, 0), (7, 7)):
        assert_same(dict(store[client]), kept(seed))
    assert store.spilled == (limit < 3 * (4 + 2) * P)
    del store[0]
    assert store.get(0) is None
    assert store.bytes == 2 * ((4 + 2) * P + 8)


def test_the_file_holds_every_large_tensor_once_and_has_no_name(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    for _ in range(3):
        for client in range(4):
            store[client] = kept(client)
    assert not list(tmp_path.iterdir())
    assert os.fstat(store._file.fileno()).st_size == 4 * (4 + 2) * P
    store[1] = kept(9, size=2 * P)  # does not fit into its old place
    assert_same(dict(store[1]), kept(9, size=2 * P))
    assert_same(dict(store[2]), kept(2))


def test_what_was_read_does_not_change_when_the_client_trains_again(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    store[0] = kept(1)
    before = store[0]
    store[0] = kept(2)
    assert_same(dict(before), kept(1))


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: Full())
    store = ClientStore(tmp_path, 0)
    with pytest.raises(FltrainError, match=r"No space left on device\); free some .* --client-memory"):
        store[0] = kept(1)


@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl"])
def test_a_run_does_not_depend_on_where_states_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    spec = tiny(method=method, local_test={"fraction": 0.25}, batchnorm="local", model="mlp")
    plain = trained(spec, tmp_path / "memory")
    stores: list[ClientStore] = []
    monkeypatch.setattr(
        training, "ClientStore", lambda *given: stores.append(ClientStore(*given)) or stores[0]
    )
    filed = training.train(spec, Results(tmp_path / "file"), Execution(CPU, client_memory=0))
    assert stores[0].spilled
    for name in ("metrics.jsonl", "summary.json"):
        assert (plain.folder / name).read_bytes() == (filed.folder / name).read_bytes()
    assert {path.name for path in plain.folder.iterdir()} == {path.name for path in filed.folder.iterdir()}
