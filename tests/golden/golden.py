"""Golden numbers: results of small runs and single components, stored to detect unintended changes.

``golden.json`` stores the numbers of every entry under a key that contains all relevant revisions. Other
numbers under the same key are a change without a new revision: a test fails. ``make golden`` runs this module
to add numbers of new keys. If you change the computation here, delete the file first.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fltrain.core.files import digest, write_text
from fltrain.core.hashing import canonical_json, short_hash
from fltrain.core.registry import Component
from fltrain.core.rng import Purpose, stream
from fltrain.data.datasets import Dataset
from fltrain.data.partition import SCHEMES, Scheme
from fltrain.data.partition.base import local_split
from fltrain.data.prepared import Partition, PreparedData, prepare
from fltrain.engine.simulation import Simulation
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.models.base import Model, build
from fltrain.models.networks import MODELS
from fltrain.runs.spec import ENGINE_REVISION, RunSpec

GOLDEN = Path(__file__).with_name("golden.json")

FINE, ROUGH = 2e-4, 1e-2
"""Relative differences at which floats count as equal.

The same code rounds differently on other processors. With PyTorch, MKL and oneDNN held to AVX2, or to what
every x86-64 processor has, instead of AVX-512, numbers differed by up to 4e-5, and by up to 4e-3 where norm
layers, large networks or a matching magnify that; the latter have names that begin with ``~``.
"""

Numbers = dict[str, Any]
"""Integers, texts, floats, and lists and mappings of them, by name."""


@dataclass(frozen=True)
class Entry:
    """An entry of the golden file.

    Attributes:
        name: for messages, and to select tests.
        key: identifies the entry; contains all revisions that its numbers depend on.
        revision: the attribute to raise when they change.
        numbers: computes them.
    """

    name: str
    key: str
    revision: str
    numbers: Callable[[], Numbers]


ENGINE = "ENGINE_REVISION (fltrain.runs.spec)"
DATA = "the revision of digits (config/datasets.yaml)"


COMPANIONS: dict[str, dict[str, Any]] = {
    "fed2": {"decoupled": 2, "groups": 5},
    "fedacg": {"beta": 0.1},
    "fedamp": {"alpha": 10.0, "decay_every": 1, "scale": 1000.0},
    "fedamp variant=kernel": {"alpha": 0.5},
    "fedfcd": {"head_lr": 0.05, "server_lr": 0.5},
    "fedgh": {"server_lr": 0.5},
    "fedimpro": {"noise": 0.1, "beta_server": 0.3},
    "fedlc denominator=exclusive": {"missing": "clamp"},
    "fedlc missing=eps": {"tau": 0.1},
    "fednova": {"mu": 0.1, "server_momentum": 0.5},
    "fedprox": {"mu": 1.0},
    "flfa candidates=effective": {"n_fa": 5},
    "flfa strategy=fixed": {"layers": "all"},
    "flfa layers=all": {"strategy": "fixed"},
    "flfa skew_sign=-1": {"strategy": "skew", "n_fa": 2},
    "flfa strategy=skew": {"n_fa": 2},
    "mobilenetv2 stem_stride=2": {"variant": "t"},
    "scaffold correction=after_step": {"normaliser": "plain"},
}
"""Settings to combine with components or choices: without them the run would be refused, or would show too
little effect in a few rounds."""


def variants(component: type[Component], **needed: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and settings: the defaults, and every other value of each setting that lists its values."""
    name = component.model_fields["name"].default
    choices: list[dict[str, Any]] = [{}]
    for setting, field in component.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        options = [option for kind in kinds if get_origin(kind) is Literal for option in get_args(kind)]
        if field.annotation is bool:
            options = [False, True]
        if setting != "name":
            choices += [{setting: option} for option in options if option != field.default]
    for settings in choices:
        label = " ".join([name, *(f"{setting}={value}" for setting, value in settings.items())])
        companions = {**COMPANIONS.get(name, {}), **COMPANIONS.get(label, {})}
        yield label, {"name": name, **needed, **companions, **settings}


def raised(component: type[Component]) -> str:
    """File or attribute that holds the revision of a component."""
    return f"{component.__name__}.revision ({component.__module__})"


RUN: dict[str, Any] = {
    "dataset": {"name": "digits", "image_size": 16},
    "partition": {"name": "dirichlet", "clients": 5, "min_size": 12},
    "model": "lenet5",
    "method": "fedavg",
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.05},
    "rounds": 3,
    "participation": {"fraction": 0.4},
    "seed": 7,
}
"""With this seed, clients 2 and 3 take part in two rounds in a row, and client 4 again after a pause, so
that client states matter."""

NORMED: dict[str, Any] = {
    "dataset": "digits",
    "model": "mobilenet_tiny",
    "training": {"epochs": 2, "batch_size": 64, "lr": 0.05},
}
"""The same with BatchNorm."""

SETTING: dict[str, dict[str, Any]] = {
    "ecgr buffers=reaggregated": NORMED,
    "ecgr rule=smallest": {"training": {**RUN["training"], "momentum": 0.0}},
    "fed2 count=weight_layers": NORMED,
    "fed2 norm=keep": NORMED,
    "fedamp": {"participation": {"fraction": 0.6}},
    "fedbn": NORMED,
    "fedma": {"participation": {"fraction": 1.0}, "rounds": 5},
    "fednova buffers=normalised": NORMED,
    "flfa": {"participation": {"fraction": 0.6}},
    "fedsol feedback=loss": {"plugins": ["flfa"]},
    "fedsol teacher=train": NORMED,
    "scaffold displacement=uploaded": {"plugins": ["ecgr"]},
}
"""Settings with which a method can run, or its choices make a difference."""

MAGNIFYING = {"fedma mode=bbp_map"}
"""Components that magnify rounding differences, in addition to norm layers."""

ENGINE_SETTINGS: dict[str, dict[str, Any]] = {
    "augmented": {"training": {**RUN["training"], "augmentation": {"crop_padding": 1, "cutout": 3}}},
    "clipped": {"training": {**RUN["training"], "clip_norm": 0.5, "last_batch": "drop"}},
    "slowing down": {"training": {**RUN["training"], "lr_schedule": {"name": "step", "every": 2}}},
    "measured": {
        "evaluation": {
            "statistics": ["drift", "similarity", "divergence", "dissimilarity", "separability"],
            "every": 2,
        }
    },
    "skewed features": {"feature_skew": {"noise": 0.2, "rotations": 4}},
    "tested locally": {"local_test": {"stratify": True}},
    "local batchnorm": {"local_test": {}, "batchnorm": "local"},
    "tested after training": {"local_test": {}, "evaluation": {"point": "after_local"}},
}
"""Settings of the engine."""

TRAIN_IMAGES, TEST_IMAGES = 80, 40
"""Number of images; more would take longer and show nothing new."""


@cache
def digits(dataset: Dataset) -> PreparedData:
    """The prepared digits."""
    with tempfile.TemporaryDirectory() as folder:
        return prepare(dataset, Path(folder) / "digits.safetensors", Path(folder))


def federation(spec: RunSpec) -> Simulation:
    """The run of a spec, on the first images of its data set."""
    full_data = digits(spec.dataset)
    data = PreparedData(
        full_data.train_images[:TRAIN_IMAGES],
        full_data.train_labels[:TRAIN_IMAGES],
        full_data.test_images[:TEST_IMAGES],
        full_data.test_labels[:TEST_IMAGES],
        full_data.classes,
        full_data.mean,
        full_data.std,
        digest="",
    )
    pool = data.merged() if spec.local_test else data
    parts = spec.division.parts(pool.train_labels, data.classes)
    return Simulation(spec, data, Partition(parts[""], "", parts.get("test_")), torch.device("cpu"))


ACCURACIES = {"evaluation accuracy", "evaluation macro", "evaluation std"}
"""Numbers that jump when the prediction of one image changes."""


def of_run(spec: RunSpec, rough: bool) -> Numbers:
    """Numbers of a run's record, and sums over the final states of server and clients.

    Tensors that may be weights are compared by their displacement, in which small changes show.
    """
    simulation = federation(spec)
    start = simulation.server.weights.clone()
    numbers: Numbers = {}
    for row in (row for rows in simulation.run() for row in rows):
        for name, value in row.items():
            if name not in ("round", "kind"):
                numbers.setdefault(f"{row['kind']} {name}", []).append(value)
    server = simulation.server
    client_states = [state for _, states in sorted(simulation.clients.items()) for state in states.values()]
    final_tensors = {
        "server": [tensor for state in server.states.values() for tensor in state.values()],
        "clients": [tensor for state in client_states for tensor in state.values()],
    }
    numbers |= {
        "bytes": [simulation.bytes_down, simulation.bytes_up],
        "buffers": sums([server.buffers]),
        "movement": sums([server.weights - start]),
    }
    for place, tensors in final_tensors.items():
        moved = [tensor - start for tensor in tensors if tensor.shape == start.shape]
        numbers |= {place: sums(tensors), f"{place} movement": sums(moved)}
    if rough:
        return {f"~{name}": value for name, value in numbers.items() if name not in ACCURACIES}
    return numbers


def sums(tensors: Iterable[Tensor]) -> list[float]:
    """Sums over all floats together: of absolute values, of positive ones, and of every other positive one.

    There is no cancellation in these, so that a relative tolerance makes sense.
    """
    totals = torch.zeros(3, dtype=torch.float64)
    for tensor in tensors:
        if not tensor.is_floating_point():
            continue  # indices and counts, whose sum has little meaning
        values = tensor.flatten().float()
        positive = values.relu()
        subsets = (values.abs(), positive, positive[::2])
        totals += torch.stack([subset.sum(dtype=torch.float64) for subset in subsets])
    return totals.tolist()


def named(method: type[Method], settings: Any) -> dict[str, Any]:
    """A method or plug-in as a run's spec names it."""
    return {"plugins": [settings]} if method.plugin else {"method": settings}


def runs() -> Iterator[Entry]:
    """Yield federated averaging with the engine's settings, then every method and plug-in in all variants."""

    def entry(name: str, revision: str, changes: Mapping[str, Any]) -> Entry:
        spec = RunSpec.parse({**RUN, **changes}, name)
        rough = spec.model.name == NORMED["model"] or name in MAGNIFYING
        return Entry(name, spec.run_id, revision, partial(of_run, spec, rough))

    for name, changes in ENGINE_SETTINGS.items():
        yield entry(f"fedavg {name}", ENGINE, changes)
    for name, method in METHODS.items():
        composed = Composition((METHODS["fedavg"](), method()) if method.plugin else (method(),))
        needed = {**SETTING.get(name, {}), **({"local_test": {}} if composed.personal else {})}
        for label, settings in variants(method):
            changes = {**needed, **named(method, settings), **SETTING.get(label, {})}
            yield entry(label, raised(method), changes)
        if name != "fedma":  # which does not take networks with norm layers
            yield entry(f"{name} normed", raised(method), {**NORMED, **needed, **named(method, name)})


def of_data(dataset: Dataset) -> Numbers:
    """Digest and normalisation of a prepared data set."""
    data = digits(dataset)
    return {"digest": data.digest, "mean": list(data.mean), "std": list(data.std)}


LABELS, CLASSES, WRITERS = np.arange(12_000) % 10, 10, np.arange(12_000) // 300


def of_scheme(scheme: Scheme) -> Numbers:
    """Digests of the assignment of training and test images to clients."""
    clients = scheme.split(LABELS, CLASSES, 0, WRITERS)
    numbers: Numbers = {"clients": parts(clients)}
    for stratify in (False, True):
        strata = LABELS if stratify else None
        train, tests = local_split(clients, 0.25, stream(0, Purpose.TEST_SPLIT), strata)
        numbers[f"local test, stratify={stratify}"] = [parts(train), parts(tests)]
    return numbers


def parts(indices: Iterable[np.ndarray]) -> str:
    """Digest of index arrays."""
    return digest({f"{client:04}": array for client, array in enumerate(indices)})


def of_model(model: Model) -> Numbers:
    """Sums of the initial weights; loss, gradient sums and sizes of a training step on random images."""
    channels, classes, samples = 3, 10, 16
    network = build(model, channels, model.min_side, classes, seed=0).train()
    dropout: dict[str, float] = {}
    for name, part in network.named_modules():
        if isinstance(part, nn.Dropout | nn.Dropout2d):
            dropout[name] = part.p
            part.eval()  # PyTorch draws its masks differently on other kinds of processors
    shape = (samples, channels, model.min_side, model.min_side)
    images = torch.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32))
    weights = list(network.parameters())
    loss = cross_entropy(network(images), torch.arange(samples) % classes)
    gradient = torch.autograd.grad(loss, weights)
    return {
        "shapes": [list(parameter.shape) for parameter in weights],
        "dropout": dropout,
        "weights": sums(parameter.detach() for parameter in weights),
        "loss": float(loss.detach()),
        "~gradient": sums(gradient),
        "buffers": sums(network.buffers()),
    }


def components() -> Iterator[Entry]:
    """Yield data, partition schemes and models, in all variants."""
    for dataset in (Dataset(name="digits"), Dataset(name="digits", image_size=16)):
        key = short_hash([dataset.model_dump(mode="json"), dataset.revision])
        yield Entry(dataset.id, f"{dataset.id}-{key}", DATA, partial(of_data, dataset))

    def entries_of(
        registry: Mapping[str, type[Component]], numbers: Callable[[Any], Numbers], **needed: Any
    ) -> Iterator[Entry]:
        for name, component in registry.items():
            extra = {setting: value for setting, value in needed.items() if setting in component.model_fields}
            for label, settings in variants(component, **extra):
                instance = component.parse(settings, label)
                key = short_hash([instance.model_dump(mode="json"), instance.revision, ENGINE_REVISION])
                yield Entry(label, f"{name}-{key}", raised(component), partial(numbers, instance))

    yield from entries_of(SCHEMES, of_scheme, clients=30)
    yield from entries_of(MODELS, of_model)


def entries() -> list[Entry]:
    """Return every entry of this project, each after the entries that it builds on."""
    ours = (
        entry for entry in [*components(), *runs()] if "(fltrain." in entry.revision or entry.revision == DATA
    )
    by_key = {entry.key: entry for entry in reversed(list(ours))}
    return list(reversed(by_key.values()))


def read() -> dict[str, Numbers]:
    """The stored numbers, by key."""
    return json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}


def differences(stored: Numbers, computed: Numbers) -> list[str]:
    """Describe all differences, one per line."""
    return [
        f"{name}: {stored.get(name)} -> {computed.get(name)}"
        for name in sorted(stored.keys() | computed.keys())
        if not _equal(stored.get(name), computed.get(name), ROUGH if name.startswith("~") else FINE)
    ]


def _equal(stored: Any, computed: Any, relative: float) -> bool:
    if isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        return all(_equal(*pair, relative) for pair in zip(stored, computed, strict=True))
    if isinstance(stored, dict) and isinstance(computed, dict) and stored.keys() == computed.keys():
        return all(_equal(stored[key], computed[key], relative) for key in stored)
    if isinstance(stored, float) and isinstance(computed, float):
        return math.isclose(stored, computed, rel_tol=relative, abs_tol=1e-9)
    return bool(stored == computed)


def rounded(value: Any) -> Any:
    """The value with floats rounded to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def fault(entry: Entry, stored: Mapping[str, Numbers]) -> str | None:
    """Describe the problem of an entry; None if its numbers are the stored ones."""
    if entry.key not in stored:
        return f"{entry.name}: {entry.key} has no golden numbers: run `make golden`"
    changes = differences(stored[entry.key], entry.numbers())
    if not changes:
        return None
    return "\n  ".join(
        [
            f"numbers of {entry.name} changed but its revision did not: raise {entry.revision}, or undo the "
            f"change, then run `make golden` ({entry.key})",
            *changes,
        ]
    )


def write(numbers: Mapping[str, Numbers]) -> None:
    """Write the numbers, one entry per line, so that changes are easy to review."""
    lines = (f"{json.dumps(key)}: {canonical_json(values)}" for key, values in sorted(numbers.items()))
    write_text(GOLDEN, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    stored = read()
    write({entry.key: stored.get(entry.key) or rounded(entry.numbers()) for entry in entries()})
