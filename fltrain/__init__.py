"""Federated-learning algorithms, and the machinery that reproduces papers about them.

The functions of this module import their parts on first use: importing ``fltrain`` alone loads no torch and
no pandas.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fltrain.core.errors import FltrainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from fltrain.analysis.finished import FinishedRun
    from fltrain.experiments.plan import Plan
    from fltrain.runs.register import register
    from fltrain.tracking.runs import load_runs, load_settings

__version__ = version("fltrain")
__all__ = [
    "FltrainError",
    "__version__",
    "compare",
    "load_runs",
    "load_settings",
    "plan",
    "register",
    "train",
]


def train(
    spec: Mapping[str, Any] | str | Path,
    results: str | Path = "results",
    *,
    device: str = "auto",
    threads: int = 1,
    again: bool = False,
    quiet: bool = False,
) -> FinishedRun:
    """Train one run; a run that has a record is not trained again.

    Args:
        spec: a file of ``fltrain train`` (YAML, or a record's ``spec.json``), or its settings, for example
            ``{"dataset": "digits", ...}``.
        results: folder for data, partitions and the record.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: CPU threads.
        again: train the run even if it has a record.
        quiet: write progress to the record's log only, not to standard error.

    Returns:
        The run with ``metrics`` (a data frame), ``accuracy``, ``plot()`` and ``model()``.

    Raises:
        FltrainError: if a setting is wrong, the record is damaged, or data or device are missing.
    """
    import sys
    from pathlib import Path

    from fltrain.analysis.finished import FinishedRun
    from fltrain.core.strict_yaml import read_plain
    from fltrain.engine import train as training
    from fltrain.runs.record import Results
    from fltrain.runs.spec import RunSpec
    from fltrain.runs.today import already_trained
    from fltrain.runtime.devices import pick_device

    file = Path(spec) if isinstance(spec, str | Path) else None
    parsed = RunSpec.recorded(read_plain(file) if file else spec, str(file or "spec"))
    folder = Results(Path(results))
    record = None if again else folder.trained(parsed)
    if record is None:
        execution = training.Execution(pick_device(device), threads)
        record = training.train(parsed, folder, execution, again=again, quiet=quiet)
    elif record.damage:
        raise FltrainError(record.damage)
    elif not quiet:
        print(already_trained(record, parsed, "again=True"), file=sys.stderr)
    return FinishedRun(record, parsed, folder)


def plan(scale: str = "demo", config: str | Path = "config") -> Plan:
    """Return the plan of a scale: its tables and figures, and the runs behind them.

    Args:
        scale: name of a file in ``scales``.
        config: folder that contains ``papers`` and ``scales``.

    Raises:
        FltrainError: if a file of the configuration is wrong or missing.
    """
    from pathlib import Path

    from fltrain.experiments.plan import plan as plan_scale

    return plan_scale(Path(config), scale)


def compare(
    results: str | Path = "results",
    *,
    items: str | Sequence[str] = (),
    scale: str | None = None,
    where: str | Iterable[str] = (),
    metric: str | None = None,
    over: Sequence[str] = (),
    baseline: str | None = None,
    config: str | Path = "config",
) -> pd.DataFrame:
    """Return the cells of a table or figure, or compare trained runs by their settings.

    Args:
        results: folder that holds ``runs/``.
        items: a table or figure, such as ``flfa/table1``; also a paper or several items, to compare their
            runs by settings.
        scale: scale of the items (default: ``demo``), or of the runs (default: all).
        where: conditions on the runs, as for ``load_runs``. Cells of an item are shown if all their runs meet
            them, with unchanged gains and verdicts.
        metric: name of a measure; default: the first of the item, or ``final_accuracy``.
        over: settings to compare, by dotted names; default: method and plug-ins.
        baseline: variant of these settings that gains are over; default: FedAvg, or the first one.
        config: folder with ``papers/`` and ``scales/``.

    Returns:
        A row per cell, with the columns of the CSV files of tables: labels (``row``, ``column``, ``panel``);
        ``mean``, ``std`` and the 90 % interval from ``low`` to ``high`` over ``n`` seeds, accuracies in
        percent; ``gain``, ``gain_std``, ``gain_low`` and ``gain_high`` over the base, paired by seed;
        published values and verdicts of an item at full scale; ``runs`` with the run IDs. If runs are
        compared by settings, ``row`` is the variant. The other settings in which the runs differ have a
        column each, and stand together in ``panel``. If all runs of a side diverged, numbers are missing,
        because chance accuracy is no measurement.

    Raises:
        FltrainError: if a name is unknown, a metric is not possible, or no run is left.
    """
    from fltrain.tracking.compare import compare as compared

    items = [items] if isinstance(items, str) else list(items)
    return compared(results, config, items, scale, where, metric, over, baseline).frame


def __getattr__(name: str) -> Any:
    if name in ("load_runs", "load_settings"):
        from fltrain.tracking import runs

        return getattr(runs, name)
    if name == "register":
        from fltrain.runs import register

        return register.register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
