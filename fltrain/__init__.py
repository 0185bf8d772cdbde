"""Federated-learning algorithms, and the machinery that reproduces papers about them.

The functions of this module import their parts on first use: importing ``fltrain`` alone loads no torch and
no pandas.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fltrain.experiments.plan import Plan
    from fltrain.runs.record import Record
    from fltrain.tracking.dataframes import load_runs, load_settings

__version__ = version("fltrain")
__all__ = ["__version__", "load_runs", "load_settings", "plan", "train"]


def train(
    spec: Mapping[str, Any],
    results: str | Path = "results",
    *,
    device: str = "auto",
    threads: int = 1,
    again: bool = False,
    quiet: bool = True,
) -> Record:
    """Train one run and return its record; a run that has a record is not trained again.

    Args:
        spec: settings as in a YAML file of ``fltrain train``, for example ``{"dataset": "digits", ...}``.
        results: folder for data, partitions and the record.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: CPU threads.
        again: train the run even if it has a record.
        quiet: write progress to the record's log only.

    Raises:
        FltrainError: if a setting is wrong, or data or device are missing.
    """
    from pathlib import Path

    from fltrain.engine import train as training
    from fltrain.runs.record import Results
    from fltrain.runs.spec import RunSpec
    from fltrain.runtime.devices import pick_device

    parsed, folder = RunSpec.parse(spec, "spec"), Results(Path(results))
    if folder.record(parsed.run_id).complete and not again:
        return folder.record(parsed.run_id)
    execution = training.Execution(pick_device(device), threads)
    return training.train(parsed, folder, execution, again=again, quiet=quiet)


def plan(scale: str = "demo", config: str | Path = "config") -> Plan:
    """Return the plan of a scale: its tables and figures, and the runs behind them.

    Raises:
        FltrainError: if a file of the configuration is wrong or missing.
    """
    from pathlib import Path

    from fltrain.experiments.plan import plan as plan_scale

    return plan_scale(Path(config), scale)


def __getattr__(name: str) -> Any:
    if name in ("load_runs", "load_settings"):
        from fltrain.tracking import dataframes

        return getattr(dataframes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
