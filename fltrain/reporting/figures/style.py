"""Style of figures: a fixed place for each method, sizes that can be read in print, common parts of panels.

The rule for colours. A method has one place in all figures: a colour, a dash and a marker (``PLACES``), so
that no two differ by colour alone. FedAvg is black and solid; local training alone is grey. A method
with plug-ins takes the colour of the first and dash and marker of the last of them: FedProx with FLFA has
FedProx's colour and FLFA's dashes. FedAvg adds nothing of its own: FedAvg with FLFA is FLFA. A line stands
for what all its runs share: where ``+ ECGR`` is shown on four methods, it has ECGR's place, and the line
without it is black. Labels and their order do not matter.

Lines that would look alike are runs of one method with different settings. If all are, they are points of a
scale (noise, learning rates) and get an ordered palette; if only some are, the first keeps the method's place
and the others are tints of it with other markers.

The nine colours are from Okabe and Ito's and Paul Tol's palettes. To readers with any of the three kinds of
colour blindness all of them, and black, are at least 17 apart in CIELAB.
"""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, to_hex, to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import get_font_names
from matplotlib.image import AxesImage

from fltrain.experiments.layout import Cell, named

MILLIMETRE = 1 / 25.4
PAGE = 180.0
"""Width of a figure in millimetres; at this width, texts are printed in the font sizes below."""
PANEL = 75.0
"""Maximum width of one of several panels in millimetres."""
SINGLE = 115.0
"""Width of a single panel in millimetres."""
SMALL = 7.5
"""Font size of secondary text."""
TIE = "\N{NO-BREAK SPACE}"
GREY = "#5b6675"

CJK = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
)
"""Fonts for Chinese, Japanese and Korean labels, of which figures use those that are installed."""


def families(installed: Collection[str]) -> list[str]:
    """Return the fonts of figures; the first one that has a letter shows it."""
    return ["DejaVu Sans", *(font for font in CJK if font in installed)]


STYLE: dict[Any, Any] = {
    "font.family": families(get_font_names()),
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 3.2,  # long enough for the longest dash
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fltrain",
}

Dash: TypeAlias = "str | tuple[float, tuple[float, ...]]"


class Look(NamedTuple):
    """Colour, dash and marker of a line; bars have the colour and a hatch that goes with the dash."""

    colour: str
    dash: Dash = "-"
    marker: str = "o"

    @property
    def hatch(self) -> str:
        """Pattern of a bar."""
        return HATCHES.get(self.dash, "\\\\\\")


BLACK, LOCAL = "#000000", "#8c8c8c"
INDIGO, VERMILION, SKY, GREEN, ORANGE = "#332288", "#d55e00", "#56b4e9", "#117733", "#e69f00"
VIOLET, WINE, PINK, ROSE = "#7b4fa3", "#882255", "#cc79a7", "#cc6677"
COLOURS = (INDIGO, VERMILION, SKY, GREEN, ORANGE, VIOLET, WINE, PINK, ROSE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
# Methods are solid, dash-dotted or dotted, plug-ins dashed.
SOLID, DASH_DOTTED, DOTTED = "-", "-.", ":"
DASHED, LONG_DASHED, DASH_DOT_DOTTED = (0, (4, 1.5)), (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1))
HATCHES: dict[Dash, str] = {SOLID: "", DASH_DOTTED: "///", DOTTED: "..."}

PLACES = {
    "fedavg": Look(BLACK, SOLID, "o"),
    "local": Look(LOCAL, SOLID, "v"),
    "fedprox": Look(SKY, SOLID, "s"),
    "scaffold": Look(GREEN, SOLID, "^"),
    "fednova": Look(ORANGE, SOLID, "D"),
    "feddyn": Look(VIOLET, SOLID, "v"),
    "moon": Look(PINK, SOLID, "P"),
    "fedavgm": Look(INDIGO, SOLID, "X"),
    "fedsol": Look(ROSE, SOLID, "<"),
    "fedrs": Look(WINE, SOLID, ">"),
    "fedlc": Look(ORANGE, DASH_DOTTED, "p"),
    "fedacg": Look(GREEN, DASH_DOTTED, "h"),
    "fedopt": Look(SKY, DASH_DOTTED, "d"),
    "fed2": Look(VERMILION, SOLID, "v"),
    "fedma": Look(ORANGE, DOTTED, "^"),
    "perfedavg": Look(ROSE, DASH_DOTTED, "D"),
    "fedamp": Look(GREEN, DOTTED, "d"),
    "fedbn": Look(SKY, DOTTED, "p"),
    "ditto": Look(INDIGO, DOTTED, "o"),
    "fedproto": Look(INDIGO, DASH_DOTTED, "s"),
    "gpfl": Look(PINK, DASH_DOTTED, "p"),
    "fedgh": Look(VIOLET, DASH_DOTTED, "h"),
    "fedfcd": Look(VERMILION, DASH_DOTTED, "X"),
    "flfa": Look(VERMILION, DASHED, "*"),
    "ecgr": Look(VIOLET, DASH_DOT_DOTTED, "X"),
    "fedimpro": Look(WINE, LONG_DASHED, "P"),
}
"""Place of each method and plug-in; ``place`` returns one for other names."""


def place(name: str) -> Look:
    """Return the look of a method or plug-in; without a fixed place, it follows from a hash of the name."""
    if name in PLACES:
        return PLACES[name]
    number = zlib.crc32(name.encode())
    colour, number = COLOURS[number % len(COLOURS)], number // len(COLOURS)
    return Look(colour, DOTTED, MARKERS[number % len(MARKERS)])


def look_of(methods: Sequence[str]) -> Look:
    """Return the look of a method with plug-ins: colour of the first, dash and marker of the last."""
    names = [name for name in methods if name != "fedavg"] or ["fedavg"]
    first, last = place(names[0]), place(names[-1])
    return Look(first.colour, last.dash, last.marker)


def looks(labels: Sequence[str], axis: str | None, cells: Iterable[Cell]) -> dict[str, Look]:
    """Return the look of each label on an axis, by the methods of its runs; see the rule above.

    Runs that are missing or diverged count as well, so that the others look the same without them; a label
    that no run is planned for has no look. Without an axis there is one label, which stands for all runs.
    """
    runs: dict[str, list[tuple[str, ...]]] = {label: [] for label in labels}
    for cell in cells:
        label = cell.labels[axis] if axis else labels[0]
        runs[label].append(cell.methods)
    runs = {label: compositions for label, compositions in runs.items() if compositions}
    alike: dict[Look, list[str]] = {}
    for label, compositions in runs.items():
        alike.setdefault(look_of(_shared(compositions)), []).append(label)
    if len(alike) == 1 and len(runs) > 1:
        return dict(zip(runs, scale(len(runs)), strict=True))
    found = {
        label: variant
        for look, group in alike.items()
        for label, variant in zip(group, _variants(look, len(group)), strict=True)
    }
    return {label: found[label] for label in runs}


def _shared(compositions: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the methods and plug-ins that all compositions share, in order."""
    return [name for name in compositions[0] if all(name in other for other in compositions)]


def scale(count: int) -> list[Look]:
    """Return ``count`` looks in order, from dark to light: for points of a scale, layers, blocks."""
    shades = matplotlib.colormaps["viridis"]
    # The last sixth of the palette is too light on white.
    return [
        Look(to_hex(shades(0.84 * index / max(count - 1, 1))), SOLID, MARKERS[index % len(MARKERS)])
        for index in range(count)
    ]


def _variants(look: Look, count: int) -> Iterator[Look]:
    """Yield ``count`` styles for one method: its own, then lighter ones with other markers and dashes."""
    yield look
    first = MARKERS.index(look.marker)
    dashes = [dash for dash in (DASHED, DOTTED, DASH_DOTTED, SOLID) if dash != look.dash]
    for index in range(1, count):
        lighter = 0.5 * index / (count - 1)
        red, green, blue = (part + lighter * (1 - part) for part in to_rgb(look.colour))
        marker = MARKERS[(first + index) % len(MARKERS)]
        yield Look(to_hex((red, green, blue)), dashes[(index - 1) % len(dashes)], marker)


# ---------------------------------------------------------------- canvas
def canvas(columns: int, rows: int = 1, height: float | None = None) -> tuple[Canvas, list[list[Axes]]]:
    """Return a figure of ``rows`` times ``columns`` panels, no wider than a page.

    The default ``height`` of a panel, in millimetres, follows from its width.
    """
    width = panel_width(columns)
    height = height or min(0.6 * width + 16, 70)
    size = (width * columns * MILLIMETRE, height * rows * MILLIMETRE)
    figure = Canvas(figsize=size, layout="constrained")
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False).tolist()
    return figure, grid


def panel_width(columns: int) -> float:
    """Return the width in millimetres of one of ``columns`` panels side by side."""
    return SINGLE if columns == 1 else min(PANEL, PAGE / columns)


def heading(axes: Axes, parts: Iterable[str], columns: int) -> None:
    """Write the title of one of ``columns`` panels side by side; lines break after parts, without a comma."""
    # A character is about 1.6 mm wide; the labels of the vertical axis take 10 mm.
    fitting = int((panel_width(columns) - 10) / 1.6)
    tied = ", ".join(part.replace(" ", TIE) for part in parts if part)
    lines = textwrap.wrap(tied, fitting, break_long_words=False, break_on_hyphens=False)
    filled = [textwrap.fill(line.replace(TIE, " ").removesuffix(","), fitting) for line in lines]
    axes.set_title("\n".join(filled), loc="left")


def shown(label: str) -> str:
    """Return a label that legends show: Matplotlib hides those that begin with an underscore."""
    return f"\N{WORD JOINER}{label}" if label.startswith("_") else label


def legend(figure: Canvas, panels: Iterable[Axes], series: str = "") -> None:
    """Name the lines of all panels, once each, above them; numbers come with their axis, ``series``."""
    lines: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(named(series, name), handle)
    if lines:
        # As many in a line as fit: about 18 mm for the stroke and gaps and 1.8 mm for each character.
        width = figure.get_figwidth() / MILLIMETRE
        columns = min(len(lines), max(1, int(width / (18 + 1.8 * max(map(len, lines))))))
        figure.legend(list(lines.values()), list(lines), loc="outside upper left", ncols=columns)
        make_room(figure, 4.5 * math.ceil(len(lines) / columns))


def footnote(figure: Canvas, text: str) -> None:
    """Write a note below all panels."""
    # A character is about 1.4 mm wide.
    lines = textwrap.wrap(text, int(figure.get_figwidth() / MILLIMETRE / 1.4))
    figure.supxlabel("\n".join(lines), fontsize=SMALL, color=GREY, x=0.01, ha="left")
    make_room(figure, 3.2 * len(lines))


def make_room(figure: Canvas, millimetres: float) -> None:
    """Make a figure higher to fit texts, so that panels keep their size."""
    figure.set_figheight(figure.get_figheight() + millimetres * MILLIMETRE)


def image(
    axes: Axes, shown: Any, colours: Colormap, ends: tuple[float, float], **placement: Any
) -> AxesImage:
    """Draw an array by colour between two ``ends``; masked values stay grey."""
    axes.set_facecolor("#d5dae1")
    axes.grid(visible=False)
    low, high = ends
    placement |= {"aspect": "auto", "interpolation": "nearest"}
    return axes.imshow(shown, cmap=colours, vmin=low, vmax=high, **placement)


def no_runs(axes: Axes) -> None:
    """Write into an empty panel that no run exists."""
    axes.text(0.5, 0.5, "no run", transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.grid(visible=False)
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
