"""Papers x scale -> runs: how settings are merged, what a grid expands to, what is refused and how."""

import copy
import filecmp
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from fltrain.cli import app
from fltrain.core.config import Settings
from fltrain.core.errors import FltrainError
from fltrain.experiments.layout import Restriction, Sheet
from fltrain.experiments.plan import Plan, plan, table_rows
from fltrain.experiments.schema import Axis, Paper, Scale, merge, read_yaml
from fltrain.experiments.selection import Demand, Request, Selection
from fltrain.runs.measures import CURVES
from fltrain.runs.spec import RunSpec, Statistic

from .helpers import tiny, trained

CONFIG = Path(__file__).parents[2] / "config"
KINDS: dict[str, tuple[str, type[Settings]]] = {
    "papers": ("paper", Paper),
    "scales": ("scale", Scale),
    "examples": ("run", RunSpec),
}
"""By folder: the schema, and what a file there holds."""
FILES = sorted(path for folder in KINDS for path in CONFIG.glob(f"{folder}/*.yaml"))

Yaml = dict[str, Any]
Edit = Callable[[Yaml], object]

PAPER: Yaml = {
    "paper": "toy",
    "title": "A toy",
    "citation": "none",
    "settings": {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "clients": 10},
        "model": "mobilenet_tiny",
        "method": "fedavg",
        "evaluation": {"statistics": ["drift"]},
    },
    "seeds": 2,
    "items": {
        "table": {
            "title": "Methods, without and with FLFA",
            "axes": {
                "method": ["fedavg", "fedprox", "scaffold"],
                "plugin": {
                    "BP": {"set": {"plugins": []}, "reported": {"plugin": "none"}},
                    "FLFA": {"set": {"plugins": ["flfa"]}},
                },
            },
            "table": {
                "rows": "method",
                "columns": "plugin",
                "measures": [{"measure": "final_accuracy", "gain_over": {"plugin": "BP"}}],
            },
        },
        "figure": {
            "title": "Drift",
            "axes": {"plugin": {"BP": {"set": {"plugins": []}}, "FLFA": {"set": {"plugins": ["flfa"]}}}},
            "figure": {
                "kind": "curves",
                "series": "plugin",
                "panels": [
                    {"curve": "updates.drift", "label": "Reduction", "reduction_from": {"plugin": "BP"}}
                ],
            },
        },
    },
}
SCALE: Yaml = {
    "scale": "tiny",
    "title": "a trial",
    "reduced": True,
    "items": ["toy/table", "toy/figure"],
}


TABLE, FIGURE = ("items", "table"), ("items", "figure", "figure")
CURVE = (*FIGURE, "panels", 0, "curve")
PLUGIN_AXIS = PAPER["items"]["figure"]["axes"]["plugin"]


class Config:
    """A folder with one paper and one scale, each changed by what is handed in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("papers", "scales"):
            (folder / name).mkdir()

    def plan(self, paper: Edit | None = None, scale: Edit | None = None, name: str = "tiny") -> Plan:
        for path, original, edit in (("papers/toy", PAPER, paper), ("scales/tiny", SCALE, scale)):
            data = copy.deepcopy(original)
            if edit:
                edit(data)
            (self.folder / f"{path}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
        return plan(self.folder, name)

    def report(self, values: str, claims: str) -> None:
        """Write published values and claims."""
        (self.folder / "reported").mkdir()
        (self.folder / "reported" / "values.csv").write_text(values)
        (self.folder / "reported" / "toy_claims.csv").write_text(claims)

    def error(self, paper: Edit | None = None, scale: Edit | None = None, name: str = "tiny") -> str:
        """What is said about a faulty configuration: one line."""
        with pytest.raises(FltrainError) as raised:
            self.plan(paper, scale, name)
        message = str(raised.value)
        assert message and "\n" not in message
        return message


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path)


def put(value: Any, *keys: Any) -> Edit:
    """Return an edit that sets the value at the end of a path of keys."""

    def edit(data: Any) -> None:
        for key in keys[:-1]:
            data = data.setdefault(key, {}) if isinstance(data, dict) else data[key]
        data[keys[-1]] = value

    return edit


def item(name: str, **reduction: Any) -> Edit:
    """Return an edit that gives the scale a reduction of its own for one item."""
    return lambda data: data.update(
        items=[{name: reduction} if entry == name else entry for entry in data["items"]]
    )


# ---------------------------------------------------------------- merging
def test_merge_goes_into_mappings_and_replaces_everything_else() -> None:
    old = {"training": {"lr": 0.1, "epochs": 5}, "plugins": ["flfa"], "rounds": 3}
    new = {"training": {"lr": 0.2}, "plugins": [], "seed": 1}
    expected = {"training": {"lr": 0.2, "epochs": 5}, "plugins": [], "rounds": 3, "seed": 1}
    assert merge(old, new) == expected
    assert old["training"] == {"lr": 0.1, "epochs": 5}, "merging changes neither side"


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"alpha": 0.1}, {"name": "dirichlet", "alpha": 0.1, "clients": 10}),
        ({"name": "dirichlet", "alpha": 0.1}, {"name": "dirichlet", "alpha": 0.1, "clients": 10}),
        ({"name": "iid", "clients": 5}, {"name": "iid", "clients": 5}),
        ("iid", "iid"),
    ],
    ids=["no name", "same name", "other name", "short form"],
)
def test_another_component_replaces_the_old_one_whole(patch: Any, expected: Any) -> None:
    old = {"partition": {"name": "dirichlet", "alpha": 0.3, "clients": 10}}
    assert merge(old, {"partition": patch}) == {"partition": expected}


LAYERS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("paper", "paper", ("settings", "training", "lr")),
    ("item", "paper", ("items", "table", "settings", "training", "lr")),
    ("scale", "scale", ("settings", "training", "lr")),
    ("first axis", "paper", ("items", "table", "axes", "method", "fedavg", "set", "training", "lr")),
    ("second axis", "paper", ("items", "table", "axes", "plugin", "BP", "set", "training", "lr")),
]
"""Where a setting can be written, later ones winning."""


@pytest.mark.parametrize("count", range(1, len(LAYERS) + 1), ids=[name for name, *_ in LAYERS])
def test_later_settings_win(config: Config, count: int) -> None:
    edits: dict[str, list[Edit]] = {"paper": [], "scale": []}
    edits["paper"] += [put({"fedavg": {"set": {"method": "fedavg"}}}, "items", "table", "axes", "method")]
    for rate, (_, file, keys) in enumerate(LAYERS[:count], start=1):
        edits[file].append(put(float(rate), *keys))
    planned = config.plan(*(lambda data, file=file: [edit(data) for edit in edits[file]] for file in edits))
    entry = planned.items[0].entries[0]
    assert entry.labels == {"method": "fedavg", "plugin": "BP"}
    assert entry.spec.training.lr == count


def test_the_seed_wins_over_everything(config: Config) -> None:
    seed = put(99, "items", "table", "axes", "plugin", "BP", "set", "seed")
    assert {entry.seed for entry in config.plan(seed).items[0].entries} == {0, 1}
    assert {entry.spec.seed for entry in config.plan(seed).items[0].entries} == {0, 1}


def test_seeds_are_the_items_or_the_papers_and_at_most_the_scales(config: Config) -> None:
    def seeds(planned: Plan) -> list[int]:
        return [len({entry.seed for entry in item.entries}) for item in planned.items]

    item = put(4, "items", "table", "seeds")
    assert seeds(config.plan()) == [2, 2]
    assert seeds(config.plan(item)) == [4, 2]
    assert seeds(config.plan(item, put(3, "seeds"))) == [3, 2]
    assert seeds(config.plan(item, put(1, "seeds"))) == [1, 1]


def test_a_scale_reduces_one_item_further(config: Config) -> None:
    """Its settings come after the scale's and before the points', its axes replace, its seeds are limits."""

    def edit(data: Yaml) -> None:
        put(0.5, "settings", "training", "lr")(data)
        put(7, "settings", "rounds")(data)
        item(
            "toy/table",
            title="a shorter trial",
            seeds=1,
            settings={"training": {"lr": 0.25}, "method": "scaffold"},
            axes={"method": {"only": "fedprox"}},
        )(data)

    table, figure = config.plan(scale=edit).items
    assert [entry.labels["method"] for entry in table.entries] == ["only", "only"]
    for entry in table.entries:
        assert (entry.spec.training.lr, entry.spec.rounds, entry.spec.method.name) == (0.25, 7, "fedprox")
    assert {entry.spec.training.lr for entry in figure.entries} == {0.5}
    assert [len({entry.seed for entry in each.entries}) for each in (table, figure)] == [1, 2]
    assert [each.sheet.scale for each in (table, figure)] == ["a shorter trial", "a trial"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (put([], "settings", "evaluation", "statistics"), "evaluation.statistics: [drift]"),
        (put("updates.similarity", *CURVE), "evaluation.statistics: [similarity]"),
        (put("divergence.blocks", *CURVE), "evaluation.statistics: [divergence]"),
        (put("separability.ratio", *CURVE), "evaluation.statistics: [separability]"),
        (put("evaluation.macro", *CURVE), "needs local_test"),
        (put("flfa.skewness", *CURVE), "toy/figure (BP): the curve 'flfa.skewness' needs"),
        (put("updates.drft", *CURVE), "unknown curve 'updates.drft'; did you mean 'updates.drift'"),
        (put({"kind": "selection", "columns": "plugin"}, *FIGURE), "the method or plug-in 'ecgr'"),
        (put("best_macro_accuracy", *TABLE, "table", "measures", 0, "measure"), "needs local_test"),
        (put({"kind": "preference", "columns": "plugin"}, *FIGURE), "evaluation.keep to 'clients'"),
        (put({"kind": "variance", "columns": "plugin"}, *FIGURE), "keep to 'model' or 'clients'"),
    ],
)
def test_needs_of_an_item_are_checked_before_training(config: Config, edit: Edit, said: str) -> None:
    message = config.error(edit)
    assert said in message and message.startswith("toy/")


def test_the_curves_that_items_may_show_are_those_of_records(tmp_path: Path) -> None:
    every = list(get_args(Statistic))
    fields: dict[str, set[str]] = {}
    for name, changes in {
        "global": {"evaluation": {"statistics": every}},
        "local": {"local_test": {}},
    }.items():
        for row in trained(tiny(**changes), tmp_path / name).metrics:
            values = {key for key, value in row.items() if isinstance(value, float | dict) or key == "images"}
            fields.setdefault(row["kind"], set()).update(values)
    assert fields == {kind: set(names) for kind, names in CURVES.items()}


def test_a_scale_can_patch_the_layout_of_a_figure(config: Config) -> None:
    def edit(data: Yaml) -> None:
        item("toy/figure", figure={"over": "epochs"})(data)

    assert config.plan(scale=edit).items[1].sheet.figure.over == "epochs"
    wrong = item("toy/figure", figure={"ovr": "epochs"})
    assert "'ovr'" in config.error(scale=wrong)
    assert "this is a table" in config.error(scale=item("toy/table", figure={"over": "epochs"}))


ALL_CELLS = [(method, plugin) for method in ("fedavg", "fedprox", "scaffold") for plugin in ("BP", "FLFA")]


@pytest.mark.parametrize(
    ("when", "cells"),
    [
        ({"method": "scaffold", "plugins": "flfa"}, [("scaffold", "FLFA")]),
        ({"method": ["fedavg", "scaffold"], "plugins": "flfa"}, [("fedavg", "FLFA"), ("scaffold", "FLFA")]),
        ({"method.mu": 0.01}, [("fedprox", "BP"), ("fedprox", "FLFA")]),
        (
            {"training.lr_schedule": "constant", "participation.fraction": 0.1, "partition.clients": 10.0},
            ALL_CELLS,
        ),
        ({"local_test": None, "training.augmentation.flip": False}, ALL_CELLS),
    ],
)
def test_exceptions_patch_the_cells_whose_settings_match(
    config: Config, when: Yaml, cells: list[tuple[str, str]]
) -> None:
    special = {"when": when, "set": {"training": {"lr": 0.125}}}
    for edits in ({"paper": put([special], *TABLE, "exceptions")}, {"scale": put([special], "exceptions")}):
        table = config.plan(**edits).items[0]
        rates = {tuple(entry.labels.values()): entry.spec.training.lr for entry in table.entries}
        assert [cell for cell, rate in rates.items() if rate == 0.125] == cells


def test_cells_that_an_exception_leaves_out_are_not_run(config: Config) -> None:
    special = {"when": {"method": "fedprox", "plugins": "flfa"}, "leave_out": True}
    table = config.plan(put([special], *TABLE, "exceptions")).items[0]
    assert list(dict.fromkeys(tuple(entry.labels.values()) for entry in table.entries)) == [
        cell for cell in ALL_CELLS if cell != ("fedprox", "FLFA")
    ]


def test_seeds_begin_with_the_first_one_of_the_item(config: Config) -> None:
    whole = config.plan(put(100, *TABLE, "first_seed"))
    assert {entry.seed for entry in whole.items[0].entries} == {100, 101}
    assert {entry.seed for entry in whole.restricted(Selection(seeds=1)).items[0].entries} == {100}


def test_exceptions_see_the_settings_without_exceptions(config: Config) -> None:
    chain = [
        {"when": {"method": "fedavg", "rounds": old}, "set": {"rounds": new}}
        for old, new in ((100, 20), (20, 30))
    ]
    table = config.plan(put(chain[:1], *TABLE, "exceptions")).items[0]
    assert {(entry.spec.method.name, entry.spec.rounds) for entry in table.entries} >= {("fedavg", 20)}
    assert "no cell has all of" in config.error(put(chain, *TABLE, "exceptions"))


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({"method": "scafold"}, "no cell has method 'scafold'; did you mean 'scaffold'?"),
        ({"method": "fedavg", "method.mu": 0.01}, "no cell has all of"),
        ({"methd": "fedavg"}, "a run has no setting 'methd'; did you mean 'method'?"),
        ({"plugin": "FLFA"}, "a run has no setting 'plugin'; did you mean 'plugins'?"),
        ({}, "when"),
    ],
)
def test_exceptions_that_match_nothing_are_refused(config: Config, when: Yaml, said: str) -> None:
    special = {"when": when, "set": {"training": {"lr": 0.125}}}
    for edits in ({"paper": put([special], *TABLE, "exceptions")}, {"scale": put([special], "exceptions")}):
        assert said in config.error(**edits)


def test_labels_and_captions_decide_no_setting(config: Config) -> None:
    special = {"when": {"method": "scaffold", "plugins": "flfa"}, "set": {"training": {"lr": 0.125}}}
    exceptions = put([special], *TABLE, "exceptions")
    ids = [entry.spec.run_id for entry in config.plan(exceptions).items[0].entries]

    def renamed(data: Yaml) -> None:
        exceptions(data)
        table = data["items"]["table"]
        table |= {"title": "Another title", "caption": "Another caption"}
        table["axes"] = {
            "method": {f"Method {number}": name for number, name in enumerate(table["axes"]["method"])},
            "plugin": {"BP": table["axes"]["plugin"]["BP"], "scaffold": table["axes"]["plugin"]["FLFA"]},
        }

    assert [entry.spec.run_id for entry in config.plan(renamed).items[0].entries] == ids


def test_a_scale_can_name_a_paper_whole(config: Config) -> None:
    """All items in the paper's order; an item named by itself has its own reduction, wherever it stands."""
    whole = config.plan(scale=put(["toy"], "items"))
    assert [item.id for item in whole.items] == ["toy/table", "toy/figure"]
    assert whole.runs.keys() == config.plan().runs.keys()
    some = config.plan(
        scale=put([{"toy": {"seeds": 1}}, {"toy/figure": {"settings": {"rounds": 3}}}], "items")
    )
    assert [(item.id, len({entry.seed for entry in item.entries})) for item in some.items] == [
        ("toy/table", 1),
        ("toy/figure", 2),
    ]
    assert {entry.spec.rounds for entry in some.items[1].entries} == {3}
    assert "'toy'" in config.error(scale=put(["toy", "toy"], "items"))


def register(folder: Path, **entries: Yaml) -> None:
    (folder / "register.yaml").write_text(yaml.safe_dump({"entries": entries}))


def test_assumptions_are_the_papers_and_the_items(config: Config) -> None:
    register(
        config.folder,
        **{
            "T-1": {"question": "Rounds", "assumed": "100", "alternatives": "50"},
            "T-2": {"question": "Rate", "assumed": "0.01"},
        },
    )

    def edit(data: Yaml) -> None:
        put(["T-1"], "assumptions")(data)
        put(["T-2", "T-1"], *TABLE, "assumptions")(data)

    first, second = "T-1: Rounds: 100 (alternatives: 50).", "T-2: Rate: 0.01."
    table, figure = config.plan(edit).items
    assert (table.sheet.assumptions, figure.sheet.assumptions) == ((first, second), (first,))


@pytest.mark.parametrize("keys", [("assumptions",), ("items", "table", "assumptions")], ids=["paper", "item"])
def test_assumptions_that_the_register_does_not_have(config: Config, keys: tuple[str, ...]) -> None:
    register(config.folder, **{"T-1": {"question": "Rounds", "assumed": "100"}})
    message = config.error(put(["T-11"], *keys))
    assert message.startswith("toy/table: assumptions: no entry 'T-11'") and "'T-1'" in message
    (config.folder / "register.yaml").write_text("entries: {T-1: {question: Rounds}}")
    message = config.error()
    assert "register.yaml" in message and "assumed" in message


# ---------------------------------------------------------------- axes
def point(value: Any) -> Yaml:
    return {"set": {"alpha": value}, "reported": {"alpha": str(value)}}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([0.1, 1], {"0.1": point(0.1), "1": point(1)}),
        (["a", "b"], {"a": point("a"), "b": point("b")}),
        ({"low": 0.1}, {"low": point(0.1)}),
        ({1: 0.1}, {"1": point(0.1)}),
        ({"own": {"set": {"rounds": 1}}}, {"own": {"set": {"rounds": 1}}}),
        ({"other": {"name": "iid"}}, {"other": point({"name": "iid"})}),
    ],
    ids=["numbers", "texts", "label: value", "number as label", "long form", "component"],
)
def test_short_forms_of_an_axis(written: Any, expected: Yaml) -> None:
    assert Axis.spelled_out("alpha", written) == {"points": expected}


def test_a_scale_replaces_an_axis_whole(config: Config) -> None:
    planned = config.plan(scale=put({"method": {"Prox": "fedprox"}}, "axes"))
    assert planned.items[0].axes == {"method": ["Prox"], "plugin": ["BP", "FLFA"]}
    assert {entry.spec.method.name for entry in planned.items[0].entries} == {"fedprox"}
    assert planned.items[1].axes == {"plugin": ["BP", "FLFA"]}, "an item without the axis is as it was"


# ---------------------------------------------------------------- expansion
def test_a_grid_is_the_product_of_its_axes_and_seeds_in_order(config: Config) -> None:
    table = config.plan().items[0]
    order = [(entry.labels["method"], entry.labels["plugin"], entry.seed) for entry in table.entries]
    expected = [
        (method, plugin, seed)
        for method in ("fedavg", "fedprox", "scaffold")
        for plugin in ("BP", "FLFA")
        for seed in (0, 1)
    ]
    assert order == expected
    assert len(table.run_ids) == len(expected)
    assert table.entries[0].reported == {"method": "fedavg", "plugin": "none"}
    assert table.entries[2].reported == {"method": "fedavg"}


def test_items_share_runs(config: Config) -> None:
    planned = config.plan()
    table, figure = planned.items
    assert (len(table.run_ids), len(figure.run_ids), len(planned.runs)) == (12, 4, 12)
    shared = set(figure.run_ids)
    assert shared == {entry.spec.run_id for entry in table.entries if entry.labels["method"] == "fedavg"}
    for run, items in planned.memberships.items():
        assert items == (["toy/table", "toy/figure"] if run in shared else ["toy/table"])


def test_cells_that_mean_the_same_are_one_run(config: Config) -> None:
    spelled_out = {"set": {"plugins": [{"name": "flfa", "n_fa": 1}]}}
    planned = config.plan(put(spelled_out, *AXES, "plugin", "the same"))
    assert len(planned.items[0].entries) == 18
    assert len(planned.items[0].run_ids) == 12


def test_the_run_table_has_a_row_per_item_cell_and_seed(config: Config) -> None:
    planned = config.plan()
    rows = table_rows(planned.items)
    assert len(rows) == 16
    assert {key: rows[2][key] for key in ("item", "cell", "seed", "method", "clients", "per_round")} == {
        "item": "toy/table",
        "cell": "fedavg / FLFA",
        "seed": 0,
        "method": "fedavg+flfa",
        "clients": 10,
        "per_round": 1,
    }
    assert {row["run"] for row in rows} == set(planned.runs)


def test_a_sheet_is_plain_data(config: Config) -> None:
    for item in config.plan().items:
        data = json.loads(json.dumps(item.sheet.model_dump(mode="json")))
        assert type(item.sheet).parse(data, "sheet") == item.sheet


def add_bubbles(data: Yaml) -> None:
    """An item that shows partitions, one of which the table's runs use, too."""
    points = {"few": {"set": {"partition": {"alpha": 0.1}}}, "many": {"set": {"partition": {"alpha": 0.3}}}}
    data["items"]["bubbles"] = {
        "title": "Who holds what",
        "axes": {"alpha": points},
        "figure": {"kind": "bubbles", "columns": "alpha"},
    }


BUBBLES = put(["toy/table", "toy/bubbles"], "items")


def test_nothing_is_trained_for_an_item_that_shows_partitions(config: Config) -> None:
    planned = config.plan(add_bubbles, BUBBLES)
    table, bubbles = planned.items
    assert (table.trains, bubbles.trains) == (True, False)
    assert (len(bubbles.entries), bubbles.run_ids) == (2, []), "one seed is enough"
    assert list(planned.runs) == table.run_ids
    assert set(planned.memberships) == set(table.run_ids)
    assert {item for items in planned.memberships.values() for item in items} == {"toy/table"}
    alone = planned.restricted(Selection(items=("toy_bubbles",)))
    assert (alone.runs, alone.memberships, len(alone.specs)) == ({}, {}, 2)


def test_partitions_are_those_of_the_cells_and_shared_between_items(config: Config) -> None:
    table, bubbles = config.plan(add_bubbles, BUBBLES).items
    by_label: dict[str, list[str]] = {}
    for cell in bubbles.sheet.cells:
        by_label.setdefault(cell.labels["alpha"], []).append(cell.partition)
    assert {label: len(set(ids)) for label, ids in by_label.items()} == {"few": 1, "many": 1}
    assert bubbles.partition_ids == [*by_label["few"], *by_label["many"]]
    assert table.partition_ids[:1] == by_label["many"], "the default; runs share one partition per seed"


# ---------------------------------------------------------------- restrictions
def select(**wanted: Any) -> Selection:
    return Selection.parse(wanted, "test")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["toy/table", "toy/figure"]),
        ({"items": "toy"}, ["toy/table", "toy/figure"]),
        ({"items": "toy/figure"}, ["toy/figure"]),
        ({"items": "toy_figure"}, ["toy/figure"]),
        ({"items": "toy_figure, toy/table"}, ["toy/table", "toy/figure"]),
        ({"papers": ["toy"]}, ["toy/table", "toy/figure"]),
        ({"papers": "toy", "items": "toy/table"}, ["toy/table"]),
        ({"items": None, "papers": ""}, ["toy/table", "toy/figure"]),
        ({"methods": "scaffold"}, ["toy/table"]),
    ],
    ids=[
        "nothing",
        "paper",
        "item",
        "target",
        "order of the scale",
        "list",
        "both",
        "empty",
        "without cells",
    ],
)
def test_restricted(config: Config, wanted: Yaml, expected: list[str]) -> None:
    restricted = config.plan().restricted(select(**wanted))
    assert [item.id for item in restricted.items] == expected
    assert set(restricted.memberships) == set(restricted.runs)


def cells(planned: Plan) -> list[tuple[str, ...]]:
    """Labels and seed of all cells of the first item."""
    return [(*entry.labels.values(), str(entry.seed)) for entry in planned.items[0].entries]


@pytest.mark.parametrize(
    ("reduced", "methods", "expected"),
    [
        (False, ["fedavg", "scaffold"], (Restriction(to="method fedavg; scaffold", axis="method"),)),
        (False, ["scaffold", "fedprox", "fedavg"], ()),
        (True, ["fedavg", "scaffold"], ()),
    ],
    ids=["a part at full scale", "all of it", "a part at a reduced scale"],
)
def test_a_full_scale_says_which_part_of_an_item_it_has(
    config: Config, reduced: bool, methods: list[str], expected: tuple[str, ...]
) -> None:
    def edit(data: Any) -> None:
        data.update(reduced=reduced, axes={"method": methods})

    table, figure = config.plan(scale=edit).items
    assert table.restricted == expected and table.sheet.restricted == expected
    assert figure.restricted == (), "it has no such axis"


def test_cells_fit_by_method_plugin_and_seed(config: Config) -> None:
    whole = config.plan()
    base = whole.restricted(select(methods=["fedprox"], seeds=1))
    assert cells(base) == [("fedprox", "BP", "0"), ("fedprox", "FLFA", "0")]
    grid = [(method, plugin) for method in ("fedavg", "fedprox", "scaffold") for plugin in ("BP", "FLFA")]
    both = whole.restricted(select(methods="fedprox,scaffold"))
    assert cells(both) == [(*labels, seed) for labels in grid[2:] for seed in "01"]
    assert whole.restricted(select(seeds=2)) is whole, "no more than there are"


# What the toy's table measures, the methods that are asked for, and the cells that then stay.
REFERENCES: dict[str, tuple[Yaml, str, list[tuple[str, str]]]] = {
    "gains of a plug-in": (
        {"measure": "final_accuracy", "gain_over": {"plugin": "BP"}},
        "flfa",
        [(method, plugin) for method in ("fedavg", "fedprox", "scaffold") for plugin in ("BP", "FLFA")],
    ),
    "nothing is compared": (
        {"measure": "final_accuracy"},
        "flfa",
        [("fedavg", "FLFA"), ("fedprox", "FLFA"), ("scaffold", "FLFA")],
    ),
    "multiples": (
        {"measure": "round_seconds", "relative_to": {"method": "fedavg"}},
        "scaffold",
        [("fedavg", "BP"), ("fedavg", "FLFA"), ("scaffold", "BP"), ("scaffold", "FLFA")],
    ),
    "multiples of one cell": (
        {"measure": "round_seconds", "relative_to": {"method": "fedavg", "plugin": "BP"}},
        "scaffold",
        [("fedavg", "BP"), ("scaffold", "BP"), ("scaffold", "FLFA")],
    ),
    "a target": (
        {"measure": "rounds_to_target", "target_of": {"method": "fedprox", "plugin": "BP"}},
        "fedavg",
        [("fedavg", "BP"), ("fedavg", "FLFA"), ("fedprox", "BP")],
    ),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_what_cells_are_compared_with_stays_with_them(config: Config, case: str) -> None:
    measured, methods, expected = REFERENCES[case]
    whole = config.plan(put([measured], "items", "table", "table", "measures"))
    restricted = whole.restricted(select(methods=methods, items="toy/table", seeds=1))
    assert cells(restricted) == [(*labels, "0") for labels in expected]
    assert set(restricted.runs) == {entry.spec.run_id for entry in restricted.items[0].entries}


# What is wanted, and what a plan of the toy's table and figure then says that it was restricted to.


def test_sheets_say_what_they_were_restricted_to(config: Config) -> None:
    table, figure = config.plan().restricted(select(methods="fedavg,fedprox", seeds=1)).items
    assert table.sheet.scale == "a trial, restricted to methods fedavg, fedprox, 1 seed"
    assert figure.sheet.scale == "a trial, restricted to 1 seed", "it has no other methods"


def test_a_sheet_whose_baseline_fell_away_is_still_valid(config: Config) -> None:
    """A method brings its baselines along; other restrictions may leave them out."""
    for whole in config.plan().items:
        item = whole.keeping(Demand("a part", lambda spec, _: bool(spec.composition.methods[1:])))
        assert {cell.labels["plugin"] for cell in item.sheet.cells} == {"FLFA"}
        item.layout.check(item.id, item.sheet.axes)
        assert Sheet.parse(item.sheet.model_dump(mode="json"), "sheet") == item.sheet


UNKNOWN: dict[str, tuple[Yaml, str]] = {
    "item": (
        {"items": ["toy/table", "toy/figur"]},
        "scale 'tiny' has no item 'toy/figur'; did you mean 'toy/figure'?",
    ),
    "each item once": (
        {"items": "x"},
        "no item 'x' (other scales may have more; it has: toy/figure, toy/table)",
    ),
    "target": ({"items": "toy_tabel"}, "has no item 'toy_tabel'; did you mean 'toy/table'?"),
    "paper": ({"papers": "toi"}, "has no paper 'toi'; did you mean 'toy'?"),
    "data set": ({"datasets": "digit"}, "has no dataset 'digit'; did you mean 'digits'?"),
    "data set of others": ({"datasets": "mnist"}, "has no dataset 'mnist'"),
    "method": ({"methods": "fedavg,fedprx"}, "has no method 'fedprx'; did you mean 'fedprox'?"),
    "nothing left": (
        {"items": "toy/figure", "methods": "scaffold"},
        "no run is left of it with items: toy/figure",
    ),
}


@pytest.mark.parametrize("mistake", UNKNOWN)
def test_restricted_to_the_unknown(config: Config, mistake: str) -> None:
    wanted, told = UNKNOWN[mistake]
    with pytest.raises(FltrainError) as raised:
        config.plan().restricted(select(**wanted))
    assert told in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wanted",
    [
        *({"seeds": 0}, {"method": "fedavg"}, {"items": 3}),
        *({"hours": hours} for hours in (0, float("nan"), float("inf"))),
    ],
    ids=str,
)
def test_a_selection_is_checked(wanted: Yaml) -> None:
    with pytest.raises(FltrainError, match=f"^test: .*{next(iter(wanted))}"):
        select(**wanted)


@pytest.mark.parametrize(("written", "train"), [("false", False), ("True", True), (False, False)], ids=str)
def test_a_request_is_read_as_snakemake_hands_it_over(written: Any, train: bool) -> None:
    asked = Request.parse({"scale": "paper", "train": written, "seeds": 2, "methods": "a,b"}, "test")
    assert asked.train is train
    assert asked.selection == select(seeds=2, methods=["a", "b"])


def test_without_training_items_with_a_record_are_left(config: Config) -> None:
    whole = config.plan(add_bubbles, put(["toy"], "items"))
    table, figure, bubbles = whole.items
    only_table = next(run for run in table.run_ids if run not in figure.run_ids)
    left = whole.recorded({only_table}, {}, lambda item: True)
    assert left.items == [table, bubbles], "with all their cells"
    assert left.restrictions == ("what records allow",)
    assert whole.recorded({only_table}, {}, lambda item: item.trains).items == [table]
    with pytest.raises(FltrainError, match="none of its runs has a record; bring some"):
        whole.recorded((), {}, lambda item: item.trains)


def test_without_training_sheets_say_which_runs_are_stale(config: Config) -> None:
    whole = config.plan()
    table, _ = whole.items
    recorded, older, *_ = table.run_ids
    left = whole.recorded({recorded}, {older: "methods 1 -> 2 (toy)"}, lambda item: item is table)
    stale = {cell.run: cell.stale for cell in left.items[0].sheet.cells}
    assert {run: why for run, why in stale.items() if why} == {older: "methods 1 -> 2 (toy)"}
    assert not any(cell.stale for cell in table.sheet.cells)
    every = whole.recorded(whole.runs, {}, lambda item: True)
    assert every.restrictions == (), "nothing is left out"
    with pytest.raises(
        FltrainError, match=r"none of its runs has a record \(1 have a stale one, see `fltrain"
    ):
        whole.recorded((), {older: "methods 1 -> 2 (toy)"}, lambda item: True)


# ---------------------------------------------------------------- mistakes
AXES = (*TABLE, "axes")
MEASURE = (*TABLE, "table", "measures", 0)
PANEL = ("items", "figure", "figure", "panels", 0)


def claim(**changes: Any) -> list[Yaml]:
    test = {"kind": "positive", "item": "table", "measure": "final_accuracy", **changes}
    return [{"where": "x", "claim": "c", "test": test}]


PAPER_MISTAKES: dict[str, tuple[Any, tuple[Any, ...], list[str]]] = {
    "key of the paper": ({}, ("setings",), ["toy.yaml", "'setings'", "'settings'"]),
    "key of a point": (
        {"BP": {"set": {"plugins": []}, "reportd": {}}},
        (*AXES, "plugin"),
        ["plugin", "BP", "'reportd'", "'reported'"],
    ),
    "key of a setting": (1, ("settings", "training", "lrr"), ["toy/table (fedavg, BP)", "'lrr'", "'lr'"]),
    "value of a setting": ("x", ("settings", "rounds"), ["toy/table (fedavg, BP)", "rounds", "'x'"]),
    "method": (["fedprx"], (*AXES, "method"), ["toy/table (fedprx, BP)", "'fedprx'", "'fedprox'"]),
    "claim about no item": (claim(item="tabel"), ("claims",), ["claim 'c'", "no item 'tabel'", "'table'"]),
    "claim about no axis": (claim(at={"methd": "fedavg"}), ("claims",), ["no axis 'methd'", "'method'"]),
    "claim averaged over no axis": (claim(mean_over=["methd"]), ("claims",), ["no axis 'methd'", "'method'"]),
    "axis like a column": (["iid"], (*AXES, "value"), ["items.table.axes", "'value' is taken by a column"]),
    "axis that is no setting": (["iid"], (*AXES, "partitions"), ["'partitions'", "'partition'"]),
    "axis that is a text": ("fedavg", (*AXES, "method"), ["items.table", "'method'", "list"]),
    "axis without points": ([], (*AXES, "method"), ["table", "method"]),
    "axis that is not shown": (None, (*TABLE, "table", "columns"), ["toy/table", "'plugin'"]),
    "measure": ("final_acc", (*MEASURE, "measure"), ["toy/table", "'final_acc'", "'final_accuracy'"]),
    "both layouts": (
        {"kind": "bubbles", "columns": "method"},
        (*TABLE, "figure"),
        ["'table'", "'figure'"],
    ),
    "gain over no axis": ({"plugn": "BP"}, (*MEASURE, "gain_over"), ["toy/table", "'plugn'", "'plugin'"]),
    "rows that are no axis": ("methd", (*TABLE, "table", "rows"), ["toy/table", "'methd'", "'method'"]),
    "reduction from no axis": (
        {"plugn": "BP"},
        (*PANEL, "reduction_from"),
        ["toy/figure", "'plugn'", "'plugin'"],
    ),
    "figure of no kind": (
        {"series": "plugin", "panels": []},
        ("items", "figure", "figure"),
        ["items.figure.figure", "'kind'"],
    ),
    "axis that bubbles do not show": (
        {
            "title": "x",
            "axes": {"method": ["fedavg", "fedprox"], "rounds": [1, 2]},
            "figure": {"kind": "bubbles", "columns": "method"},
        },
        ("items", "figure"),
        ["toy/figure", "'rounds'"],
    ),
}


@pytest.mark.parametrize("mistake", PAPER_MISTAKES)
def test_mistakes_in_a_paper(config: Config, mistake: str) -> None:
    value, keys, told = PAPER_MISTAKES[mistake]
    message = config.error(paper=put(value, *keys))
    assert [word for word in told if word not in message] == [], message


VALUES = "method,plugin,metric,value,note\nfedavg,none,acc,50,\n"
CLAIMS = "where,claim,value,unit\nx,c,,\n"
REPORTED_MISTAKES: dict[str, tuple[str, str, Any, tuple[Any, ...], list[str]]] = {
    "column": (
        VALUES.replace("method", "methd"),
        CLAIMS,
        None,
        (),
        ["toy/table", "'method'", "values.csv", "did you mean 'methd'?", "plugin, metric"],
    ),
    "names": (
        VALUES,
        CLAIMS,
        {
            "fedavg": {"set": {}, "reported": {"methd": "a"}},
            "fedprox": {"set": {}, "reported": {"methd": "b"}},
        },
        (*AXES, "method"),
        ["'methd'", "did you mean 'method'?"],
    ),
    "metric": (
        VALUES,
        CLAIMS,
        "accuracy",
        (*MEASURE, "reported"),
        ["'accuracy'", "values.csv has no row", "acc"],
    ),
    "value": (
        VALUES.replace("50", "5O"),
        CLAIMS,
        None,
        (),
        ["values.csv: line 2: the value '5O' is no number"],
    ),
    "cells": (VALUES.replace("50,", "50,,,"), CLAIMS, None, (), ["line 2 has more cells than"]),
    "required column": (
        VALUES.replace("note", "nota"),
        CLAIMS,
        None,
        (),
        ["no column 'note'; did you mean 'nota'?"],
    ),
    "file": (VALUES, CLAIMS, "vaules.csv", (*TABLE, "reported"), ["vaules.csv", "No such file"]),
    "claim": (VALUES, CLAIMS.replace("c,,", "d,,"), None, (), ["toy_claims.csv: has no claim 'c' where 'x'"]),
}


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "from a spreadsheet"])
def test_published_values_that_fit(config: Config, start: str) -> None:
    config.report(start + VALUES, start + CLAIMS)
    assert config.plan(with_values)


@pytest.mark.parametrize("mistake", REPORTED_MISTAKES)
def test_published_values_that_do_not_fit(config: Config, mistake: str) -> None:
    """They would be found after training, or lead to verdicts on the wrong cells."""
    values, claims, value, keys, told = REPORTED_MISTAKES[mistake]
    config.report(values, claims)

    def edit(data: Yaml) -> None:
        with_values(data)
        if keys:
            put(value, *keys)(data)

    message = config.error(paper=edit)
    assert [word for word in told if word not in message] == [], message


def with_values(data: Yaml) -> None:
    for value, keys in (
        ("values.csv", (*TABLE, "reported")),
        ("acc", (*MEASURE, "reported")),
        (claim(), ("claims",)),
    ):
        put(value, *keys)(data)


SCALE_MISTAKES: dict[str, tuple[Any, tuple[Any, ...], list[str]]] = {
    "key": ({}, ("setings",), ["tiny.yaml", "'setings'", "'settings'"]),
    "paper": (["tou/table"], ("items",), ["unknown paper 'tou'", "'toy'"]),
    "item": (["toy/tabel"], ("items",), ["unknown item 'toy/tabel'", "'toy/table'", "toy/figure"]),
    "item twice": (["toy/table", "toy/table"], ("items",), ["tiny", "toy/table"]),
    "items as a mapping": ({"toy/table": {}}, ("items",), ["tiny.yaml", "items", "list"]),
    "axis of an item's reduction": (
        [{"toy/table": {"axes": {"plugins": ["flfa"]}}}],
        ("items",),
        ["tiny", "'toy/table'", "'plugins'", "'plugin'"],
    ),
    "axis that no item has": ({"methd": ["fedavg"]}, ("axes",), ["'methd'", "'method'"]),
    "label that goes away": ({"plugin": {"FLFA": {"set": {"plugins": ["flfa"]}}}}, ("axes",), ["'BP'"]),
}


@pytest.mark.parametrize("mistake", SCALE_MISTAKES)
def test_mistakes_in_a_scale(config: Config, mistake: str) -> None:
    value, keys, told = SCALE_MISTAKES[mistake]
    message = config.error(scale=put(value, *keys))
    assert [word for word in told if word not in message] == [], message


def test_an_unknown_scale_names_the_known_ones(config: Config) -> None:
    message = config.error(name="tinny")
    assert "unknown scale 'tinny'; did you mean 'tiny'?" in message


# ---------------------------------------------------------------- the files of this repository
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")


@each_file
def test_committed_files_are_valid(path: Path) -> None:
    name, kind = KINDS[path.parent.name]
    read = read_yaml(path, kind, name)
    if not isinstance(read, RunSpec):
        assert getattr(read, name) == path.stem, "a file is found by its name"


@each_file
def test_committed_files_fit_the_schema_that_editors_check_them_with(path: Path) -> None:
    name, _ = KINDS[path.parent.name]
    assert path.read_text().startswith(f"# yaml-language-server: $schema=../schemas/{name}.json\n")
    schema = json.loads((CONFIG / "schemas" / f"{name}.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    faults = [
        f"{fault.json_path}: {fault.message}"
        for fault in validator.iter_errors(yaml.safe_load(path.read_text()))
    ]
    assert faults == []


@pytest.mark.parametrize("scale", [path.stem for path in FILES if path.parent.name == "scales"])
def test_committed_scales_expand_to_runs(scale: str) -> None:
    planned = plan(CONFIG, scale)
    assert len(planned.runs) > 0
    for item in planned.items:
        if item.item.reported is not None:
            assert (CONFIG / "reported" / item.item.reported.file).is_file()


def test_committed_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["schema", "--config", str(tmp_path)]).exit_code == 0
    names = sorted(path.name for path in (CONFIG / "schemas").iterdir())
    assert sorted(path.name for path in (tmp_path / "schemas").iterdir()) == names
    _, different, missing = filecmp.cmpfiles(tmp_path / "schemas", CONFIG / "schemas", names, shallow=False)
    assert (different, missing) == ([], []), "run `make schema`"


PLAN_AND_MEASURE = """
import sys, time
from pathlib import Path
from fltrain.experiments.plan import plan
planned = plan(Path(sys.argv[1]), "demo")
assert planned.runs and all(item.sheet.cells for item in planned.items)
print(time.process_time(), *{"torch", "mlflow", "matplotlib"} & set(sys.modules))
"""


def test_planning_is_quick_and_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", PLAN_AND_MEASURE, str(CONFIG)]
    seconds = []
    # Processor time, interpreter and imports included; the best of three, as neighbours disturb it.
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        measured, *heavy = done.stdout.split()
        assert heavy == []
        seconds.append(float(measured))
        if seconds[-1] < 1:
            return
    pytest.fail(f"planning took {min(seconds):.2f} s of processor time")
