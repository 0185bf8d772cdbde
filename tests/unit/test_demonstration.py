"""The demonstration: its methods, tables, figures and seeds."""

import pytest

from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import Table
from fltrain.experiments.plan import Plan
from fltrain.methods import METHODS

from .helpers import shipped


@pytest.fixture(scope="module")
def demonstration() -> Plan:
    return shipped("demo")


def test_every_method_is_trained(demonstration: Plan) -> None:
    trained = {method.name for spec in demonstration.specs for method in (spec.method, *spec.plugins)}
    assert trained == set(METHODS)


def test_each_paper_has_a_table_and_a_figure(demonstration: Plan) -> None:
    kinds: dict[str, set[str]] = {}
    for item in demonstration.items:
        if item.paper.kind == "paper":
            kinds.setdefault(item.paper.paper, set()).add("table" if item.item.table else "figure")
    declared = {item.paper.paper for item in shipped("paper").items if item.paper.kind == "paper"}
    assert kinds == {paper: {"table", "figure"} for paper in declared}


def test_captions_describe_what_ran(demonstration: Plan) -> None:
    """Captions of the full scale name further methods and settings, so each reduced item has its own."""
    assert not [item.id for item in demonstration.items if item.item.caption.startswith("At full scale")]
    (item,) = (one for one in shipped("small").items if one.id == "flfa/table1")
    assert item.item.caption.startswith("At full scale: Mean of the test accuracy")


def seeds(item: PlannedItem) -> int:
    return len({entry.seed for entry in item.entries})


def test_gains_have_three_seeds(demonstration: Plan) -> None:
    for item in demonstration.items:
        if isinstance(item.layout, Table) and any(one.gain_over for one in item.layout.measures):
            assert seeds(item) >= 3, item.id


def test_controls_have_verdicts_on_the_protocol_of_the_published_runs(demonstration: Plan) -> None:
    controls = [item for item in demonstration.items if item.paper.kind == "control"]
    published = set(shipped("published").runs)
    assert [item.id for item in controls] == ["controls/flower", "controls/flower_spiked"]
    for item in demonstration.items:
        assert item.sheet.reduced == (item not in controls)
    assert all(run in published for item in controls for run in item.run_ids)
