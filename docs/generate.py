"""Generate pages (methods, configuration, commands, papers, results, artefact) and schemas for editors.

``python docs/generate.py`` writes all pages, ``--check`` reports outdated ones. Name pages to restrict both:
``python docs/generate.py --check papers/flfa``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from fltrain.core.own import VARIABLE

os.environ.pop(VARIABLE, None)  # the pages concern the project alone, without the user's own folder

import torch
from click import Context
from evidence import ECGR_BASES, GAIN, MAIN, REPLICATIONS, SIZE, Evidence, Listed
from extent import Covered, cells, coverage, experiments, totals
from pydantic import TypeAdapter
from typer.cli import get_docs_for_click
from typer.main import get_command

from fltrain.cli import app
from fltrain.core.config import Settings, nested
from fltrain.core.errors import FltrainError, count
from fltrain.core.files import json_text, natural
from fltrain.core.strict_yaml import read_settings
from fltrain.experiments.claims import Claim
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import plan
from fltrain.experiments.published import Published
from fltrain.experiments.schema import DisplayLabels, Item, Paper, Register, Scale
from fltrain.experiments.tuning import Search
from fltrain.experiments.work import Work
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.reporting.tables.render import DROPPED
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.text import joined
from fltrain.runs.measures import MEASURES
from fltrain.runs.spec import RunSpec

PAGES = Path(__file__).parent
CONFIG = PAGES.parent / "config"
BASES = [name for name, method in METHODS.items() if not method.plugin]
PLUGINS = [name for name, method in METHODS.items() if method.plugin]


INDEX = """\
# Methods

This page lists all methods with their costs. Each is one file in `fltrain/methods` that follows the [method
interface](../method-interface.md). In a run, name a base method in `method:` and plug-ins in `plugins:`.
Tests in `tests/properties` compare each method with its formulas, and its neutral settings with federated
averaging.

The pages of the methods use these conventions:

* $w^t$ are the global weights in round $t$, $r$ the received weights (usually $w^t$), $w_k$ the weights of
  client $k$ after local training. $\\eta$ is the learning rate of the round.
* $S_t$ is the cohort: $m$ of all $N$ clients. $p_k = n_k / \\sum_{{j \\in S_t}} n_j$ are their shares of the
  images. $F_k$ or $f_k$ is the client's mean cross entropy.
* Methods correct the gradient before weight decay and momentum. The recorded training loss is the cross
  entropy alone, without the method's own terms.
* The server averages BatchNorm statistics by data size, unless the page or `batchnorm: local` states
  otherwise. A client that keeps its model also keeps its statistics.
* Personalised methods need `local_test`: every client is tested on its own images, also outside the cohort.

In the table:

* **Work**: multiply-adds of local training relative to FedAvg, with `mobilenet_tiny` (FedMA: LeNet-5)
  and ten clients that train in each of 100 rounds. `fltrain plan` counts the multiply-adds of your runs.
  Measured times: [benchmarks](../../benchmarks/README.md).
* **Traffic** (down / up) and **state** (client / server) are in vectors of the model's size. Traffic excludes
  weights and buffers. *No model*: the model is not sent. *No head*: the classifier is not sent. *No
  BatchNorm*: its parameters and statistics are not sent.

| name | kind | source | work | traffic | state |
| --- | --- | --- | --- | --- | --- |
{rows}

## Combinations

Every base method combines with any plug-ins, in any order, except for these pairs:

{combinations}

A run names each method once. FLFA changes the backward pass, FedImpro the forward pass and the loss, ECGR the
upload. The engine calls hooks of the base method first, then of plug-ins in their order. Only for
`client_final`, plug-ins come first, so that the base method receives the final upload.

With these settings, a plug-in gives the same result as its base method, bit for bit (tested): FLFA with
`n_fa: 0`, on the first layer alone, or with `feedback: local`; FedImpro with `n_hat: 0`; ECGR with `beta: 1`
or `kappa: 1`; FLFA and ECGR with one local step. Per-FedAvg is an exception for `feedback: local` and one
local step, because it makes several passes in a step.
"""

METHOD_MARK = "<!-- docs/generate.py writes the rest of this page from fltrain/methods. -->"
"""The pages of methods are written by hand above this line."""

METHOD = """\
{written}{mark}

## Settings

{settings}

Work, traffic and state are in the [table of methods](README.md). Code: `{code}`.
"""

MARK = "<!-- docs/generate.py writes the rest of this page from config/. -->"
"""The pages of papers are written by hand above this line, except for a table of verdicts."""

VERDICT_MARK = "<!-- Table by docs/generate.py, from published/. -->"
"""Line above this table, on pages that have it."""

PAPER = """\
{written}{mark}

## Assumptions

These are our choices for settings that the text leaves open, or that are missing in our copy. [Our
copy](../glossary.md#papers-and-verdicts) is a plain text that was extracted from the paper. Some numbers and
symbols are missing or unreadable in it. The choices come from `config/register.yaml`. Our tables and figures
print the assumptions that they depend on.

{assumptions}

## Doubtful cells

Our tables mark these published values. Each line names a table, its rows in parentheses, and the reason. Rows
and reasons come from `config/reported`, column `doubt`.

{doubtful}

## Tables and figures

*Runs* is the number of runs that the text implies (?: unknown). *Ours* is the number of runs of our items.
Both assume the paper's number of seeds, or one seed if it states none.

{coverage}

Several rows can share a run. These totals count each run once:

{count}

## Items

Items that the table above does not name are our additions. *Runs* is the number of runs at `scale=paper`.
Items share runs with equal settings. To train all items, use `snakemake --config scale=paper items={name}`.
[Reproduce a paper](../reproduce.md) explains how to restrict them, and their hours.

{items}
"""


# ------------------------------------------------------------------------------------ index
KEPT = {
    None: "",
    "all": ", no model",
    "head": ", no head",
    "body": ", no body",
    "batchnorm": ", no BatchNorm",
}


def _or_depends(vectors: int | None) -> str:
    return "depends" if vectors is None else str(vectors)


def _work(name: str, plugin: bool) -> float:
    """Return the multiply-adds of training with a method, relative to FedAvg."""
    model, side = ("lenet5", 16) if name == "fedma" else ("mobilenet_tiny", 8)
    settings = {"dataset": {"name": "digits", "image_size": side}, "model": model, "method": "fedavg"}
    settings |= {"partition": {"name": "iid", "clients": 10}, "participation": 1.0, "local_test": 0.2}
    chosen = {"plugins": [name]} if plugin else {"method": name}
    specs = [RunSpec.parse({**settings, **part}, name) for part in (chosen, {})]
    work, average = (Work().parts(spec) for spec in specs)
    assert work and average  # the registry has the size of digits
    return work[0] / average[0]


def index() -> str:
    """The page that lists all methods."""
    rows = []
    for name, method in METHODS.items():
        cost = method().footprint
        cells = [
            f"[{name}]({name}.md)",
            "plug-in" if method.plugin else "base",
            method.citation,
            f"{_work(name, plugin=method.plugin):.2f}",
            f"{_or_depends(cost.down)} / {_or_depends(cost.up)}{KEPT[method().needs.private]}",
            f"{_or_depends(cost.client)} / {_or_depends(cost.server)}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return INDEX.format(rows="\n".join(rows), combinations=combinations())


def method_page(name: str) -> str:
    """The page of a method: the part that is written by hand, then its settings."""
    method = METHODS[name]
    source = Path(str(importlib.import_module(method.__module__).__file__))
    return METHOD.format(
        written=(PAGES / "methods" / f"{name}.md").read_text(encoding="utf-8").partition(METHOD_MARK)[0],
        mark=METHOD_MARK,
        settings=keys_of(method, method.model_json_schema()),
        code=source.relative_to(PAGES.parent),
    )


def combinations() -> str:
    """The pairs of methods that cannot be combined, each with the reason."""
    refused = []
    pairs = [*itertools.product(BASES, PLUGINS), *itertools.combinations(PLUGINS, 2)]
    for pair in pairs:
        base = () if pair[0] in BASES else (METHODS["fedavg"](),)
        try:
            Composition((*base, *(METHODS[name]() for name in pair)))
        except (FltrainError, ValueError) as error:
            refused.append(str(error))
    return bullets(dict.fromkeys(refused))


# ------------------------------------------------------------------------------------ items
def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def bullets(lines: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"* {line}" for line in lines)


def published_row(entry: Covered, untrained: Mapping[str, str]) -> list[object]:
    """A table or figure of a paper, and our items for it."""
    published = "?" if entry.experiment.runs is None else entry.experiment.runs
    targets = ", ".join(f"`{item.id}`" for item in entry.items)
    return [
        entry.experiment.item,
        targets or f"not trained: {untrained.get(entry.experiment.item, 'not declared')}",
        entry.experiment.shows,
        entry.experiment.stated_seeds,
        published,
        entry.runs if entry.items else "",
    ]


HEADS = ["claim", "verdict", "number", "our runs", "claim needs"]
ITEM_HEADS = ["item", "title", "cells", "seeds", "runs", "further assumptions"]


def item_row(item: PlannedItem, listed: Sequence[str]) -> list[object]:
    """One of our items; its assumptions are named in the order in which the page lists them."""
    return [
        f"`{item.id}`",
        item.item.title,
        len(cells([item])),
        len({entry.spec.seed for entry in item.entries}),
        len(item.run_ids),
        ranges([listed.index(key) for key in item.item.assumptions], listed),
    ]


def ranges(places: Iterable[int], listed: Sequence[str]) -> str:
    """Names of entries of a list, of which three or more in a row are joined: ``A-9 to A-13, A-70``."""
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(
        f"{listed[run[0]]} to {listed[run[-1]]}"
        if len(run) > 2
        else ", ".join(listed[place] for place in run)
        for run in runs
    )


def grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines ``name; name: reason`` from pairs of a name and its reason."""
    names: dict[str, list[str]] = {}
    for name, reason in pairs:
        names.setdefault(reason, []).append(name)
    return [f"{'; '.join(group)}: {reason}" for reason, group in names.items()]


def doubts(file: Path) -> Iterator[tuple[str, str]]:
    """The rows that each doubt in a published table concerns, by texts that tell them apart; the doubt."""
    printed = Published.read(file)
    columns = [name for name in printed.columns if name not in ("metric", "value", "std", "note", "doubt")]
    for doubt in dict.fromkeys(doubt for row in printed.rows for doubt in row.anomalies):
        rows, words = printed.rows, []
        for column in ("metric", *columns):
            texts = dict.fromkeys(row.texts[column] for row in printed.rows if doubt in row.anomalies)
            fewer = [row for row in rows if row.texts[column] in texts]
            if len(fewer) < len(rows):
                rows = fewer
                words.append(" or ".join(text or f"no {column}" for text in texts))
        yield f"{file.stem.partition('_')[2]} ({', '.join(words) or 'all'})", doubt


@cache
def paper_items() -> list[PlannedItem]:
    """All items of the papers, planned once for all pages."""
    return plan(CONFIG, "paper").items


def verdicts_on(name: str) -> str:
    """The verdicts on the main claims of a paper, from its own protocol and from replications."""
    sources = [("The paper's protocol", evidence().main(name))]
    sources += [
        (f"Replication on {dataset}", evidence().replications(paper, name))
        for paper, dataset in REPLICATIONS.items()
    ]
    rows: list[list[str]] = []
    for protocol, claims in sources:
        lines = [line for claim in claims for line in claim.lines if any(line[2:])]
        rows += [[f"**{protocol}**", *[""] * 4], *lines] if lines else []
    text = table(["claim", "[verdict](../results.md)", *HEADS[2:]], rows)
    return text.replace(DROPPED, f"[{DROPPED}](../protocol.md#7-many-cells)")


def paper_page(name: str) -> str:
    """The page of a paper: the part that is written by hand, then assumptions, doubts, coverage and items."""
    page = (PAGES / "papers" / f"{name}.md").read_text(encoding="utf-8")
    if VERDICT_MARK in page:
        pattern = rf"{re.escape(VERDICT_MARK)}\n\n(\|.*\n)*"
        page = re.sub(pattern, lambda _: f"{VERDICT_MARK}\n\n{verdicts_on(name)}\n", page)
    planned = [item for item in paper_items() if item.paper.paper == name]
    paper = planned[0].paper
    runs = {run for item in planned for run in item.run_ids}
    total = totals(CONFIG / "reported" / "distinct_runs.csv").get(name)
    lines = [f"our items, with our number of seeds (`scale=paper`): {len(runs):,}"]
    if total:
        lines = [
            f"the text: {total.published:,}",
            f"our items, with the paper's number of seeds: {total.declared:,}",
            *lines,
        ]
    covered = coverage(paper, planned, experiments(CONFIG / "reported" / "experiments.csv"))
    heads = ["in the paper", "item", "content", "seeds", "runs", "ours"]
    explained = grouped((f"`{item.id}`", item.item.counted) for item in planned if item.item.counted)
    register = read_settings(CONFIG / "register.yaml", Register).entries
    used = dict.fromkeys([*paper.assumptions, *(key for item in planned for key in item.item.assumptions)])
    listed = [key for key in register if key in used]
    reported = sorted((CONFIG / "reported").glob(f"{name}_table*.csv"), key=lambda path: natural(path.stem))
    doubtful = grouped(pair for file in reported for pair in doubts(file))
    return PAPER.format(
        written=page.partition(MARK)[0],
        mark=MARK,
        count="\n\n".join([bullets(lines), *([total.explained] if total and total.explained else [])]),
        coverage=table(heads, (published_row(entry, paper.untrained) for entry in covered)),
        name=name,
        items="\n\n".join(
            filter(
                None, [table(ITEM_HEADS, (item_row(item, listed) for item in planned)), bullets(explained)]
            )
        ),
        assumptions=table(
            ["", "question", "assumed", "also possible"],
            (
                [key, register[key].question, register[key].assumed, register[key].alternatives]
                for key in listed
            ),
        ),
        doubtful=bullets(doubtful),
    )


# ------------------------------------------------------------------------------------ results
SMALL = ["no", "one", "two", "three", "four", "five", "six"]
"""Numbers of papers in words."""

RESULTS = """\
# Results

This page lists the main claims of six papers with our verdicts, which follow from our
[records](../published/README.md). In short:

* **[FedAvg](papers/fedavg.md)**, the paper's protocol on MNIST: our 2NN needs fewer rounds than the paper's.
  Of {values} published numbers of rounds, {lower} are *not reproduced*. {directions} claims on directions
  are *supported*, {open} on sizes are *inconclusive*.
* **[ECGR](papers/ecgr.md)**, the paper's protocol on MNIST: ECGR raises the accuracy of {gaining}. The
  published size of this gain is *supported* only for {sized}.
* **[Conceptual replications](replication.md)** of {replicated} papers: of {claims} claims, {supported} are
  *supported*, {contradicted} *contradicted* and the others *inconclusive*. The marks *exploratory* and † show
  weaker verdicts.
* **[Fair table](#the-fair-table)**: in the main table, {better} better than tuned FedAvg.
  With [further seeds](fair-table.md#further-seeds), FedDyn is {further}.

A *conceptual replication* tests the direction of a paper's claim on a small network, not its numbers
([tables](../published/README.md#conceptual-replications)).

These results come from {datasets}. Our images of CIFAR-10 had been saved as JPEG and have 16 x 16 pixels.
Some values of the papers are missing in [our copy](glossary.md#papers-and-verdicts), so we assume them. All
other experiments are declared, but not run yet.

Terms in the tables ([protocol](protocol.md#8-claims), [glossary](glossary.md#papers-and-verdicts)):

* **Inconclusive**: the evidence is too weak for either answer, or covers
  only part of the claim.
* **Exploratory**: we chose the test after seeing the runs, or declared it exploratory.
* **Contradicted†**: the test alone is significant, but not after the
  [correction for the number of claims](protocol.md#7-many-cells).
* **Not reproduced (fewer)**: our value is smaller than the paper's.
* A **case** is a setting or method. Most claims must hold in every case. The *weakest* case supports the
  claim least (largest p value).

*Our runs* are means over seeds, with 90 % intervals in brackets. *Claim needs* is the range that supports the
claim. A claim is supported if one-sided tests at 5 % show that our number lies in this range.

{papers}

## The fair table

All methods had the same number of trials to tune their settings. The table counts the verdicts of their
comparisons with tuned FedAvg in final accuracy ([protocol](fair-table.md),
[tables](../published/README.md#the-fair-table)).

{fair}

## Controls

Controls test our rule on values that we know to be true or false ([protocol](protocol-audit.md#controls),
[tables](../published/README.md#controls)). {truth}.

{controls}
"""

ARTIFACT = """\
# Artefact evaluation

This page shows how to check our results (version {version}, in `published/`):

* **Without training**, you can make all tables and verdicts again from our records, in five minutes on two
  cores. The files must have the same bytes.
* **With training**, you can repeat one claim with one command. The tables below list its cost (minutes to a
  day of one core) and the expected verdict. All {count} runs took {hours:.0f} hours.

## Hardware and installation

You need:

* Linux on x86-64 with Python 3.11.4 or newer, `git` and `make`
* two cores and 4 GB of memory (a run takes up to 1.5 GB), but no GPU
* 7 GB of disk: 6 GB for the packages (PyTorch brings CUDA), and less than 1 GB for images and results
* internet for the packages (3 GB) and for MNIST (12 MB). The demonstration downloads no images.

```bash
git clone <this repository> fltrain && cd fltrain
make env          # installs the locked, hash-checked packages into .venv
```

To choose a Python version, use `make env PYTHON=python3.13`. CI verifies our records and tables on 3.11, 3.12
and 3.13. It trains on only one of them.

For a smaller environment without CUDA, use `uv`. This environment ignores the lock and its hashes, and CI
does not test it:

```bash
python3 -m venv .venv && .venv/bin/pip install uv
.venv/bin/uv pip install --python .venv/bin/python --torch-backend cpu -e '.[workflow]'
.venv/bin/snakemake --cores all    # instead of `make reproduce`
```

A wheel lacks `config/` and `workflow/`, so use a clone.

## Check in five minutes

```bash
make results      # tables, figures and claims from our records, without training
for file in published/*/*; do cmp "$file" "results/$file"; done
.venv/bin/fltrain verify --scale published
```

* The loop prints nothing if the records give all tables, figures and claims in `published/`, byte for byte.
  If you ran `make quick` before, the last digits of its five control runs can differ.
* `fltrain verify` checks the digests of records and makes the tables again.

Then open `results/published/index.html`. To see training, run `make reproduce` (three to seven minutes).

## Make a claim again

Use a fresh clone, because after `make results`, the records exist and Snakemake trains nothing. Take
`items=...` from the tables below:

```bash
.venv/bin/snakemake --cores 2 --config scale=published items=ecgr/figure2
```

Then compare `results/published/<paper>/claims.md` and the table of the item with the expected verdict.
The tables below use these terms:

* **Hours** are hours of one core, from the records. On two cores, expect half. The hours of some ECGR runs
  include a pause.
* **(GPU)** marks runs that shared an H100. On one core, we estimate six to nine times these hours: one to
  two hours for `fedimpro`, two to three each for `fedfcd` and `flfa_bases`.
* **MB** is the size of the records. The images of MNIST take another 70 MB.
* **Margin**: *above x* and *below x* are one-sided tests at 5 %. *± x* and *between x and y* are ranges that
  must contain the 90 % interval. *At most x*: a run with at most this accuracy, in %, counts as failed.
* **†** and other terms: [glossary](glossary.md#papers-and-verdicts).

With the same code on the same kind of machine, records are equal byte for byte (`provenance.json` names
both). Otherwise, training amplifies differences in rounding. Then expect the same verdict, not the same
digits. A verdict with a p value near 0.05 can change ([p values](results.md)).

{papers}

## [Conceptual replications](replication.md)

To train the runs of all these claims, use `--config scale=replication_cifar10` or `scale=replication`
without `items`.

{replications}

## [The fair table](fair-table.md)

The repository contains the selected settings, so you can train the final runs without the trials. The
verdicts compare with tuned FedAvg. One command makes both skews.

{fair}

## [Controls](protocol-audit.md#controls)

{controls}
"""


@cache
def evidence() -> Evidence:
    """Our results."""
    declared = [item for scale in ("paper", *REPLICATIONS) for item in plan(CONFIG, scale).items]
    return Evidence(PAGES.parent / "published", plan(CONFIG, "published"), declared)


def by_paper(text: Callable[[str], str]) -> str:
    """The text on each paper that has one."""
    titles = {item.paper.paper: item.paper.title for item in evidence().complete}
    bodies = {paper: text(paper) for paper in MAIN}
    return "\n\n".join(
        f"## [{titles[paper]}](papers/{paper}.md)\n\n{body}" for paper, body in bodies.items() if body
    )


VERDICTS = ("tuned settings", "default settings")
"""Heads of the columns with verdicts of the fair table."""


def paper_results(paper: str) -> str:
    """The results on a paper: from its own protocol, from replications, and the claims without any."""
    facts = evidence()
    rows = facts.main(paper)
    conclusions = facts.published.scale.conclusions
    parts = [f"> {conclusions[paper]}"] if paper in conclusions else []
    parts += [*notes_on(paper), *listed([row for row in rows if row.lines])]
    for replication, dataset in REPLICATIONS.items():
        if claims := facts.replications(replication, paper):
            parts.append(f"### {NAMES[paper]} on {dataset} (conceptual replication)")
            parts.append(f"> {conclusions[f'{replication}/{NAMES[paper]}']}")
            parts += [READINGS[paper]] if dataset == "MNIST" and paper in READINGS else []
            parts += listed(claims)
    others = [row for row in rows if not row.lines]
    reasons = bullets(f"*{row.claim}*: {row.detail}" for row in others)
    parts += [folded(f"{count(len(others), 'main claim')} without verdict", reasons)] if others else []
    return "\n\n".join(parts)


def listed(rows: Sequence[Listed]) -> list[str]:
    """A table of the claims that were run or tested, and its folded details.

    Exploratory claims are folded, too, except if there are no others.
    """
    late = [row for row in rows if "exploratory" in row.lines[0][1]]
    planned = [row for row in rows if row not in late]
    parts = [part for part in (planned, late) if part]
    texts = [
        f"{table(HEADS, [line for row in part for line in row.lines])}\n\n{folded('Details', details(part))}"
        for part in parts
    ]
    return texts[:1] + [folded(f"Exploratory claims ({len(late)})", text) for text in texts[1:]]


def folded(summary: str, text: str) -> str:
    """A text that readers open."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def details(rows: Sequence[Listed]) -> str:
    """A table of tests, in which claims on the same runs share a heading with the number of runs."""
    groups: dict[tuple[str, str], list[Listed]] = {}
    for row in rows:
        groups.setdefault((row.table, row.runs or row.claim), []).append(row)
    lines: list[list[str]] = []
    for (title, runs), group in groups.items():
        if len(group) > 1:
            lines.append([f"**{title}** ({runs})", ""])
        for row in group:
            claim = f"· {row.claim}" if len(group) > 1 else f"{row.claim}{f' ({row.runs})' * bool(row.runs)}"
            lines.append([claim, row.evidence])
    return table(["claim", "evidence"], lines)


SYMBOLS = {
    "fedavg": "C is the share of clients in a round (C = 0: one client). B is the batch size (inf: all "
    "images of a client). Two cells with B = inf and missed targets have badly chosen rates, so B = 10 saves "
    "less there.",
    "ecgr": "*Beta* is the weight of exploratory gradients; 0 discards them.",
    "fedimpro": "The *cut* divides the network. Layers above it also train on sampled features.",
    "flfa": "*BP* is training without FLFA, *DFA* direct feedback alignment. FLFA* is the paper's "
    "variant with a random matrix instead of the global weights.",
}
"""Paper -> the symbols in its claims."""


NAMES = {
    **{"fedavg": "FedAvg", "ecgr": "ECGR", "fed2": "Fed2"},
    **{"fedimpro": "FedImpro", "flfa": "FLFA", "fedfcd": "FedFCD"},
}
"""Paper -> its method."""

READINGS = {
    "fed2": "Fed2 and FedMA follow one [reading](papers/fed2.md#assumptions) of their papers (A-60, A-61).",
    "fedimpro": "FedImpro has [our defaults](papers/fedimpro.md#protocol-text-and-ours), not its paper's.",
}
"""Paper -> a limit of its replication on MNIST."""


def notes_on(paper: str) -> list[str]:
    """A paragraph that links all claims of a paper that runs judged, and explains symbols."""
    file, notes = f"{paper}/claims.csv", []
    if (PAGES.parent / "published" / file).exists():
        counts = evidence().left_out(paper).items()
        verdicts = ", ".join(f"{number} are *{verdict}*" for verdict, number in counts)
        notes.append(f"Further claims ([all](../published/{file})): {verdicts or 'none'}.")
    notes += [SYMBOLS[paper]] if paper in SYMBOLS else []
    return [" ".join(notes)] if notes else []


def short(facts: Evidence) -> dict[str, object]:
    """The numbers and names in the summary of results."""
    claims = Counter(verdict for paper in REPLICATIONS for verdict in facts.verdicts(paper).values())
    rounds, ecgr = facts.values("fedavg"), facts.verdicts("ecgr")
    fedavg = Counter(facts.verdicts("fedavg").values())
    gains, sizes = (
        joined([base for base in ECGR_BASES if ecgr[claim.format(base)] == "supported"])
        for claim in (GAIN, SIZE)
    )
    better = any("better" in tuned for *_, tuned, default in facts.fair() if default)
    *_, further, _ = facts.fair()[-1]
    return {
        "further": further.partition(" ")[2],
        "lower": rounds["not reproduced (fewer)"],
        "values": rounds.total(),
        "directions": SMALL[fedavg["supported"]].capitalize(),
        "open": SMALL[fedavg["inconclusive"]],
        "gaining": gains,
        "sized": sizes,
        "replicated": SMALL[sum(bool(facts.replicated(paper)) for paper in MAIN)],
        "claims": claims.total(),
        "supported": claims["supported"],
        "contradicted": claims["contradicted"],
        "better": "some tuned methods are" if better else "no tuned method is",
    }


def results() -> str:
    """The page of results."""
    facts = evidence()
    counts = Counter(spec.dataset.entry.title or spec.dataset.name for spec in facts.published.runs.values())
    datasets = [
        f"{runs} runs on {title.replace('Handwritten', 'handwritten')}"
        for title, runs in counts.most_common()
    ]
    fair = ([part, runs, tuned, default] for part, _, runs, *_, tuned, default in facts.fair() if tuned)
    controls = ([title, runs, verdicts] for title, _, runs, *_, verdicts in facts.controls())
    return RESULTS.format(
        papers=by_paper(paper_results),
        **short(facts),
        datasets=f"{', '.join(datasets[:-1])} and {datasets[-1]}",
        fair=table(["label skew", "runs", *VERDICTS], fair),
        truth=facts.truth().capitalize(),
        controls=table(["control", "runs", "verdicts"], controls),
    )


def artifact() -> str:
    """The page for artefact evaluators."""
    heads = ["claim", "make it again", "runs", "hours", "MB", "margin", "expected verdict"]
    facts, costs = evidence(), ["make it again", "runs", "hours", "MB"]
    hours = [hours for hours, *_ in facts.costs.values()]
    project = tomllib.loads((PAGES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return ARTIFACT.format(
        version=project["version"],
        papers=by_paper(lambda paper: table(heads, rows) if (rows := facts.decided(paper)) else ""),
        count=len(hours),
        hours=sum(hours),
        replications="\n\n".join(
            f"### {dataset}\n\n{table(heads, facts.decided(paper))}"
            for paper, dataset in REPLICATIONS.items()
        ),
        fair=table(["label skew", *costs, *VERDICTS], facts.fair()),
        controls=table(["control", *costs, "expected verdicts"], facts.controls()),
    )


# ------------------------------------------------------------------------------------ configuration
CONFIGURED = {
    **{"Run": RunSpec, "Paper": Paper, "Scale": Scale},
    **{"Register of assumptions": Register, "Search spaces": Search},
}
KINDS: dict[str, type[Settings]] = {}
"""Class name -> class of all mappings."""
CONFIGURATION = """\
# Configuration

This page lists all keys of the configuration files. `docs/generate.py` writes it from the classes that read
the files. fltrain refuses an unknown key, a wrong type or a value out of range, with the path of the key.
Editors check the files with the JSON schemas in `config/schemas`.

* A [run](#runspec) is a file for `fltrain train`, for example `config/examples/scaffold-flfa.yaml`.
* A [paper](#paper-1) in `config/papers` declares tables, figures and claims as grids of runs.
* A [scale](#scale-1) in `config/scales` selects items and changes their settings.
* The [register](#register-of-assumptions) in `config/register.yaml` lists the settings that the papers
  lack.
* The [search spaces](#search-spaces) in `config/search.yaml` have the ranges from which trials are drawn.
* The [workflow](#workflow) reads `config/config.yaml`.

The pages of [methods](methods/README.md) list their settings.

{parts}

## Measures

Numbers of a run, for tables and for `fltrain compare --metric`.

{measures}

## Workflow

`config/config.yaml`; each key can be set on the command line with `--config KEY=VALUE`.

```yaml
{workflow}
```
"""


def title_of(kind: type[Settings]) -> str:
    """Name of a mapping: a component's own, as users write it, else the class's."""
    name = kind.model_fields.get("name")
    return str(name.default) if name and isinstance(name.default, str) else kind.__name__


def link(name: str) -> str:
    """A link to the section of a mapping, or to the page of a method."""
    kind = KINDS[name]
    if issubclass(kind, Method):
        return f"[{title_of(kind)}](methods/{title_of(kind)}.md)"
    return f"[{title_of(kind)}](#{title_of(kind).lower()})"


def allowed(schema: Mapping[str, Any]) -> str:
    """The values that a key takes, in words, from its JSON schema."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if "discriminator" in schema:
        return ", ".join(allowed(option) for option in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        components = [option for option in options if "discriminator" in option]
        return " or ".join(dict.fromkeys(allowed(option) for option in components or options))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {allowed(schema['items'])}" if "items" in schema else "list"
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    if "minimum" in schema and schema["minimum"] == schema.get("maximum"):
        return f"`{schema['minimum']:g}`"
    bounds = [f"{word} {schema[key]:g}" for key, word in limits.items() if key in schema]
    words = {"object": "mapping", "string": "text", "boolean": "`true`, `false`", "null": "`null`"}
    return ", ".join([words.get(kind, kind), *bounds])


def described(kind: type[Settings]) -> tuple[str, dict[str, str]]:
    """The text of a class's docstring, and of its attributes, inherited ones included."""
    text, meanings = "", {}
    for parent in reversed([base for base in kind.__mro__ if issubclass(base, Settings)]):
        docstring = inspect.cleandoc(parent.__dict__.get("__doc__") or "").replace("``", "`")
        docstring = re.sub(r"\bif None\b", "if `null`", docstring)
        text, _, attributes = docstring.partition("\nAttributes:\n")
        entries = re.split(r"(?m)^    (\w+(?:, \w+)*): ", attributes)[1:]
        meanings |= {
            key: " ".join(meaning.split())
            for keys, meaning in zip(entries[::2], entries[1::2], strict=True)
            for key in keys.split(", ")
        }
    return text.strip(), meanings


def default_of(schema: Mapping[str, Any]) -> str:
    """The default of a key; a mapping's default follows from its own section."""
    value = schema.get("default")
    return "see there" if isinstance(value, dict) and value else f"`{json.dumps(value)}`"


def keys_of(
    kind: type[Settings], schema: Mapping[str, Any], first: dict[tuple[str, str], str] | None = None
) -> str:
    """The table of a mapping's keys.

    Args:
        kind: class of the mapping.
        schema: its JSON schema.
        first: key and its meaning -> the mapping on the page that explains both; the others refer to it.
    """
    _, meanings = described(kind)
    for key, meaning in meanings.items() if first is not None else ():
        explained = first.setdefault((key, meaning), title_of(kind))
        if explained != title_of(kind) and len(meaning.split()) > 6:
            meanings[key] = f"as in [{explained}](#{explained.lower()})"
    required = schema.get("required", [])
    rows = [
        [
            f"`{key}`",
            allowed(field),
            "required" if key in required else default_of(field),
            meanings.get(key, ""),
        ]
        for key, field in schema.get("properties", {}).items()
        if "const" not in field
    ]
    return table(["key", "value", "default", "meaning"], rows) if rows else "No further keys."


def section(kind: type[Settings], schema: Mapping[str, Any], first: dict[tuple[str, str], str]) -> str:
    """The section of one mapping: its description, then its keys."""
    return f"### {title_of(kind)}\n\n{described(kind)[0]}\n\n{keys_of(kind, schema, first)}"


def settings_of(kind: type[Settings]) -> dict[str, type[Settings]]:
    """The mapping itself and all mappings in it, by class name."""
    kinds = {kind.__name__: kind}
    for setting in kind.model_fields.values():
        for inner in nested(setting.annotation):
            if inner.__name__ not in kinds:
                kinds |= settings_of(inner)
    return kinds


def configuration() -> str:
    """The page on every key of the configuration files."""
    parts: list[str | tuple[type[Settings], Mapping[str, Any]]] = []
    for title, kind in CONFIGURED.items():
        schema = kind.model_json_schema()
        parts.append(f"## {title}")
        for name, inner in settings_of(kind).items():
            if name not in KINDS and not issubclass(inner, Method):
                parts.append((inner, schema if inner is kind else schema["$defs"][name]))
            KINDS[name] = inner
    first: dict[tuple[str, str], str] = {}
    sections = [part if isinstance(part, str) else section(*part, first) for part in parts]
    workflow = (CONFIG / "config.yaml").read_text(encoding="utf-8")
    text = "\n\n".join(sections).replace("`fltrain.runs.measures`", "[measures](#measures)")
    rows = ([f"`{key}`", entry.label, entry.needs and f"`{entry.needs}`"] for key, entry in MEASURES.items())
    measures = table(["measure", "heading", "needed setting, method or plug-in"], rows)
    return CONFIGURATION.format(parts=text, measures=measures, workflow=workflow.strip())


SCHEMAS: dict[str, Any] = {
    **{"run": RunSpec, "scale": Scale, "register": Register, "labels": DisplayLabels, "search": Search},
    **{"paper": Paper, "item": Item, "claims": tuple[Claim, ...], "verdicts": TableCell},
}
"""Kinds of files by the name of their schema."""


def json_schema(name: str) -> str:
    """The JSON schema of a kind of files, for editors."""
    mode: Any = "serialization" if name == "verdicts" else "validation"
    described = TypeAdapter(SCHEMAS[name]).json_schema(mode=mode)
    if name in ("paper", "item", "claims"):
        described = with_blocks(described)
    if name == "paper":
        described["properties"]["blocks"] = {"type": "object"}
    return json_text(described)


def with_blocks(described: Any) -> Any:
    """Allow ``use`` in all mappings of a schema; required keys may come from a block or another file."""
    if isinstance(described, list):
        return [with_blocks(part) for part in described]
    if not isinstance(described, dict):
        return described
    parts = {("anyOf" if key == "oneOf" else key): with_blocks(part) for key, part in described.items()}
    if parts.get("type") == "object":
        names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        parts["properties"] = {**parts.get("properties", {}), "use": names}
        parts.pop("required", None)
    return parts


def commands() -> str:
    """The page on all commands of `fltrain` and their options."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="fltrain"), name="fltrain")
    return (
        text.replace(
            "# `fltrain`\n",
            "# Commands\n\nThis page lists all commands; `docs/generate.py` writes it from the help texts.\n",
            1,
        ).rstrip()
        + "\n"
    )


WRITTEN = {
    "commands": commands,
    "methods/README": index,
    "configuration": configuration,
    **{f"schemas/{name}.json": partial(json_schema, name) for name in SCHEMAS},
    "results": results,
    "artifact": artifact,
    **{
        f"methods/{page.stem}": partial(method_page, page.stem)
        for page in sorted((PAGES / "methods").glob("*.md"))
        if page.stem in METHODS
    },
    **{
        f"papers/{page.stem}": partial(paper_page, page.stem)
        for page in sorted((PAGES / "papers").glob("*.md"))
    },
}
"""Page -> function that returns its text."""


def file_of(name: str) -> Path:
    """The file of a page or schema."""
    return CONFIG / name if name.endswith(".json") else PAGES / f"{name}.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help=f"pages (default: all): {', '.join(WRITTEN)}")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is outdated")
    options = parser.parse_args()
    for name in options.pages:
        if name not in WRITTEN:
            parser.error(f"unknown page {name!r} (known: {', '.join(WRITTEN)})")
    torch.set_num_threads(1)
    stale = []
    for name in options.pages or WRITTEN:
        page, text = file_of(name), WRITTEN[name]()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                page.write_text(text, encoding="utf-8")
    result = "outdated; run python docs/generate.py {}" if options.check else "written"
    for name in stale:
        print(f"{name}: {result.format(name)}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
