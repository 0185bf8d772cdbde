"""Settings and fixtures of the unit tests."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from fltrain.core.own import VARIABLE
from fltrain.data.datasets import Dataset, registry
from fltrain.data.fetch import MIRROR, OFFLINE
from fltrain.data.prepared import PreparedData, load_prepared, prepare
from fltrain.runtime.signals import ENDINGS

# The same examples in every run, however slow the machine.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")

# Tests ignore the folders of the user who runs them.
for variable in (VARIABLE, OFFLINE, MIRROR):
    os.environ.pop(variable, None)

# Messages have commands as in an active environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

Register = Callable[[dict[str, Any] | str], None]


@pytest.fixture(autouse=True)
def handlers_of_signals() -> Iterator[None]:
    """Training on the command line handles signals until its process ends."""
    before = {number: signal.getsignal(number) for number in ENDINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """A function that adds entries to the checkout's registry, as data or as YAML text."""
    folder = tmp_path / "own-folder"

    def use(entries: dict[str, Any] | str) -> None:
        folder.mkdir(exist_ok=True)
        text = entries if isinstance(entries, str) else yaml.safe_dump(entries)
        (folder / "datasets.yaml").write_text(text)
        monkeypatch.setenv(VARIABLE, str(folder))
        registry.cache_clear()

    yield use
    registry.cache_clear()


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared digits; tests must not change the file."""
    path = tmp_path_factory.mktemp("data") / "digits.safetensors"
    prepare(Dataset(name="digits"), path, path.parent / "downloads")
    return path


@pytest.fixture(scope="session")
def digits(digits_file: Path) -> PreparedData:
    """The handwritten digits."""
    return load_prepared(Dataset(name="digits"), digits_file)
