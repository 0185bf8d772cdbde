"""Comparing runs: choosing, pairing by seed, conditions, curves."""

import csv
import itertools
import math
import re
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

import fltrain
from fltrain.core.errors import FltrainError
from fltrain.core.shell import command
from fltrain.experiments.plan import Plan, plan
from fltrain.methods.fedprox import FedProx
from fltrain.reporting.claims import JUDGED, LEGEND, result_lines
from fltrain.reporting.tables.table_cell import OF_GAIN, OF_VALUE, TableCell, from_csv, read_csv, to_csv
from fltrain.reporting.tables.write import write
from fltrain.runs.archive import import_records
from fltrain.runs.record import Results, summarise, write_record
from fltrain.runs.spec import RunSpec
from fltrain.tracking.compare import (
    Comparison,
    _distinguishing,
    compare,
    compare_item,
    compare_runs,
    summarise_papers,
)
from fltrain.tracking.runs import RecordedRun, find_runs

from .helpers import PAPER, SCALE, TINY, TWO_METHODS, cli, seal, tiny, write_config, write_papers

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
        " ".join(filter(None, [line["row"], line["panel"]])): line
        for line in comparison.frame.to_dict("records")
    }


def test_runs_under_different_conditions_are_not_compared(root: Path) -> None:
    """Each learning rate has its own baseline."""
    compared = compare_runs(chosen(root, "method=fedavg,fedprox"))
    lines = by_name(compared)
    names = [f"{method} training.lr={rate}" for rate in ("0.1", "0.5") for method in FINAL]
    assert list(lines) == names
    assert lines["fedprox training.lr=0.5"]["gain"] == pytest.approx(-10)
    assert lines["fedprox training.lr=0.1"]["gain"] == pytest.approx(8 / 3)
    assert compared.frame["training.lr"].tolist() == [0.1, 0.1, 0.5, 0.5]
    assert compared.rows()[3]["training.lr"] == "0.5" and "condition" not in compared.rows()[0]
    page, lacking, note = compared.notes
    assert lacking == "A gain has no interval if fewer than three seeds have both runs."
    gain = "Gains are differences from fedavg, paired by seed, with 90 % intervals."
    assert page == f"Mean ± standard deviation over up to 3 seeds. {gain}"
    equal = "gains compare runs with equal"
    assert note == f"{equal} training.lr; to compare values of training.lr, use --over training.lr"
    *_, note = compare_runs(chosen(root, "method=fedavg,fedprox"), over=["training.lr"]).notes
    assert note == f"{equal} method; to compare values of method, use --over method"
    same_rate = compare_runs(chosen(root, "training.lr=0.1 method=fedavg,fedprox"))
    assert same_rate.notes == [page.replace("up to 3 seeds", "3 seeds (0 to 2)")]


def test_conditions_of_gains_are_a_list_with_commas(tmp_path: Path) -> None:
    for method, lr, rounds in itertools.product(FINAL, (0.1, 0.5), (2, 3)):
        training = {"epochs": 1, "batch_size": 32, "lr": lr}
        record(Results(tmp_path), tiny(method=method, rounds=rounds, training=training), 0.5)
    *_, note = compare_runs(chosen(tmp_path)).notes
    assert note.startswith("gains compare runs with equal training.lr, rounds; to compare")


def test_a_metric_with_several_values_has_a_line_for_each(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for method, final in {"fedavg": 0.5, "fedprox": 0.6}.items():
        record(results, tiny(method=method, evaluation={"extra": ["digits"]}), final)
    frame = compare_runs(chosen(tmp_path), "extra_accuracy").frame
    assert frame[["column", "row"]].values.tolist() == [["digits", "fedavg"], ["digits", "fedprox"]]
    assert frame["gain"][1] == pytest.approx(5)


def test_a_network_has_the_key_that_users_set_and_hides_its_own_options(tmp_path: Path) -> None:
    """Options that only one of the networks has follow from it; shared ones, such as clients, do not."""
    results = Results(tmp_path)
    for model, final in {"2nn": 0.5, "mlp": 0.6}.items():
        record(results, tiny(model=model), final)
    for over in ([], ["model"], ["model.name"]):
        compared = compare_runs(chosen(tmp_path), over=over, baseline="2nn")
        assert [row["variant"] for row in compared.rows()] == ["model=2nn", "model=mlp"]
    record(results, tiny(model={"name": "mlp", "hidden": 7}), 0.7)
    names = [row["variant"] for row in compare_runs(chosen(tmp_path)).rows()]
    hidden = {"2nn": ["none"], "mlp": ["100", "7"]}
    assert {*names} == {f"model={model}, model.hidden={size}" for model in hidden for size in hidden[model]}
    other = {"name": "dirichlet", "alpha": 0.5, "clients": 7}
    record(results, tiny(model="2nn", partition=other), 0.7)
    by_clients = compare_runs(chosen(tmp_path, "model=2nn"), over=["partition"]).rows()
    assert all("clients=" in row["variant"] for row in by_clients)


def test_any_setting_can_be_compared(root: Path) -> None:
    lines = by_name(compare_runs(chosen(root, "method=fedavg,fedprox"), over=["training"]))
    assert list(lines) == [f"training.lr={lr} method={name}" for name in FINAL for lr in (0.1, 0.5)]
    assert lines["training.lr=0.5 method=fedavg"]["gain"] == pytest.approx(40)
    only = compare_runs(chosen(root, "method=fedavg"))
    # If methods are equal, the setting that differs is compared.
    assert list(only.frame["row"]) == ["training.lr=0.1", "training.lr=0.5"]
    assert "Gains are differences from training.lr=0.1, paired by seed." in only.notes[0]


def test_the_baseline_can_be_chosen(root: Path) -> None:
    runs = chosen(root, "training.lr=0.1 method=fedavg,fedprox")
    compared = compare_runs(runs, baseline="fedprox")
    assert list(compared.frame["row"]) == ["fedprox", "fedavg"]
    assert by_name(compared)["fedavg"]["gain"] == pytest.approx(-8 / 3)
    rates = chosen(root, "method=fedavg")
    assert compare_runs(rates, baseline="0.5").frame["row"].tolist() == ["training.lr=0.5", "training.lr=0.1"]
    with pytest.raises(
        FltrainError, match=r"unknown variant '0\.7' \(variants: 'training\.lr=0\.1', 'training"
    ):
        compare_runs(rates, baseline="0.7")
    with pytest.raises(FltrainError, match=r"unknown variant '0\.5'"):
        compare_runs(chosen(root, "method=fedavg,fedprox"), over=["training", "method"], baseline="0.5")
    with pytest.raises(FltrainError, match="baseline: unknown variant 'fedprx'; did you mean 'fedprox'"):
        compare_runs(runs, baseline="fedprx")


def test_diverged_runs_count_as_chance_accuracy(root: Path) -> None:
    """As in tables: 10 % among ten classes."""
    compared = compare_runs(chosen(root, "training.lr=0.1 method=fedavg,moon"))
    line = by_name(compared)["moon"]
    assert (line["seeds"], line["diverged"], line["mean"]) == (2, 1, pytest.approx((40 + 10) / 2))
    row = compared.rows()[1]
    # From 50 to 40 and from 60 to 10.
    assert row["final accuracy, %"].startswith("1 of 2 diverged; 25.00")
    assert row["gain"] == "-30.00 (2 pairs: 25.00 - 55.00)", "two pairs have no interval"
    assert "A diverged run counts as chance accuracy" in compared.notes[0]
    seconds = compare_runs(chosen(root, "training.lr=0.1 method=fedavg,moon"), metric="seconds")
    assert by_name(seconds)["moon"]["n"] == 1 and seconds.rows()[1]["seeds"] == "1 of 2"
    assert "A diverged run has no value." in seconds.notes[0] and "chance" not in seconds.notes[0]


@pytest.mark.parametrize(("lost", "text"), [("moon", "diverged"), ("fedavg", "base diverged")])
def test_a_difference_is_no_measurement_if_all_runs_of_a_side_diverged(
    tmp_path: Path, lost: str, text: str
) -> None:
    """Neither in the terminal nor in the data frame; lines of which some runs diverged have one."""
    results = Results(tmp_path)
    for method in ("fedavg", "fedprox", "moon"):
        for seed in (0, 1, 2):
            record(results, tiny(method=method, seed=seed), 0.5 + seed / 100, diverged=method == lost)
    compared = compare_runs(chosen(tmp_path))
    lines, printed = by_name(compared), {row["variant"]: row for row in compared.rows()}
    assert printed["moon"]["gain"] == text
    assert printed[lost]["final accuracy, %"] == "3 of 3 diverged"
    numbers = ("gain", "gain_std", "gain_low", "gain_high")
    assert all(math.isnan(lines["moon"][name]) for name in numbers)
    assert all(math.isnan(lines[lost][name]) for name in ("mean", "std", "low", "high"))
    assert lines[lost]["n"] == 0
    assert (lines["moon"]["diverged"], lines["moon"]["base_diverged"]) == (
        (3, 0) if lost == "moon" else (0, 3)
    )
    assert math.isnan(lines["fedprox"]["gain"]) == (lost == "fedavg")
    assert "If all runs of a cell or of its base diverged, there is no gain." in compared.notes[0]


@pytest.mark.parametrize(("lost", "last"), [(True, 2), (False, 3)])
def test_costs_stand_in_the_round_in_which_a_run_ended(tmp_path: Path, lost: bool, last: int) -> None:
    """Not in the last planned one, which a diverged run never reached."""
    record(Results(tmp_path), tiny(), 0.5, diverged=lost)
    frame = fltrain.load_runs(tmp_path, config=CONFIG)
    rounds = frame.groupby("metric", observed=True)["round"].max()
    assert rounds[["seconds", "traffic", "train_loss"]].tolist() == [last] * 3


def test_data_frames_have_the_rounds_to_the_target_at_which_a_run_ends(tmp_path: Path) -> None:
    """The accuracy rises by 0.2 a round; a target that is never reached has no number of rounds."""
    runs = [record(Results(tmp_path), tiny(evaluation={"until": until}), 0.6) for until in (0.5, 0.9)]
    runs.append(record(Results(tmp_path), tiny(), 0.6))
    frame = fltrain.load_settings(tmp_path, config=CONFIG).loc[runs]
    rounds, missed = frame["interpolated_rounds_to_target"], frame["target_missed"]
    assert rounds.tolist() == [pytest.approx(2.5), *[pytest.approx(math.nan, nan_ok=True)] * 2]
    assert missed.tolist() == [0, 1, pytest.approx(math.nan, nan_ok=True)]


def test_measured_statistics_are_no_condition(tmp_path: Path) -> None:
    results = Results(tmp_path)
    plain = record(results, tiny(), 0.5)
    measured = record(results, tiny(evaluation={"statistics": ["drift"]}), 0.5)
    record(results, tiny(method="fedprox", evaluation={"statistics": ["drift"]}), 0.6)
    base, other = by_name(compare_runs(chosen(tmp_path))).values()
    assert base["runs"] in ((plain,), (measured,)) and base["seeds"] == 1
    assert other["gain"] == pytest.approx(10)
    seconds = compare_runs(chosen(tmp_path), "seconds")  # they take time
    lines = [(row["evaluation.statistics"], row["variant"], row["change"]) for row in seconds.rows()]
    assert lines == [
        ('["drift"]', "fedavg", ""),
        ('["drift"]', "fedprox", "0.00"),
        ("[]", "fedavg", ""),
    ]
    record(results, tiny(evaluation={"targets": [0.5]}), 0.7)
    with pytest.raises(FltrainError, match="have the same settings and seed, but not the same value"):
        compare_runs(chosen(tmp_path))


def test_plug_ins_are_compared_on_their_base(tmp_path: Path) -> None:
    results = Results(tmp_path)
    finals = {("fedavg", ""): 0.5, ("fedavg", "flfa"): 0.6, ("fedprox", ""): 0.55, ("fedprox", "flfa"): 0.5}
    for (method, plugin), final in finals.items():
        record(results, tiny(method=method, plugins=[plugin] if plugin else []), final)
    runs = chosen(tmp_path)
    assert list(compare_runs(runs).frame["row"]) == ["fedavg", "fedavg+flfa", "fedprox", "fedprox+flfa"]
    lines = by_name(compare_runs(runs, over=["plugins"]))
    assert next(iter(lines)) == "none method=fedavg"
    assert lines["flfa method=fedavg"]["gain"] == pytest.approx(10)
    assert lines["flfa method=fedprox"]["gain"] == pytest.approx(-5)
    with pytest.raises(FltrainError, match="over 'model': the chosen runs do not differ in it"):
        compare_runs(runs, over=["model"])
    with pytest.raises(FltrainError, match=r"over: unknown key 'lr'; did you mean 'training.lr'\?$"):
        compare_runs(runs, over=["lr"])
    with pytest.raises(FltrainError, match=r"over: unknown key 'xyz' \(known: .*dataset"):
        compare_runs(runs, over=["xyz"])
    assert {run.fields["plugins"] for run in chosen(tmp_path, "plugins=none")} == {"none"}


def test_a_comparison_shows_its_numbers_in_a_notebook(root: Path) -> None:
    """Empty columns, and long ones such as run IDs, are left out; a selection shows all of its columns."""
    frame = fltrain.compare(root, where="training.lr=0.1 method=fedavg,fedprox", config=CONFIG)
    columns = ["row", "n", "mean", "std", "low", "high", "gain", "gain_low", "gain_high"]
    heading, first, second, note = repr(frame).splitlines()
    assert heading.split() == columns and first.split()[:4] == ["0", "fedavg", "3", "60.00"]
    assert second.split()[7] == "2.67" and note == "(final_accuracy, %; 17 more columns)"
    assert not pd.get_option("display.float_format"), "other frames keep their display"
    html = frame._repr_html_()
    assert re.findall("<th>(.*?)</th>", html) == ["", *columns, "0", "1"]
    assert (
        "<td></td>" in html
        and "NaN" not in html
        and html.endswith("<p>final_accuracy, %; 17 more columns</p>")
    )
    assert frame.round(1)._repr_html_().count("<td>2.70</td>") == 1, "also after a change of its values"
    part = frame[["row", "runs"]]
    assert repr(part) == repr(pd.DataFrame(part)) and part._repr_html_() == pd.DataFrame(part).to_html(
        na_rep=""
    )
    assert len(frame.columns) == 26 and len(frame.head(0).columns) == 26 and "Empty" in repr(frame.head(0))
    drift = frame.assign(measure="drift", unit="", mean=0.012345)
    assert "0.01235" in repr(drift) and repr(drift).endswith("(drift; 17 more columns)")
    lost = fltrain.compare(root, where="method=moon", config=CONFIG)
    assert repr(lost).split()[:4] == ["row", "n", "diverged", "mean"]
    assert repr(lost).splitlines()[1].split()[:4] == ["0", "moon", "2", "1"]


# -------------------------------------------------------------------------------------------------- curves
def drawn(axes: Axes) -> dict[str, list[float]]:
    """The values of each line in the legend."""
    lines = axes.get_legend_handles_labels()
    return {label: list(line.get_ydata()) for line, label in zip(*lines, strict=True)}


def bands(axes: Axes) -> list[set[tuple[float, float]]]:
    """The corners of each band."""
    return [{(x, round(y, 6)) for x, y in band.get_paths()[0].vertices} for band in axes.collections]


def test_a_plot_has_mean_and_range_over_seeds(root: Path) -> None:
    """Accuracies rise linearly to their final values, in three rounds."""
    axes = fltrain.plot(root, where="training.lr=0.1 method=fedavg,fedprox", config=CONFIG)
    rise = np.array([1, 2, 3]) / 3
    lines = drawn(axes)
    assert list(lines) == ["fedavg, 3 seeds", "fedprox, 3 seeds"]
    for (values, band), finals in zip(
        zip(lines.values(), bands(axes), strict=True), FINAL.values(), strict=True
    ):
        assert values == pytest.approx(np.mean(finals) * rise)
        ends = {
            (x, round(end * share, 6)) for x, share in enumerate(rise, 1) for end in (finals[0], finals[-1])
        }
        assert band == ends
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("communication round", "test accuracy")
    assert fltrain.plot(root, where="method=fedavg", config=CONFIG) is not axes, "a plot has its own axes"
    assert fltrain.plot(root, where="method=moon", metric="train_loss", config=CONFIG, ax=axes) is axes
    assert list(drawn(axes))[2:] == ["moon, 2 seeds"]


def test_a_plot_names_conditions_and_compares_any_setting(root: Path) -> None:
    axes = fltrain.plot(root, where="method=fedavg,fedprox", config=CONFIG)
    labels = [f"{method}, training.lr={rate}" for rate in ("0.1", "0.5") for method in FINAL]
    assert [name.rpartition(", ")[0] for name in drawn(axes)] == labels
    assert len(bands(axes)) == 2, "a single seed has no range"
    axes = fltrain.plot(root, where="method=fedavg", over="training.lr", config=CONFIG)
    assert list(drawn(axes)) == ["training.lr=0.1, 3 seeds", "training.lr=0.5, 1 seed"]


def test_the_range_of_a_plot_ends_with_the_first_seed(root: Path) -> None:
    """A diverged run has two rounds; a thin line continues with the mean of the others."""
    axes = fltrain.plot(root, where="method=moon", config=CONFIG)
    full_line, mean = (line.get_ydata() for line in axes.lines)
    assert full_line == pytest.approx([0.4 / 3, 0.8 / 3, math.nan], nan_ok=True)
    assert mean == pytest.approx([0.4 / 3, 0.8 / 3, 0.4])
    assert max(x for x, _ in bands(axes)[0]) == 2


def test_a_plot_of_an_item_has_its_labels(imported: Path) -> None:
    axes = fltrain.plot(imported, items="controls/positive", scale="published", config=CONFIG)
    assert list(drawn(axes)) == [f"{name}, 5 seeds" for name in ("FedAvg", "FedProx", "FedAvg + ECGR")]
    part = {"items": "controls/positive", "scale": "published", "where": "method=fedprox"}
    assert list(drawn(fltrain.plot(imported, **part, config=CONFIG))) == ["FedProx, 5 seeds"]


def test_settings_to_compare_must_differ_between_runs(tmp_path: Path) -> None:
    for seed in range(2):
        record(Results(tmp_path), tiny(seed=seed), 0.5)
    problem = r"the chosen runs do not differ in it \(they differ only in their seeds\)$"
    with pytest.raises(FltrainError, match=problem):
        compare_runs(chosen(tmp_path), over=["model"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "test_acuracy"}, r"unknown metric 'test_acuracy'; did you mean 'test_accuracy'\?$"),
        (
            {"metric": "final_accuracy"},
            r"unknown metric 'final_accuracy'.* \(metrics over rounds: test_accuracy",
        ),
        ({"metric": "drift"}, r"none of the chosen runs has 'drift': the runs lack evaluation\.statistics"),
        ({"metric": 5}, "metric should be a text, got 5"),
        ({"where": "method=fedprx"}, "no run is left with method=fedprx; did you mean 'fedprox'"),
        ({"over": "model"}, "over 'model': the chosen runs do not differ in it"),
        ({"ax": 5}, r"ax should be axes of Matplotlib, such as pyplot\.subplots\(\)\[1\], got 5"),
        ({"results": "nowhere"}, "nowhere: no such folder; .*train runs, or name another results folder"),
    ],
)
def test_mistakes_in_a_plot_have_one_error(root: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FltrainError, match=message) as refused:
        fltrain.plot(**{"results": root, "config": CONFIG, **arguments})
    assert "\n" not in str(refused.value)


def test_a_plot_needs_the_metric_of_all_runs_and_a_value(tmp_path: Path) -> None:
    lost = tiny(method="fedprox")
    facts = {"bytes": {"up": 10, "down": 20}, "digests": {"data": "ab" * 32, "partition": "cd" * 32}}
    summary = summarise(lost, [], {"round": 1, "what": "loss"}, facts)
    write_record(Results(tmp_path).run(lost.run_id), lost, [], summary, {"seconds": {"total": 2.0}}, {})
    with pytest.raises(FltrainError, match="no value of 'test_accuracy': all runs diverged in their first"):
        fltrain.plot(tmp_path, config=CONFIG)
    record(Results(tmp_path), tiny(), 0.5)
    assert list(drawn(fltrain.plot(tmp_path, config=CONFIG))) == ["fedavg, 1 seed"]


# ---------------------------------------------------------------------------------------- cells of an item
@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published records."""
    folder = tmp_path_factory.mktemp("published")
    import_records(Path(__file__).parents[2] / "published" / "records.tar.gz", Results(folder))
    return folder


@cache
def published() -> Plan:
    return plan(CONFIG, "published")


def cells_of(results: Path, name: str, metric: str | None = None) -> Comparison:
    """Return the cells of a published item."""
    (item,) = (item for item in published().items if item.id == name)
    return compare_item(item, Results(results), CONFIG, metric)


@pytest.mark.parametrize(
    ("name", "labels", "texts"),
    [
        (
            "fedavg/table1_2nn",
            ("clients", "setting"),
            {
                "seeds": "3",
                "rounds to target": "134 ± 8",
                "published": "316 [1]",
                "difference": "-182 [-199, -165]",
            },
        ),
        ("fair/accuracy", ("skew", "method", "settings"), {"seeds": "5", "gain": "+6.52 [-0.003, +13.04]"}),
        ("fair/costs", ("skew", "method"), {"seeds": "5"}),
        ("fair/robustness", ("skew", "method"), {"measure": "best trial, %", "value": "70.14 at 2"}),
        ("replication_cifar10/flfa_bases", ("method", "plugin"), {"gain": "-0.65 [-0.86, -0.43]"}),
    ],
)
def test_an_item_has_the_cells_of_its_page(
    imported: Path, tmp_path: Path, name: str, labels: tuple[str, ...], texts: dict[str, str]
) -> None:
    """The data frame and the CSV file equal the CSV file of the page."""
    (item,) = (item for item in published().items if item.id == name)
    page = tmp_path / "page.csv"
    write(item.sheet, Results(imported).record, item.published(CONFIG), {"csv": page})
    expected = read_csv(page)
    for metric in dict.fromkeys(cell.measure for cell in expected):
        compared = cells_of(imported, name, metric)
        cells = [cell for cell in expected if cell.measure == metric]
        assert from_csv(to_csv(compared.cells)) == cells
        frame = compared.frame
        assert {*frame} - {"unit"} == {*pd.read_csv(page)}
        for line, cell in zip(frame.to_dict("records"), cells, strict=True):
            lost = (*OF_VALUE * cell.lost, *OF_GAIN * bool(cell.lost_gain))
            for column in (*OF_VALUE, *OF_GAIN, "published", "verdict", "gain_verdict"):
                if column in lost or getattr(cell, column) is None:
                    assert column == "n" or pd.isna(line[column]), (column, cell.place)
                else:
                    assert line[column] == getattr(cell, column), (column, cell.place)
    rows = cells_of(imported, name).rows()
    assert tuple(rows[0])[: len(labels)] == labels
    assert any(texts.items() <= row.items() for row in rows), rows


LABELS = ("paper", "item", "panel", "row", "column", "measure", "unit")
LISTS = ("value_seeds", "values", "runs")
SHORT = {
    *LABELS,
    *("n", "diverged", "mean", "std", "low", "high", "gain", "gain_low", "gain_high", "gain_verdict"),
    *("published", "published_std", "difference", "difference_low", "difference_high", "verdict"),
    *LISTS,
}


@pytest.mark.parametrize(
    ("choice", "unit"),
    [
        ({"items": "controls/positive"}, "%"),
        ({"items": "fair/costs"}, "rounds"),
        ({"items": "fair/accuracy", "metric": "seconds"}, "seconds"),
        ({"items": "fair/accuracy", "metric": "test_loss"}, ""),
        ({"where": "items=controls/positive", "over": ["plugins"]}, "%"),
    ],
    ids=str,
)
def test_the_data_frame_is_short_and_has_types_and_units(
    imported: Path, choice: dict[str, Any], unit: str
) -> None:
    """The same columns and types for every call, also if a column is empty."""
    choice = {**choice, "scale": "published", "config": CONFIG}
    frame, full = fltrain.compare(imported, **choice), fltrain.compare(imported, **choice, details=True)
    assert {*frame} == SHORT and len(frame) == len(full) and {*frame["unit"]} == {unit}
    assert list(full)[: len(SHORT)] == list(frame)
    assert {*full} >= {*SHORT, *TableCell.model_fields}
    for name in full:
        if isinstance(full[name].iloc[0], tuple):
            assert len(full[name].iloc[0]) == full["n"][0] or name not in LISTS
        elif str(name).endswith("verdict"):
            assert full[name].dtype == "category" and len(full[name].cat.categories) >= 4
        else:
            assert pd.api.types.is_string_dtype(full[name]) or pd.api.types.is_numeric_dtype(full[name]), name
    assert all(isinstance(full[name].iloc[0], tuple) for name in (*LISTS, "gains", "anomalies"))
    for line in frame.to_dict("records"):
        assert line["mean"] == pytest.approx(sum(line["values"]) / len(line["values"]))
        assert all((imported / "runs" / run).is_dir() for run in line["runs"])


def test_conditions_are_columns_of_the_complete_data_frame(root: Path) -> None:
    choice: dict[str, Any] = {"where": "method=fedavg,fedprox", "config": CONFIG}
    assert {*fltrain.compare(root, **choice)} == SHORT
    full = fltrain.compare(root, **choice, details=True)
    assert full["training.lr"].tolist() == [0.1, 0.1, 0.5, 0.5]


def test_settings_that_are_numbers_are_numbers_in_data_frames(root: Path, tmp_path: Path) -> None:
    """Texts would sort 0.1 after 0.05, and 10 before 5."""
    record(Results(tmp_path), tiny(), 0.5)
    record(Results(tmp_path), tiny(method="fedprox", local_test={"fraction": 0.25}), 0.5)
    settings = fltrain.load_settings(tmp_path, config=CONFIG)
    assert settings["training.lr"].tolist() == [0.1, 0.1] and settings["rounds"].tolist() == [3, 3]
    assert settings["local_test.fraction"].sum() == 0.25 and settings["method.mu"].count() == 1
    assert {*settings["plugins"]} == {"none"} and settings["evaluation.extra"].tolist() == ["[]", "[]"]
    assert settings["seed"].dtype == "int64" and settings["commit"].tolist() == ["unknown"] * 2


def test_a_condition_shows_cells_of_the_page_unchanged(imported: Path) -> None:
    """The base and the other cells still count, for gains, spreads and the false discovery rate."""
    asked: Any = (imported, CONFIG, ["fair/accuracy"], "published")
    page, part = compare(*asked), compare(*asked, "method=fedacg,fedavg plugins=none")
    assert {cell.row for cell in part.cells} == {"FedAvg", "FedACG"} and len(part.cells) == 8
    assert part.cells == [cell for cell in page.cells if cell.row in ("FedAvg", "FedACG")]
    assert part.rows() == [row for row in page.rows() if row["method"] in ("FedAvg", "FedACG")]
    assert part.heading == f"{page.heading}, only method=fedacg,fedavg plugins=none"
    text = f"8 of {len(page.cells)} cells; gains, intervals and verdicts come from the whole table"
    rate = "corrected for all differences of this table (false discovery rate 5 %)"
    assert text in part.notes and any(rate in note for note in part.notes)
    assert not any("whole table" in note for note in page.notes)
    without_base = compare(*asked, "method=feddyn")
    assert {cell.row for cell in without_base.cells} == {"FedDyn"}
    assert all(cell.gains for cell in without_base.cells)
    with pytest.raises(
        FltrainError, match="in no cell do all runs meet seed=1; drop a condition, or compare"
    ):
        compare(*asked, "seed=1")
    with pytest.raises(FltrainError, match="no run is left with method=fedacgg; did you mean 'fedacg'"):
        compare(*asked, "method=fedacgg")
    with pytest.raises(
        FltrainError, match=r"^fair/accuracy at scale published: no run .*\(values of model: 'lenet5'"
    ):
        compare(*asked, "model=vgg9")


def test_a_condition_on_records_chooses_runs_by_settings(imported: Path) -> None:
    runs = compare(imported, CONFIG, ["fair/accuracy"], "published", "status=completed")
    assert runs.heading == "" and {cell.column for cell in runs.cells} == {""}
    over = compare(imported, CONFIG, ["ecgr/confirmatory"], "published", over=["plugins"])
    assert {cell.measure for cell in over.cells} == {"last_accuracy"}, "as in the table"


def test_a_paper_has_its_tables_with_counts_of_verdicts(imported: Path) -> None:
    pages = [cells_of(imported, "controls/flower", metric) for metric in ("last_accuracy", "best_accuracy")]
    verdicts = Counter(cell.full_verdict for page in pages for cell in page.cells)
    (summary,) = summarise_papers(imported, CONFIG, ["controls"], "published")
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
    assert summary.items["controls/flower"][1] == counts
    assert len([text for _, text in summary.items.values() if text]) == 4
    assert len(summarise_papers(imported, CONFIG, ["controls", "fedavg"], "published")) == 2
    assert summarise_papers(imported, CONFIG, ["controls/flower"], "published") == []


def test_confirmatory_claims_come_first(imported: Path) -> None:
    """As on the paper's page."""
    (summary,) = summarise_papers(imported, CONFIG, ["ecgr"], "published")
    exploratory = [bool(claim["exploratory"]) for claim in summary.claims if claim["verdict"] in JUDGED]
    assert exploratory == sorted(exploratory) and {*exploratory} == {False, True}
    unjudged = [claim["verdict"] not in JUDGED for claim in summary.claims]
    assert unjudged == sorted(unjudged) and {*unjudged} == {False, True}


def test_a_paper_has_its_claims_with_verdicts_and_numbers(imported: Path) -> None:
    """They equal the claims of its page; claims without a verdict of the runs are counted."""
    (summary,) = summarise_papers(imported, CONFIG, ["fedavg"], "published")
    with (CONFIG.parent / "published/fedavg/claims.csv").open() as file:
        rows = list(csv.DictReader(file))
    judged = [row for row in rows if row["verdict"] not in ("not run", "not judged")]
    keys = ("where", "claim", "verdict", "number", "needed", "reason")
    assert [[claim[key] for key in keys] for claim in summary.claims] == [
        [row[key] for key in keys] for row in judged
    ]
    folders = ("--results", imported, "--config", CONFIG)
    lines = cli("compare", "fedavg", "--scale", "published", *folders).stdout.splitlines()
    assert lines[0] == "Claims of fedavg at scale published: 3 supported; 5 inconclusive"
    claims = lines[1 : lines.index("Tables and figures of fedavg at scale published:")]
    assert max(map(len, claims)) <= 100
    words = [
        f"{row['verdict']} {row['where']}: {row['claim']} {' '.join(result_lines(row))}" for row in judged
    ]
    words += [LEGEND, f"{len(rows) - len(judged)} further claims: not run, or not judged"]
    assert " ".join(claims).split() == " ".join(words).split()
    example = f"fltrain compare fedavg/table1_2nn --scale published --results {imported} --config {CONFIG}"
    assert lines[-2] == f"cells of a table or figure: {example}"
    with pytest.raises(FltrainError, match="has no run of 'flfa' at scale 'demo'"):
        cli("compare", "flfa", *folders)
    grouped = cli("compare", "fedavg", "--scale", "published", "--where", "training.lr=0.1", *folders).stdout
    assert "final accuracy, %" in grouped and "Claims" not in grouped
    wide = cli("compare", "--where", "dataset=digits", "--scale", "published", *folders).stdout
    assert re.match(
        r"Runs of controls/.* For one table or figure: fltrain compare controls/\w+ --scale pub", wide
    )


def test_measures_that_an_item_does_not_declare(imported: Path) -> None:
    """They have the target and the base of the others; one that its runs lack is refused."""

    table = "fedavg/table1_2nn"
    median = cells_of(imported, table, "rounds_to_target")
    rounds = {cell.place: cell.mean for cell in median.cells}
    assert rounds["C = 1 / IID, B = 10"] == 33
    assert {cell.over_seeds for cell in median.cells} == {"median"}
    (note,) = [
        note for note in cells_of(imported, table, "final_accuracy").notes if "evaluation.until" in note
    ]
    assert note.startswith("48 of 48 runs end at their target accuracy")
    gains = cells_of(imported, "fair/accuracy", "seconds")
    assert (
        "Changes are differences from FedAvg, tuned, paired by seed, with 90 % intervals." in gains.notes[0]
    )
    refusals = {
        (
            "drift",
            "fedavg/table1_2nn",
        ): r"cannot show 'drift': the runs lack evaluation.statistics: \[drift\]",
        ("traffic_to_target", "fair/accuracy"): "'traffic_to_target' needs 'target_of' or 'printed_target'",
        (
            "rounds_to_targt",
            "fair/costs",
        ): "unknown metric 'rounds_to_targt'; did you mean 'rounds_to_target'",
    }
    for (metric, name), reason in refusals.items():
        with pytest.raises(FltrainError, match=reason):
            cells_of(imported, name, metric)


def test_a_figure_has_its_labels_and_a_base(tmp_path: Path) -> None:
    """The first line of the figure is the base of the others."""
    item = next(item for item in plan(CONFIG, "demo").items if item.id == "ecgr/figure2")
    for entry in item.entries:
        record(Results(tmp_path), entry.spec, 0.5 + len(entry.spec.plugins) / 10)
    figure = compare(tmp_path, CONFIG, ["ecgr_figure2"])
    assert "demo: final accuracy of the runs behind “Accuracy of FedAvg, " in figure.heading
    rows = {row["plugin"]: row for row in figure.rows()}
    assert list(rows) == ["base", "+ ECGR"] and rows["+ ECGR"]["gain"].startswith("+9.")
    with pytest.raises(FltrainError, match="fedfcd/figure3 shows partitions, without runs to compare"):
        compare(tmp_path, CONFIG, ["fedfcd/figure3"])
    with pytest.raises(FltrainError, match="has no run of 'flfa/table1' at scale 'demo'"):
        compare(tmp_path, CONFIG, ["flfa/table1"])


def test_seeds_are_counted_by_cell_if_cells_have_different_ones(tmp_path: Path) -> None:
    for method, seeds in {"fedavg": (0, 1), "fedprox": (0, 5)}.items():
        for seed in seeds:
            record(Results(tmp_path), tiny(method=method, seed=seed), 0.5)
    (first, *_) = compare_runs(chosen(tmp_path)).notes
    assert first.startswith("Mean ± standard deviation over 2 seeds.")


def test_a_gain_of_a_part_of_the_seeds_has_the_means_of_its_pairs(tmp_path: Path) -> None:
    """They explain the gain if a side has further seeds, whose means it does not fit."""
    for rate, finals in {0.05: (0.4,), 0.1: (0.45, 0.9), 0.2: (0.7,)}.items():
        for seed, final in enumerate(finals):
            training = {"epochs": 1, "batch_size": 32, "lr": rate}
            record(Results(tmp_path), tiny(seed=seed, training=training), final)
    runs = chosen(tmp_path)

    def gains(**options: Any) -> list[tuple[str, str]]:
        rows = compare_runs(runs, over=["training.lr"], **options).rows()
        return [(row["final accuracy, %"], row["gain"]) for row in rows]

    assert gains() == [
        ("40.00", ""),
        ("67.50 ± 31.82", "+5.00 (1 pair: 45.00 - 40.00)"),
        ("70.00", "+30.00"),
    ]
    assert gains(baseline="training.lr=0.1") == [
        ("67.50 ± 31.82", ""),
        ("40.00", "-5.00 (1 pair: 40.00 - 45.00)"),
        ("70.00", "+25.00 (1 pair: 70.00 - 45.00)"),
    ]


def test_missing_and_damaged_runs_are_counted(tmp_path: Path) -> None:
    item = next(item for item in plan(CONFIG, "demo").items if item.id == "flfa/figure2")
    entries = item.entries[:-1]
    for entry in entries:
        record(Results(tmp_path), entry.spec, 0.5)
    (Results(tmp_path).run(entries[0].spec.run_id) / "metrics.jsonl").write_text("{")
    compared = compare(tmp_path, CONFIG, ["flfa/figure2"])
    assert compared.notes[0].startswith("Mean ± standard deviation over up to 3 seeds.")
    base, other = compared.rows()
    assert (base["seeds"], other["seeds"]) == ("2 of 3", "2 of 3")
    assert "1 of 3 damaged" in base["final accuracy, %"] and "1 of 3 not run" in other["final accuracy, %"]
    assert other["gain"] == "0.00 (1 pair: 48.33 - 48.33)"
    assert "A gain has no interval if fewer than three seeds have both runs." in compared.notes


# ------------------------------------------------------------------------------------------ runs by settings
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
    note = "1 line combines runs of several tables or figures, whose seeds differ (toy/table, "
    note += "toy/pilot); for one of them: --where items=NAME"
    assert note in compare_runs(find_runs(results.root, "", config)).notes
    assert not any(
        "combines runs" in text for text in compare_runs(find_runs(results.root, "seed=0", config)).notes
    )


def test_the_fewest_conditions_that_distinguish_lines_are_shown() -> None:
    lines = pd.DataFrame({"size": [1, 1, 2, 2], "clients": [5, 6, 7, 8], "name": list("abab")})
    assert _distinguishing(lines) == ["clients"]
    assert _distinguishing(lines.assign(clients=[5, 5, 7, 7])) == ["size", "name"]
    assert _distinguishing(lines[["size"]]) == _distinguishing(lines[["size"]][1:3]) == ["size"]


def test_a_metric_that_no_run_has_is_refused(root: Path) -> None:
    refusals = {
        "drift": r"has 'drift': the runs lack evaluation\.statistics: \[drift\]",
        "x": r"unknown metric 'x' \(known: final_accuracy, ",
        "accuracy": "unknown metric 'accuracy'; did you mean 'final_accuracy', 'best_accuracy', ",
        "traffic_to_target": "compare shows 'traffic_to_target' only of a table that declares it",
        "best_of_all_seeds": "compare shows 'best_of_all_seeds' only of a table that declares it",
    }
    for metric, reason in refusals.items():
        with pytest.raises(FltrainError, match=reason):
            compare_runs(chosen(root), metric=metric)
    compared = compare_runs(chosen(root, "status=diverged"))
    assert compared.rows()[0]["final accuracy, %"] == "1 of 1 diverged"
    assert compared.frame["n"].tolist() == [0] and compared.frame["mean"].isna().all()


def test_records_that_are_left_out_have_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once in a process, also before an error; records of other items than the named ones have none."""
    results, verify = Results(tmp_path), command("fltrain verify", tmp_path, CONFIG)
    item = next(item for item in plan(CONFIG, "demo").items if item.id == "flfa/figure2")
    runs = [record(results, entry.spec, 0.5) for entry in item.entries]
    for seed in (0, 1):
        folder = results.run(record(results, tiny(seed=seed), 0.5))
        (folder / "spec.json").write_text((folder / "spec.json").read_text().replace('"fedavg"', '"mine"'))
        seal(folder)
    chosen(tmp_path, "items=flfa scale=demo")
    assert caplog.messages == []
    (results.run(runs[0]) / "metrics.jsonl").write_text("{")
    chosen(tmp_path, "items=flfa scale=demo")
    damaged = f"left out: 1 damaged record ({verify} lists them)"
    assert caplog.messages == [damaged]
    for _ in range(2):
        with pytest.raises(FltrainError, match=r"no run is left with method=mine \(values of method: [^;]*$"):
            chosen(tmp_path, "method=mine")
    unknown = f"left out: 2 records with settings that today's code lacks ({verify} lists them), for example "
    unknown += "method: unknown method 'mine'; if it is your own, set FLTRAIN_PATH to your folder; if a "
    unknown += "notebook or script defines it, register it first (fltrain.register)"
    assert caplog.messages == [damaged, unknown]
    for run in runs[1:]:
        shutil.rmtree(results.run(run))
    with pytest.raises(FltrainError, match=r"runs: only 3 unusable runs \(`fltrain status"):
        chosen(tmp_path)


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
        "local_test=0.25": ["none"],
        "participation!=1 evaluation.validation=0 model=mlp": ["none"],
    }.items():
        assert sorted(run.fields["plugins"] for run in chosen(tmp_path, where)) == plugins, where
    with pytest.raises(FltrainError, match="'training' stands for several settings; name one of"):
        chosen(tmp_path, "training=0.25")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("method=fedprx", r"no run is left with method=fedprx; did you mean 'fedprox'\?$"),
        ("method=scaffold", r"no run is left with method=scaffold \(values of method: 'fedavg'"),
        ("plugins=flfa", r"no run is left with plugins=flfa \(values of plugins: 'none'\)$"),
        (
            "method=scafold",
            "with method=scafold; did you mean 'scaffold'.*values of method: 'fedavg'",
        ),
        (
            "training.lr=0.5 method=moon",
            r"left with method=moon \(values of method: 'fedavg', 'fedprox'\)$",
        ),
        ("metod=x", "unknown key 'metod'; did you mean 'method'"),
        ("xyz=x", r"unknown key 'xyz' \(known: .*dataset.*, and settings below them such as training.lr\)$"),
        ("lr=0.1", "unknown key 'lr'; did you mean 'training.lr'?"),
        ("training.lr", "'training.lr' is not a condition; write KEY=VALUE or KEY!=VALUE"),
        ("items=flfa/table4", "has no item 'flfa/table4'; scales paper, small have it: add --scale paper "),
        (
            "scale=published items=fedimpro",
            "add --scale demo .*; at scale 'published', claims on it are in replication_cifar10, repl",
        ),
        ("items=flfa/tabel4", r"has no item 'flfa/tabel4'; did you mean 'flfa/table4'\?$"),
        ("paper=fair", "has no item 'fair'; scales .*fair_mnist, published have it: add --scale published "),
        ("scale=demo items=fair", "^scale 'demo' has no item 'fair'; scales fair_digits, "),
        (
            "scale=demo items=flfa/tabel4",
            r"has no item 'flfa/tabel4'; did you mean 'flfa/table1'\? \(items of flfa: fig",
        ),
        ("scale=published items=replication_cifar10/flfa", "did you mean 'replication_cifar10/flfa_bases', "),
        ("scale=replication items=replication_cifar10_nix", "'replication_cifar10_nix' .items of .*: ecgr, "),
        ("scale=demo items=replication_cifar10/flfa", "did you mean 'replication_cifar10/flfa_bases', "),
        (
            "scale=published items=fedavg/table1_2nn",
            "`fltrain records import published/records.tar.gz --results .*`, or train its runs with "
            "`snakemake --config scale=published items=fedavg/table1_2nn` .it fills 'results'., or name anot",
        ),
        (
            "scale=demo items=flfa/table1",
            "has no run of 'flfa/table1' at scale 'demo'; train its runs with `snakemake --config scale=demo",
        ),
    ],
)
def test_a_filter_that_leaves_no_run_is_refused(root: Path, where: str, message: str) -> None:
    with pytest.raises(FltrainError, match=message):
        chosen(root, where)


def test_an_empty_folder_leads_to_the_records_that_the_project_has(tmp_path: Path) -> None:
    imports = "import records with `fltrain records import published/records.tar.gz --results .*`, train runs"
    with pytest.raises(FltrainError, match=rf"nowhere: no such folder; {imports}"):
        chosen(tmp_path / "nowhere", "scale=published")
    with pytest.raises(FltrainError, match="nowhere: no such folder; train its runs with `snakemake"):
        compare(tmp_path / "nowhere", CONFIG, ["flfa/table1"])
    with pytest.raises(FltrainError, match=rf"\(`fltrain status --results .*`\); {imports}"):
        chosen(tmp_path, "scale=published")
    with pytest.raises(FltrainError, match=r"runs: no runs \(`fltrain status .*`\); train runs, or"):
        chosen(tmp_path, "scale=demo")


def test_unfinished_and_stale_runs_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    unfinished = results.run(tiny(seed=1).run_id)
    unfinished.mkdir(parents=True)
    (unfinished / "train.log").touch()
    status, end = r"\(`fltrain status --results .*`\)", "train an unfinished run again, which continues it"
    with pytest.raises(FltrainError, match=f"runs: only 1 unfinished run {status}; {end}; import "):
        chosen(tmp_path)
    record(results, tiny(method="fedprox"), 0.5)
    monkeypatch.setattr(FedProx, "revision", 9)
    with pytest.raises(FltrainError, match=f"only 1 stale run and 1 unfinished run {status}; {end}"):
        chosen(tmp_path)
    shutil.rmtree(unfinished)
    with pytest.raises(FltrainError, match=f"only 1 stale run {status}; import "):
        chosen(tmp_path)


@pytest.mark.parametrize("name", ["flfa/figure2", "flfa_figure2", "flfa"])
def test_an_item_is_chosen_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    for item in plan(CONFIG, "demo").items:
        if item.id in ("flfa/figure2", "ecgr/figure2"):
            record(Results(tmp_path), item.entries[0].spec, 0.5)
    (tmp_path / "demo").mkdir()
    (run,) = chosen(tmp_path, f"items={name}")
    assert "flfa/figure2" in run.fields["items"].split()


def test_imported_runs_next_to_others_need_their_scale(tmp_path: Path) -> None:
    """The demonstration's folder assigns its runs to items; runs of another scale are unknown."""
    for scale in ("demo", "small"):
        item = next(item for item in plan(CONFIG, scale).items if item.paper.paper == "flfa")
        record(Results(tmp_path), item.entries[0].spec, 0.5)
    (tmp_path / "demo").mkdir()
    with pytest.raises(FltrainError, match=r"has no item 'fair/accuracy'; scales .* add --scale published"):
        chosen(tmp_path, "items=fair/accuracy")
    with pytest.raises(FltrainError, match=r"no run .* scale=published \(values of scale: 'demo', 'none'\)"):
        chosen(tmp_path, "scale=published")


def test_a_scale_that_cannot_be_planned_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only if it is named, it is an error."""
    config, results = write_config(tmp_path / "config", {"table": TWO_METHODS}), Results(tmp_path / "results")
    settings = {**TINY, "plugins": ["lost"]}
    broken = {**PAPER, "paper": "broken", "items": {"table": TWO_METHODS}, "settings": settings}
    write_papers(config, broken, scale={**SCALE, "scale": "other", "items": ["broken"]})
    for scale in ("one", "other"):
        (results.root / scale).mkdir(parents=True)
    for method in FINAL:
        record(results, tiny(method=method), 0.5)
    for where in ("", "method=fedavg,fedprox", "items=toy/table scale=one"):
        runs = find_runs(results.root, where, config)
        assert [run.fields["items"] for run in runs] == ["toy/table"] * 2
    (warning,) = caplog.messages
    assert warning.startswith("scale 'other' cannot be planned and is left out: ") and "\n" not in warning
    assert "unknown plug-in 'lost'" in warning
    with pytest.raises(FltrainError, match="unknown plug-in 'lost'"):
        find_runs(results.root, "scale=other", config)


def run_compare(root: Path, *arguments: object) -> str:
    return cli("compare", "--results", root, "--config", CONFIG, *arguments).output


def test_items_have_the_scale_demo_unless_an_option_names_another(tmp_path: Path) -> None:
    for scale, final in {"small": 0.7, "demo": 0.5}.items():
        (tmp_path / scale).mkdir()
        for entry in next(item for item in plan(CONFIG, scale).items if item.id == "flfa/table1").entries:
            record(Results(tmp_path), entry.spec, final)
    best = ("--metric", "best_accuracy")
    printed = {text: run_compare(tmp_path, "flfa/table1", *best, *text.split()) for text in SCALE_OPTIONS}
    assert {option: ("50.00" in text, "70.00" in text) for option, text in printed.items()} == SCALE_OPTIONS
    all_runs = run_compare(tmp_path, "--over", "dataset", *best)
    assert "50.00" in all_runs and "70.00" in all_runs, "without items, all runs"


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


def test_a_terminal_shows_no_endless_table(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fltrain.cli.compare.MOST_LINES", 1)
    choice = ("--where", "method=fedavg,fedprox", "--where", "training.lr=0.1")
    with pytest.raises(
        FltrainError, match=r"^2 lines .*; name a table or figure and its scale .* with --out$"
    ):
        run_compare(root, *choice)
    table = tmp_path / "table.csv"
    assert run_compare(root, *choice, "--out", table) == f"table: {table}\n"
    assert len(read_csv(table)) == 2


def test_runs_of_many_tables_are_no_table_in_a_terminal(tmp_path: Path) -> None:
    """The message has a command for one table. Options that choose runs, and files, have no such limit."""
    items = [item for item in plan(CONFIG, "demo").items if item.trains]
    for item in items:
        record(Results(tmp_path), item.entries[-1].spec, 0.5)
    compared = ("compare", "--results", tmp_path, "--config", CONFIG)
    assert cli(*compared).stdout.count("│\n") > 4
    (tmp_path / "demo").mkdir()  # has the pages
    message = r"^\d+ lines of 1\d tables and figures; name .* \(for example `fltrain (.* --scale demo .*)`; "
    for options in ((), ("--metric", "best_accuracy"), ("--scale", "demo")):
        with pytest.raises(FltrainError, match=message) as refused:
            cli(*compared, *options)
    (example,) = re.findall(message, str(refused.value))
    assert "at scale demo" in cli(*example.split()).stdout
    for options in (("--baseline", "fedavg"), ("--where", "method=fedavg"), ("--over", "method")):
        assert "final accuracy, %" in cli(*compared, *options).stdout
    assert "table: " in cli(*compared, "--out", tmp_path / "all.csv").stdout


def test_the_guide_shows_what_its_code_prints(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demonstration's runs and the 12 runs are hand-made here, so only their labels count."""
    results = Results(tmp_path / "results")
    for item in plan(CONFIG, "demo").items:
        if item.id in ("flfa/figure2", "fedavg/table1_2nn"):
            for entry in item.entries:
                part = (entry.spec.partition.name == "iid") + (entry.spec.participation.fraction == 0.1) / 2
                record(results, entry.spec, 0.5 + entry.seed / 100 + part / 10)
    for method, lr, seed in itertools.product(("fedavg", "fedprox"), (0.05, 0.1), range(3)):
        final = 0.5123 + lr + (method == "fedprox") * seed / 90
        record(Results(tmp_path / "rates"), tiny(method=method, training={"lr": lr}, seed=seed), final)
    for folder in (tmp_path, tmp_path / "published"):
        folder.mkdir(exist_ok=True)
        (folder / "config").symlink_to(CONFIG)
    (tmp_path / "published" / "results").symlink_to(imported)
    blocks = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for code, output in blocks:
        monkeypatch.chdir(tmp_path / "published" if 'scale="published"' in code else tmp_path)
        exec(code, names)
        printed = capsys.readouterr().out
        if 'scale="published"' in code:
            assert printed == output
        texts = [re.sub(r"(?<!=)-?\b\d+\.\d{2,}|\s+", " ", text).split() for text in (printed, output)]
        assert texts[0] == texts[1]
    assert len(blocks) == 4
