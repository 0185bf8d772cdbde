"""Declared experiments agree with the papers: items, numbers of runs, values, claims; the demonstration."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from extent import Covered, coverage, experiments, totals

from fltrain.core.strict_yaml import read_settings
from fltrain.experiments import claims
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import Measured, Table
from fltrain.experiments.plan import declared
from fltrain.experiments.schema import DisplayLabels, Paper
from fltrain.runs.measures import measure

from ..released import RELEASED
from .helpers import shipped

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
REPORTED = CONFIG / "reported"
EXPERIMENTS = experiments(REPORTED / "experiments.csv")
PAPERS = list(dict.fromkeys(experiment.paper for experiment in EXPERIMENTS))
TOTALS = totals(REPORTED / "distinct_runs.csv")

every_paper = pytest.mark.parametrize("paper", PAPERS)


def items(paper: str) -> dict[str, PlannedItem]:
    return {item.name: item for item in shipped("paper").items if item.paper.paper == paper}


def covered(paper: str) -> dict[str, Covered]:
    planned = list(items(paper).values())
    assert planned, f"nothing of {paper} is in config/scales/paper.yaml"
    return {entry.experiment.item: entry for entry in coverage(planned[0].paper, planned, EXPERIMENTS)}


@every_paper
def test_the_paper_scale_has_all_items(paper: str) -> None:
    files = {file.stem for file in (CONFIG / "papers" / paper).glob("*.yaml")}
    assert items(paper).keys() == files - {"paper", "claims"}


@every_paper
def test_every_published_table_and_figure_is_covered_or_untrained(paper: str) -> None:
    planned, published = items(paper), covered(paper)
    untrained = next(iter(planned.values())).paper.untrained
    assert {*untrained, *(name for item in planned.values() for name in item.item.covers)} <= published.keys()
    for name, entry in published.items():
        if entry.items:
            assert name not in untrained
        else:
            assert name in untrained and not entry.experiment.runs


def agrees(entry: Covered) -> bool:
    """Return True if the declared number of runs equals the published one."""
    return entry.runs == entry.experiment.runs


@every_paper
def test_declared_numbers_of_runs_are_the_published_ones_or_explained(paper: str) -> None:
    differing = {
        name: f"{entry.runs} declared, {entry.experiment.runs} published"
        for name, entry in covered(paper).items()
        if entry.items and not agrees(entry) and not any(item.item.counted for item in entry.items)
    }
    assert not differing, "\n".join(map(": ".join, differing.items()))


@every_paper
def test_only_differing_numbers_of_runs_are_explained(paper: str) -> None:
    published = covered(paper)
    stale = {
        name
        for name, item in items(paper).items()
        if item.item.counted and all(agrees(published[covers]) for covers in item.item.covers)
    }
    assert not stale


@every_paper
def test_the_number_of_distinct_runs(paper: str) -> None:
    """Shared runs count once, with the largest number of seeds stated for them."""
    seeds: dict[str, int] = {}
    for entry in covered(paper).values():
        for cell in entry.cells:
            seeds[cell] = max(seeds.get(cell, 1), entry.experiment.seeds)
    total = TOTALS[paper]
    assert sum(seeds.values()) == total.declared
    assert (total.declared == total.published) == (not total.explained)


def test_totals_cover_the_papers_only() -> None:
    assert list(TOTALS) == PAPERS


def published_values(item: PlannedItem) -> pd.DataFrame:
    assert item.item.reported
    return pd.read_csv(REPORTED / item.item.reported.file, dtype=str, keep_default_na=False)


def matches(values: pd.DataFrame, names: Mapping[str, str], dimension: str | None) -> pd.Series:
    """Mask of the published values with these names; an open ``{dimension}`` matches any value."""
    matching = pd.Series(True, index=values.index)
    for column, name in names.items():
        if column in values:
            before, placeholder, after = name.partition("{" + (dimension or "") + "}")
            matching &= (
                values[column].str.fullmatch(f"{re.escape(before)}.+{re.escape(after)}")
                if placeholder
                else values[column] == name
            )
    return matching


def placed(item: PlannedItem, measured: Measured) -> dict[int, list[str]]:
    """Cells (in words) that match each published value of a measure, by its row in the file."""
    values = published_values(item)
    values = values[values["metric"] == measured.reported]
    dimension = measure(measured.measure).dimension
    assert item.item.table
    places: dict[int, dict[str, None]] = {row: {} for row in values.index}
    for entry in item.entries:
        if entry.seed != item.entries[0].seed:
            continue
        hidden = (item.item.table.best_of, *item.item.table.mean_over)
        labels = [label for axis, label in entry.labels.items() if axis not in hidden]
        for row in values.index[matches(values, entry.reported, dimension)]:
            places[row][" / ".join(labels)] = None
    return {row: list(cells) for row, cells in places.items()}


@cache
def compared(paper: str) -> list[tuple[PlannedItem, Measured, dict[int, list[str]]]]:
    """Items and measures that have published values, with the cells of each value."""
    return [
        (item, measured, placed(item, measured))
        for item in items(paper).values()
        if item.item.table and item.item.reported
        for measured in item.item.table.measures
        if measured.reported
    ]


@every_paper
def test_published_values_and_cells_match_one_to_one(paper: str) -> None:
    """Otherwise a value would appear in a wrong cell or, if ambiguous, in none."""
    faults = []
    for item, measured, places in compared(paper):
        where = f"{item.id}, {measured.reported}"
        faults += [f"{where}: row {row} fits {cells}" for row, cells in places.items() if len(cells) > 1]
        if measure(measured.measure).dimension is None:
            times = Counter(cell for cells in places.values() for cell in cells)
            faults += [f"{where}: {number} values for {cell}" for cell, number in times.items() if number > 1]
    assert not faults, "\n".join(faults)


NO_CELLS = {
    ("fedimpro_table10.csv", "best_acc"): 5,  # other methods, quoted from their own papers
    ("fedimpro_table2.csv", "target_acc"): 16,  # target of a row's rounds
    ("fedimpro_table5.csv", "lr"): 80,  # settings, see below
}
"""Number of published values that match none of our cells, by file and metric."""


@every_paper
def test_every_published_value_matches_a_cell(paper: str) -> None:
    matched: dict[tuple[str, str], set[int]] = {}
    averages = set()
    for item, measured, places in compared(paper):
        file = item.item.reported.file
        rows = matched.setdefault((file, measured.reported), set())
        rows.update(row for row, cells in places.items() if cells)
    for item in items(paper).values():
        for measured in item.item.table.measures if item.item.table else ():
            if measured.average and measured.average.reported:
                averages.add((item.item.reported.file, measured.average.reported))
    for file in REPORTED.glob(f"{paper}_table*.csv"):
        metrics = pd.read_csv(file, dtype=str, keep_default_na=False)["metric"]
        for metric, number in metrics.value_counts().items():
            place = (file.name, str(metric))
            if place not in averages:
                assert number - len(matched.get(place, ())) == NO_CELLS.get(place, 0), place


def test_learning_rates_are_those_that_fedimpro_prints() -> None:
    """FedImpro's table 5 has one for every setting and method of its table 1, except FedDyn."""
    rates = pd.read_csv(REPORTED / "fedimpro_table5.csv", dtype=str, keep_default_na=False)
    used = set()
    for entry in items("fedimpro")["table1"].entries:
        for row in rates.index[matches(rates, entry.reported, None)]:
            assert entry.spec.training.lr == float(rates["value"][row]), entry.labels
            used.add(row)
    assert used == set(rates.index)


@every_paper
def test_published_values_belong_to_the_covered_table(paper: str) -> None:
    """An item that reproduces table 5 is compared with the values of table 5."""
    files = {
        row["item"]: row["reported_csv"]
        for row in csv.DictReader((REPORTED / "experiments.csv").open(encoding="utf-8"))
        if row["paper"] == paper
    }
    for name, item in items(paper).items():
        if item.item.reported and item.item.covers:
            assert item.item.reported.file in {files[covers] for covers in item.item.covers}, name


def claims_of(paper: str) -> Sequence[claims.Claim]:
    return next(iter(items(paper).values())).paper.claims


@every_paper
def test_every_claim_of_the_text_is_judged_once(paper: str) -> None:
    with (REPORTED / f"{paper}_claims.csv").open(encoding="utf-8", newline="") as file:
        stated = Counter((row["where"], row["claim"]) for row in csv.DictReader(file))
    judged = Counter((claim.where, claim.claim) for claim in claims_of(paper))
    assert {*stated.values()} == {1}
    assert not stated - judged, "without a test"
    assert not judged - stated, "not in the text, or judged twice"


@every_paper
def test_tests_that_claims_refer_to_exist(paper: str) -> None:
    for claim in claims_of(paper):
        if isinstance(claim.test, claims.Tested):
            file, _, name = claim.test.by.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), claim.test.by


def test_a_paper_or_item_names_every_entry_of_the_register() -> None:
    """The plan refuses references to unknown entries."""
    entries = yaml.safe_load((CONFIG / "register.yaml").read_text(encoding="utf-8"))["entries"]
    used: set[str] = set()
    labels = read_settings(CONFIG / "labels.yaml", DisplayLabels).labels
    for file in (CONFIG / "papers").iterdir():
        paper = declared(CONFIG, file.stem, Paper, labels)
        used.update(paper.assumptions, *(item.assumptions for item in paper.items.values()))
    assert entries.keys() - used == set()


# ---------------------------------------------------------------- the demonstration
def test_every_method_is_in_the_demonstration() -> None:
    names = {method.name for spec in shipped("demo").specs for method in (spec.method, *spec.plugins)}
    assert names == set(RELEASED), "add the methods that lack to config/scales/demo.yaml"


def test_each_paper_has_a_table_and_a_figure_in_the_demonstration() -> None:
    kinds: dict[str, set[str]] = {}
    for item in shipped("demo").items:
        if item.paper.kind == "paper":
            kinds.setdefault(item.paper.paper, set()).add("table" if item.item.table else "figure")
    declared = {item.paper.paper for item in shipped("paper").items if item.paper.kind == "paper"}
    assert kinds == {paper: {"table", "figure"} for paper in declared}


def test_captions_describe_what_ran() -> None:
    """Captions of the full scale name further methods and settings, so each reduced item has its own."""
    assert not [item.id for item in shipped("demo").items if item.item.caption.startswith("At full scale")]
    (item,) = (item for item in shipped("small").items if item.id == "flfa/table1")
    assert item.item.caption.startswith("At full scale: The table shows the final test accuracy")


def test_gains_have_three_seeds() -> None:
    for item in shipped("demo").items:
        if isinstance(item.layout, Table) and any(measured.gain_over for measured in item.layout.measures):
            assert len({entry.seed for entry in item.entries}) >= 3, item.id


def test_controls_have_verdicts_on_the_protocol_of_the_published_runs() -> None:
    controls = [item for item in shipped("demo").items if item.paper.kind == "control"]
    published = set(shipped("published").runs)
    assert [item.id for item in controls] == ["controls/flower", "controls/flower_spiked"]
    for item in shipped("demo").items:
        assert item.sheet.reduced == (item not in controls)
    assert all(run in published for item in controls for run in item.run_ids)
