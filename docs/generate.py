"""Write the pages of ``docs/methods`` that are made from the code: the index and the compatibility matrix.

``python docs/generate.py`` writes them, ``--check`` only says whether they are up to date. Every cell of the
matrix is a federation that is trained for two rounds and compared, bit for bit, with its base method.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import statistics
import sys
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fltrain.data.prepared import Partition, PreparedData
from fltrain.engine.rounds import Simulation
from fltrain.errors import FltrainError
from fltrain.methods import METHODS
from fltrain.spec import RunSpec

PAGES = Path(__file__).parent / "methods"
BASES = [name for name, method in METHODS.items() if not method.plugin]
PLUGINS = [name for name, method in METHODS.items() if method.plugin]


INDEX = """\
# Methods

Each is one file in `fltrain/methods` under the contract of `fltrain/methods/base.py`. A base method goes into
`method:` of a run, plug-ins go into `plugins:`; see [which go together](compatibility.md).

The cost of a local step is relative to FedAvg's, counting forward and backward passes (measured:
`benchmarks/step_cost.py`). Traffic (down / up, beside weights and buffers) and state kept between rounds
(client / server) are in vectors of the model's size. Lines of code are those of the method's file, without
comments and docstrings; their median is {median}.

| name | kind | source | step | traffic | state | lines of code |
| --- | --- | --- | --- | --- | --- | --- |
{rows}
"""

COMPATIBILITY = """\
# Which methods go together

Made by `docs/generate.py`: every cell is a federation that was trained for two rounds and compared with its
base method. `works`: it trains, and differently from the base. `= base`: weights and buffers are those of the
base method, bit for bit.

## Plug-ins with their default settings

{defaults}

The order of the plug-ins does not matter: FLFA acts in the backward passes, FedImpro in the forward pass and
the loss, ECGR on what goes up. In general, hooks run in the order base method, then plug-ins as written. Only
`finish` starts with the plug-ins, so that a base method sees what will go up (see `fltrain/methods/base.py`).

## When a plug-in changes nothing

{reasons}

{neutral}

## What is refused

{refusals}
* Two methods that define the same exclusive hook (`aggregate`, `aggregate_buffers`, `criterion`, `forward`,
  `gradient`, `recording`). No two of the methods above do.
"""


# ------------------------------------------------------------------------------------ index
def lines_of_code(path: Path) -> int:
    """Lines that hold code: no docstrings, comments or blank lines."""
    source = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in silent]
    code = {line for token in tokens[1:-1] for line in range(token.start[0], token.end[0] + 1)}
    return len(code - docstrings)


def _or_depends(vectors: int | None) -> str:
    return "depends" if vectors is None else str(vectors)


def index() -> str:
    """The page that lists all methods."""
    rows, counts = [], []
    for name, method in METHODS.items():
        source = Path(str(importlib.import_module(method.__module__).__file__))
        counts.append(lines_of_code(source))
        cost = method.footprint
        cells = [
            f"[{name}]({name}.md)",
            "plug-in" if method.plugin else "base",
            method.citation,
            "depends" if cost.step is None else f"{cost.step / 3:.2f}",
            f"{_or_depends(cost.down)} / {_or_depends(cost.up)}",
            f"{_or_depends(cost.client)} / {_or_depends(cost.server)}",
            str(counts[-1]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return INDEX.format(rows="\n".join(rows), median=f"{statistics.median(counts):g}")


# ------------------------------------------------------------------------------------ compatibility
@dataclass(frozen=True)
class Column:
    """Plug-ins with settings, and why they change nothing, if they do not."""

    title: str
    plugins: list[Any]
    why: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)


ONE_STEP = {"batch_size": 64}
MODELS = {"fedma": ("lenet5", 16, "conv1.0")}
"""Model, side of the images and first layer for methods that do not go with the usual one."""
USUAL = ("mobilenet_tiny", 8, "stem.0")
FIRST = "the first layer"

COLUMNS = [
    *(Column(name, [name]) for name in PLUGINS),
    *(Column(", ".join(pair), [*pair]) for pair in itertools.combinations(PLUGINS, 2)),
    Column("all", PLUGINS),
]
NEUTRAL = [
    Column("flfa, `n_fa: 0`", [{"name": "flfa", "n_fa": 0}], "no layer is selected"),
    Column(
        "flfa on the first layer",
        [{"name": "flfa", "strategy": "fixed", "layers": [FIRST]}],
        "only images come in there, so no error goes on",
    ),
    Column(
        "flfa, `feedback: local`",
        [{"name": "flfa", "strategy": "fixed", "layers": "all", "feedback": "local"}],
        "errors travel through the current weights, which is backpropagation",
    ),
    Column(
        "flfa, one local step",
        [{"name": "flfa", "strategy": "fixed", "layers": "all"}],
        "in the first step the received weights are the current ones",
        ONE_STEP,
    ),
    Column("fedimpro, `n_hat: 0`", [{"name": "fedimpro", "n_hat": 0}], "there are no samples"),
    Column("ecgr, `beta: 1`", [{"name": "ecgr", "beta": 1.0}], "all steps count fully"),
    Column("ecgr, `kappa: 1`", [{"name": "ecgr", "kappa": 1.0}], "all steps are selected"),
    Column("ecgr, one local step", ["ecgr"], "the only step is selected", ONE_STEP),
]

WORKS, SAME = "works", "= base"


def federation(base: str, plugins: Sequence[Any], training: Mapping[str, Any]) -> Simulation:
    """Four clients with 40 random images each after two rounds of local training."""
    model, side, first = MODELS.get(base, USUAL)
    plugins = [dict(one) if isinstance(one, dict) else {"name": one} for one in plugins]
    for plugin in plugins:
        if plugin.get("layers") == [FIRST]:
            plugin["layers"] = [first]
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (200, 1, side, side), np.uint8)
    labels = random.integers(0, 10, 200)
    data = PreparedData(images[:160], labels[:160], images[160:], labels[160:], 10, (0.5,), (0.3,), digest="")
    spec = RunSpec.parse(
        {
            "dataset": {"name": "digits", "image_size": side},
            "partition": {"name": "iid", "clients": 4},
            "model": model,
            "method": base,
            "plugins": plugins,
            "training": {"epochs": 1, "batch_size": 8, "lr": 0.05, **training},
            "participation": {"fraction": 1.0},
            "rounds": 2,
        },
        base,
    )
    trained = Simulation(spec, data, Partition(np.split(np.arange(160), 4), digest=""), torch.device("cpu"))
    for _ in trained.run():
        pass
    return trained


@cache
def on_its_own(base: str, training: tuple[tuple[str, Any], ...]) -> Simulation:
    """The base method without plug-ins."""
    return federation(base, (), dict(training))


def verdict(base: str, column: Column) -> str:
    """``works``, ``= base``, or the reason why the combination is refused."""
    try:
        changed = federation(base, column.plugins, column.training)
    except FltrainError as error:
        return f"refused: {error}"
    plain = on_its_own(base, tuple(column.training.items()))
    same = all(
        torch.equal(getattr(changed.server, part), getattr(plain.server, part))
        for part in ("weights", "buffers", "counters")
    )
    if same and not column.why:
        raise AssertionError(f"{base} with {column.title} is the base method: say why")
    return SAME if same else WORKS


def matrix(columns: list[Column]) -> str:
    """A table with a row per base method."""
    rows = [[base, *(verdict(base, column) for column in columns)] for base in BASES]
    heads = ["", *(column.title for column in columns)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def refusals() -> list[str]:
    """What cannot be combined, with the message."""
    attempts = {
        "a base method as a plug-in": ("fedavg", ["fedprox"]),
        "a plug-in as a base method": (PLUGINS[0], []),
        "a plug-in twice": ("fedavg", [PLUGINS[0], PLUGINS[0]]),
    }
    lines = []
    for what, (base, plugins) in attempts.items():
        try:
            federation(base, plugins, {})
        except FltrainError as error:
            lines.append(f"* {what}: refused. `{str(error).partition(': ')[2]}`")
        else:
            raise AssertionError(f"{what} is not refused")
    return lines


def compatibility() -> str:
    """The page that says which methods go together."""
    reasons = "\n".join(f"* {column.title}: {column.why}." for column in NEUTRAL)
    return COMPATIBILITY.format(
        defaults=matrix(COLUMNS), reasons=reasons, neutral=matrix(NEUTRAL), refusals="\n".join(refusals())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stale = []
    for name, make in (("README.md", index), ("compatibility.md", compatibility)):
        page, text = PAGES / name, make()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                page.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date; run python docs/generate.py' if options.check else 'written'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
