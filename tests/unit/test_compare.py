"""Comparing runs: choosing, pairing by seed, conditions, curves."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fltrain
from fltrain.core.errors import FltrainError
from fltrain.experiments.plan import plan
from fltrain.experiments.published import Published
from fltrain.reporting.tables.cells import cells
from fltrain.reporting.tables.table_cell import read_csv
from fltrain.runs.record import Results, summarise, write_record
from fltrain.runs.spec import RunSpec
from fltrain.tracking.compare import NUMBERS, OWN_BASE, Comparison, compare
from fltrain.tracking.runs import RecordedRun, find_runs

from .helpers import cli, seal, tiny, write_config

GUIDE = Path(__file__).parents[2] / "docs" / "compare.md"
CONFIG = Path(__file__).parents[2] / "config"
FINAL = {"fedavg": (0.50, 0.60, 0.70), "fedprox": (0.52, 0.61, 0.75)}
"""Final accuracies by seed."""


def record(results: Results, spec: RunSpec, final: float, diverged: bool = False) -> str:
    """Write a record by hand; its accuracy rises to the final one, its loss falls."""
    rows: list[dict[str, Any]] = []
    for round in range(1, (2 if diverged else spec.rounds) + 1):
        accuracy = final * round / spec.rounds
        rows.append({"round": round, "kind": "train", "loss": 1 / round})
        test = {"split": spec.test_split, "view": "global", "accuracy": accuracy, "loss": 2 / round}
        rows.append({"round": round, "kind": "evaluation", **test, "images": 10_000})
        rows += [{**rows[-1], "split": data.name, "accuracy": accuracy / 2} for data in spec.evaluation.extra]
    ended = {"round": 2, "what": "loss"} if diverged else None
    facts = {"bytes": {"up": 10, "down": 20}, "digests": {"data": "ab" * 32, "partition": "cd" * 32}}
    costs = {"seconds": {"total": 2.0}}
    write_record(results.run(spec.run_id), spec, rows, summarise(spec, rows, ended, facts), costs, {})
    return spec.run_id


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with three seeds, a third that diverged once, one seed at another learning rate."""
    folder = tmp_path_factory.mktemp("results")
    results = Results(folder)
    for method, finals in FINAL.items():
        for seed, final in enumerate(finals):
            record(results, tiny(method=method, seed=seed), final)
    for seed in (0, 1):
        record(results, tiny(method="moon", seed=seed), 0.4, diverged=seed == 1)
    for method, final in {"fedavg": 0.9, "fedprox": 0.8}.items():
        record(results, tiny(method=method, training={"epochs": 1, "batch_size": 32, "lr": 0.5}), final)
    return folder


def chosen(root: Path, *where: str) -> list[RecordedRun]:
    return find_runs(root, where, CONFIG)


def by_name(comparison: Comparison) -> dict[str, Any]:
    return {
        " ".join([line["compared"], *(line[key] for key in comparison.shown)]): line
        for line in comparison.frame.to_dict("records")
    }


def test_runs_under_different_conditions_are_not_compared(root: Path) -> None:
    """Each learning rate has its own baseline."""
    compared = compare(chosen(root, "method=fedavg,fedprox"))
    lines = by_name(compared)
    assert compared.shown == ["training.lr"]
    assert list(lines) == ["fedavg 0.1", "fedprox 0.1", "fedavg 0.5", "fedprox 0.5"]
    assert lines["fedprox 0.5"]["gain"] == pytest.approx(-10)
    assert lines["fedprox 0.1"]["gain"] == pytest.approx(8 / 3)
    note, intervals = compared.notes
    assert note == (
        "differences are between lines with the same training.lr; to compare across it: "
        "--over method,plugins,training.lr"
    )
    assert compare(chosen(root, "training.lr=0.1 method=fedavg,fedprox")).notes == [intervals]


def test_a_metric_with_several_values_has_a_line_for_each(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for method, final in {"fedavg": 0.5, "fedprox": 0.6}.items():
        record(results, tiny(method=method, evaluation={"extra": ["digits"]}), final)
    frame = compare(chosen(tmp_path), "extra_accuracy").frame
    assert frame[["test_set", "compared"]].values.tolist() == [["digits", "fedavg"], ["digits", "fedprox"]]
    assert frame["gain"][1] == pytest.approx(5)


def test_any_setting_can_be_compared(root: Path) -> None:
    lines = by_name(compare(chosen(root, "method=fedavg,fedprox"), over=["training"]))
    assert list(lines) == [f"training.lr={lr} {name}" for name in FINAL for lr in (0.1, 0.5)]
    assert lines["training.lr=0.5 fedavg"]["gain"] == pytest.approx(40)
    only = compare(
        chosen(root, "method=fedavg")
    )  # if methods are equal, the setting that differs is compared
    assert list(only.frame["compared"]) == ["training.lr=0.1", "training.lr=0.5"]
    assert "difference to training.lr=0.1" in only.rows()[0]
    long = replace(only, baseline="training.lr=0.1, " * 3)
    assert "difference to the first line" in long.rows()[0]
    assert f"the first line is {long.baseline}" in long.notes


def test_the_baseline_can_be_chosen(root: Path) -> None:
    runs = chosen(root, "training.lr=0.1 method=fedavg,fedprox")
    compared = compare(runs, baseline="fedprox")
    assert list(compared.frame["compared"]) == ["fedprox", "fedavg"]
    assert by_name(compared)["fedavg"]["gain"] == pytest.approx(-8 / 3)
    with pytest.raises(FltrainError, match="'fedprx': there is none; did you mean 'fedprox'"):
        compare(runs, baseline="fedprx")


def test_diverged_runs_count_as_chance_accuracy(root: Path) -> None:
    """As in tables: 10 % among ten classes."""
    compared = compare(chosen(root, "training.lr=0.1 method=fedavg,moon"))
    line = by_name(compared)["moon"]
    assert (line["seeds"], line["diverged"], line["mean"]) == (2, 1, pytest.approx((40 + 10) / 2))
    row = compared.rows()[1]
    # From 50 to 40 and from 60 to 10.
    assert row["final accuracy, %"].startswith("1 of 2 diverged; 25.00")
    assert row["difference to fedavg"] == "-30.00 ± 28.28"
    assert "diverged runs count as chance accuracy" in compared.notes
    seconds = compare(chosen(root, "training.lr=0.1 method=fedavg,moon"), metric="seconds")
    assert by_name(seconds)["moon"]["n"] == 1 and seconds.rows()[1]["seeds"] == "1 of 2"


@pytest.mark.parametrize(("lost", "text"), [("moon", "diverged"), ("fedavg", "base diverged")])
def test_a_difference_is_no_measurement_if_all_runs_of_a_side_diverged(
    tmp_path: Path, lost: str, text: str
) -> None:
    """Neither in the terminal nor in the data frame; lines of which some runs diverged have one."""
    results = Results(tmp_path)
    for method in ("fedavg", "fedprox", "moon"):
        for seed in (0, 1, 2):
            record(results, tiny(method=method, seed=seed), 0.5 + seed / 100, diverged=method == lost)
    compared = compare(chosen(tmp_path))
    lines, printed = by_name(compared), {row["compared"]: row for row in compared.rows()}
    assert printed["moon"]["difference to fedavg"] == text
    assert printed[lost]["final accuracy, %"] == "3 of 3 diverged"
    numbers = ("gain", "gain_std", "gain_low", "gain_high")
    assert all(math.isnan(lines["moon"][name]) for name in numbers)
    assert (
        all(math.isnan(lines[lost][name]) for name in ("mean", "std", "low", "high")) and not lines[lost]["n"]
    )
    assert (lines["moon"]["diverged"], lines["moon"]["base_diverged"]) == (
        (3, 0) if lost == "moon" else (0, 3)
    )
    assert math.isnan(lines["fedprox"]["gain"]) == (lost == "fedavg")
    assert "no difference if all runs of a line, or of the baseline, diverged" in compared.notes
    assert ("mean ± standard deviation; difference [90 % interval]" in compared.notes) == (lost == "moon")


@pytest.mark.parametrize(("lost", "last"), [(True, 2), (False, 3)])
def test_costs_stand_in_the_round_in_which_a_run_ended(tmp_path: Path, lost: bool, last: int) -> None:
    """Not in the last planned one, which a diverged run never reached."""
    record(Results(tmp_path), tiny(), 0.5, diverged=lost)
    frame = fltrain.load_runs(tmp_path, config=CONFIG)
    rounds = frame.groupby("metric", observed=True)["round"].max()
    assert rounds[["seconds", "traffic", "train_loss"]].tolist() == [last] * 3


def test_measured_statistics_are_no_condition(tmp_path: Path) -> None:
    results = Results(tmp_path)
    plain = record(results, tiny(), 0.5)
    measured = record(results, tiny(evaluation={"statistics": ["drift"]}), 0.5)
    record(results, tiny(method="fedprox", evaluation={"statistics": ["drift"]}), 0.6)
    base, other = by_name(compare(chosen(tmp_path))).values()
    assert base["runs"] in (plain, measured) and base["seeds"] == 1
    assert other["gain"] == pytest.approx(10)
    record(results, tiny(evaluation={"targets": [0.5]}), 0.7)
    with pytest.raises(FltrainError, match="have the same settings and seed, but not the same value"):
        compare(chosen(tmp_path))


def test_plug_ins_are_compared_on_their_base(tmp_path: Path) -> None:
    results = Results(tmp_path)
    finals = {("fedavg", ""): 0.5, ("fedavg", "flfa"): 0.6, ("fedprox", ""): 0.55, ("fedprox", "flfa"): 0.5}
    for (method, plugin), final in finals.items():
        record(results, tiny(method=method, plugins=[plugin] if plugin else []), final)
    runs = chosen(tmp_path)
    assert list(compare(runs).frame["compared"]) == ["fedavg", "fedavg+flfa", "fedprox", "fedprox+flfa"]
    compared = compare(runs, over=["plugins"])
    lines = by_name(compared)
    assert compared.baseline == "none"
    assert lines["flfa fedavg"]["gain"] == pytest.approx(10)
    assert lines["flfa fedprox"]["gain"] == pytest.approx(-5)
    with pytest.raises(FltrainError, match="over 'model': the chosen runs do not differ in it"):
        compare(runs, over=["model"])
    assert {run.fields["plugins"] for run in chosen(tmp_path, "plugins=none")} == {"none"}


@pytest.mark.parametrize("spread_by", [[], ["skew"]])
def test_the_page_of_a_table_shows_the_same_numbers(tmp_path: Path, spread_by: list[str]) -> None:
    """Values, gains and their intervals; one run diverged. A chosen table has its own families of spreads."""
    plugins = {"base": {"set": {"plugins": []}}, "+ ECGR": {"set": {"plugins": ["ecgr"]}}}
    methods = ["fedavg", "fedprox", "fednova", "fedlc", "moon", "scaffold"]
    skews = {alpha: {"set": {"partition": {"alpha": float(alpha)}}} for alpha in ("10.0", "0.1")}
    measured = {"measure": "best_accuracy", "gain_over": {"plugin": "base"}}
    layout = {"rows": "method", "columns": "plugin", "panels": "skew", "spread_by": spread_by}
    item = {
        "title": "A toy",
        "axes": {"method": methods, "plugin": plugins, "skew": skews},
        "table": {**layout, "measures": [measured]},
    }
    config = write_config(tmp_path / "config", {"table": item}, seeds=3)
    results = Results(tmp_path / "results")
    (planned,) = plan(config, "one").items
    draws = np.random.default_rng(0)
    for entry in planned.entries:
        lost = entry.labels == {"method": "moon", "plugin": "+ ECGR", "skew": "0.1"} and entry.seed == 1
        width = 0.1 if entry.labels["skew"] == "0.1" else 0.01
        record(results, entry.spec, round(float(draws.uniform(0.5, 0.5 + width)), 4), diverged=lost)
    shown = cells(planned.sheet, results.record, Published.read(None))
    moderating = {cell.spread_cells for cell in shown if not cell.diverged}
    assert moderating == ({11, 12} if spread_by else {23}), "without the diverged cell"
    where = "items=toy/table scale=one"
    frame = fltrain.compare(tmp_path / "results", where=where, config=config)
    found = compare(find_runs(tmp_path / "results", where, config))
    assert (found.metric, found.baseline, list(found.over)) == ("best_accuracy", "none", ["plugins"])
    assert list(dict.fromkeys(frame["method"])) == methods, "in the order of the page"
    assert list(dict.fromkeys(frame["partition.alpha"])) == ["10.0", "0.1"]
    assert found.notes[0] == (
        "differences are between lines with the same method and partition.alpha; to compare across one of "
        "them, for example partition.alpha: --over plugins,partition.alpha"
    )
    lines = frame.set_index(["method", "partition.alpha", "compared"])
    for cell in shown:
        line = lines.loc[cell.row, cell.panel, "none" if cell.column == "base" else "ecgr"]
        assert [line[name] for name in NUMBERS] == pytest.approx(
            [math.nan if number is None else number for number in cell.measured(NUMBERS).values()],
            nan_ok=True,
        )


def test_a_table_can_have_another_base_under_each_condition(tmp_path: Path) -> None:
    """Each skew has its own learning rate of the base; a gain over FedAvg at 0.1 would be another one."""
    rates = {"0.1": 0.2, "10.0": 0.3}
    settings = {"default": {"set": {}}, "tuned": {"set": {"training": {"lr": 0.2}}}}
    item = {
        "title": "A toy",
        "axes": {
            "method": ["fedavg", "moon"],
            "settings": settings,
            "skew": {alpha: {"set": {"partition": {"alpha": float(alpha)}}} for alpha in rates},
        },
        "exceptions": [
            {"when": {"training.lr": 0.2, "partition.alpha": 10.0}, "set": {"training": {"lr": 0.3}}}
        ],
        "table": {
            **{"rows": "method", "columns": "settings", "panels": "skew"},
            "measures": [
                {"measure": "final_accuracy", "gain_over": {"method": "fedavg", "settings": "tuned"}}
            ],
        },
    }
    config = write_config(tmp_path / "config", {"table": item}, seeds=3)
    results = Results(tmp_path / "results")
    (planned,) = plan(config, "one").items
    draws = np.random.default_rng(0)
    for entry in planned.entries:
        record(results, entry.spec, round(float(draws.uniform(0.5, 0.6)), 4))
    where = "items=toy/table scale=one"
    compared = compare(find_runs(results.root, where, config))
    assert (compared.baseline, compared.shown) == (OWN_BASE, ["partition.alpha"])
    first = {cell.column: cell.row for cell in reversed(compared.cells)}
    assert first == {f"partition.alpha={skew}": f"fedavg, training.lr={rate}" for skew, rate in rates.items()}
    shown = cells(planned.sheet, results.record, Published.read(None))
    gains = {cell.runs: (cell.gain, cell.gain_low, cell.gain_high) for cell in shown}
    assert {cell.runs: (cell.gain, cell.gain_low, cell.gain_high) for cell in compared.cells} == gains
    other = compare(find_runs(results.root, where, config), baseline="moon")
    assert other.baseline == "moon" and OWN_BASE not in {cell.row for cell in other.cells}


def rounds_table(tmp_path: Path, **measured: Any) -> list[RecordedRun]:
    """Return runs of a table of rounds: FedAvg reaches 55 %, FedProx once of three times, MOON diverges."""
    item = {
        "title": "A toy",
        "axes": {"method": ["fedavg", "fedprox", "moon"]},
        "settings": {"evaluation": {"until": 0.55}},
        "table": {"rows": "method", "measures": [measured]},
    }
    config = write_config(tmp_path / "config", {"table": item}, seeds=3)
    for entry in plan(config, "one").items[0].entries:
        method, seed = entry.spec.method.name, entry.spec.seed
        final = {"fedavg": 0.6, "fedprox": 0.6 if seed == 1 else 0.4}.get(method, 0.2)
        record(Results(tmp_path / "results"), entry.spec, final, diverged=method == "moon")
    return find_runs(tmp_path / "results", "items=toy/table scale=one", config)


def test_a_table_of_rounds_to_a_target_compares_rounds(tmp_path: Path) -> None:
    """A seed that misses the target has no difference, whichever side it is on."""
    runs = rounds_table(tmp_path, measure="interpolated_rounds_to_target", printed_target=55.0)
    compared = compare(runs)
    rows = {row["compared"]: row for row in compared.rows()}
    (rounds,) = {run.spec.rounds for run in runs}
    crossing = 0.55 / 0.6 * rounds
    means = compared.frame.set_index("compared")["mean"]
    assert (means["fedavg"], means["fedprox"]) == (pytest.approx(crossing), math.inf)
    assert rows["fedavg"]["rounds to 55 %"] == f"{crossing:.0f} ± 0"
    assert rows["fedprox"]["rounds to 55 %"] == "1 of 3 seeds reach it"
    assert rows["fedprox"]["difference to fedavg"] == "target missed"
    assert "diverged runs never reach the target" in compared.notes
    reverse = {row["compared"]: row for row in compare(runs, baseline="fedprox").rows()}
    assert reverse["fedavg"]["difference to fedprox"] == "target missed"
    (note,) = [note for note in compare(runs, "final_accuracy").notes if "evaluation.until" in note]
    assert note.startswith("9 of 9 runs end at their target accuracy") and note not in compared.notes
    with pytest.raises(
        FltrainError, match=r"median over seeds.*another --metric .interpolated_rounds_to_target"
    ):
        compare(runs, "rounds_to_target")


def test_a_table_that_takes_its_target_from_other_runs_is_refused(tmp_path: Path) -> None:
    runs = rounds_table(
        tmp_path, measure="interpolated_rounds_to_target", target_of={"method": "fedavg"}, printed_target=55.0
    )
    with pytest.raises(
        FltrainError,
        match=r"cannot show 'interpolated_rounds_to_target'.*needs a target.*--metric .final_accuracy",
    ):
        compare(runs)
    assert compare(runs, "final_accuracy").metric == "final_accuracy"


def test_seeds_of_several_items_in_one_line_are_named(tmp_path: Path) -> None:
    """A pilot and its final runs differ by their seeds only; a line of one item has no note."""
    item = {"title": "A toy", "axes": {"method": ["fedavg", "fedprox"]}}
    item["table"] = {"rows": "method", "measures": [{"measure": "final_accuracy"}]}
    items = {"pilot": {**item, "axes": {"method": ["fedavg"]}, "seeds": [9]}, "table": item}
    config = write_config(tmp_path / "config", items, seeds=2)
    results = Results(tmp_path / "results")
    for planned in plan(config, "one").items:
        for entry in planned.entries:
            record(results, entry.spec, 0.5)
    (results.root / "one").mkdir()
    note = "1 line with seeds of several items (toy/table, toy/pilot); for one of them: --where items=NAME"
    assert note in compare(find_runs(results.root, "", config)).notes
    assert not any(
        "several items" in text for text in compare(find_runs(results.root, "seed=0", config)).notes
    )


def test_a_metric_that_no_run_has_is_refused(root: Path) -> None:
    refusals = {
        "drift": r"has 'drift'; their specs lack evaluation\.statistics: \[drift\]",
        "x": "unknown metric 'x'",
        "rounds_to_targt": "unknown metric 'rounds_to_targt'; did you mean 'rounds_to_target'",
        "traffic_to_target": "compare cannot show 'traffic_to_target' of these runs: it needs a target",
        "best_of_all_seeds": "'best_of_all_seeds' of these runs: it is the max over seeds, not a mean",
    }
    for metric, reason in refusals.items():
        with pytest.raises(FltrainError, match=reason):
            compare(chosen(root), metric=metric)
    found = compare(chosen(root, "status=diverged"))
    assert found.rows()[0]["final accuracy, %"] == "1 of 1 diverged"
    assert found.frame[["n", "mean"]].values.tolist() == [[0, pytest.approx(math.nan, nan_ok=True)]]


def test_records_with_unknown_settings_are_left_out_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = Results(tmp_path)
    for seed in (0, 1, 2):
        name = record(results, tiny(seed=seed), 0.5)
        if seed:
            path = results.run(name) / "spec.json"
            path.write_text(path.read_text().replace('"name": "fedavg"', '"name": "clip"'))
            seal(path.parent)
    assert len(chosen(tmp_path)) == 1
    (line,) = caplog.messages
    assert line.startswith("left out: 2 records (`fltrain verify` lists them), the first: ")
    assert "lacks one of its settings (spec.json: method: unknown method 'clip')" in line


def test_runs_are_chosen(root: Path) -> None:
    counts = {"": 10, "method=fedprox": 4, "method=fedavg,moon seed=1": 2}
    counts |= {"training.lr=1e-1": 8, "method.mu=none": 4, "status=diverged": 1}
    assert {where: len({run.run_id for run in chosen(root, where)}) for where in counts} == counts


def test_plug_ins_lists_and_components_are_chosen_by_name(tmp_path: Path) -> None:
    results = Results(tmp_path)
    record(results, tiny(local_test={"fraction": 0.25}, model="mlp"), 0.5)
    for plugins in ([], ["flfa"], ["flfa", "ecgr"]):
        record(results, tiny(plugins=plugins, evaluation={"targets": [0.5, 0.6]}), 0.5)
    for where, plugins in {
        "plugins=none": ["none", "none"],
        "plugins=flfa": ["flfa"],
        "plugins!=none": ["flfa", "flfa+ecgr"],
        "plugins=flfa+ecgr": ["flfa+ecgr"],
        "evaluation.targets=[0.5,0.6],[] model=mobilenet_tiny": ["flfa", "flfa+ecgr", "none"],
        "model=mlp": ["none"],
        "local_test!=none": ["none"],
    }.items():
        assert sorted(run.fields["plugins"] for run in chosen(tmp_path, where)) == plugins, where
    with pytest.raises(FltrainError, match="'local_test' stands for several settings; name one of"):
        chosen(tmp_path, "local_test=0.25")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("method=fedprx", r"no run is left with method=fedprx; did you mean 'fedprox'\?$"),
        ("method=scafold", "no run is left with method=scafold; did you mean 'scaffold'.*there are: fedavg"),
        ("metod=x", "unknown key 'metod'; did you mean 'method'"),
        ("lr=0.1", "unknown key 'lr'; did you mean 'training.lr'?"),
        ("training.lr", "'training.lr' is not a condition; write KEY=VALUE or KEY!=VALUE"),
        ("items=flfa/table4", "has no item 'flfa/table4'; scales paper, small have it: add --scale paper "),
        ("items=flfa/tabel4", r"has no item 'flfa/tabel4'; did you mean 'flfa/table4'\?$"),
        ("paper=fair", "has no item 'fair'; scales .*fair_mnist, published have it: add --scale published "),
        ("scale=demo items=fair", "^scale 'demo' has no item 'fair'; scales fair_digits, "),
        (
            "scale=demo items=flfa/table1",
            "has no run of 'flfa/table1' at scale 'demo'; train its runs with `snakemake --config scale=demo",
        ),
    ],
)
def test_a_filter_that_leaves_no_run_is_refused(root: Path, where: str, message: str) -> None:
    with pytest.raises(FltrainError, match=message):
        chosen(root, where)


@pytest.mark.parametrize("name", ["flfa/figure2", "flfa_figure2", "flfa"])
def test_an_item_is_chosen_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    for item in plan(CONFIG, "demo").items:
        if item.id in ("flfa/figure2", "ecgr/figure2"):
            record(Results(tmp_path), item.entries[0].spec, 0.5)
    (tmp_path / "demo").mkdir()
    (found,) = chosen(tmp_path, f"items={name}")
    assert "flfa/figure2" in found.fields["items"].split()


def test_imported_runs_next_to_others_need_their_scale(tmp_path: Path) -> None:
    """The demonstration's folder assigns its runs to items; runs of another scale are unknown."""
    for scale in ("demo", "small"):
        item = next(one for one in plan(CONFIG, scale).items if one.paper.paper == "flfa")
        record(Results(tmp_path), item.entries[0].spec, 0.5)
    (tmp_path / "demo").mkdir()
    with pytest.raises(FltrainError, match=r"has no item 'fair/accuracy'; scales .* add --scale published"):
        chosen(tmp_path, "items=fair/accuracy")
    with pytest.raises(FltrainError, match=r"no run is left with scale=published \(there are: demo, none\)"):
        chosen(tmp_path, "scale=published")


def run_compare(root: Path, *arguments: object) -> str:
    return cli("compare", "--results", root, "--config", CONFIG, *arguments).output


def test_items_have_the_scale_demo_unless_an_option_names_another(tmp_path: Path) -> None:
    for scale, final in {"small": 0.7, "demo": 0.5}.items():
        (tmp_path / scale).mkdir()
        for entry in next(one for one in plan(CONFIG, scale).items if one.id == "flfa/table1").entries:
            record(Results(tmp_path), entry.spec, final)
    best = ("--metric", "best_accuracy")
    printed = {one: run_compare(tmp_path, "flfa/table1", *best, *one.split()) for one in SCALE_OPTIONS}
    assert {option: ("50.00" in text, "70.00" in text) for option, text in printed.items()} == SCALE_OPTIONS
    every = run_compare(tmp_path, "--over", "dataset", *best)
    assert "50.00" in every and "70.00" in every, "without items, all runs"


SCALE_OPTIONS = {
    "": (True, False),
    "--scale demo": (True, False),
    "--scale small": (False, True),
    "--where scale=small": (False, True),
}
"""Options, and if they choose the runs of the demonstration and of the scale `small`."""


def test_a_condition_outside_the_quotes_is_named(root: Path) -> None:
    with pytest.raises(FltrainError, match=r"'training\.lr=0\.1' is a condition; write all in quotes"):
        run_compare(root, "--where", "method=fedavg", "training.lr=0.1")


def test_the_command_prints_a_table_and_writes_files(root: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    choice = ("--where", "method=fedavg,fedprox", "--where", "training.lr=0.1")
    with pytest.raises(FltrainError, match=r"ends in \.csv"):
        run_compare(root, "--out", "table.md")
    printed = run_compare(root, *choice, "--out", table)
    assert "60.00 ± 10.00" in printed and "+2.67 [-0.84, +6.18]" in printed
    base, other = read_csv(table)
    assert (base.row, other.row, other.value_seeds) == ("fedavg", "fedprox", (0, 1, 2))


def test_the_example_of_the_guide_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example needs the demonstration's runs; here they are hand-made records."""
    (item,) = (one for one in plan(CONFIG, "demo").items if one.id == "flfa/figure2")
    for entry in item.entries:
        final = 0.5 + entry.seed / 100 + len(entry.spec.plugins) / 10
        record(Results(tmp_path / "results"), entry.spec, final)
    (tmp_path / "config").symlink_to(CONFIG)
    monkeypatch.chdir(tmp_path)
    code = GUIDE.read_text(encoding="utf-8").split("```python\n")[1].partition("\n```")[0]
    exec(code, {})
    printed = capsys.readouterr().out
    assert re.search(r"^none +0\.4930\d* +0\.0096\d* +3$", printed, re.MULTILINE), printed
    assert re.search(r"^flfa +0\.5896\d* +0\.0096\d* +3$", printed, re.MULTILINE), printed
