"""Federated-learning algorithms, and the machinery that reproduces papers about them.

The functions of this module import their parts on first use: importing ``fltrain`` alone loads no torch and
no pandas.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fltrain.core.errors import FltrainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from fltrain.analysis.finished import FinishedRun
    from fltrain.experiments.plan import Plan
    from fltrain.runs.register import register
    from fltrain.tracking.compare import Comparison
    from fltrain.tracking.runs import load_runs, load_settings

__version__ = version("fltrain")
__all__ = [
    "FltrainError",
    "__version__",
    "compare",
    "load_runs",
    "load_settings",
    "plan",
    "plot",
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

    Ctrl-C saves the state after the last complete round. The next call resumes it, also after a kill.

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
        KeyboardInterrupt: after Ctrl-C; the message has the saved round.
    """
    import sys
    from pathlib import Path

    from fltrain.analysis.finished import FinishedRun
    from fltrain.core import arguments
    from fltrain.core.strict_yaml import read_plain
    from fltrain.engine import train as training
    from fltrain.runs.record import Results
    from fltrain.runs.spec import RunSpec
    from fltrain.runs.today import already_trained
    from fltrain.runtime.devices import check_device, pick_device
    from fltrain.runtime.signals import saving_at_ctrl_c

    device, threads = check_device(device), arguments.positive("threads", threads)
    file = Path(spec) if isinstance(spec, str | Path) else None
    settings = read_plain(file) if file else arguments.plain(spec)
    parsed = RunSpec.recorded(settings, str(file or "spec"))
    folder = Results(arguments.path("results", results))
    record = None if again else folder.trained(parsed, "again=True")
    if record is None:
        execution = training.Execution(pick_device(device), threads)
        with saving_at_ctrl_c() as handler:
            record = training.train(parsed, folder, execution, again=again, quiet=quiet, stopping=handler)
    elif not quiet:
        print(already_trained(record, parsed, "again=True"), file=sys.stderr)
    return FinishedRun(record, parsed, folder)


def plan(scale: str = "demo", config: str | Path = "config") -> Plan:
    """Return the plan of a scale: its tables and figures, and the runs behind them.

    Args:
        scale: name of a file in ``scales``.
        config: folder with ``papers/`` and ``scales/``; outside the repository, fltrain's own.

    Returns:
        The plan. ``runs`` are all runs by ID, as ``RunSpec``; ``items`` are the tables and figures, each with
        its ``id`` and ``run_ids``.

    Raises:
        FltrainError: if a file of the configuration is wrong or missing.
    """
    from fltrain.core import arguments
    from fltrain.experiments.plan import plan as plan_scale

    return plan_scale(arguments.path("config", config), arguments.text("scale", scale))


def compare(
    results: str | Path = "results",
    *,
    items: str | Iterable[str] = (),
    scale: str | None = None,
    where: str | Iterable[str] = (),
    metric: str | None = None,
    over: str | Iterable[str] = (),
    baseline: str | None = None,
    config: str | Path = "config",
    details: bool = False,
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
        config: folder with ``papers/`` and ``scales/``, as for ``plan``.
        details: also return all other columns of the CSV files of tables.

    Returns:
        A data frame with a row per cell and always the same columns. Printing it hides empty ones, names,
        units, seeds, values and run IDs.

        * ``paper``, ``item``, ``panel``, ``row``, ``column``: labels. If runs are compared by settings,
          ``row`` is the variant, and ``panel`` names the other settings in which the runs differ. With
          ``details``, these settings have a column each.
        * ``measure``, ``unit``: name of the measure, and the unit of all numbers of the row: ``%``,
          ``rounds``, ``seconds``, ``MB``, or empty. Accuracies are in percent, here only; their gains,
          differences and deviations are in percentage points.
        * ``n``, ``diverged``: seeds with a value, and seeds whose run diverged. These count as chance
          accuracy, also in ``values``.
        * ``mean``, ``std``, ``low``, ``high``: mean (of some measures median or maximum) and standard
          deviation over the seeds, and the 90 % interval of the mean.
        * ``gain``, ``gain_low``, ``gain_high``: mean gain over the base, paired by seed, with its interval.
        * ``published``, ``published_std``, ``difference``, ``difference_low``, ``difference_high``: the
          published value, and ours minus it, with its interval.
        * ``verdict``, ``gain_verdict``: verdicts on value and gain, at full scale only (categories).
        * ``value_seeds``, ``values``, ``runs``: tuples of the seeds, their values, and the IDs of all runs.

        Numbers that do not apply are NaN. So are numbers of a side of which all runs diverged, because
        chance accuracy is no measurement.

    Raises:
        FltrainError: if a name is unknown, a metric is not possible, or no run is left.
    """
    from fltrain.tracking.compare import COLUMNS, CellFrame

    texts = {"scale": scale, "metric": metric, "baseline": baseline}
    frame = _compared(results, config, items, where, over, texts).frame
    return CellFrame(frame if details else frame[list(COLUMNS)])


def plot(
    results: str | Path = "results",
    *,
    items: str | Iterable[str] = (),
    scale: str | None = None,
    where: str | Iterable[str] = (),
    metric: str = "test_accuracy",
    over: str | Iterable[str] = (),
    config: str | Path = "config",
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric over rounds: mean and range over seeds, a line for each row of ``compare``.

    If some seeds end earlier, the line continues as a thin mean of the others, without a range.

    Args:
        results: folder that holds ``runs/``.
        items: a table or figure, such as ``flfa/table1``, or several, as for ``compare``.
        scale: scale of the items or runs, as for ``compare``.
        where: conditions on the runs, for example ``"method=fedavg,fedprox training.lr=0.05"``.
        metric: ``test_accuracy``, ``test_loss``, ``train_loss`` or a measured statistic such as ``drift``;
            accuracies are from 0 to 1.
        over: settings to compare, as for ``compare``; others that differ are also in the legend.
        config: folder with ``papers/`` and ``scales/``, as for ``plan``.
        ax: Matplotlib axes to draw on; default: new ones.

    Returns:
        The axes.

    Raises:
        FltrainError: if a name is unknown, a run lacks the metric, or no run is left.
    """
    from fltrain.core import arguments
    from fltrain.core.config import check_known
    from fltrain.runs.measures import CURVES
    from fltrain.runs.record import Results
    from fltrain.tracking.plot import plot as draw

    check_known("unknown metric", [arguments.text("metric", metric)], CURVES, "metrics over rounds")
    compared = _compared(results, config, items, where, over, {"scale": scale, "metric": metric})
    return draw(compared, Results(arguments.path("results", results)).record, metric, ax)


def _compared(
    results: str | Path,
    config: str | Path,
    items: str | Iterable[str],
    where: str | Iterable[str],
    over: str | Iterable[str],
    texts: Mapping[str, str | None],
) -> Comparison:
    """Return a comparison after a check of its arguments' types; ``texts`` are those that can be None."""
    from fltrain.core import arguments
    from fltrain.runs.where import CONDITIONS
    from fltrain.tracking.compare import compare as compared

    return compared(
        arguments.path("results", results),
        arguments.path("config", config),
        arguments.texts("items", items),
        where=arguments.texts("where", where, CONDITIONS),
        over=arguments.texts("over", over),
        **{name: arguments.text(name, value) for name, value in texts.items() if value is not None},
    )


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
