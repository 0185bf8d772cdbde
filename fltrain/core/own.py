"""The user's own folder (``FLTRAIN_PATH``), which is added to ours. No torch.

It looks like ``config``: ``papers``, ``scales``, ``reported``, ``selected``, ``datasets.yaml``,
``register.yaml``, ``search.yaml`` and ``labels.yaml``, all optional. Modules in ``methods``, ``models``,
``partitions`` and ``readers`` add components. ``config/examples/own`` is a template.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from fltrain.core.errors import OWN_PACKAGE, FltrainError, refusing

VARIABLE = "FLTRAIN_PATH"
SHIPPED = Path(__file__).parents[2] / "config"
"""The configuration of this project."""


def own_folder() -> Path | None:
    """Return the user's folder; None without one."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise FltrainError(
            f"{VARIABLE}={value}: there is no such folder; copy config/examples/own, or unset it"
        )
    return folder


def own_remedy(added: str = "", kind: str = "") -> str:
    """Return the remedy for a name that no file has.

    ``added`` names other ways to add it, ``kind`` its folder in the user's folder.
    """
    if value := os.environ.get(VARIABLE):
        return f"; your own ones are in {Path(value) / kind}/*.py" if kind else ""
    return f"; if it is your own, {added}set {VARIABLE} to your folder"


def places(config: Path) -> list[Path]:
    """Return the folders of configuration: ``config``, then the user's own.

    Outside the repository, the default ``config`` is this project's.
    """
    config = SHIPPED if config == Path("config") and not (config / "scales").is_dir() else config
    folder = own_folder()
    return [config] if folder is None else [config, folder]


def place_of_file(config: Path, *names: str) -> Path:
    """Return the last folder of configuration that has one of these files; ``config`` if none has."""
    first, *_ = folders = places(config)
    return [first, *(folder for folder in folders if any((folder / name).exists() for name in names))][-1]


def import_own(kind: str) -> None:
    """Import the modules in a folder of the user's folder, for example ``methods``."""
    folder = own_folder()
    if folder is None or not (folder / kind).is_dir():
        return
    if OWN_PACKAGE not in sys.modules:
        package = ModuleType(OWN_PACKAGE)
        package.__path__ = [str(folder)]
        sys.modules[OWN_PACKAGE] = package
    for module in pkgutil.iter_modules([str(folder / kind)]):
        with refusing(f"{folder / kind / module.name}.py: cannot be loaded"):
            importlib.import_module(f"{OWN_PACKAGE}.{kind}.{module.name}")
