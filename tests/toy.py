"""A scale with a table and a figure of hand-made records, written to disk as by the workflow."""

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from fltrain.core.files import write_text
from fltrain.experiments.layout import ItemJob
from fltrain.reporting import overview, paper
from fltrain.reporting.tables import write as tables
from fltrain.reporting.tables.table_cell import read_csv
from fltrain.runs.record import Results, write_record
from fltrain.runs.spec import RunSpec

from .unit.helpers import Cells

METHODS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "MOON": "moon",
    "FedDyn": "feddyn",
    "<b>bold</b>": "nasty",
}
PLUGINS = ("BP", "+ FLFA")
SEEDS = (0, 1, 2)
ROUNDS = 12
DOUBT = "the gain does not follow from the cells"
PUBLISHED = f"""\
method,plugin,metric,value,std,note,doubt
fedavg,BP,acc,50.00,,mean of 3 seeds,
fedavg,+ FLFA,acc,70.00,,mean of 3 seeds; read off a plot,
fedprox,BP,acc,51.00,,mean of 3 seeds,{DOUBT}
fedprox,+ FLFA,acc,52.00,,mean of 3 seeds,{DOUBT}
moon,BP,acc,,,failed to converge; mean of 3 seeds,
"""
PROVENANCE: dict[str, Any] = {
    "fltrain": "0.1.0",
    "commit": "a" * 40,
    "dirty": False,
    "packages": {"torch": "2.12.1", "numpy": "2.4.6"},
    "device": "cpu",
    "gpu": None,
    "cuda": None,
}
RUN = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mlp",
    "method": "fedavg",
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "rounds": ROUNDS,
}


@dataclass
class Toy:
    """Writes the scale below ``root``; methods in ``missing`` have no runs."""

    root: Path
    reduced: bool = False
    missing: tuple[str, ...] = ()
    provenance: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Differences in the provenance of some runs, by run ID."""

    @property
    def results(self) -> Results:
        return Results(self.root / "results")

    @property
    def folder(self) -> Path:
        """The folder of the pages."""
        return self.root / "results" / "toy"

    @property
    def table(self) -> Path:
        return self.folder / "paper" / "table1.html"

    @staticmethod
    def run(method: str, plugin: str, seed: int) -> str:
        return f"digits-{METHODS[method]}{'+flfa' * (plugin != 'BP')}-{seed:010x}"

    @property
    def sheet(self) -> ItemJob:
        cells = Cells(self.results.root)
        for method, plugin in itertools.product(METHODS, PLUGINS):
            for seed in SEEDS:
                labels = {"method": method, "plugin": plugin}
                reported = {"method": METHODS[method], "plugin": plugin}
                cells.place(labels, self.run(method, plugin, seed), reported=reported)
        measure = {"measure": "final_accuracy", "reported": "acc", "gain_over": {"plugin": "BP"}}
        return cells.sheet(
            id="paper/table1",
            paper="A paper on <toys>",
            title="Accuracy & gain",
            reduced=self.reduced,
            table={"rows": "method", "columns": "plugin", "measures": [measure]},
            reported="toy_table1.csv",
            assumptions=["A-1: Which rate: 0.1 (alternatives: 0.01)."],
        )

    @property
    def figure(self) -> ItemJob:
        layout = {"kind": "selection", "columns": "method"}
        changes = {"id": "paper/figure1", "title": "A square", "table": None, "figure": layout}
        return ItemJob.parse({**self.sheet.model_dump(mode="json"), **changes}, "sheet")

    @property
    def listing(self) -> dict[str, Any]:
        cells = {cell.run: f"{cell.labels['method']}, {cell.labels['plugin']}" for cell in self.sheet.cells}
        contents = [
            {"name": "table1", "title": "Accuracy & gain", "table": True, "runs": cells},
            {"name": "figure1", "title": "A square", "table": False, "runs": dict([*cells.items()][:3])},
            {"name": "table10", "title": "Another table", "table": True, "runs": dict([*cells.items()][-3:])},
        ]
        main_paper = {"name": "paper", "title": "A paper on <toys>", "contents": contents}
        other_paper = {"name": "other", "title": "Another paper", "contents": []}
        scale = {"scale": "toy", "heading": "Toy results", "title": "on toy data", "reduced": self.reduced}
        return {**scale, "restrictions": [], "papers": [main_paper, other_paper]}

    def write(self) -> "Toy":
        """Write records, published values, table, figure, claims and the overview."""
        for (index, method), plugin, seed in itertools.product(enumerate(METHODS), PLUGINS, SEEDS):
            if method not in self.missing:
                diverged = method == "FedDyn" and seed > 0
                run = self.run(method, plugin, seed)
                self._record(run, seed, 0.5 + index / 50 + seed / 100, diverged)
        self.write_pages()
        return self

    def write_pages(self) -> None:
        """Write everything except the records."""
        published = self.root / "toy_table1.csv"
        published.write_text(PUBLISHED)
        forms = ("csv", "md", "tex", "html")
        outputs = {form: self.table.with_suffix(f".{form}") for form in forms}
        tables.write(self.sheet, self.results.record, published, outputs)
        for form in ("png", "pdf"):
            Image.new("RGB", (600, 400), "#0b62a4").save(self.folder / "paper" / f"figure1.{form}")
        folder = self.folder / "paper"
        summary = {**SUMMARY, "reduced": self.reduced}
        (folder / "summary.json").write_text(json.dumps(summary))
        cells = {self.sheet.id: read_csv(folder / "table1.csv")}
        page = paper.page(summary, ABOUT, [self.sheet, self.figure], cells, folder)
        write_text(folder / "index.html", page)
        overview.write(self.listing, self.results, self.folder / "index.html", self.folder / "runs.html")

    def _record(self, run: str, seed: int, accuracy: float, diverged: bool) -> None:
        value = None if diverged else accuracy
        summary = {
            "run_id": run,
            "status": "diverged" if diverged else "completed",
            "diverged": {"round": 7, "what": "loss"} if diverged else None,
            "accuracy": {"final": value, "best": value, "last": value},
        }
        costs = {"seconds": {"total": 100.0}, "round_seconds": [1.0]}
        provenance = {**PROVENANCE, **self.provenance.get(run, {})}
        spec = RunSpec.parse({**RUN, "seed": seed}, "toy")
        rounds = range(1, 8 if diverged else ROUNDS + 1)
        of_tests = {"kind": "evaluation", "split": "test", "view": "global"}
        rows = [{**of_tests, "round": n, "accuracy": accuracy * n / ROUNDS, "loss": 1 / n} for n in rounds]
        write_record(self.results.run(run), spec, rows, summary, costs, provenance)
        (self.results.run(run) / "train.log").write_text("trained\n")


def claim(
    where: str, text: str, verdict: str, evidence: str, item: str = "", table: bool = True
) -> dict[str, Any]:
    """A judged claim; claims of a figure are exploratory and drop out of the list."""
    fields = {"where": where, "claim": text, "verdict": verdict, "evidence": evidence}
    judged = verdict in ("supported", "contradicted")
    fields |= {"number": "x minus y: +1.2 points" * judged, "needed": "above 0" * judged}
    fields["reason"] = "1 run diverged" * (verdict == "supported")
    return {**fields, "item": item, "dropped": not table, "exploratory": not table}


CLAIMS = [
    claim("sec. 5", "FLFA <always> helps", "supported", "+1.2 points on average (p = 0.01)", "table1"),
    claim("fig. 1", "The square is blue", "contradicted", "it is not", "figure1, table1", table=False),
    *(claim(f"sec. {n}", f"Number {n} is lucky", "not judged", "no test") for n in range(6, 10)),
    claim("sec. 10", "Toys last", "not run", ""),
]

ABOUT: dict[str, Any] = {
    "citation": "Toy et al., 2025",
    "covers": {"table1": ["table 1"], "figure1": []},
    "untrained": {"figure 9": "a sketch; no training"},
    "elsewhere": {"other": "Another paper"},
}
SUMMARY: dict[str, Any] = {
    "paper": "paper",
    "title": "A paper on <toys>",
    "note": "Small <toys>.",
    "kind": "paper",
    "conclusions": {"": "It is <so>."},
    "results": [],
    "examples": [
        (
            "supported",
            "Accuracy changes (sec. 5)",
            [
                "x minus y, <each> case: +1.25 points [+0.50, +2.00]",
                "weakest of 2 cases, “a”: +1",
                "needed: above 0",
            ],
        )
    ],
    "picture": "figure1",
    "forest": {},
    "parts": {},
    "counts": {
        "published values": (
            {"reproduced": 3, "not reproduced": 1},
            {"reproduced": 2.5, "inconclusive": 1.5},
        ),
        "published gains": ({"direction reproduced": 2}, {"size reproduced": 2.0}),
        "differences among our own runs": ({"equivalent": 5, "inconclusive": 6}, {}),
        "claims": ({"supported": 1, "contradicted": 1, "not judged": 4, "not run": 1}, {}),
    },
    "claims": CLAIMS,
}
