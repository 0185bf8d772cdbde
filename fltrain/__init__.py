"""Federated-learning algorithms and the machinery that reproduces papers about them."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fltrain.tracking.dataframes import load_runs, load_settings

__version__ = version("fltrain")
__all__ = ["__version__", "load_runs", "load_settings"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: pandas takes longer than everything else that most programs need.
    if name in ("load_runs", "load_settings"):
        from fltrain.tracking import dataframes as frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
