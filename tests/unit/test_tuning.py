"""Search spaces, trials and selections: draws against theory; nothing is selected on test images."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fltrain.core.errors import FltrainError
from fltrain.core.strict_yaml import read_settings
from fltrain.engine.train import Execution, train
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.plan import Plan, plan
from fltrain.experiments.schema import Item, Point
from fltrain.experiments.selection import Selection
from fltrain.experiments.tuning import Range, Search, Selected, halton, select, write_selection
from fltrain.methods import METHODS
from fltrain.methods.composition import Composition
from fltrain.runs.record import Results

from ..released import RELEASED
from .conftest import Register
from .helpers import CPU, PAPER, cli, labels, pixels, tiny, write_papers

CONFIG = Path(__file__).parents[2] / "config"
LR = {"log_uniform": [0.01, 1.0], "source": "a test"}
SPACES: dict[str, Any] = {
    "training": {"lr": LR},
    "fedprox": {"mu": {"log_uniform": [0.001, 1.0], "source": "a test"}},
}
VALIDATED = {"rows": "method", "columns": "trial", "measures": [{"measure": "validation_final_accuracy"}]}
TRIALS: dict[str, Any] = {
    "title": "Trials",
    "axes": {"method": ["fedavg", "fedprox"], "trial": [0, 1, 2]},
    "table": VALIDATED,
    "seeds": 1,
}
FINAL: dict[str, Any] = {
    "title": "Default and tuned",
    "seeds": [1],
    "axes": {
        "method": ["fedavg", "fedprox"],
        "settings": {"default": {"set": {}}, "tuned": {"selected": "trials"}},
    },
    "table": {"rows": "method", "columns": "settings", "measures": [{"measure": "final_accuracy"}]},
}
SETTINGS: dict[str, Any] = {
    "dataset": "own",
    "partition": {"name": "iid", "clients": 5},
    "model": "mlp",
    "method": "fedavg",
    "training": {"epochs": 2, "batch_size": 16, "lr": 0.05},
    "rounds": 2,
    "evaluation": {"validation": 0.2},
}


def write(folder: Path, trials: dict[str, Any] = TRIALS, spaces: dict[str, Any] = SPACES) -> Path:
    """Write a paper with trials and a table of default and tuned settings."""
    paper = {**PAPER, "items": {"trials": trials, "final": FINAL}, "settings": SETTINGS}
    write_papers(folder, paper)
    (folder / "search.yaml").write_text(yaml.safe_dump({"spaces": spaces}))
    return folder


def item(planned: Plan, name: str) -> PlannedItem:
    return next(entry for entry in planned.items if entry.id == f"toy/{name}")


@pytest.fixture
def own_dataset(tmp_path: Path, register: Register) -> Callable[[int], None]:
    """A function that makes the dataset ``own``; ``moved`` is added to its test labels."""

    def use(moved: int = 0) -> None:
        # The mean brightness of an image tells its class, apart from noise.
        train, test = (pixels(count, 8, 8, seed=count) // 4 for count in (200, 80))
        arrays = {"train_labels": labels(200), "test_labels": labels(80)}
        for split, images in (("train", train), ("test", test)):
            arrays[f"{split}_images"] = images + 60 * arrays[f"{split}_labels"][:, None, None].astype(
                np.uint8
            )
            arrays[f"{split}_labels"] = arrays[f"{split}_labels"][:, None]
        arrays["test_labels"] = (arrays["test_labels"] + moved) % 4
        path = tmp_path / f"own{moved}.npz"
        np.savez(path, **arrays)
        facts = {"classes": 4, "channels": 1, "side": 8, "train_images": 200, "test_images": 80}
        register({"own": {"path": str(path), "reader": "npz", **facts}})

    use()
    return use


def trained_trials(config: Path, results: Path) -> PlannedItem:
    """The item of trials, with its runs trained."""
    trials = item(plan(config, "one"), "trials")
    for entry in trials.entries:
        train(entry.spec, Results(results), Execution(CPU), quiet=True)
    return trials


# ---------------------------------------------------------------- draws
def test_trials_are_a_shifted_halton_sequence() -> None:
    points = np.array([list(islice(halton(trial), 3)) for trial in range(1, 217)])
    assert ((points >= 0) & (points < 1)).all()
    # In each dimension, the first base^m points are equidistant on the circle.
    for dimension, (base, power) in enumerate([(2, 7), (3, 4), (5, 3)]):
        count = base**power
        ordered = np.sort(points[:count, dimension])
        gaps = np.diff(ordered, append=ordered[0] + 1)
        assert gaps == pytest.approx(np.full(count, 1 / count), abs=1e-9)
    # Jointly, each of the 6 x 6 boxes has its share of the first 216 points (log^2 n / n).
    boxes = np.histogram2d(points[:, 0], points[:, 1], bins=(6, 6), range=((0, 1), (0, 1)))[0]
    assert abs(boxes - 6).max() <= 3


def test_ranges_have_the_declared_distribution() -> None:
    shares = (np.arange(1000) + 0.5) / 1000
    log = Range(log_uniform=(0.001, 0.1), source="a test")
    assert [log.at(share) for share in (0.0, 0.5, 1.0)] == [0.001, 0.01, 0.1]
    assert np.mean([np.log10(log.at(share)) for share in shares]) == pytest.approx(-2, abs=1e-3)
    flat = Range(uniform=(0.0, 0.9), source="a test")
    assert np.mean([flat.at(share) for share in shares]) == pytest.approx(0.45, abs=1e-3)
    assert flat.at(0.123456) == 0.111, "three digits"
    counts = [Range(choice=(1, 2, 3), source="a test").at(share) for share in shares]
    assert [counts.count(value) for value in (1, 2, 3)] == [333, 334, 333]


def test_methods_share_learning_rates_and_trial_0_has_the_default() -> None:
    search = Search(spaces=SPACES | {"ecgr": {"beta": {"uniform": [0.1, 0.8], "source": "a test"}}})
    plugins = [{"name": "ecgr", "kappa": 0.4}, "flfa"]
    specs = [tiny(), tiny(method="fedprox"), tiny(method="fedprox", plugins=plugins)]
    for spec in specs:
        assert search.patch(Point(trial=0), spec, {}) == search.patch(Point(), spec, {}) == {}
    for trial in (1, 2, 9):
        plain, prox, both = (search.patch(Point(trial=trial), spec, {}) for spec in specs)
        assert list(plain) == ["training"] and list(prox) == ["training", "method"]
        assert plain["training"] == prox["training"] == both["training"] and prox["method"] == both["method"]
        beta = both["plugins"][0].pop("beta")
        assert both["plugins"] == [{"name": "ecgr", "kappa": 0.4}, {"name": "flfa"}] and 0.1 <= beta <= 0.8


def test_more_trials_keep_the_runs_of_the_first(tmp_path: Path, own_dataset: Any) -> None:
    few = item(plan(write(tmp_path / "few"), "one"), "trials")
    axes = {**TRIALS["axes"], "trial": list(range(8))}
    many = item(plan(write(tmp_path / "many", {**TRIALS, "axes": axes}), "one"), "trials")
    assert len(few.run_ids) == 6 and len(many.run_ids) == 16 and set(few.run_ids) < set(many.run_ids)


def test_every_method_and_plugin_declares_a_space() -> None:
    spaces = read_settings(CONFIG / "search.yaml", Search).spaces
    assert spaces.keys() - {"training"} == RELEASED.keys(), "add the methods that lack to config/search.yaml"
    numbers = {
        name
        for name, kind in RELEASED.items()
        if any(isinstance(field.default, float) for field in kind.model_fields.values())
    }
    assert numbers <= {name for name, space in spaces.items() if space}, "no number is left untuned"


def test_the_declared_spaces_cover_the_fair_table() -> None:
    search = read_settings(CONFIG / "search.yaml", Search)
    assert list(search.spaces["training"]) == ["lr"]
    assert all(values.source for space in search.spaces.values() for values in space.values())
    planned = plan(CONFIG, "fair_mnist")
    specs = [entry.spec for entry in planned.items[0].entries]
    used = {method.name for spec in specs for method in spec.composition.methods}
    ours = {name for name, kind in RELEASED.items() if not kind.plugin}
    personal = {name for name in ours if Composition((METHODS[name](),)).personal}
    # All methods that train one global model, on any network.
    assert ours - personal - {"fed2", "fedma"} <= used, "add the methods that lack to config/papers/fair.yaml"
    # The budget is the same for all.
    cells = {
        tuple(label for axis, label in entry.labels.items() if axis != "trial")
        for entry in planned.items[0].entries
    }
    assert len(specs) == 5 * len(cells) and len({spec.rounds for spec in specs}) == 1


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        (
            {"fedprox": {"mu": {"uniform": [-1.0, 1.0], "source": "x"}}},
            "mu: .*greater than or equal to 0, got -1.0",
        ),
        ({"training": {"lr": {"uniform": [1.0, 0.5], "source": "x"}}}, r"must ascend.*got \[1, 0.5\]"),
        ({"training": {"lr": {"log_uniform": [0.0, 0.5], "source": "x"}}}, "be positive if log_uniform"),
        ({"training": {"lr": {**LR, "uniform": [0.1, 0.5]}}}, "has one of log_uniform, uniform, choice"),
    ],
)
def test_wrong_spaces_are_refused(spaces: dict[str, Any], message: str) -> None:
    with pytest.raises(FltrainError, match=message):
        Search.parse({"spaces": spaces}, "search.yaml")


# ---------------------------------------------------------------- selection
def test_from_trials_to_final_runs(tmp_path: Path, own_dataset: Any) -> None:
    config, results = write(tmp_path / "config"), tmp_path / "results"
    planned = plan(config, "one")
    with pytest.raises(FltrainError) as refusal:
        planned.restricted(Selection())
    assert str(refusal.value) == (
        f"toy/final: {config}/selected/one/toy_trials.yaml: nothing is selected yet; train the trials "
        "(`snakemake --config scale=one items=toy/trials`), then run `fltrain select toy/trials --scale one "
        f"--config {config}`"
    )
    assert planned.restricted(Selection(items=("toy/trials",))).items == [item(planned, "trials")]
    command = ("select", "toy/trials", "--scale", "one", "--config", config, "--results", results)
    Results(results).create()
    with pytest.raises(FltrainError, match=r"6 of 6 trials without a record.*` .it fills 'results'"):
        cli(*command)

    trials = trained_trials(config, results)
    cli(*command)
    selected = read_settings(config / "selected/one/toy_trials.yaml", Selected)
    for cell, entries in zip(selected.cells, (trials.entries[:3], trials.entries[3:]), strict=True):
        records = [Results(results).record(entry.spec.run_id) for entry in entries]
        values = [100 * record.summary["validation"]["final"] for record in records]
        assert [trial.value for trial in cell.trials.values()] == pytest.approx(values)
        assert cell.chosen == str(np.argmax(values)), "ties: the first"

    final = item(plan(config, "one").restricted(Selection()), "final")
    assert {entry.seed for entry in final.entries} == {1}, "not the seed of the trials"
    specs = {(entry.labels["method"], entry.labels["settings"]): entry.spec for entry in final.entries}
    for cell in selected.cells:
        method = cell.labels["method"]
        tuned, default, chosen = specs[method, "tuned"], specs[method, "default"], cell.trials[cell.chosen]
        assert default.training.lr == 0.05
        assert tuned.training.lr == chosen.settings.get("training", {}).get("lr", 0.05)
        assert (tuned.run_id == default.run_id) == (cell.chosen == "0")


@pytest.mark.parametrize("other", [{"selected": "more"}, {"trial": 1}])
def test_an_item_selects_from_one_item_of_trials(other: dict[str, Any]) -> None:
    axes = {"settings": {"tuned": {"selected": "trials"}, "other": other}}
    with pytest.raises(FltrainError, match=r"selects .* from one item; make several items"):
        Item.parse({**FINAL, "axes": axes}, "toy")


def test_nothing_is_selected_on_test_images(tmp_path: Path, own_dataset: Callable[[int], None]) -> None:
    config = write(tmp_path / "config")
    selections, tests = [], []
    for moved in (0, 1):
        own_dataset(moved)
        results = Results(tmp_path / f"results{moved}")
        trials = trained_trials(config, results.root)
        selections.append(select(trials, results))
        tests.append([results.record(run).summary["accuracy"]["final"] for run in trials.run_ids])
    assert selections[0] == selections[1] and tests[0] != tests[1]
    assert len({trial.value for cell in selections[0].cells for trial in cell.trials.values()}) > 2


def test_selections_that_do_not_fit_are_refused(tmp_path: Path, own_dataset: Any) -> None:
    config, results = write(tmp_path / "config"), tmp_path / "results"
    trials = trained_trials(config, results)
    path = config / "selected/one/toy_trials.yaml"
    write_selection(path, select(trials, Results(results)))
    assert item(plan(config, "one"), "final").refused == ""

    other = {"training": {"lr": {**LR, "log_uniform": [0.02, 1.0]}}}
    write(config, spaces=SPACES | other)
    assert "selected from other trials than those declared now" in item(plan(config, "one"), "final").refused

    tested = {**VALIDATED, "measures": [{"measure": "final_accuracy"}]}
    write(config, trials={**TRIALS, "table": tested})
    with pytest.raises(FltrainError, match="nothing may be selected on test images"):
        select(item(plan(config, "one"), "trials"), Results(results))


def test_a_diverged_trial_counts_as_chance(tmp_path: Path, own_dataset: Any) -> None:
    far = {"training": {"lr": {"log_uniform": [1e6, 1e7], "source": "a test"}}}
    config, results = write(tmp_path / "config", spaces=far), tmp_path / "results"
    selected = select(trained_trials(config, results), Results(results))
    for cell in selected.cells:
        assert cell.chosen == "0" and [trial.value for trial in cell.trials.values()][1:] == [25.0, 25.0]
