"""Settings and fixtures of all tests. The process that only starts workers does not import PyTorch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from fltrain.core.own import VARIABLE
from fltrain.runtime.determinism import determined

if TYPE_CHECKING:
    import torch

# Tests ignore the own folder of the user who runs them, unless the option --own is given. Workers have other
# arguments, and the environment of the process that started them.
if "--own" not in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.pop(VARIABLE, None)

# Files of tests need not survive a power loss, and a record has ten flushes of a few milliseconds each.
os.fsync = lambda file: None

# PyTorch and the collected tests stay until the end: searching them for garbage takes seconds.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for methods and networks in the user's own folder."""
    parser.addoption("--own", action="store_true", help=f"test components in {VARIABLE}, too")


def pytest_collection_finish() -> None:
    """Let the tests collect their own garbage, and compute on one thread.

    One thread fixes the order of sums, and is fast enough for small networks.
    """
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()


@pytest.fixture
def watch() -> None:
    """Tests that use this fixture keep the guard of the first local steps."""


@pytest.fixture(autouse=True)
def unwatched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the guard of the first local steps, which takes half of the time of short runs."""
    if "watch" not in request.fixturenames:
        monkeypatch.setattr("fltrain.engine.local.WATCHED_ROUNDS", 0)


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device that the test runs on; `make test-gpu` runs it on the GPU."""
    import torch

    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    chosen = torch.device(request.param)
    with determined("exact", chosen):
        yield chosen


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A function that makes a folder once for all processes of pytest; tests must not change it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make_once(name: str, make: Callable[[Path], None]) -> Path:
        folder, part = root / name, root / f"{name}.{os.getpid()}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                make(part)
                part.rename(folder)
        return folder

    return make_once
