"""Interactive curves of a table's or figure's runs: a page with Vega-Lite and all numbers inside. No torch.

The page has the numbers of each cell of the item, seed and round, as they are in the records: the curve of a
diverged run ends, because no number stands for its later rounds. All choices of the reader are parameters of
one Vega-Lite chart. Vega-Lite comes as one file, see ``library``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from fltrain.core.files import write_text
from fltrain.experiments.layout import Curves, ItemJob
from fltrain.reporting.frame import Runs, curve, curve_place, finished
from fltrain.reporting.pages import TEMPLATES
from fltrain.runs.measures import CURVES, factor, recorded_curves
from fltrain.runs.record import Record

ROWS = 30_000
"""Maximum number of rows in a page (about 4 MB). If there are more, it keeps every 2nd, 3rd ... round."""
PLACE = ["panel", "series", "seed", "run", "round"]
"""Columns of the numbers before the columns of metrics."""


def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script of 0.9 MB."""
    import vl_convert

    names = ("vegaEmbed", "vega", "vegaLite")
    return vl_convert.javascript_bundle("".join(f"window.{name} = {name};" for name in names))


def write(sheet: ItemJob, runs: Runs, script: Path, path: Path) -> None:
    """Write the page with the curves of an item.

    Args:
        sheet: the table or figure.
        runs: returns the record of a run ID, complete or not.
        script: file with ``library``.
        path: the page.
    """
    shown, step = thinned(numbers(sheet, runs))
    metrics = [name for name in shown.columns if name not in PLACE]
    with_first = shown.dropna(subset=metrics[:1])
    page = TEMPLATES.get_template("curves.html").render(
        sheet=sheet,
        name=Path(sheet.id).name,
        step=step,
        csv=Markup(shown.to_csv(index=False).replace("<", "\\u003c")),
        metrics=metrics,
        # The page opens with the first metric, in the first panel that has it.
        panel=with_first["panel"].iloc[0] if metrics else "",
        labels={name: [*shown[name].drop_duplicates().map(str)] for name in ("panel", "series", "seed")},
        library=Markup(script.read_text(encoding="utf-8")) if metrics else "",
    )
    write_text(path, page)


def numbers(sheet: ItemJob, runs: Runs) -> pd.DataFrame:
    """Return the curves of all finished runs of an item, one row per cell, seed and round.

    Accuracies are in per cent.
    """
    layout = sheet.table or sheet.figure
    drawn = [panel.curve for panel in layout.panels] if isinstance(layout, Curves) else []
    further = [name for name in drawn if name not in CURVES.values()]
    frames: dict[str, pd.DataFrame] = {}
    parts: list[pd.DataFrame] = []
    for cell, record in finished(sheet, runs):
        if cell.run not in frames:
            frames[cell.run] = _curves(record, further)
        panel, series = curve_place(sheet, cell)
        parts.append(frames[cell.run].assign(panel=panel, series=series, seed=cell.seed, run=cell.run))
    frame = pd.concat(parts) if parts else pd.DataFrame(columns=PLACE)
    metrics = [name for name in frame.columns if name not in PLACE]
    # The page opens with the metric that the figure draws.
    metrics.sort(key=lambda name: name in CURVES and CURVES[name] not in drawn)
    frame = frame[[*PLACE, *metrics]].reset_index(drop=True)
    frame[metrics] *= [factor(name) for name in metrics]
    return frame.rename(columns={name: heading(name) for name in metrics})


def heading(metric: str) -> str:
    """Return the name of a metric as the page shows it, with its unit: ``test accuracy, %``."""
    return metric.replace("_", " ") + (", %" if factor(metric) == 100 else "")


def _curves(record: Record, further: list[str]) -> pd.DataFrame:
    """Return the curves of a run, a column each, with the column ``round``."""
    columns = {name: pd.Series(dict(values), dtype=float) for name, values in recorded_curves(record).items()}
    for name in further:
        found = curve(record, name)
        # Vega-Lite would read dots and brackets in the name of a column as a path.
        columns |= {re.sub(r"[.\[\]]", " ", f"{name} {part}").strip(): found[part] for part in found}
    return pd.DataFrame(columns).rename_axis("round").reset_index()


def thinned(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return every n-th round of a frame, with the smallest n that leaves at most ``ROWS`` rows, and n.

    Metrics without a value in these rounds are left out.
    """
    step = 1
    while (frame["round"] % step == 0).sum() > ROWS:
        step += 1
    kept = frame[frame["round"] % step == 0]
    empty = [name for name in kept.columns if name not in PLACE and kept[name].isna().all()]
    return kept.drop(columns=empty), step
