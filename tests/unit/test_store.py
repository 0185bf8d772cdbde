"""What clients keep between rounds: the same in memory and in a file."""

import errno
import math
import os
import queue
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fltrain.core.errors import FltrainError
from fltrain.engine import train as training
from fltrain.engine.client_store import ClientStore, Spilled, SpillFile
from fltrain.engine.train import Execution
from fltrain.runs.record import Results

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


class Behind(ClientStore):
    """Never waits for the writer."""

    def _catch_up(self) -> None:
        pass


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
    assert os.fstat(store._file._file.fileno()).st_size == 4 * (4 + 2) * P
    store[1] = kept(9, size=2 * P)  # does not fit into its old place
    assert_same(dict(store[1]), kept(9, size=2 * P))
    assert_same(dict(store[2]), kept(2))


def test_what_was_read_does_not_change_when_the_client_trains_again(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    store[0] = kept(1)
    before = store[0]
    store[0] = kept(2)
    assert_same(dict(before), kept(1))


def test_whoever_is_expected_is_read_while_the_one_before_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClientStore(tmp_path, 0)
    for client in range(3):
        store[client] = kept(client)
    began: queue.Queue[int] = queue.Queue()
    read = SpillFile.read

    def noted(self: SpillFile, values: list[tuple[Spilled, Tensor]]) -> None:
        began.put(values[0][0].offset // ((4 + 2) * P))
        read(self, values)

    monkeypatch.setattr(SpillFile, "read", noted)
    store.expect([2, 5, 0])  # the fifth is new
    assert began.get(timeout=10) == 2 and began.empty()
    assert_same(dict(store[2]), kept(2))
    assert store.get(5) is None
    assert began.get(timeout=10) == 0  # before it is asked for
    store[0] = kept(7)  # what has been read is of no use any longer
    assert_same(dict(store[0]), kept(7))
    assert_same(dict(store[1]), kept(1))  # was not expected
    assert [began.get(timeout=10) for _ in range(2)] == [0, 1] and began.empty()


def test_one_is_read_ahead_whoever_is_asked_for(tmp_path: Path) -> None:
    """As when a checkpoint asks in another order than the round that was stopped."""
    store = ClientStore(tmp_path, 0)
    for client in range(8):
        store[client] = kept(client)
    store.expect(range(4, 8))
    for client in (0, 4, 1, 2, 5, 3):
        assert client in store
        assert_same(dict(store[client]), kept(client))
        assert len(store._ahead) == 1


def test_nobody_waits_for_what_will_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, disk, began, written = Behind(tmp_path, 0), threading.Event(), threading.Event(), []
    monkeypatch.setattr(SpillFile, "write", lambda *_: (began.set(), disk.wait(10), written.append(1)))
    for client in range(8):
        store[client] = kept(client)
    assert began.wait(10)
    store.close()
    disk.set()
    store._writer.shutdown(wait=True)
    assert len(written) == 1  # the one that had begun


def test_a_file_that_was_cut_off_is_one_clear_error(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    store[0] = kept(0)
    assert store._file is not None
    os.truncate(store._file._file.fileno(), P)
    with pytest.raises(FltrainError, match=r"cannot be read \(the file is too short\); start the run again"):
        store[0]


def test_what_is_put_in_is_written_later_as_far_as_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (4 + 2) * P + 8
    store = ClientStore(tmp_path, size + 1)
    disk, written = threading.Event(), []
    write = SpillFile.write

    def slow(self: SpillFile, values: list[tuple[Spilled, Tensor]]) -> None:
        assert disk.wait(10)
        write(self, values)
        written.append(values)

    monkeypatch.setattr(SpillFile, "write", slow)
    store[0] = kept(0)
    assert not store.spilled
    threading.Timer(0.2, disk.set).start()
    store[1] = kept(1)  # two wait for the disk, which is one too many
    assert disk.is_set() and written
    assert_same(dict(store[1]), kept(1))  # so that nothing waits
    disk.clear()
    store[0] = kept(2)
    assert not disk.is_set()  # it did not wait for the disk
    threading.Timer(0.2, disk.set).start()
    assert_same(dict(store[0]), kept(2))


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told = r"No space left on device\); free some .* --client-memory"
    store = ClientStore(tmp_path, 0)
    store[0] = kept(0)
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(FltrainError, match=told):
        store[0] = kept(1)
    store.limit = 10**6  # so that nobody waits for the writer
    store[0] = kept(1)
    with pytest.raises(FltrainError, match=told):
        store[0]
    with pytest.raises(FltrainError, match=told):
        store[1] = kept(1)


@pytest.mark.parametrize("kind", [ClientStore, Behind])
@pytest.mark.parametrize("method", ["local", "fedamp", "gpfl"])
def test_a_run_does_not_depend_on_where_states_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: type[ClientStore]
) -> None:
    """Nor on whether training waits for what is written: with a limit of 0, it always would."""
    spec = tiny(method=method, local_test={"fraction": 0.25}, batchnorm="local", model="mlp")
    plain = trained(spec, tmp_path / "memory")
    stores: list[ClientStore] = []
    monkeypatch.setattr(training, "ClientStore", lambda *given: stores.append(kind(*given)) or stores[0])
    filed = training.train(spec, Results(tmp_path / "file"), Execution(CPU, client_memory=0))
    assert stores[0].spilled
    with pytest.raises(RuntimeError, match="shutdown"):  # it is closed
        stores[0][next(iter(stores[0]))]
    for name in ("metrics.jsonl", "summary.json"):
        assert (plain.folder / name).read_bytes() == (filed.folder / name).read_bytes()
    assert {path.name for path in plain.folder.iterdir()} == {path.name for path in filed.folder.iterdir()}


def test_states_can_have_all_the_memory_that_they_need(tmp_path: Path) -> None:
    spec = tiny(method="local", local_test={"fraction": 0.25}, model="mlp", rounds=1)
    assert training.train(spec, Results(tmp_path), Execution(CPU, client_memory=math.inf)).complete
