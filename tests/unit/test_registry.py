"""The registry of datasets is complete, agrees with torchvision, and names mistakes."""

import gc
import inspect
import re
from pathlib import Path
from typing import Any, Literal

import medmnist
import pytest
import torch
import yaml
from pydantic import Field
from torchvision import datasets as torchvision

from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError
from fltrain.core.registry import Component, catalogue
from fltrain.data.datasets import DatasetEntry, Normalisation, load
from fltrain.data.partition import SCHEMES
from fltrain.data.partition.base import Scheme
from fltrain.data.readers import READERS
from fltrain.data.readers.base import Reader
from fltrain.methods.fedavg import FedAvg
from fltrain.models.base import Model
from fltrain.models.networks import MODELS

ENTRIES = load(Path(__file__).parents[2] / "config" / "datasets.yaml")
FILE = {"name": "x.npz", "urls": ["https://example.org/x.npz"], "checksum": "md5:" + 32 * "0"}
TINY = {"reader": "npz", "path": "x"}


def files(name: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Addresses and checksum of each file of a dataset, by its name."""
    return {file.name: (file.urls, file.checksum) for file in ENTRIES[name].files}


def test_every_entry_is_complete() -> None:
    for name, entry in ENTRIES.items():
        facts = ("title", "licence", "citation", "classes", "channels", "side_read")
        lacking = [fact.removesuffix("_read") for fact in facts if not getattr(entry, fact)]
        lacking += [] if entry.normalisation() else ["mean, std"]
        lacking += [] if entry.files or entry.obtain or name == "digits" else ["files or obtain"]
        remedy = f"add them to {name!r} in config/datasets.yaml, or move the entry to FLTRAIN_PATH"
        assert not lacking and not entry.path, f"{lacking}: {remedy}"
    only = ENTRIES["imagenet100"].reader.model_dump()["only"]
    assert [*only] == sorted({*only}) and len(only) == 100
    assert all(re.fullmatch(r"n\d{8}", name) for name in only)


def test_files_agree_with_torchvision() -> None:
    for name, mnist in {"mnist": torchvision.MNIST, "fmnist": torchvision.FashionMNIST}.items():
        assert files(name) == {
            file: (tuple(mirror + file for mirror in mnist.mirrors), f"md5:{checksum}")
            for file, checksum in mnist.resources
        }
        assert ENTRIES[name].classes == len(mnist.classes)
    for name, cifar in {"cifar10": torchvision.CIFAR10, "cifar100": torchvision.CIFAR100}.items():
        assert files(name) == {cifar.filename: ((cifar.url,), f"md5:{cifar.tgz_md5}")}
    svhn = [torchvision.SVHN.split_list[split] for split in ("train", "test")]
    assert files("svhn") == {file: ((url,), f"md5:{checksum}") for url, file, checksum in svhn}


def test_every_flat_single_label_dataset_of_medmnist_is_known(tmp_path: Path) -> None:
    path = tmp_path / "datasets.yaml"
    flat = {name: facts for name, facts in medmnist.INFO.items() if "3d" not in name and name != "chestmnist"}
    path.write_text(yaml.safe_dump({name: {"reader": "medmnist"} for name in flat}))
    entries = load(path)
    for name, facts in flat.items():
        counts = facts["n_samples"]["train"], facts["n_samples"]["test"]
        assert (entries[name].train_images, entries[name].test_images) == counts
        assert entries[name].title == facts["python_class"] and entries[name].licence == facts["license"]
    path.write_text(yaml.safe_dump({"mine": {"reader": {"name": "medmnist"}, "path": "x"}}))
    assert load(path)["mine"].path == "x", "a custom copy states its own facts"
    unsupported = "is multi-label or 3D; fltrain supports sets with one label"
    for name, message in {
        "chestmnist": unsupported,
        "organmnist3d": unsupported,
        "bloodmnits": "no set of MedMNIST with one label per image .*; did you mean 'bloodmnist'",
    }.items():
        path.write_text(yaml.safe_dump({name: {"reader": "medmnist"}}))
        with pytest.raises(FltrainError, match=rf"{name}: .*{message}"):
            load(path)


def test_a_normalisation_is_chosen_by_name() -> None:
    first, second = ({"mean": [m] * 3, "std": [s] * 3} for m, s in ((0.1, 0.2), (0.3, 0.4)))
    data = {**TINY, "channels": 3, **first, "normalisations": {"ecgr": second}}
    entry = DatasetEntry.parse(data, "test")
    chosen = {"default": (0.1, 0.2), "ecgr": (0.3, 0.4), "unit": (0.0, 1.0), "half": (0.5, 0.5)}
    for name, (mean, std) in chosen.items():
        assert entry.normalisation(name) == Normalisation(mean=(mean,) * 3, std=(std,) * 3)
    with pytest.raises(FltrainError, match=r"unknown normalisation 'egcr'; did you mean 'ecgr'\? \(known: "):
        entry.normalisation("egcr")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"reader": "npz"}, r"reader 'npz' needs 'files', a 'path', or at least 'obtain'"),
        ({**TINY, "files": [FILE]}, r"either 'files' or 'path', not both"),
        ({**TINY, "mean": [0.5]}, r"'mean' and 'std' belong together"),
        ({**TINY, "mean": [0.5], "std": [0.5, 0.5]}, r"'mean' has 1 value and 'std' has 2"),
        (
            {**TINY, "channels": 3, "mean": [0.5], "std": [0.5]},
            r"normalisation 'default' has 1 value for 3 channels;",
        ),
        (
            {**TINY, "files": [{**FILE, "name": "../x"}]},
            r"files.0.name: the name '../x' becomes part of a path",
        ),
    ],
)
def test_mistakes_in_an_entry_are_named(tmp_path: Path, entry: Any, message: str) -> None:
    path = tmp_path / "datasets.yaml"
    path.write_text(yaml.safe_dump({"mnist": {**TINY, "reader": "idx", "classes": 10}, "mine": entry}))
    with pytest.raises(FltrainError, match=message) as error:
        load(path)
    place = re.match(rf"{path}: mine: line (\d+): ", str(error.value))
    assert place and "\n" not in str(error.value)
    if "../x" in message:
        assert "../x" in path.read_text().splitlines()[int(place[1]) - 1]


def test_checksums_may_be_in_upper_case() -> None:
    file = {**FILE, "checksum": f"MD5:{'aB' * 16}"}
    entry = DatasetEntry.parse({"reader": "npz", "files": [file]}, "test")
    assert entry.files[0].checksum == f"md5:{'ab' * 16}"


def test_a_component_whose_name_is_no_file_name_is_refused() -> None:
    class Shape(Component):
        """A kind of component."""

    class Outside(Shape):
        name: Literal["../halved"] = "../halved"

    with pytest.raises(FltrainError, match=r"the name in .* '\.\./halved' becomes part of a path: "):
        catalogue(Shape)


def test_a_class_without_a_name_is_refused_unless_it_is_a_base_or_private() -> None:
    class Shape(Component):
        """A kind of component."""

    class Round(Shape):
        """A base."""

    class Circle(Round):
        name: Literal["circle"] = "circle"

    class _Helper(Round):
        """Private."""

    assert catalogue(Shape)["circle"]
    for base in (Shape, Circle):
        nameless = type("Oval", (base,), {"__module__": "own.shapes.oval"})
        with pytest.raises(FltrainError) as error:
            catalogue(Shape)
        written = "own.shapes.oval.Oval: lacks 'name'; write name: Literal['oval'] = 'oval'"
        assert str(error.value) == written
        del nameless, error
        gc.collect()


@pytest.mark.parametrize(
    "base", [FedAvg, SCHEMES["iid"], MODELS["mlp"], READERS["idx"]], ids=lambda base: base.__name__
)
@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            'Literal["clap"] = "clip"',
            "name is Literal['clap'] = 'clip'; write name: Literal['clap'] = 'clap'",
        ),
        ('str = "clip"', "name is str = 'clip'; write name: Literal['clip'] = 'clip'"),
        (
            'Literal["clap", "clip"] = "clip"',
            "name is Literal['clap', 'clip'] = 'clip'; write name: Literal['clip'] = 'clip'",
        ),
        (
            'Literal["clip"]',
            "name is Literal['clip']; write name: Literal['clip'] = 'clip'",
        ),
        (
            "'Litera[\"clip\"]' = 'clip'",
            'name is Litera["clip"], which is not defined; import Literal from typing',
        ),
    ],
    ids=["misspelt", "text", "two names", "no default", "no Literal"],
)
def test_a_component_states_one_name_twice(base: type[Component], written: str, problem: str) -> None:
    names = {"base": base, "Literal": Literal, "__name__": "own.methods.clap"}
    exec('class Clap(base):\n    name: Literal["clip"] = "clip"', names)
    with pytest.raises(FltrainError) as error:
        exec(f"class Clap(base):\n    name: {written}", names)
    assert str(error.value) == f"own.methods.clap.Clap: {problem}"
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            "mu: float = Field(default=-1.0, ge=0)",
            "default of 'mu': input should be greater than or equal to 0,",
        ),
        (
            "mu: float = None",
            "default of 'mu': input should be a valid number, got None; change default or type",
        ),
        ("mu: 'Small' = None", "a setting has the type 'Small', which is not defined; import"),
        (
            "mu: torch.Tensor = None",
            "a setting has the type <class 'torch.Tensor'>, which no file can hold; use",
        ),
    ],
)
def test_a_setting_has_a_type_of_files_and_a_valid_default(setting: str, problem: str) -> None:
    class Shape(Component):
        """A kind of component."""

    names = {
        "Shape": Shape,
        "Literal": Literal,
        "Field": Field,
        "torch": torch,
        "__name__": "own.shapes.oval",
    }
    exec(f"class Oval(Shape):\n    name: Literal['oval'] = 'oval'\n    {setting}", names)
    with pytest.raises(FltrainError, match=f"^{re.escape(f'own.shapes.oval.Oval: {problem}')}"):
        catalogue(Shape)


def test_a_component_is_constant() -> None:
    with pytest.raises(FltrainError, match=r"py:\d+: class FedAvg: self\.x cannot be set, .* in a state"):
        FedAvg().x = 1  # type: ignore[attr-defined]


def test_a_component_without_an_abstract_part_is_refused() -> None:
    with pytest.raises(FltrainError, match=r"Lin: it lacks a part; write min_side: ClassVar\[int\] = \.\.\."):
        type("Lin", (Model,), {"name": "lin", "__annotations__": {"name": Literal["lin"]}})
    with pytest.raises(FltrainError, match=r"Cut: it lacks a part; write def \w+\(self, .*\): \.\.\."):
        type("Cut", (Scheme,), {"name": "cut", "__annotations__": {"name": Literal["cut"]}})


@pytest.mark.parametrize(
    ("base", "name", "written", "expected"),
    [
        (FedAvg, "correct", lambda self, gradient, weights: gradient, "gradient, weights, local, step_state"),
        (SCHEMES["iid"], "divide", lambda self, labels, seed, more: [], None),
        (MODELS["mlp"], "blocks", lambda self: [], None),
        (Reader, "load", lambda self, source: None, "source, facts, side"),
    ],
)
def test_overriding_functions_take_the_same_arguments(
    base: type[Component], name: str, written: Any, expected: str | None
) -> None:
    expected = expected or ", ".join([*inspect.signature(getattr(base, name)).parameters][1:])
    takes = ", ".join(inspect.signature(written).parameters)
    message = f"own.Mine: {name!r} takes ({takes}); write {name}(self, {expected})"
    with pytest.raises(FltrainError, match=f"^{re.escape(message)}$"):
        type("Mine", (base,), {"__module__": "own", name: written})
    for right in (lambda *arguments: None, getattr(base, name)):
        type("Mine", (base,), {"__module__": "own", name: right})


def test_a_long_list_of_known_words_is_cut() -> None:
    with pytest.raises(FltrainError, match=r"no entry 'x' \(one of: F-0, F-1, .*, F-59 and 40 more\)$"):
        check_known("no entry", ["x"], [f"F-{number}" for number in range(100)], "one of")
