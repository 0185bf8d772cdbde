"""Interactive curves of a table's or figure's runs: a page with Vega-Lite and all numbers inside. No torch.

The page has the numbers of each cell of the item, seed and round, as they are in the records. All choices of
the reader are parameters of one Vega-Lite chart. Vega-Lite comes as one file, see ``library``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fltrain.core.files import write_text
from fltrain.experiments.layout import CURVES_FORM, Curves, Sheet, curves_of
from fltrain.reporting.numbers import Runs, curve, curve_place, finished
from fltrain.reporting.pictures import TEMPLATES
from fltrain.reporting.tables.html import Run
from fltrain.runs import curves as records
from fltrain.runs.record import Record

ROWS = 30_000
"""Maximum number of rows in a page (about 4 MB). If there are more, it keeps every 2nd, 3rd ... round."""
WINDOWS = (1, 3, 5, 11, 21, 51)
"""Points over which the reader can smooth."""
MEAN, EVERY = "mean and range", "every seed"
PLACE = ["panel", "series", "seed", "run", "round"]
"""Columns of the numbers before those of the metrics."""


def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script of 0.9 MB."""
    import vl_convert

    names = ("vegaEmbed", "vega", "vegaLite")
    return vl_convert.javascript_bundle("".join(f"window.{name} = {name};" for name in names))


def write(sheet: Sheet, runs: Runs, script: Path, path: Path) -> None:
    """Write the page with the curves of an item.

    Args:
        sheet: the table or figure.
        runs: returns the record of a run ID, complete or not.
        script: file with ``library``.
        path: the page.
    """
    numbers = points(sheet, runs)
    shown, step = thinned(numbers)
    listed = [
        (*curve_place(sheet, cell), Run.of(runs(cell.run), cell.seed, path.parent, cell.stale))
        for cell in sheet.cells
    ]
    page = TEMPLATES.get_template("curves.html").render(
        sheet=sheet,
        listed=listed,
        step=step,
        csv=Markup(shown.to_csv(index=False).replace("<", "\\u003c")),
        chart=Markup(json.dumps(chart(shown)).replace("<", "\\u003c")) if len(shown) else "",
        library=Markup(script.read_text(encoding="utf-8")) if len(shown) else "",
        table=path.name.replace(CURVES_FORM, ".html") if sheet.table else "",
    )
    write_text(path, page)


def points(sheet: Sheet, runs: Runs) -> pd.DataFrame:
    """Return the curves of all finished runs of an item, one row per cell, seed and round."""
    layout = sheet.table or sheet.figure
    drawn = curves_of(layout) if isinstance(layout, Curves) else []
    further = [name for name in drawn if tuple(name.split(".")) not in records.CURVES.values()]
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
    metrics.sort(key=lambda name: name in records.CURVES and ".".join(records.CURVES[name]) not in drawn)
    return frame[[*PLACE, *metrics]].reset_index(drop=True)


def _curves(record: Record, further: list[str]) -> pd.DataFrame:
    """Return the curves of a run, a column each, with the column ``round``."""
    spec = record.run_spec
    named_curves = records.curves_of(record, spec) if spec else {}
    columns = {name: pd.Series(dict(values), dtype=float) for name, values in named_curves.items()}
    for name in further:
        found = curve(record, name)
        # Vega-Lite would read a dot in the name of a column as a path.
        columns |= {f"{name.replace('.', ' ')} {part}".strip(): found[part] for part in found}
    return pd.DataFrame(columns).rename_axis("round").reset_index()


def thinned(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return every n-th round of a frame, with the smallest n that leaves at most ``ROWS`` rows, and n."""
    step = 1
    while (frame["round"] % step == 0).sum() > ROWS:
        step += 1
    return frame[frame["round"] % step == 0], step


def chart(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the Vega-Lite chart of ``points``; the page adds the data from its CSV text."""
    metrics = [name for name in frame.columns if name not in PLACE]
    panels, series, seeds = (list(frame[name].drop_duplicates()) for name in ("panel", "series", "seed"))

    def choice(name: str, label: str, options: list[Any]) -> dict[str, Any]:
        control = {"input": "select", "options": options, "name": label, "element": "#choices"}
        return {"name": name, "value": options[0], "bind": control}

    def box(number: int, label: str) -> dict[str, Any]:
        control = {"input": "checkbox", "name": label, "element": "#series"}
        return {"name": f"show_{number}", "value": True, "bind": control}

    on = " || ".join(f"(show_{n} && datum.series == {json.dumps(label)})" for n, label in enumerate(series))
    several = [{"filter": "datum.panel == panel"}] if len(panels) > 1 else []
    shown: dict[str, Any] = json.loads(TEMPLATES.get_template("chart.json").render())
    title = "metric + ', ' + panel" if len(panels) > 1 else "metric"
    shown["title"] = {"text": {"expr": title}, "anchor": "start", "fontSize": 12}
    shown["data"]["format"]["parse"] = dict.fromkeys(["round", *metrics], "number")
    for look in (shown["encoding"]["color"], shown["layer"][0]["encoding"]["strokeDash"]):
        look["scale"] = {"domain": series}
    shown["params"] = [
        choice("metric", "metric ", metrics),
        *([choice("panel", "panel ", panels)] if len(panels) > 1 else []),
        choice("seeds", "seeds ", [MEAN, EVERY, *map(str, seeds)]),
        choice("smoothing", "smoothing, points ", list(WINDOWS)),
        *map(box, range(len(series)), series),
    ]
    shown["transform"] = [
        *several,
        {"filter": on},
        {"filter": f"seeds == '{MEAN}' || seeds == '{EVERY}' || datum.seed == seeds"},
        {"filter": "isValid(datum[metric])"},
        {"calculate": "datum[metric]", "as": "over_1"},
        *(
            {
                "window": [{"op": "mean", "field": "over_1", "as": f"over_{size}"}],
                "frame": [-(size // 2), size // 2],
                "sort": [{"field": "round"}],
                "groupby": ["series", "run"],
            }
            for size in WINDOWS[1:]
        ),
        {"calculate": "datum['over_' + smoothing]", "as": "smooth"},
        {"calculate": f"seeds == '{MEAN}' ? 'mean over seeds' : datum.run", "as": "line"},
        *shown["transform"],
    ]
    return shown
