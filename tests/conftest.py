"""Settings and fixtures of all tests."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from fltrain.core.own import VARIABLE
from fltrain.runtime.determinism import determined

# Tests ignore the own folder of the user who runs them.
os.environ.pop(VARIABLE, None)

# One thread fixes the order of sums, and is fast enough for small networks.
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Exempt PyTorch and the collected tests from garbage collection: passing over them takes a second."""
    gc.collect()
    gc.freeze()


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device that the test runs on; `make test-gpu` runs it on the GPU."""
    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    chosen = torch.device(request.param)
    with determined("exact", chosen):
        yield chosen


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A function that makes a folder once for all processes of pytest; tests must not change it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, part = shared / name, shared / f"{name}.{os.getpid()}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                make(part)
                part.rename(folder)
        return folder

    return made
