"""Valid specs, messages for mistakes, and equality of runs; new settings and changed defaults."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from fltrain.core.config import Conflicts, Settings, added
from fltrain.core.errors import FltrainError
from fltrain.core.hashing import canonical_json, short_hash
from fltrain.core.strict_yaml import read_settings
from fltrain.data.feature_skew import FeatureSkew
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.training import Training
from fltrain.models.networks import MODELS
from fltrain.runs.spec import RunSpec

from .helpers import TINY, error_line, shipped, tiny

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "published" / "records.tar.gz"

FULL = {
    "dataset": {"name": "digits", "image_size": 16},
    "model": "lenet5",
    "method": {"name": "fedprox", "mu": 0.1},
    "plugins": [{"name": "flfa", "n_fa": 2}],
    "training": {
        "lr_schedule": {"name": "exponential", "decay": 0.9},
        "clip_norm": 10,
        "augmentation": {"crop_padding": 2, "cutout": 4},
    },
    "evaluation": {"statistics": ["drift"], "targets": [0.5], "extra": [{"name": "mnist", "image_size": 16}]},
    "local_test": {"stratify": True},
    "feature_skew": {"noise": 0.1},
}


def refusal(**changes: Any) -> str:
    """The message for the small run with these settings; always one line that names the place."""
    message = error_line(lambda: RunSpec.parse({**TINY, **changes}, "config/mine.yaml"))
    assert message.startswith("config/mine.yaml: ")
    return message.removeprefix("config/mine.yaml: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training": {"lr_schedule": {"name": "exponential", "deca": 1}}},
            "training.lr_schedule.deca: unknown key 'deca'; did you mean 'decay'?",
        ),
        (
            {"training": {"learning_rate": 0.1}},
            "training.learning_rate: unknown key 'learning_rate'; did you mean 'lr'?",
        ),
        ({"method.mu": 0.1}, "method.mu: unknown key 'method.mu'; write `method: {name: ..., mu: 0.1}`"),
        ({"method.name": "moon"}, "method.name: unknown key 'method.name'; write `method: {name: \"moon\"}`"),
        (
            {"training.lr_schedule.decay": 0.9},
            "training.lr_schedule.decay: unknown key 'training.lr_schedule.decay'; write `training: "
            "{lr_schedule: {name: ..., decay: 0.9}}`",
        ),
        (
            {"plugins.flfa.n_fa": 3},
            "plugins.flfa.n_fa: unknown key 'plugins.flfa.n_fa'; write `plugins: [{name: flfa, n_fa: 3}]`",
        ),
        ({"metod.mu": 1}, "metod.mu: unknown key 'metod.mu'"),
        ({"num_clients": 9}, "num_clients: unknown key 'num_clients'; did you mean 'partition.clients'?"),
        ({"num_rounds": 9}, "num_rounds: unknown key 'num_rounds'; did you mean 'rounds'?"),
        ({"plugins": ["flfaa"]}, "plugins.0: unknown plug-in 'flfaa'; did you mean 'flfa'?"),
        ({"method": "flfa"}, "method: 'flfa' is a plug-in; write it under 'plugins'"),
        ({"plugins": ["fedprox"]}, "plugins.0: 'fedprox' is no plug-in; write it under 'method'"),
        (
            {"participation": 4},
            "participation.fraction: a share of the clients, from 0 to 1, got 4; 4 of 10 clients are 0.4",
        ),
        (
            {"participation": 1.5},
            "participation.fraction: a share of the clients, at most 1 (all clients), got 1.5",
        ),
        (
            {"participation": "50%"},
            "participation: a share is a number from 0 to 1, such as 0.5, got '50%'",
        ),
        (
            {"participation": {"fraction": 50}},
            "participation.fraction: input should be less than or equal to 1, got 50; 50 % is 0.5",
        ),
        (
            {"evaluation": {"validation": 20}},
            "evaluation.validation: input should be less than 1, got 20; 20 % is 0.2",
        ),
        ({"method": {"mu": 1}}, "method: a method needs a 'name' (known: "),
        ({"plugins": "flfa"}, "plugins: input should be a list ([a, b], or [a] for a single"),
        ({"plugins": ["flfa", "flfa"]}, "'flfa' is named twice"),
        (
            {"plugins": [{"name": "flfa", "layers": 1.5}]},
            "plugins.0.layers: input should be a list ([a, b], or [a] for a single one) or 'all', got 1.5",
        ),
        ({"seed": [0, 1, 2]}, "seed: a run has one seed (seed: 0); `fltrain train --seeds 3` trains"),
        ({"mu": 0.1}, "mu: unknown key 'mu'; did you mean 'method.mu' of fednova, fedprox, moon?"),
        (
            {"seeds": [0, 1, 2]},
            "seeds: unknown key 'seeds'; a run has one seed (seed: 0); `fltrain train --seeds 3` trains",
        ),
        (
            {"device": "gpu"},
            "device: unknown key 'device'; it is no setting of a run, but an option: `fltrain t",
        ),
        (
            {"method": "fedavg+flfa+ecgr"},
            "method: 'fedavg+flfa+ecgr' names a method with plug-ins; write method: fedavg, plugins: [flf",
        ),
        (
            {"method": "perfedavg", "training": {"batch_size": 1}, "local_test": {}},
            "training.batch_size: 'perfedavg' takes 2 different batches for a step",
        ),
    ],
)
def test_mistakes_are_refused_with_a_remedy(changes: dict[str, Any], message: str) -> None:
    assert refusal(**changes).startswith(message)


def test_only_a_close_suggestion_replaces_the_list_of_known_names() -> None:
    assert refusal(method="fedavgg") == "method: unknown method 'fedavgg'; did you mean 'fedavg'?"
    assert refusal(rouns=9) == "rouns: unknown key 'rouns'; did you mean 'rounds'?"
    longer = refusal(partition={"name": "pathological", "clients": 4, "classes": 2})
    assert longer == "partition.classes: unknown key 'classes'; did you mean 'classes_per_client'?"
    for word, near in {
        "fedsgd": "; did you mean 'fedrs'?",
        "fedcalm": "; did you mean 'fedamp'?",
        "xyz": "",
    }.items():
        message = refusal(method=word)
        assert message.startswith(f"method: unknown method {word!r}{near} (known: ") and "scaffold" in message
        ways = "add a file to fltrain/methods, decorate its class with fltrain.register, or set FLTRAIN_PATH"
        assert message.endswith(f"; if it is your own, {ways} to your folder")


def test_a_missing_component_is_refused_with_the_known_ones() -> None:
    lacking = {key: value for key, value in TINY.items() if key != "method"}
    with pytest.raises(FltrainError, match=r"mine: method: field required \(known: .*fedavg, .*fedprox"):
        RunSpec.parse(lacking, "mine")


def test_misspelt_hooks_are_refused() -> None:
    """Otherwise the hook would never be called, and the method would be federated averaging."""
    with pytest.raises(FltrainError, match=r"Misspelt: there is no hook 'corect'; did you mean 'correct'\?"):
        type("Misspelt", (Method,), {"__module__": __name__, "corect": lambda self: None})
    for helper in ("prepare", "objective", "_corect"):
        type("Helped", (Method,), {"__module__": __name__, helper: lambda self: None})


class Pair(Settings):
    low: int
    high: int

    @model_validator(mode="after")
    def _refused(self) -> "Pair":
        raise Conflicts(["high: is below low", "high: is odd", "the two do not fit; choose others"])


def test_conflicts_without_a_setting_are_named_whole() -> None:
    with pytest.raises(FltrainError) as caught:
        Pair.parse({"low": 2, "high": 1}, "mine")
    heading, *lines = str(caught.value).splitlines()
    assert heading == "mine: 2 problems:"
    assert sorted(map(str.strip, lines)) == [
        "high: is below low; is odd",
        "the two do not fit; choose others",
    ]


def test_all_conflicts_are_named_with_their_lines(tmp_path: Path) -> None:
    written = [
        "dataset: cifar10",
        "model: vgg16",
        "method: fedavg",
        "partition: {name: iid, clients: 99999}",
        "evaluation:",
        "  point: after_local",
        "  statistics: [separability]",
        "  extra: [{name: mnist, normalisation: unit}]",
        "training:",
        "  augmentation: {crop_padding: 32}",
    ]
    (file := tmp_path / "mine.yaml").write_text("\n".join(written))
    with pytest.raises(FltrainError) as caught:
        read_settings(file, RunSpec)
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"{file}: 4 problems:"
    wanted = {
        "line 4: partition.clients: 99999 clients cannot share 50000 training images",
        "line 6: evaluation.point: 'after_local' tests each client; set local_test",
        "line 8: evaluation.extra: 'mnist' is normalised like the run's own dataset; leave out",
        "line 10: training.augmentation.crop_padding: 32 pixels around images of 32; use at most 31",
    }
    assert [any(line.strip().startswith(text) for line in lines) for text in sorted(wanted)] == [True] * 4, (
        lines
    )


@pytest.mark.parametrize("name", ["digits", "mnist", "svhn", "organcmnist", "organsmnist", "femnist"])
def test_flips_are_refused_if_they_change_classes(name: str) -> None:
    message = f"training.augmentation.flip: mirrored images of '{name}' leave their class; set it to false"
    assert refusal(dataset=name, training={"augmentation": {"flip": True}}) == message
    assert tiny(dataset=name, training={"augmentation": {"crop_padding": 2}}).dataset.name == name


def test_a_dataset_with_test_images_only_cannot_be_trained_on() -> None:
    message = "dataset: 'cifar10.1-v4' is for testing only; name it in evaluation.extra"
    assert refusal(dataset="cifar10.1-v4") == message


def test_a_further_test_set_has_one_size() -> None:
    """Rows of a record name the dataset, not its size."""
    extra = ["digits", {"name": "digits", "image_size": 16}]
    message = "evaluation.extra: names a dataset in two sizes, but one would be tested; leave one out"
    assert refusal(evaluation={"extra": extra}) == message
    assert tiny(evaluation={"extra": ["digits", "digits"]}).datasets


def test_clients_with_local_tests_share_all_images() -> None:
    """1,438 images for training and 359 for testing."""
    assert "cannot share 1438 training images" in refusal(partition={"name": "iid", "clients": 1439})
    settings = {"local_test": {}, "partition": {"name": "iid", "clients": 1797}}
    assert tiny(**settings).test_split == "local_test" and tiny().test_split == "test"
    settings["partition"]["clients"] += 1
    assert "cannot share 1797 training images" in refusal(**settings)


def shuffled(data: Any) -> Any:
    """The same mapping with its keys in reversed order, on every level."""
    if isinstance(data, dict):
        return {key: shuffled(data[key]) for key in reversed(data)}
    return [shuffled(item) for item in data] if isinstance(data, list) else data


def test_run_ids_are_readable_and_fixed() -> None:
    spec = tiny(**FULL)
    assert spec.run_id == "digits-fedprox+flfa-1ee29cf01a"


def test_ids_of_published_runs_are_fixed() -> None:
    with tarfile.open(PUBLISHED) as archive:
        for file in archive:
            run, _, name = file.name.partition("/")
            if name == "spec.json" and (content := archive.extractfile(file)):
                settings = json.load(content)
                del settings["revisions"]
                assert RunSpec.parse(settings, run).run_id == run


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": [1.0, 1e-05, None], "a": "ø"}) == '{"a":"ø","b":[1.0,1e-05,null]}'
    assert short_hash({"b": 1, "a": 2}) == short_hash({"a": 2, "b": 1}) == "d3626ac30a"


@pytest.mark.parametrize("changes", [{}, FULL])
def test_run_ids_do_not_depend_on_notation(changes: dict[str, Any]) -> None:
    spec = tiny(**changes)
    spelled_out = json.loads(spec.to_json())
    for settings in (shuffled({**TINY, **changes}), spelled_out, shuffled(spelled_out)):
        assert RunSpec.parse(settings, "same").run_id == spec.run_id


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"training": {"lr": 1}}, {"training": {"lr": 1.0}}),
    ({"training": {"weight_decay": 0.0}}, {"training": {"weight_decay": -0.0}}),
    ({"method": "fedprox"}, {"method": {"name": "fedprox", "mu": METHODS["fedprox"]().mu}}),
    ({}, {"plugins": [], "seed": 0, "evaluation": {}, "dataset": {"name": "digits"}, "local_test": None}),
    ({"local_test": {}}, {"local_test": {"fraction": 0.25, "stratify": False}}),
    ({}, {"participation": 0.2}),
    (
        {"evaluation": {"statistics": ["drift", "similarity"], "extra": ["mnist"]}},
        {"evaluation": {"statistics": ["similarity", "drift", "similarity"], "extra": [{"name": "mnist"}]}},
    ),
    (
        {"training": {"augmentation": {}}},
        {"training": {"augmentation": {"flip": False, "cutout": 0, "crop_padding": 0}}},
    ),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_run_ids_depend_on_the_meaning(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert tiny(**first).run_id == tiny(**second).run_id


Keys = tuple[str | int, ...]


def leaves(settings: Settings, path: Keys = ()) -> list[Keys]:
    """Paths to all fields on every level, without components as a whole."""
    paths: list[Keys] = []
    for key in type(settings).model_fields:
        value = getattr(settings, key)
        if isinstance(value, Settings):
            paths += leaves(value, (*path, key))
        elif isinstance(value, tuple) and value and isinstance(value[0], Settings):
            for index, item in enumerate(value):
                paths += leaves(item, (*path, key, index))
        elif key not in ("name", "plugins", "extra", "local_test", "feature_skew"):
            paths.append((*path, key))
    return paths


def other(value: Any) -> Any:
    """Another value of the same type, valid or not."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + type(value)(1)
        case str():
            return f"{value}_"
        case None:
            return 1
        case tuple():
            return (*value, "more")
    raise TypeError(value)


def changed_at(value: Any, path: Keys) -> Any:
    """A copy of settings with another value at the path, made without validation."""
    if not path:
        return other(value)
    head, *rest = path
    if isinstance(head, int):
        return (*value[:head], changed_at(value[head], tuple(rest)), *value[head + 1 :])
    fields = {key: getattr(value, key) for key in type(value).model_fields}
    return type(value).model_construct(**fields | {head: changed_at(fields[head], tuple(rest))})


EVERYTHING = [
    tiny(**FULL),
    tiny(partition={"name": "iid", "clients": 7}),
    *(tiny(method=name, local_test={}) for name, method in METHODS.items() if not method.plugin),
    *(tiny(plugins=[name]) for name, method in METHODS.items() if method.plugin),
    *(tiny(model=name, dataset={"name": "digits", "image_size": 32}) for name in MODELS),
]
FIELDS = {".".join(map(str, path)): (spec, path) for spec in EVERYTHING for path in leaves(spec)}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_field_changes_the_run_id_and_some_the_partition_id() -> None:
    for name, (spec, path) in FIELDS.items():
        changed = changed_at(spec, path)
        assert changed.run_id != spec.run_id, name
        settings = ("dataset", "partition", "local_test", "seed")
        of_partition = name.split(".")[0] in settings or name == "evaluation.validation"
        expected = of_partition and name != "dataset.normalisation"
        assert (changed.partition_id != spec.partition_id) == expected, name


@pytest.mark.parametrize(
    "part", ["dataset", "partition", "model", "method", "plugin", "schedule", "feature_skew", "engine"]
)
def test_every_revision_changes_the_run_id(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny(**FULL)
    run, partition = spec.run_id, spec.partition_id
    if part == "engine":
        monkeypatch.setattr(RunSpec, "engine", RunSpec.engine + 1)
    else:
        parts = {"plugin": spec.plugins[0], "schedule": spec.training.lr_schedule}
        component = parts[part] if part in parts else getattr(spec, part)
        monkeypatch.setattr(type(component), "revision", component.revision + 1)
    after = tiny(**FULL)
    assert after.run_id != run
    assert (after.partition_id != partition) == (part in ("dataset", "partition"))


def test_tests_are_at_an_interval_and_in_all_final_rounds() -> None:
    spec = tiny(rounds=25, evaluation={"every": 10})
    assert [round for round in range(1, 26) if spec.evaluates(round)] == [10, 20, 23, 24, 25]
    assert all(tiny().evaluates(round) for round in (1, 2, 3))


@given(samples=st.integers(1, 300), size=st.integers(1, 64))
def test_batches_hold_all_images_except_a_single_last_one(samples: int, size: int) -> None:
    batches = Training(batch_size=size).batch_sizes(samples)
    remainder = samples % size
    lone = size > 1 and remainder == 1 and samples > 1
    assert sum(batches) == samples - lone
    assert all(batch == size for batch in batches[:-1]) and 1 <= batches[-1] <= size
    full = Training(batch_size=size, last_batch="drop").batch_sizes(samples)
    assert full == ([size] * (samples // size) if samples >= size else [samples])


def test_clients_per_round() -> None:
    participation = tiny(participation={"fraction": 0.1}).participation
    assert [participation.per_round(clients) for clients in (1, 10, 100, 1000)] == [1, 1, 10, 100]
    assert tiny(participation={"fraction": 1}).participation.per_round(7) == 7


# ---------------------------------------------------------------- new settings and changed defaults
# Every class of settings derives from `Settings`, so a field of the base class is a new field in all of them.
NEW_SETTING_EVERYWHERE = """
import json
from pathlib import Path
import fltrain.core.config as config

class Nested(config.Settings):
    depth: int = config.added(2)

class Settings(config.Settings):
    new: float = config.added(0.5, ge=0)
    nested: Nested = config.added(Nested())

config.Settings = Settings
from fltrain.experiments.plan import plan
from fltrain.runs.spec import RunSpec

ids = [
    [entry.spec.run_id, entry.spec.partition_id]
    for item in plan(Path("config"), "demo").items for entry in item.entries
]
spec = RunSpec.parse(json.loads(%r), "spec")
everywhere = [spec, spec.dataset, spec.partition, spec.model, spec.method, spec.training, spec.local_test,
              spec.training.augmentation, spec.training.lr_schedule, spec.participation, spec.evaluation]
print(json.dumps([ids, spec.run_id, all(part.new == 0.5 and part.nested.depth == 2 for part in everywhere)]))
"""


def test_a_new_setting_in_every_class_changes_no_id() -> None:
    spec = {**TINY, "local_test": {"fraction": 0.25}}
    program = NEW_SETTING_EVERYWHERE % json.dumps(spec)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ids, run_id, has_new_setting = json.loads(done.stdout)
    assert has_new_setting
    assert run_id == RunSpec.parse(spec, "spec").run_id
    assert ids == [
        [entry.spec.run_id, entry.spec.partition_id]
        for item in shipped("demo").items
        for entry in item.entries
    ]


def test_a_revision_of_feature_skew_concerns_its_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def ids() -> list[str]:
        return [RunSpec.parse(TINY | more, "spec").run_id for more in ({}, {"feature_skew": {"noise": 0.1}})]

    before = ids()
    monkeypatch.setattr(FeatureSkew, "revision", FeatureSkew.revision + 1)
    after = ids()
    assert before[0] == after[0] and before[1] != after[1]


class Inner(Settings):
    old: int = 1
    new: float = added(0.5)


class Outer(Settings):
    inner: Inner = Inner()
    several: tuple[Inner, ...] = Field(default=(), strict=False)
    switch: bool | int = added(False)


@pytest.mark.parametrize(
    ("written", "dumped"),
    [
        ({}, {"inner": {"old": 1}, "several": []}),
        ({"inner": {"new": 0.5}, "switch": False}, {"inner": {"old": 1}, "several": []}),
        ({"inner": {"new": 1}}, {"inner": {"old": 1, "new": 1.0}, "several": []}),
        (
            {"several": [{}, {"new": 2.0}]},
            {"inner": {"old": 1}, "several": [{"old": 1}, {"old": 1, "new": 2.0}]},
        ),
        ({"switch": 0}, {"inner": {"old": 1}, "several": [], "switch": 0}),
    ],
)
def test_added_settings_are_written_unless_they_have_their_default(
    written: dict[str, Any], dumped: dict[str, Any]
) -> None:
    outer = Outer.parse(written, "outer")
    assert canonical_json(outer.model_dump(mode="json")) == canonical_json(dumped)
    assert Outer.parse(dumped, "outer") == outer
    everything = outer.all_settings()
    assert everything["inner"]["new"] == outer.inner.new and everything["switch"] is outer.switch
    assert Outer.parse(everything, "outer") == outer
