"""Papers x scale -> runs: merging of settings, expansion of grids, and refused configurations."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from fltrain.core.errors import FltrainError
from fltrain.core.strict_yaml import read_plain
from fltrain.experiments.layers import merge
from fltrain.experiments.layout import Restriction
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.selection import Request, Selection
from fltrain.reporting.frame import ROUNDS
from fltrain.runs.measures import ROW_FIELDS
from fltrain.runs.spec import StatisticName

from .helpers import cli, shipped, tiny, trained

CONFIG = Path(__file__).parents[2] / "config"

Yaml = dict[str, Any]
Edit = Callable[[Yaml], object]

BP: Yaml = {"set": {"plugins": []}, "reported": {"plugin": "none"}}
PLUGINS = {"BP": BP, "FLFA": {"set": {"plugins": ["flfa"]}}}
GAIN = {"measure": "final_accuracy", "gain_over": {"plugin": "BP"}}
DRIFT = {"curve": "updates.drift", "label": "Reduction", "reduction_from": {"plugin": "BP"}}
ITEMS: Yaml = {
    "table": {
        "title": "Methods, without and with FLFA",
        "axes": {"method": ["fedavg", "fedprox", "scaffold"], "plugin": PLUGINS},
        "table": {"rows": "method", "columns": "plugin", "measures": [GAIN]},
    },
    "figure": {
        "title": "Drift",
        "axes": {"plugin": PLUGINS},
        "figure": {"kind": "curves", "series": "plugin", "panels": [DRIFT]},
    },
}
SETTINGS: Yaml = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 10},
    "model": "mobilenet_tiny",
    "method": "fedavg",
    "evaluation": {"statistics": ["drift"]},
}
PAPER: Yaml = {"paper": "toy", "title": "A toy", "citation": "none", "seeds": 2}
PAPER |= {"settings": SETTINGS, "items": ITEMS}
SCALE: Yaml = {"scale": "tiny", "title": "a trial", "reduced": True, "items": ["toy/table", "toy/figure"]}
TABLE, FIGURE = ("items", "table"), ("items", "figure", "figure")
PANEL = (*FIGURE, "panels", 0)
CURVE = (*PANEL, "curve")


class Config:
    """A folder with one paper and one scale; both can be edited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("papers", "scales"):
            (folder / name).mkdir()

    def plan(self, paper: Edit | None = None, scale: Edit | None = None, name: str = "tiny") -> Plan:
        for path, original, edit in (("papers/toy", PAPER, paper), ("scales/tiny", SCALE, scale)):
            data = copy.deepcopy(original)
            if edit:
                edit(data)
            (self.folder / f"{path}.yaml").write_text(json.dumps(data))
        return plan(self.folder, name)

    def report(self, values: str, claims: str | None) -> None:
        """Write published values, and claims if there are any."""
        (self.folder / "reported").mkdir()
        (self.folder / "reported" / "values.csv").write_text(values)
        if claims is not None:
            (self.folder / "reported" / "toy_claims.csv").write_text(claims)

    def error(self, paper: Edit | None = None, scale: Edit | None = None, name: str = "tiny") -> str:
        """The error message of a faulty configuration: a line for each problem."""
        with pytest.raises(FltrainError) as raised:
            self.plan(paper, scale, name)
        message = str(raised.value)
        assert message and "\n\n" not in message
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
    """Return an edit that gives the scale a reduction for one item."""
    return lambda data: put([{name: reduction} if key == name else key for key in data["items"]], "items")(
        data
    )


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"alpha": 0.1}, {"name": "dirichlet", "alpha": 0.1, "clients": 10}),
        ({"name": "iid", "clients": 5}, {"name": "iid", "clients": 5}),
        ("iid", "iid"),
        ("dirichlet", {"name": "dirichlet", "alpha": 0.3, "clients": 10}),
    ],
)
def test_only_another_component_replaces_all_settings_of_the_old_one(patch: Any, expected: Any) -> None:
    old = {"partition": {"name": "dirichlet", "alpha": 0.3, "clients": 10}}
    assert merge(old, {"partition": patch}) == {"partition": expected}


LAYERS: list[tuple[str, tuple[str, ...]]] = [
    ("paper", ("settings",)),
    ("paper", (*TABLE, "settings")),
    ("scale", ("settings",)),
    ("paper", (*TABLE, "axes", "method", "fedavg", "set")),
    ("paper", (*TABLE, "axes", "plugin", "BP", "set")),
]
"""Places of a setting in increasing priority."""


@pytest.mark.parametrize("count", range(1, len(LAYERS) + 1))
def test_settings_of_higher_priority_win(config: Config, count: int) -> None:
    edits: dict[str, list[Edit]] = {"paper": [], "scale": []}
    edits["paper"] += [put({"fedavg": {"set": {"method": "fedavg"}}}, *TABLE, "axes", "method")]
    for rate, (file, keys) in enumerate(LAYERS[:count], start=1):
        edits[file].append(put(float(rate), *keys, "training", "lr"))
    planned = config.plan(*(lambda data, file=file: [edit(data) for edit in edits[file]] for file in edits))
    entry = planned.items[0].entries[0]
    assert entry.labels == {"method": "fedavg", "plugin": "BP"}
    assert entry.spec.training.lr == count


def test_a_scale_reduces_one_item_further(config: Config) -> None:
    """Its settings follow the scale's and precede the points', its axes replace, its seeds are limits."""

    def edit(data: Yaml) -> None:
        put(0.5, "settings", "training", "lr")(data)
        put(7, "settings", "rounds")(data)
        put("2026-11-23", "seen")(data)
        settings = {"training": {"lr": 0.25}, "method": "scaffold"}
        axes = {"method": {"only": "fedprox"}}
        changes = {"title": "a shorter trial", "seeds": 1, "seen": "2026-11-24"}
        item("toy/table", **changes, settings=settings, axes=axes)(data)

    table, figure = config.plan(scale=edit).items
    assert [entry.labels["method"] for entry in table.entries] == ["only", "only"]
    for entry in table.entries:
        assert (entry.spec.training.lr, entry.spec.rounds, entry.spec.method.name) == (0.25, 7, "fedprox")
    assert {entry.spec.training.lr for entry in figure.entries} == {0.5}
    assert [len({entry.seed for entry in each.entries}) for each in (table, figure)] == [1, 2]
    assert [each.sheet.scale for each in (table, figure)] == ["a shorter trial", "a trial"]
    assert [str(each.sheet.seen) for each in (table, figure)] == ["2026-11-24", "2026-11-23"]


def test_rejudged_names_cells_of_the_table(config: Config) -> None:
    """Otherwise a misspelt cell would be confirmatory."""
    table, figure = config.plan().items
    *others, last = sorted(table.places)
    planned = config.plan(scale=item("toy/table", rejudged=[last]))
    assert planned.items[0].sheet.rejudged == (last,) and others and not figure.places
    error = config.error(scale=item("toy/table", rejudged=[last + "n"]))
    assert f"rejudged: no cell {last + 'n'!r}; did you mean {last!r}?" in error


def test_items_can_show_exactly_the_curves_of_records(tmp_path: Path) -> None:
    statistics = list(get_args(StatisticName))
    fields: dict[str, set[str]] = {}
    for changes in ({"evaluation": {"statistics": statistics}}, {"local_test": {}}):
        for row in trained(tiny(rounds=1, **changes), tmp_path).metrics:
            values = {key for key, value in row.items() if isinstance(value, float | dict) or key == "images"}
            fields.setdefault(row["kind"], set()).update(values)
    assert fields == {kind: set(names) for kind, names in ROW_FIELDS.items()}


ALL_CELLS = [(method, plugin) for method in ("fedavg", "fedprox", "scaffold") for plugin in ("BP", "FLFA")]


@pytest.mark.parametrize(
    ("when", "cells"),
    [
        ({"method": "scaffold", "plugins": "flfa"}, [("scaffold", "FLFA")]),
        ({"method": ["fedavg", "scaffold"], "plugins": "flfa"}, [("fedavg", "FLFA"), ("scaffold", "FLFA")]),
        ({"method.mu": 0.01}, [("fedprox", "BP"), ("fedprox", "FLFA")]),
        ({"participation.fraction": 0.1, "partition.clients": 10.0, "local_test": None}, ALL_CELLS),
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


def test_cells_excluded_by_an_exception_are_not_run(config: Config) -> None:
    special = {"when": {"method": "fedprox", "plugins": "flfa"}, "leave_out": True}
    table = config.plan(put([special], *TABLE, "exceptions")).items[0]
    labels = dict.fromkeys(tuple(entry.labels.values()) for entry in table.entries)
    assert list(labels) == [cell for cell in ALL_CELLS if cell != ("fedprox", "FLFA")]
    exclusion = {"when": {"method": "fedprox"}, "leave_out": True}
    table = config.plan(
        put([exclusion], *TABLE, "exceptions"), scale=lambda data: data.update(reduced=False)
    ).items[0]
    assert [str(part) for part in table.restricted] == ["method fedavg; scaffold"], "claims must know"
    none = {"when": {"dataset": "digits"}, "leave_out": True}
    assert "gain_over: unknown label 'BP'" in config.error(put([none], *TABLE, "exceptions"))


def seeds_of(planned: Plan) -> list[list[int]]:
    """Return the seeds of each item, in order."""
    return [list(dict.fromkeys(entry.seed for entry in item.entries)) for item in planned.items]


def test_seeds_are_a_number_or_a_list_of_item_or_paper_and_the_scale_shortens_or_replaces_them(
    config: Config,
) -> None:
    number, listed = put(4, *TABLE, "seeds"), put([42, 7, 2025], *TABLE, "seeds")
    assert seeds_of(config.plan()) == [[0, 1], [0, 1]]
    assert seeds_of(config.plan(number, put(3, "seeds"))) == [[0, 1, 2], [0, 1]]
    planned = config.plan(listed)
    assert seeds_of(planned) == [[42, 7, 2025], [0, 1]], "in the order of the list"
    assert seeds_of(planned.restricted(Selection(seeds=1))) == [[42], [0]]
    assert seeds_of(config.plan(listed, put(2, "seeds")))[0] == [42, 7]
    assert seeds_of(config.plan(listed, put([3, 4], "seeds"))) == [[3, 4], [3, 4]]
    assert seeds_of(config.plan(listed, item("toy/table", seeds=[5]))) == [[5], [0, 1]]


@pytest.mark.parametrize(
    ("seeds", "problem"),
    [
        (0, "a number of seeds lies between 1 and 10,000, not 0; list seeds as"),
        (20261127, "a number of seeds lies between 1 and 10,000, not 20261127; list seeds as"),
        ([], "at least 1"),
        ([1, 2, 1], "the seed 1 is listed twice"),
        ([-1], "greater than or equal to 0"),
        ("3", "write a number of seeds (3) or a list of seeds"),
        (True, "write a number of seeds (3) or a list of seeds"),
    ],
)
def test_wrong_seeds_are_refused(config: Config, seeds: Any, problem: str) -> None:
    assert problem in config.error(put(seeds, *TABLE, "seeds"))


def test_exceptions_match_the_settings_without_exceptions(config: Config) -> None:
    chain = [
        {"when": {"method": "fedavg", "rounds": old}, "set": {"rounds": new}}
        for old, new in ((100, 20), (20, 30))
    ]
    table = config.plan(put(chain[:1], *TABLE, "exceptions")).items[0]
    assert {(entry.spec.method.name, entry.spec.rounds) for entry in table.entries} >= {("fedavg", 20)}
    assert "no cell has all of" in config.error(put(chain, *TABLE, "exceptions"))


def test_a_scale_can_contain_a_whole_paper(config: Config) -> None:
    """All items in the paper's order; an item that is also listed by name has its own reduction."""
    planned = config.plan(scale=put(["toy"], "items"))
    assert [item.id for item in planned.items] == ["toy/table", "toy/figure"]
    assert planned.runs.keys() == config.plan().runs.keys()
    items = [{"toy": {"seeds": 1}}, {"toy/figure": {"settings": {"rounds": 3}}}]
    reduced = config.plan(scale=put(items, "items"))
    seeds = {item.id: len({entry.seed for entry in item.entries}) for item in reduced.items}
    assert seeds == {"toy/table": 1, "toy/figure": 2}
    assert {entry.spec.rounds for entry in reduced.items[1].entries} == {3}
    assert "'toy'" in config.error(scale=put(["toy", "toy"], "items"))


def test_assumptions_come_from_the_paper_and_the_items(config: Config) -> None:
    entries = {"T-1": {"question": "Rounds", "assumed": "100", "alternatives": "50"}}
    entries |= {"T-2": {"question": "Rate", "assumed": "0.01"}}
    (config.folder / "register.yaml").write_text(yaml.safe_dump({"entries": entries}))
    edit = put(["T-2", "T-1"], *TABLE, "assumptions")
    table, figure = config.plan(lambda data: [put(["T-1"], "assumptions")(data), edit(data)]).items
    first, second = "T-1: Rounds: 100 (alternatives: 50).", "T-2: Rate: 0.01."
    assert (table.sheet.assumptions, figure.sheet.assumptions) == ((first, second), (first,))
    entry = "{question: ..., assumed: ..., alternatives: ...}"
    for name, near in {"T-11": "; did you mean 'T-1'?", "mine": ""}.items():
        message = config.error(put([name], *TABLE, "assumptions"))
        assert (
            f"line 1: assumptions.0: register.yaml has no entry {name!r}{near}; to add it, write " in message
        )
        assert f" below `entries:` in {config.folder}/register.yaml: `{name}: {entry}`" in message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A paper of which two items are files that share blocks and labels."""
    common = {"gain": {"measures": [GAIN]}, "plugins": PLUGINS}
    table = {"rows": "method", "columns": "plugin", "use": "gain"}
    axes = {"method": ["fedavg", {"name": "fedprox", "mu": 0.1}], "plugin": {"use": "plugins"}}
    files: Yaml = {
        "papers/toy/paper": {key: PAPER[key] for key in PAPER if key != "items"} | {"blocks": common},
        "papers/toy/table2": {"title": "Two", "axes": axes, "table": table},
        "papers/toy/table10": {"use": "table2", "title": "Ten", "settings": {"rounds": 2}},
        "scales/tiny": {**SCALE, "items": ["toy"]},
        "labels": {"labels": {"fedprox": "FedProx"}},
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
    return tmp_path


def test_a_paper_is_a_folder_of_items_that_share_blocks(folder: Path) -> None:
    two, ten = plan(folder, "tiny").items
    assert (two.name, ten.name) == ("table2", "table10")
    assert two.axes == ten.axes == {"method": ["fedavg", "FedProx"], "plugin": ["BP", "FLFA"]}
    assert [entry.spec.rounds for entry in ten.entries] == [2] * 8
    assert [entry.spec.plugins[0].name for entry in two.entries[2:4]] == ["flfa", "flfa"]


def test_blocks_that_contain_themselves_are_refused(folder: Path) -> None:
    paper = folder / "papers" / "toy" / "paper.yaml"
    data = yaml.safe_load(paper.read_text())
    data["blocks"] |= {"gain": {"use": "more"}, "more": {"use": "gain"}}
    paper.write_text(yaml.safe_dump(data))
    with pytest.raises(FltrainError, match=r"paper\.yaml: line \d+: not YAML: it contains itself"):
        plan(folder, "tiny")


def test_all_problems_of_a_folder_are_shown_with_file_and_line(folder: Path) -> None:
    papers = folder / "papers" / "toy"
    (papers / "table2.yaml").write_text(
        "titel: Two\naxes: {plugin: {use: plugins}}\ntable: {rows: plugin, use: gain}"
    )
    (papers / "claims.yaml").write_text("- {where: here, claim: it works, test: {kind: tested}}")
    with pytest.raises(FltrainError) as raised:
        plan(folder, "tiny")
    first, *others = str(raised.value).splitlines()
    assert first.endswith("problems:"), others
    assert any("claims.yaml: line 1: claims.0.test.by: field required" in other for other in others)
    assert any(
        "table2.yaml: line 1: items.table2.titel: unknown key 'titel'; did you" in other for other in others
    )
    (papers / "table2.yaml").write_text("title: Two\naxes:\n  plugin: {use: plugin}")
    with pytest.raises(
        FltrainError, match=r"table2.yaml: line 3: .*unknown block 'plugin'; did you mean 'plugins'"
    ):
        plan(folder, "tiny")


def explained(folder: Path, scale: str, item: str, *cell: str, with_defaults: bool = False) -> list[str]:
    """The lines that explain a cell."""
    options = [word for label in cell for word in ("--cell", label)] + ["--all"] * with_defaults
    return cli("explain", item, "--scale", scale, "--config", folder, *options).output.splitlines()


def test_explain_shows_layer_file_and_line_of_each_setting(folder: Path) -> None:
    (folder / "papers" / "toy" / "table2.yaml").write_text(
        "title: Two\nsettings:\n  rounds: 3\naxes: {method: [fedavg, fedprox], plugin: {use: plugins}}\n"
        "table: {rows: method, columns: plugin, use: gain}\n"
        "exceptions:\n- when: {method: fedprox}\n  set: {method: {mu: 0.1}}\n"
    )
    paper = (folder / "papers" / "toy" / "paper.yaml").read_text().splitlines()
    in_block = paper.index(next(line for line in paper if line.strip() == "- flfa")) + 1
    lines = explained(folder, "tiny", "toy/table2", "fedprox", "flfa", with_defaults=True)
    for setting, value, layer, place in (
        ("rounds", "3", "item", "table2.yaml:3"),
        ("method", "fedprox", "cell", "table2.yaml:4"),
        ("method.mu", "0.1", "cell", "table2.yaml:8"),
        ("dataset", "digits", "paper", "paper.yaml:"),
        ("plugins", '["flfa"]', "cell", f"paper.yaml:{in_block} "),
        ("evaluation.until", "null", "default", ""),
        ("plugins.flfa.n_fa", "1", "default", ""),
    ):
        line = next(line for line in lines if f" {setting} " in line)
        assert all(f" {text} " in line for text in (value, layer)) and place in line
    short = explained(folder, "tiny", "toy/table2", "fedprox", "flfa")
    defaults = sum("│ default │" in line for line in lines)
    assert short[-1] == f"settings with their default: {defaults} (--all shows them)" and defaults > 5
    rows = [line.split() for line in lines if "│" in line and "│ default │" not in line]
    assert [line.split() for line in short if "│" in line] == rows
    for words, problem in {
        ("Fedpro",): "no cell of toy/table2 is left with --cell 'Fedpro'; did you mean 'FedProx'\\?$",
        ("bp", "plugin=flfa"): "^--cell 'bp' and --cell 'plugin=flfa' are labels of the same axis, 'plugin';",
        ("FLFA", "BPP"): r"is left with --cell 'BPP' \(labels: [^()]*\)$",
        ("fedprox", "nix"): "is left with --cell 'nix' \\(labels: FedProx, BP, FLFA\\)$",
    }.items():
        with pytest.raises(FltrainError, match=problem):
            explained(folder, "tiny", "toy/table2", *words)
    scale = {**SCALE, "items": ["toy/table2"], "axes": {"method": ["fedavg"]}}
    (folder / "scales" / "tiny.yaml").write_text(yaml.safe_dump(scale))
    with pytest.raises(FltrainError, match=r"\(labels: fedavg, BP, FLFA\)$"):
        explained(folder, "tiny", "toy/table2", "FedPrx")
    (folder / "scales" / "other.yaml").write_text(
        yaml.safe_dump({**SCALE, "scale": "other", "items": ["toy/table2"]})
    )
    with pytest.raises(FltrainError, match=r"\); scale other has 'FedProx': add --scale other$"):
        explained(folder, "tiny", "toy/table2", "FedPrx")


def test_explain_shows_common_and_differing_settings_of_several_cells(folder: Path) -> None:
    (folder / "papers" / "toy" / "table2.yaml").write_text(
        "title: Two\ncaption: More.\nsettings:\n  rounds: 3\n"
        "table: {rows: method, columns: plugin, use: gain}\n"
        "axes: {method: [fedavg, fedprox, moon], plugin: {use: plugins}}\n"
        "exceptions:\n- when: {method: fedprox, plugins: flfa}\n  set: {training: {lr: 0.2}}\n"
        "- when: {method: fedprox}\n  set: {method: {mu: 0.7}}\n"
    )
    lines = explained(folder, "tiny", "toy/table2")
    text = "\n".join(lines)
    assert lines[0].startswith("toy/table2 at scale tiny: Two (") and lines[1].endswith("More.")
    assert lines[2].startswith("6 cells, 2 seeds (")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert ["plugin", "BP; FLFA"] in rows, "axes"
    assert ["method", "method", "fedavg (fedavg); fedprox (FedProx); moon (moon)"] in rows
    assert ["plugins", "plugin", '[] (BP); ["flfa"] (FLFA)'] in rows
    assert ["method.mu", "method", "none (fedavg); 0.7 (FedProx); 1.0 (moon)"] in rows
    assert any(row[:2] == ["training.lr", "several"] and "0.2" in row[2] for row in rows)
    assert ["rounds", "3", "item"] in [row[:3] for row in rows] and "plugins.flfa.n_fa" not in text
    *_, command = lines
    expected = "fltrain explain toy/table2 --cell method=moon --cell plugin=FLFA --scale tiny"
    assert command.endswith(f": {expected} --config {folder}")
    part = explained(folder, "tiny", "toy/table2", "fedprox")
    assert part[2].startswith("2 cells")
    assert " toy/table2 --cell method=FedProx --cell plugin=FLFA --scale tiny --config " in part[-1]


def test_explain_finds_a_cell_whose_label_is_also_a_part_of_others() -> None:
    lines = explained(CONFIG, "fair_mnist", "fair/accuracy", "fedavg", "tuned", "dirichlet 0.1")
    assert "(Dirichlet 0.1, FedAvg, tuned)" in lines[0]
    rate = next(line for line in lines if " training.lr " in line)
    place = re.search(r"config/selected/fair_mnist/fair_trials\.yaml:(\d+) ", rate)
    assert " trial " in rate and place
    written = (CONFIG / "selected/fair_mnist/fair_trials.yaml").read_text().splitlines()
    assert written[int(place[1]) - 1].strip() == "lr: 0.00828"


def test_labels_that_differ_in_case_select_each_cell_alone(folder: Path) -> None:
    item = folder / "papers" / "toy" / "table2.yaml"
    data = yaml.safe_load(item.read_text())
    data["axes"]["method"] = {label: {"set": {"method": label.lower()}} for label in ("fedavg", "FedProx")}
    data["axes"]["method"]["FEDAVG"] = {"set": {"method": "scaffold"}}
    item.write_text(yaml.safe_dump(data))
    for label, method in {"fedavg": "fedavg", "method=FEDAVG": "scaffold", "fedprox": "fedprox"}.items():
        first, *_ = explained(folder, "tiny", "toy/table2", label, "bp")
        assert f"run digits-{method}-" in first
    assert explained(folder, "tiny", "toy/table2", "FedAvg", "bp")[1].startswith("2 cells")


def test_labels_with_their_axes_select_each_cell_alone(folder: Path) -> None:
    """Also if two axes share their labels, and if a label has commas and equals signs."""
    names = {"0.1": 0.1, "c = 0.5, large": 0.5}
    rates = {name: {"set": {"training": {"lr": rate}}} for name, rate in names.items()}
    weights = {name: {"set": {"method": {"name": "fedprox", "mu": mu}}} for name, mu in names.items()}
    layout = {"rows": "rate", "columns": "mu", "measures": [{"measure": "final_accuracy"}]}
    item = {"title": "Two", "axes": {"rate": rates, "mu": weights}, "table": layout}
    (folder / "papers" / "toy" / "table2.yaml").write_text(yaml.safe_dump(item, sort_keys=False))
    assert "2 cells" in explained(folder, "tiny", "toy/table2", "0.1", "c = 0.5, large")[1]
    heading, *_ = explained(folder, "tiny", "toy/table2", "rate=0.1", "mu=c = 0.5, large")
    assert "(0.1, c = 0.5, large)" in heading


def test_exceptions_of_a_paper_hold_for_all_items_and_must_match_a_cell(folder: Path) -> None:
    file = folder / "papers" / "toy" / "paper.yaml"
    text = file.read_text()
    file.write_text(text + "exceptions: [{when: {method: fedprox}, set: {rounds: 7}}]\n")
    for item in plan(folder, "tiny").items:
        rounds = {entry.spec.method.name: entry.spec.rounds for entry in item.entries}
        assert rounds == {"fedprox": 7, "fedavg": 2 if item.name == "table10" else rounds["fedavg"]}
    file.write_text(text + "exceptions: [{when: {method: fedprx}, set: {rounds: 7}}]\n")
    with pytest.raises(
        FltrainError, match="toy: exceptions: no cell has method 'fedprx'; did you mean 'fedprox'"
    ):
        plan(folder, "tiny")


def test_a_grid_is_the_ordered_product_of_its_axes_and_seeds(config: Config) -> None:
    table = config.plan().items[0]
    order = [(entry.labels["method"], entry.labels["plugin"], entry.seed) for entry in table.entries]
    assert order == [(*labels, seed) for labels in ALL_CELLS for seed in (0, 1)]
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


def add_bubbles(data: Yaml) -> None:
    """An item that shows partitions; the table's runs use one of them."""
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


def select(**wanted: Any) -> Selection:
    return Selection.parse(wanted, "test")


@pytest.mark.parametrize("empty", [{"items": ""}, {"items": None}, {"where": " "}, {"where": []}])
def test_an_empty_condition_does_not_select_everything(empty: Yaml) -> None:
    with pytest.raises(FltrainError, match=f"test: {next(iter(empty))}: is empty; leave it out to select"):
        select(**empty)


def test_faults_of_cells_and_layouts_are_named_together(config: Config) -> None:
    def edit(paper: Yaml) -> None:
        paper["items"]["table"]["axes"]["method"][1] = "fedprocs"
        paper["items"]["table"]["table"]["measures"] = [{"measure": "final_acc"}]

    heading, *lines = config.error(edit).splitlines()
    assert heading == "toy/table: 2 problems:"
    method, measure = lines
    assert "unknown method 'fedprocs'; did you mean 'fedprox'?" in method, lines
    assert re.search("toy.yaml: line 1: measures.0.measure: unknown measure 'final_acc'; did you", measure)


MANY_FAULTS = """\
paper: toy
title: A toy
citation: none
assumptions: [T-11]
settings:
  dataset: digits
  partition: {name: dirichlet, alfa: 0.1}
  model: mobilenet_tiny
  method: fedavg
items:
  table:
    title: One
    reported: no.csv
    axes: {method: [fedavg, fedprox], plugin: {BP: {}, FLFA: {set: {plugins: [flfo]}}}}
    table:
      rows: methd
      columns: plugin
      measures:
        - measure: final_acc
          gain_over: {plugin: XX}
  other:
    title: Two
    axes: {method: [fedavg, fedprox]}
    table:
      rows: method
      measures: [{measure: final_accuracy}]
claims:
  - {where: x, claim: c, test: {kind: positive, item: other, measure: final_accuracy}}
"""


def test_all_faults_of_a_paper_are_named_once_with_their_lines(config: Config) -> None:
    """Settings of several cells and items, the layout, assumptions and published values."""
    for path, text in {
        "papers/toy": MANY_FAULTS,
        "scales/tiny": json.dumps({**SCALE, "items": ["toy"]}),
    }.items():
        (config.folder / f"{path}.yaml").write_text(text)
    with pytest.raises(FltrainError) as raised:
        plan(config.folder, "tiny")
    heading, *lines = str(raised.value).splitlines()
    problems = [line.strip().replace(f"{config.folder}/", "") for line in lines]
    expected = [
        r"reported/no.csv: there is no such file",
        r"reported/toy_claims.csv: there is no such file",
        r"toy/table \(fedavg, BP\): papers/toy.yaml: line 7: partition.alfa: .* did you mean 'alpha'",
        r"toy/table \(fedavg, FLFA\): papers/toy.yaml: line 14: plugins.0: unknown plug-in 'flfo'",
        r"toy/table: papers/toy.yaml: line 4: assumptions.0: register.yaml has no entry 'T-11'",
        r"toy/table: papers/toy.yaml: line 19: measures.0.measure: unknown measure 'final_acc'",
        r"toy/table: papers/toy.yaml: line 20: measures.0.gain_over: unknown label 'XX'",
        r"toy/table: papers/toy.yaml: line 16: rows: unknown axis 'methd'; did you mean 'method'",
    ]
    assert heading == f"scale 'tiny': {len(expected)} problems:"
    missing = [text for text in expected if not any(re.match(text, line) for line in problems)]
    assert (missing, len(problems)) == ([], len(expected)), problems


def test_seeds_of_a_selection_are_a_number() -> None:
    with pytest.raises(FltrainError, match="test: seeds: is a number: 3 takes the first three seeds of each"):
        select(seeds=[0, 1, 2])


def cells(planned: Plan) -> list[tuple[str, ...]]:
    """Labels and seed of all cells of the first item."""
    return [(*entry.labels.values(), str(entry.seed)) for entry in planned.items[0].entries]


def test_a_full_scale_names_its_part_of_an_item(config: Config) -> None:
    part = (Restriction(to="method fedavg; scaffold", axis="method"),)
    two, three = ["fedavg", "scaffold"], ["scaffold", "fedprox", "fedavg"]
    for reduced, methods, expected in ((False, two, part), (False, three, ()), (True, two, ())):
        changes = {"reduced": reduced, "axes": {"method": methods}}
        table, figure = config.plan(scale=lambda data, changes=changes: data.update(changes)).items
        assert table.restricted == table.sheet.restricted == expected
        assert figure.restricted == (), "it has no such axis"


def test_items_and_cells_are_selected(config: Config) -> None:
    planned = config.plan()
    for items, expected in {"toy_figure": 1, "toy_figure, toy/table": 2, "toy": 2}.items():
        assert len(planned.restricted(select(items=items)).items) == expected
    base = planned.restricted(select(where="method=fedprox", seeds=1))
    assert cells(base) == [("fedprox", "BP", "0"), ("fedprox", "FLFA", "0")]
    assert [item.sheet.scale for item in base.items] == ["a trial, restricted to 1 seed, method=fedprox"]
    pair = planned.restricted(select(where="method=fedprox,scaffold"))
    assert cells(pair) == [(*labels, seed) for labels in ALL_CELLS[2:] for seed in "01"]
    assert planned.restricted(select(seeds=2)) is planned, "no more than there are"


def test_items_of_the_scale_alone_are_suggested() -> None:
    """Other scales have `flfa/table9`, which is closer to the wrong name."""
    with pytest.raises(
        FltrainError,
        match=r"'demo' has no item 'flfa/table99'; did you mean 'flfa/table1'\? \(items of flfa: figure2, "
        r"table1\)$",
    ):
        shipped("demo").restricted(select(items="flfa/table99"))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"items": ["toy/table", "toy/figur"]}, "has no item 'toy/figur'; did you mean 'toy/figure'?"),
        ({"items": ["tyo"]}, "has no item 'tyo'; did you mean 'toy'?"),
        ({"items": "x"}, "scale 'tiny' has no item 'x' (known: toy)"),
        ({"items": "toy/x"}, "scale 'tiny' has no item 'toy/x' (items of toy: figure, table)"),
        (
            {"items": "toy/claims"},
            "has no item 'toy/claims'; claims are in results/tiny/toy: index.html, claims.csv",
        ),
        ({"where": "training.lr=0,05"}, "'0,05': numbers have a decimal point"),
        (
            {"where": "dataset=mnist"},
            "'tiny': no run is left with dataset=mnist (values of dataset: 'digits')",
        ),
        ({"where": "method=fedavg,fedprx"}, "no run is left with method=fedprx; did you mean 'fedprox'?"),
        (
            {"items": "toy/figure", "where": "method=scaffold"},
            "scale 'tiny', item toy/figure: no run is left with method=scaffold (values of method: 'fedavg')",
        ),
    ],
    ids=str,
)
def test_restrictions_to_unknown_names_are_refused(config: Config, wanted: Yaml, message: str) -> None:
    with pytest.raises(FltrainError) as raised:
        config.plan().restricted(select(**wanted))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_truth_value_of_another_form_is_refused() -> None:
    with pytest.raises(FltrainError, match="train: input should be true or false, got 'maybe'"):
        Request.parse({"train": "maybe"}, "test")


AXES = (*TABLE, "axes")
MEASURE = (*TABLE, "table", "measures", 0)


def claim(**changes: Any) -> list[Yaml]:
    test = {"kind": "positive", "item": "table", "measure": "final_accuracy", **changes}
    return [{"where": "x", "claim": "c", "test": test}]


COLUMNS = {"kind": "bubbles", "columns": "method"}
TWO_AXES = {"title": "x", "axes": {"method": ["fedavg", "fedprox"], "rounds": [1, 2]}, "figure": COLUMNS}


WEAK_AND_STRONG = {"weak": "fedprox", "strong": {"name": "fedprox", "mu": 1.0}}
LABELLED = "write a mapping from labels to values: {weak: fedprox, strong: {name: fedprox, mu: 1.0}}"


def when(settings: Yaml) -> list[Yaml]:
    return [{"when": settings, "set": {"rounds": 7}}]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        # Settings that do not fit together: the problem belongs to no single key.
        (
            put({"name": "digits", "normalisation": "ours"}, "settings", "dataset"),
            ["toy.yaml", "normalisation"],
        ),
        (put(["fedprx"], *AXES, "method"), ["toy/table (fedprx, BP)", "'fedprx'", "'fedprox'"]),
        # Points of an axis: a misspelled key, values without a label of their own, a misspelled axis.
        (put({"MLP": {"sett": {"model": "mlp"}}}, *AXES, "network"), ["axes.network.MLP.sett", "'set'?"]),
        (put([*WEAK_AND_STRONG.values()], *AXES, "method"), ["two values have the label", LABELLED]),
        (put([WEAK_AND_STRONG], *AXES, "method"), ["'method': {'weak': 'fedprox', ", LABELLED]),
        (put(WEAK_AND_STRONG, *AXES, "metod"), ["'metod'; did you mean 'method'?"]),
        (put(claim(item="tabel"), "claims"), ["claim 'c'", "no item 'tabel'", "'table'"]),
        (put(claim(at={"methd": "fedavg"}), "claims"), ["no axis 'methd'", "'method'"]),
        (put(["iid"], *AXES, "value"), ["items.table.axes", "'value' is taken by a column"]),
        (
            put(TWO_AXES | {"figure": {"kind": "bubble"}}, "items", "x"),
            ["unknown kind 'bubble'", "'bubbles'?"],
        ),
        (put("fedavg", *MEASURE, "gain_over"), ["gain_over: input should be a mapping ({key: value})"]),
        (put(["fedavg"], "settings", "method"), ["one name, or a mapping with 'name', got a list"]),
        (put(None, *TABLE, "table", "columns"), ["toy/table", "'plugin'"]),
        (put("final_acc", *MEASURE, "measure"), ["toy/table", "'final_acc'", "'final_accuracy'"]),
        (put("rounds_to_target", *MEASURE, "measure"), ["toy/table", "needs 'target_of'"]),
        (
            put([{"measure": name, "printed_target": 9.0} for name in ROUNDS], *MEASURE[:-1]),
            ["measures.1: the heading 'rounds to target' is taken; set another 'label'"],
        ),
        (
            put([{"measure": "accuracy_at_equal_time", "printed_target": 90.0}], *MEASURE[:-1]),
            ["needs seconds", "write 'target_of'"],
        ),
        (put(COLUMNS, *TABLE, "figure"), ["'table'", "'figure'"]),
        (put({"plugn": "BP"}, *PANEL, "reduction_from"), ["toy/figure", "'plugn'", "'plugin'"]),
        (put(TWO_AXES, "items", "figure"), ["toy/figure", "'rounds'"]),
        # Needs of an item are checked before training.
        (put([], "settings", "evaluation", "statistics"), ["evaluation.statistics: [drift]"]),
        (put("separability.ratio", *CURVE), ["evaluation.statistics: [separability]"]),
        (put("evaluation.macro", *CURVE), ["needs local_test"]),
        (put("flfa.skewness", *CURVE), ["toy/figure (BP): the curve 'flfa.skewness' needs"]),
        (put({"kind": "selection", "columns": "plugin"}, *FIGURE), ["the method or plug-in 'ecgr'"]),
        (put({"kind": "preference", "columns": "plugin"}, *FIGURE), ["evaluation.keep to 'clients'"]),
        # Exceptions that match nothing.
        (
            put(when({"method": "scafold"}), *TABLE, "exceptions"),
            ["no cell has method 'scafold'", "'scaffold'?"],
        ),
        (put(when({"method": "fedavg", "method.mu": 0.01}), *TABLE, "exceptions"), ["no cell has all of"]),
        (
            put(when({"plugin": "FLFA"}), *TABLE, "exceptions"),
            ["no setting 'plugin'; did you mean 'plugins'?"],
        ),
        (put(when({}), *TABLE, "exceptions"), ["0.when: input should have at least 1 item"]),
    ],
)
def test_mistakes_in_a_paper_are_named(config: Config, edit: Edit, words: list[str]) -> None:
    message = config.error(paper=edit)
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("value", "key", "words"),
    [
        (["tou/table"], "items", ["scales/tiny.yaml: line 1: unknown paper 'tou'", "'toy'"]),
        (["toy/tabel"], "items", ["scales/tiny.yaml: line 1: unknown item 'toy/tabel'", "'toy/table'"]),
        (["toy/table", "toy/table"], "items", ["tiny", "toy/table"]),
        ([{"toy/table": {"axes": {"plugins": ["flfa"]}}}], "items", ["toy/table", "'plugins'", "'plugin'"]),
        ({"plugin": {"FLFA": {"set": {"plugins": ["flfa"]}}}}, "axes", ["'BP'"]),
        (when({"methd": "fedavg"}), "exceptions", ["a run has no setting 'methd'; did you mean 'method'?"]),
        (0, "seeds", ["tiny.yaml: line 1: seeds: input should be greater than or equal to 1, got 0"]),
        (
            {"tou": "x"},
            "conclusions",
            ["scale 'tiny': conclusions: unknown paper 'tou'", "did you mean 'toy'"],
        ),
        ([0, 0], "seeds", ["tiny.yaml: line 1: seeds: the seed 0 is listed twice"]),
        ("3", "seeds", ["line 1: seeds: input should be a valid integer or a list ([a, b], or", "got '3'"]),
    ],
)
def test_mistakes_in_a_scale_are_named(config: Config, value: Any, key: str, words: list[str]) -> None:
    message = config.error(scale=put(value, key))
    assert [word for word in words if word not in message] == [], message


VALUES = "method,plugin,metric,value,note\nfedavg,none,acc,50,\n"
CLAIMS = "where,claim,value,unit\nx,c,,\n"
UNKNOWN_NAMES = {name: {"set": {}, "reported": {"methd": name}} for name in ("fedavg", "fedprox")}


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "from a spreadsheet"])
def test_published_values_of_known_cells_are_accepted(config: Config, start: str) -> None:
    config.report(start + VALUES, start + CLAIMS)
    assert config.plan(with_values)


@pytest.mark.parametrize(
    ("values", "claims", "edit", "words"),
    [
        (VALUES.replace("method", "methd"), CLAIMS, None, ["values.csv", "did you mean 'methd'?"]),
        (VALUES, CLAIMS, put(UNKNOWN_NAMES, *AXES, "method"), ["'methd'", "did you mean 'method'?"]),
        (
            VALUES.replace("fedavg", "FedAvg"),
            CLAIMS,
            None,
            ["no row with method 'fedavg'; did you mean 'F"],
        ),
        (VALUES, CLAIMS, put("accuracy", *MEASURE, "reported"), ["'accuracy'", "values.csv has no row"]),
        (VALUES.replace("50", "5O"), CLAIMS, None, ["values.csv: line 2: the value '5O' is not a number"]),
        (VALUES.replace("50,", "50,,,"), CLAIMS, None, ["line 2 has more cells than"]),
        (VALUES.replace("note", "nota"), CLAIMS, None, ["no column 'note'; did you mean 'nota'?"]),
        (VALUES, CLAIMS.replace("c,,", "d,,"), None, ["toy_claims.csv: has no claim 'c' where 'x'"]),
        (VALUES, CLAIMS.replace("unit", "units"), None, ["no column 'unit'; did you mean 'units'?"]),
        (VALUES, None, None, ["toy_claims.csv: there is no such file", "where, claim, value, unit"]),
    ],
)
def test_published_values_of_unknown_cells_are_refused(
    config: Config, values: str, claims: str | None, edit: Edit | None, words: list[str]
) -> None:
    """Otherwise they would be found after training, or give verdicts on the wrong cells."""
    config.report(values, claims)
    edits = [with_values, edit] if edit else [with_values]
    message = config.error(paper=lambda data: [change(data) for change in edits])
    assert [word for word in words if word not in message] == [], message


def with_values(data: Yaml) -> None:
    put("values.csv", *TABLE, "reported")(data)
    put("acc", *MEASURE, "reported")(data)
    put(claim(), "claims")(data)


SCHEMA = "# yaml-language-server: $schema="
NAMING_ONE = sorted(path for path in CONFIG.rglob("*.yaml") if path.read_text().startswith(SCHEMA))


@pytest.mark.slow
@pytest.mark.parametrize("path", NAMING_ONE)
def test_files_fit_the_schema_that_they_name_for_editors(path: Path) -> None:
    file = path.parent / path.read_text().splitlines()[0].removeprefix(SCHEMA)
    validator = jsonschema.Draft202012Validator(json.loads(file.read_text()))
    assert [fault.json_path for fault in validator.iter_errors(read_plain(path))] == []


@pytest.mark.parametrize("scale", sorted({path.stem for path in CONFIG.glob("scales/*.yaml")} - {"paper"}))
def test_committed_scales_expand_to_runs(scale: str) -> None:
    assert shipped(scale).runs
