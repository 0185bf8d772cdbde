"""Pages of results: the main claims of each paper, replications, fair table, controls, and costs of tests.

Verdicts come from ``published/<paper>/claims.csv`` and the tables next to it, costs from the records.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from fltrain.experiments.claims import (
    All,
    Fails,
    InRegion,
    NotJudged,
    Test,
    Tested,
    quantities,
)
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan
from fltrain.experiments.schema import Paper
from fltrain.reporting.claims import full_verdict, result_lines, was_judged
from fltrain.reporting.summary import true_values
from fltrain.reporting.tables.render import DROPPED
from fltrain.reporting.tables.table_cell import read_csv
from fltrain.reporting.text import name_and_value
from fltrain.reporting.verdict import without_interval

ECGR_BASES = ("FedAvg", "SCAFFOLD", "FedProx", "FedNova")
"""The base methods of ECGR's paper."""
GAIN, SIZE = "ECGR improves {} on MNIST", "ECGR improves {} by one to two points on MNIST"

MAIN: dict[str, tuple[str, ...]] = {
    "fedavg": (
        "with B = 10, a tenth of the clients needs fewer rounds than one client",
        "change from one client to a tenth of the clients, 2NN, IID, B = 10",
        "with B = inf, there is only a small advantage in more clients",
        "batches of 10 instead of full ones need fewer rounds",
        "non-IID clients need more rounds than IID ones, 2NN, B = 10",
        "more local computation needs fewer rounds than FedSGD, IID",
    ),
    "ecgr": (
        *map(GAIN.format, ECGR_BASES),
        *map(SIZE.format, ECGR_BASES),
        "ECGR gains at least one point in final accuracy on all datasets and baselines",
        "ECGR gains up to two points in final accuracy over all datasets and baselines",
        "MNIST: baselines do not converge when the learning rate is too low, ECGR cannot help",
        "MNIST: ECGR helps more when data are more heterogeneous",
        "MNIST: ECGR helps more when data are more heterogeneous (rate 0.01; SCAFFOLD 0.001)",
        "MNIST: discarding exploratory gradients oscillates early but ends higher for most baselines",
        "smallest ECGR gain on LC25000",
        "convergent gradients come mostly from late local iterations",
        "no extra communication; extra client memory and computation",
    ),
    "fed2": (
        "gain over previous methods, lower end",
        "Fed2 over FedAvg",
        "Fed2 over FedMA",
        "VGG9 on CIFAR-10: smallest gain over all N*C settings",
        "node scaling, VGG9: smallest gain",
        "group over batch normalisation in Fed2",
    ),
    "fedimpro": (
        "FedImpro is clearly best for a=0.1, E=5, M=10 on CIFAR-10, FMNIST, SVHN",
        "the gain grows when a goes from 0.1 to 0.05",
        "FedImpro needs fewer rounds to the target",
        "decoupling at layer 17 is worse than at layer 9",
        "noise 0.5 costs less than half a point",
        "images are recovered from raw features but not from the shared means",
    ),
    "flfa": (
        "FLFA improves accuracy consistently over 8 methods and 6 datasets",
        "FLFA gain over BP, FedAvg on CIFAR-10",
        "random feedback is below BP",
        "without adaptive scaling the gain turns negative",
        "DFA does not converge",
        "separability ratio is higher with FLFA",
        "FLFA adds almost no training time",
        "FLFA needs no extra communication",
    ),
    "fedfcd": (
        "CIFAR-100: average gain over the personalised methods",
        "FedFCD is best in all four large-scale settings",
        "without the regularisation term accuracy falls clearly",
        "each of the three components raises accuracy",
    ),
}
"""Paper -> its main claims, in the words of ``config/reported``."""

REPLICATIONS = {"replication_cifar10": "CIFAR-10", "replication": "MNIST"}
"""Papers of the conceptual replications -> dataset; ``where`` of their claims begins with a paper's name."""


@dataclass(frozen=True)
class Row:
    """A claim, or the published values of a table.

    Attributes:
        claim: its text and place in the paper.
        items: IDs of the items that it needs.
        verdict: our verdict; empty if nothing was run.
        evidence: numbers behind the verdict.
        margin: tolerance of the test.
        numbers: lines of our numbers with their intervals.
        needed: where the claim needs them.
        place: its place in the paper.
    """

    claim: str
    items: tuple[str, ...]
    verdict: str
    evidence: str
    margin: str
    numbers: tuple[str, ...] = ()
    needed: str = ""
    place: str = ""

    @property
    def lines(self) -> list[list[str]]:
        """Lines of a table, one for each number: claim, verdict, name and value, where the claim needs it.

        Claim and verdict stand in the first one.
        """
        numbers = [name_and_value(line) for line in self.numbers] or [("", "")]
        # Lines break before an interval only.
        numbers = [(name, re.sub(" (?!\\[)", "\u00a0", value)) for name, value in numbers]
        needed = self.needed.split("; ")
        if len(needed) != sum(bool(value) for _, value in numbers):
            needed = [" and ".join(needed)]
        heads = [[self.claim, self.verdict]]
        lines = itertools.zip_longest(heads, numbers, needed)
        return [[*(head or ["", ""]), *number, need or ""] for head, number, need in lines]

    def cites(self, paper: str) -> bool:
        """Return True if the claim of a replication is one of this paper."""
        return self.place.partition(",")[0].lower() == paper


@dataclass(frozen=True)
class Listed:
    """A claim on the page of results: lines of a table with folded evidence, or why it has none.

    Attributes:
        lines: see ``Row``; empty without a verdict.
        claim: its text and place in the paper.
        detail: why it has no verdict.
        evidence: further numbers and the test.
        table: title of the tables behind it.
        runs: number of their runs and seeds, and the labels to which they are restricted.
    """

    lines: list[list[str]]
    claim: str
    detail: str = ""
    evidence: str = ""
    table: str = ""
    runs: str = ""


@dataclass(frozen=True)
class Evidence:
    """Our results on all papers.

    Attributes:
        folder: our tables and records.
        published: plan of their scale.
        complete: all declared items: the papers' own protocol, and the conceptual replications.
    """

    folder: Path
    published: Plan
    complete: Sequence[PlannedItem]

    @cached_property
    def costs(self) -> dict[str, tuple[float, int, bool]]:
        """Run ID -> hours of training, bytes of the record, trained on a GPU."""
        hours: dict[str, float] = {}
        size: Counter[str] = Counter()
        gpu = {}
        with tarfile.open(self.folder / "records.tar.gz") as archive:
            for member in archive:
                run, _, name = member.name.partition("/")
                size[run] += member.size
                if name == "costs.json" and (file := archive.extractfile(member)):
                    hours[run] = json.load(file)["seconds"]["total"] / 3600
                if name == "provenance.json" and (file := archive.extractfile(member)):
                    gpu[run] = json.load(file)["device"] != "cpu"
        return {run: (hours[run], size[run], gpu[run]) for run in hours}

    def main(self, paper: str) -> list[Listed]:
        """Published values and main claims of a paper."""
        claims = self._claims(paper)
        if unknown := [name for name in MAIN[paper] if name not in claims]:
            raise ValueError(f"{paper} has no claim {unknown[0]!r}; see config/reported/{paper}_claims.csv")
        return [self._listed(row) for row in (*self._tables(paper), *(claims[name] for name in MAIN[paper]))]

    def replications(self, paper: str, cited: str) -> list[Listed]:
        """Claims of a conceptual replication on a cited paper."""
        return [
            self._listed(replace(row, claim=row.claim.replace(row.place, row.place.partition(", ")[2])))
            for row in self._claims(paper).values()
            if row.cites(cited)
        ]

    def verdicts(self, paper: str) -> dict[str, str]:
        """Claim -> its verdict without marks, for the claims that runs judged."""
        judged = {name: row.verdict for name, row in self._claims(paper).items() if was_judged(row.verdict)}
        return {name: verdict.partition(",")[0].removesuffix(DROPPED) for name, verdict in judged.items()}

    def values(self, paper: str) -> Counter[str]:
        """Verdicts on the published values of a paper."""
        counts: Counter[str] = Counter()
        for row in self._tables(paper):
            for part in row.verdict.split("; "):
                number, _, verdict = part.partition(" ")
                counts[verdict] += int(number)
        return counts

    def left_out(self, paper: str) -> Counter[str]:
        """Verdicts on the claims of a paper that runs judged and that are no main claims."""
        claims = self._claims(paper)
        return Counter(
            row.verdict for name, row in claims.items() if name not in MAIN[paper] and was_judged(row.verdict)
        )

    def replicated(self, paper: str) -> list[str]:
        """The datasets on which claims of a paper have a conceptual replication that was judged."""
        return [
            dataset
            for replication, dataset in REPLICATIONS.items()
            if any(row.verdict and row.cites(paper) for row in self._claims(replication).values())
        ]

    def fair(self) -> list[list[str]]:
        """Fair table: part, restriction, runs, hours, megabytes, verdicts on tuned and default settings."""
        trials = {run for item in self.published.items if item.id == "fair/trials" for run in item.run_ids}
        rows = [["trials", "`items=fair/trials`", *self._cost(trials), "", ""]]
        cells = pd.read_csv(self.folder / "fair" / "accuracy.csv")
        for skew, part in cells.groupby("panel", sort=False):
            runs = {run for cell in part["runs"] for run in cell.split()}
            marked = part["gain_verdict"] + part["exploratory"].map({True: ", exploratory", False: ""})
            verdicts = (marked[part["column"] == name] for name in ("tuned", "default"))
            rows.append([str(skew), "`items=fair/accuracy`", *self._cost(runs), *map(counted, verdicts)])
        further = pd.read_csv(self.folder / "fair" / "further_seeds.csv")
        runs = {run for cell in further["runs"] for run in cell.split()}
        cost, verdict = self._cost(runs), counted(further["gain_verdict"])
        rows.append(["Dirichlet 0.1, further seeds", "`items=fair/further_seeds`", *cost, verdict, ""])
        return rows

    def controls(self) -> list[list[str]]:
        """Controls: title, restriction, runs, hours, megabytes, verdicts."""
        return [
            [
                item.item.title,
                f"`items={item.id}`",
                *self._cost(set(item.run_ids)),
                counted(pd.read_csv(self.folder / f"{item.id}.csv")["verdict"]),
            ]
            for item in self.published.items
            if item.paper.paper == "controls"
        ]

    def truth(self) -> str:
        """True values of the controls."""
        paths = sorted((self.folder / "controls").glob("*.csv"))
        return true_values(cell for path in paths for cell in read_csv(path))

    def decided(self, paper: str) -> list[list[str]]:
        """Judged values and claims: text, restriction, runs, hours, megabytes, margin, expected verdict."""
        judged = [row for row in self._claims(paper).values() if was_judged(row.verdict)]
        return [
            [
                row.claim,
                f"`items={','.join(row.items)}`",
                *self._cost(self._runs(row)),
                row.margin,
                row.verdict,
            ]
            for row in [*self._tables(paper), *judged]
        ]

    def _claims(self, paper: str) -> dict[str, Row]:
        """All claims of a paper by their text."""
        path = self.folder / paper / "claims.csv"
        made = pd.read_csv(path, keep_default_na=False).to_dict("records") if path.exists() else ()
        judged = {(row["where"], row["claim"]): row for row in made if row["verdict"] != "not run"}
        rows = {}
        for claim in self._declared(paper).claims:
            items = tuple(dict.fromkeys(f"{paper}/{quantity.item}" for quantity in quantities(claim.test)))
            verdict, evidence, judgement = "", "", {}
            if isinstance(claim.test, Tested):
                verdict, evidence = "by definition", f"Tested by `{claim.test.by}`."
            elif isinstance(claim.test, NotJudged):
                verdict, evidence = "not judged", claim.test.why
            elif judgement := judged.get((claim.where, claim.claim), {}):
                verdict, evidence = full_verdict(judgement), judgement["evidence"]
            rows[claim.claim] = Row(
                f"{claim.claim} ({claim.where})",
                items,
                verdict,
                evidence,
                tolerance(claim.test),
                tuple(result_lines({**judgement, "needed": ""})) if judgement else (),
                judgement.get("needed", ""),
                claim.where,
            )
        return rows

    def _declared(self, paper: str) -> Paper:
        items = (*self.complete, *self.published.items)
        return next(item.paper for item in items if item.paper.paper == paper)

    def _tables(self, paper: str) -> Iterator[Row]:
        """The published values of each table that has verdicts on them."""
        titles = {item.id: item.item.title for item in self.published.items}
        for path in sorted((self.folder / paper).glob("*.csv")):
            cells = pd.read_csv(path)
            if path.stem == "claims":
                continue
            cells = cells[cells["verdict"].notna() & (cells["verdict"] != "not run")]
            if cells.empty:
                continue
            sides = cells["side"].astype(object).fillna("").map(lambda side: f" ({side})" if side else "")
            marks = cells["exploratory"].map(lambda marked: ", exploratory" * bool(marked))
            apart = cells["reason"].map(without_interval, na_action="ignore")
            verdicts = Counter(apart.fillna(cells["verdict"] + sides + marks))
            margin = (cells["margin"] / cells["published"]).max()
            ratios = (cells["mean"] / cells["published"])[lambda values: values < math.inf]
            yield Row(
                f"{titles[f'{paper}/{path.stem}']}: {len(cells)} values",
                (f"{paper}/{path.stem}",),
                "; ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
                f"all values are in the [table](../published/{paper}/{path.name})",
                f"± {margin:.0%} of the value",
                (f"ours / published: {ratios.min():.2f} to {ratios.max():.2f}",),
            )

    def _listed(self, row: Row) -> Listed:
        if not row.verdict:
            needed = {run for item in self.complete if item.id in row.items for run in item.run_ids}
            return Listed([], row.claim, f"we have not run it yet. It needs {len(needed)} runs.")
        if row.verdict == "not judged":
            return Listed([], row.claim, f"we do not judge it. {row.evidence.rstrip('.')}.")
        if row.verdict == "by definition":
            return Listed(row.lines, row.claim, evidence=row.evidence)
        items = self._items(row)
        seeds = min(len({entry.spec.seed for entry in item.entries}) for item in items)
        limits = dict.fromkeys(str(part) for item in items for part in item.restricted)
        return Listed(
            row.lines,
            row.claim,
            evidence=row.evidence,
            table="; ".join(item.item.title for item in items),
            runs=", ".join(
                [
                    f"{len(self._runs(row))} runs",
                    f"{seeds} seeds",
                    *(f"restricted to {limit}" for limit in limits),
                ]
            ),
        )

    def _items(self, row: Row) -> list[PlannedItem]:
        return [item for item in self.published.items if item.id in row.items]

    def _runs(self, row: Row) -> set[str]:
        return {run for item in self._items(row) for run in item.run_ids}

    def _cost(self, runs: set[str]) -> list[str]:
        """Number of the runs, their hours with a mark of those on a GPU, and megabytes."""
        hours, size, gpu = map(sum, zip(*(self.costs[run] for run in runs), strict=True))
        mark = "" if not gpu else " (GPU)" if gpu == len(runs) else f" ({gpu} runs: GPU)"
        return [str(len(runs)), f"{hours:.1f}{mark}", f"{size / 1e6:.1f}"]


def counted(verdicts: pd.Series[str]) -> str:
    """Return each verdict with its number, the most frequent one first."""
    return "; ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts.dropna()).most_common())


def tolerance(test: Test) -> str:
    """Return the tolerance of a test, in the unit of its number."""
    if isinstance(test, All):
        text = "; ".join(dict.fromkeys(filter(None, map(tolerance, test.tests))))
        numbers = {part.model_dump_json(exclude={"kind", "by"}) for part in test.tests}
        return re.sub(r"above (\S+); below", r"between \1 and", text) if len(numbers) == 1 else text
    if isinstance(test, Fails):
        return f"at most {test.at_most:g}"
    if not isinstance(test, InRegion):
        return ""
    unit = " %" if test.relative else ""
    low, high = test.region(test.by or 0.0)
    if test.kind in ("positive", "negative"):
        return f"above {low:g}" if test.kind == "positive" else f"below {high:z.4g}"
    return f"± {high:g}{unit}" if test.by else "the rule's margin"
