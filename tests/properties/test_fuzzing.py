"""Any input of a user is accepted or refused with a short message; nothing hangs or is half written."""

import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, reject, settings
from hypothesis import strategies as st

from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.strict_yaml import read_plain
from fltrain.data.datasets import load
from fltrain.data.partition import SCHEMES
from fltrain.experiments.plan import plan
from fltrain.experiments.schema import read_declaration
from fltrain.models.networks import MODELS
from fltrain.runs.spec import RunSpec

from .helpers import COMBINATIONS, MODEL_FOR

CONFIG = Path(__file__).parents[2] / "config"
LONG = 1100
"""Maximum length of a message: 1000 characters and their prefix."""
SECONDS = 5.0
"""Maximum time of a refusal, on a busy machine."""


def fuzz(examples: int) -> Callable[..., Any]:
    """Settings of a test with ``examples`` examples, the same ones in every run."""
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


@contextmanager
def accepted_or_refused() -> Iterator[None]:
    """Accept success, or an error with short lines within the time limit."""
    start = time.perf_counter()
    try:
        yield
    except FltrainError as error:
        lines = str(error).splitlines()
        assert lines and all(line.isprintable() and len(line) < LONG for line in lines)
    assert time.perf_counter() - start < SECONDS


def all_settings(spec: RunSpec) -> dict[str, Any]:
    """A run with all settings written out."""
    return spec.model_dump(mode="json")


def valid_specs() -> Iterator[dict[str, Any]]:
    """Runs with every method, scheme and model, each at least once."""
    plain: dict[str, Any] = {
        "dataset": {"name": "digits", "image_size": 32},
        "partition": {"name": "dirichlet", "clients": 10},
        "model": "mobilenet_tiny",
        "method": "fedavg",
    }
    yield plain
    yield from (all_settings(RunSpec.parse({**plain, "model": model}, "test")) for model in MODELS)
    for scheme in SCHEMES:
        yield all_settings(RunSpec.parse({**plain, "partition": {"name": scheme, "clients": 5}}, "test"))
    for methods in COMBINATIONS:
        method, *plugins = (method.model_dump(mode="json") for method in methods)
        model = MODEL_FOR.get(method["name"])
        chosen = model.model_dump(mode="json") if model else "mobilenet_tiny"
        with_tests = {"method": method, "plugins": plugins, "local_test": {}, "model": chosen}
        yield all_settings(RunSpec.parse({**plain, **with_tests}, "test"))


SPECS = list(valid_specs())


def places(data: Any, depth: int = 20) -> Iterator[tuple[Any, Any]]:
    """Every position in nested data up to a depth: the list or mapping, and the index or key."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(inside):
        yield data, key
        if depth:
            yield from places(value, depth - 1)


class Pool:
    """Valid data, and all their keys and values to insert at other positions."""

    def __init__(self, valid: Sequence[Any], extra: Iterable[Any] = ()) -> None:
        self.valid = valid
        pairs = [(key, container[key]) for data in (*valid, *extra) for container, key in places(data)]
        self.keys = sorted({key for key, _ in pairs if isinstance(key, str)})
        self.values = list({json.dumps(value): value for _, value in pairs}.values())


def nested(depth: int) -> Any:
    """A list in a list in a list ..."""
    data: list[Any] = []
    for _ in range(depth):
        data = [data]
    return data


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(codec=None), max_size=5),  # surrogates, too
    st.sampled_from(["", "no", "1e-5", "1e999", "../../x", "/etc/x", "a\nb", "\0", "\ud800", "name"]),
    st.sampled_from(["\x1b[31m", "é" * 5000]),
)
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**400, 10**4000]),
    st.floats(),
    st.sampled_from([1e-320, 1e308, 0.1 + 0.2, float("nan"), float("inf")]),
)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
DEEP = st.sampled_from([20, 150, 250, 900, 5000]).map(nested)


@st.composite
def mutated(draw: Any, pool: Pool) -> Any:
    """Valid data with some parts missing, replaced or added."""

    def one_of(values: Sequence[Any]) -> Any:
        return values[draw(st.integers(0, len(values) - 1))]

    def anything() -> Any:
        return copy.deepcopy(one_of(pool.values)) if draw(st.booleans()) else draw(PLAIN | DEEP)

    data = copy.deepcopy(one_of(pool.valid))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        positions = list(places(data))
        if not positions:
            return anything()
        container, key = one_of(positions)
        action = draw(st.sampled_from(["delete", "replace", "add"]))
        if action == "delete":
            del container[key]
        elif action == "replace":
            container[key] = anything()
        elif isinstance(container, dict):
            container[one_of(pool.keys) if draw(st.booleans()) else draw(TEXTS)] = anything()
        else:
            container.insert(key, anything())
    return data


@fuzz(80)
@given(mutated(Pool(SPECS)))
@example({**SPECS[0], "evaluation": {"targets": [1e-05]}})
@example({**SPECS[0], "training": {"lr": 0.1 + 0.2}})
@example({**SPECS[0], "rounds": 10**400})
@example({**SPECS[0], "training": {"lr": nested(300)}})
def test_a_run_is_read_and_written_back_or_refused(tmp_path: Path, data: Any) -> None:
    with accepted_or_refused():
        spec = RunSpec.parse(data, "spec.yaml")
        # The workflow hands specs over as JSON text, which is then read as YAML.
        (tmp_path / "again.yaml").write_text(spec.to_json())
        for again in (json.loads(spec.to_json()), read_plain(tmp_path / "again.yaml")):
            assert RunSpec.parse(again, "again").run_id == spec.run_id
        for name in (spec.run_id, spec.partition_id):
            assert re.fullmatch(r"\w[\w.+-]*", name, re.ASCII)


def demonstration() -> dict[str, Any]:
    """Some items of the demonstration with their papers: contents by file name."""
    files = {
        "scales/demo": read_plain(CONFIG / "scales" / "demo.yaml"),
        "register": read_plain(CONFIG / "register.yaml"),
    }
    wanted = {"flfa": ("table4",), "ecgr": ("figure2",), "fedfcd": ("figure3", "figure6")}
    names = {f"{paper}/{item}" for paper, items in wanted.items() for item in items}
    scale = files["scales/demo"]
    scale["items"] = [
        entry for entry in scale["items"] if names & set(entry if isinstance(entry, dict) else [entry])
    ]
    for name, items in wanted.items():
        paper = files[f"papers/{name}"] = read_declaration(CONFIG, "paper", name)[1]
        paper["items"] = {item: paper["items"][item] for item in items}
        paper["claims"] = []
    return files


DEMONSTRATION = demonstration()
POOLS = {name: Pool([data], DEMONSTRATION.values()) for name, data in DEMONSTRATION.items()}


def write(path: Path, data: Any) -> None:
    """Write data as JSON, which is YAML; skip the example if JSON cannot represent them."""
    try:
        text = json.dumps(data)
    except (RecursionError, ValueError):
        reject()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@st.composite
def mutated_files(draw: Any) -> dict[str, Any]:
    """The demonstration with one of its files mutated."""
    name = draw(st.sampled_from(sorted(DEMONSTRATION)))
    return {**DEMONSTRATION, name: draw(mutated(POOLS[name]))}


@fuzz(40)
@given(files=mutated_files())
@example(files={**DEMONSTRATION, "scales/demo": {**DEMONSTRATION["scales/demo"], "scale": "../../x"}})
@example(
    files={**DEMONSTRATION, "scales/demo": {**DEMONSTRATION["scales/demo"], "items": ["../papers/flfa"]}}
)
@example(files={**DEMONSTRATION, "papers/ecgr": {**DEMONSTRATION["papers/ecgr"], "seeds": 10**9}})
def test_experiments_are_planned_or_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    for name, data in files.items():
        write(tmp_path / f"{name}.yaml", data)
    with accepted_or_refused():
        planned = plan(tmp_path, "demo")
        for item in planned.items:
            for name in (planned.scale.scale, *item.id.split("/"), *item.run_ids):
                assert file_name(name[:100]) and "/" not in name
            assert item.sheet.cells or not item.entries


REGISTRY = {
    name: entry
    for name, entry in read_plain(CONFIG / "datasets.yaml").items()
    if name in ("digits", "mnist", "cifar10", "cifar10.1-v4", "imagenet100")
}


@fuzz(40)
@given(mutated(Pool([REGISTRY])))
@example({**REGISTRY, "../up": REGISTRY["digits"]})
@example({"mine": {"reader": "npz", "files": [{"name": "../x", "urls": [], "checksum": "md5:" + 32 * "0"}]}})
def test_a_registry_is_accepted_or_refused(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "datasets.yaml"
    write(path, data)
    with accepted_or_refused():
        for name, entry in load(path).items():
            assert all("/" not in part for part in (name, *(file.name for file in entry.files)))
