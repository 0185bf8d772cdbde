"""The registry of datasets agrees with the libraries that also define them, and names mistakes."""

import re
from pathlib import Path
from typing import Any

import medmnist
import pytest
import yaml
from torchvision import datasets as torchvision

from fltrain.core.errors import FltrainError
from fltrain.data.registry import Normalisation, load

REGISTRY = Path(__file__).parents[2] / "config" / "datasets.yaml"
ENTRIES = load(REGISTRY)
MEDICAL = ("bloodmnist", "pathmnist", "organcmnist", "organsmnist")

Files = dict[str, tuple[tuple[str, ...], str]]
"""Name -> addresses and checksum."""


def files(name: str) -> Files:
    return {file.name: (file.urls, file.checksum) for file in ENTRIES[name].files}


def test_every_entry_is_complete() -> None:
    assert {
        *("digits", "mnist", "fmnist", "cifar10", "cifar100", "svhn", *MEDICAL),
        *("cifar10.1-v4", "cifar10.1-v6", "femnist", "lc25000", "imagenet100"),
    } <= ENTRIES.keys()
    for name, entry in ENTRIES.items():
        assert entry.title and entry.licence and entry.citation, name
        assert entry.classes and entry.channels and entry.normalisation(), name
        assert entry.files or entry.obtain or name == "digits", name
        assert entry.side_read, name
        assert not entry.path, name


def test_files_agree_with_torchvision() -> None:
    for name, mnist in {"mnist": torchvision.MNIST, "fmnist": torchvision.FashionMNIST}.items():
        expected = {
            file: (tuple(mirror + file for mirror in mnist.mirrors), f"md5:{checksum}")
            for file, checksum in mnist.resources
        }
        assert files(name) == expected
        assert ENTRIES[name].classes == len(mnist.classes)
    for name, cifar in {"cifar10": torchvision.CIFAR10, "cifar100": torchvision.CIFAR100}.items():
        assert files(name) == {cifar.filename: ((cifar.url,), f"md5:{cifar.tgz_md5}")}
    known = torchvision.SVHN.split_list
    expected = {file: ((url,), f"md5:{checksum}") for url, file, checksum in (known["train"], known["test"])}
    assert files("svhn") == expected


def test_every_flat_single_label_dataset_of_medmnist_is_known(tmp_path: Path) -> None:
    flat = {name: facts for name, facts in medmnist.INFO.items() if "3d" not in name and name != "chestmnist"}
    entries = load(written(tmp_path, {name: {"reader": "medmnist"} for name in flat}))
    for name, facts in flat.items():
        counts = facts["n_samples"]["train"], facts["n_samples"]["test"]
        assert (entries[name].train_images, entries[name].test_images) == counts
        assert entries[name].title == facts["python_class"] and entries[name].licence == facts["license"]
    unsupported = "is multi-label or 3D; fltrain supports sets with one label"
    for name, message in {
        "chestmnist": unsupported,
        "organmnist3d": unsupported,
        "bloodmnits": "no set of MedMNIST with one label per image .*; did you mean 'bloodmnist'",
    }.items():
        with pytest.raises(FltrainError, match=rf"{name}: .*{message}"):
            load(written(tmp_path, {name: {"reader": "medmnist"}}))


def test_checksums_may_be_in_upper_case(tmp_path: Path) -> None:
    file = {**FILE, "checksum": f"MD5:{'aB' * 16}"}
    (entry,) = load(written(tmp_path, {"mine": {"reader": "npz", "files": [file]}})).values()
    assert entry.files[0].checksum == f"md5:{'ab' * 16}"


def test_imagenet100_has_a_hundred_classes_of_imagenet() -> None:
    only = ENTRIES["imagenet100"].reader.model_dump()["only"]
    assert len(set(only)) == len(only) == 100
    assert list(only) == sorted(only) and all(re.fullmatch(r"n\d{8}", name) for name in only)


def test_normalisations_have_known_values() -> None:
    entry = ENTRIES["cifar10"]
    assert entry.normalisation() == Normalisation(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    ecgr = entry.normalisation("ecgr")
    assert ecgr is not None and ecgr.std == (0.2023, 0.1994, 0.2010)
    assert entry.normalisation("unit") == Normalisation(mean=(0.0,) * 3, std=(1.0,) * 3)
    assert ENTRIES["fmnist"].normalisation("half") == Normalisation(mean=(0.5,), std=(0.5,))
    with pytest.raises(FltrainError, match=r"unknown normalisation 'egcr'; did you mean 'ecgr'\? \(known: "):
        entry.normalisation("egcr")


def written(folder: Path, content: Any) -> Path:
    path = folder / "datasets.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


FILE = {"name": "x.npz", "urls": ["https://example.org/x.npz"], "checksum": "md5:" + 32 * "0"}
TINY = {"reader": "npz", "path": "x"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"reader": "npz"}, r"reader 'npz' needs 'files', a 'path', or at least 'obtain'"),
        ({**TINY, "files": [FILE]}, r"either 'files' or 'path', not both"),
        ({**TINY, "mean": [0.5]}, r"'mean' and 'std' belong together"),
        ({**TINY, "mean": [0.5], "std": [0.5, 0.5]}, r"'mean' has 1 values and 'std' has 2"),
        (
            {**TINY, "channels": 3, "mean": [0.5], "std": [0.5]},
            r"normalisation 'default' has 1 values for 3 channel",
        ),
        ({**TINY, "of": "mnist", "classes": 5}, r"mine: of: classes is 5, but mnist has 10"),
        (
            {"reader": "npz", "files": [{**FILE, "name": "../x"}]},
            r"files.0.name: the name '../x' becomes part of a path",
        ),
    ],
)
def test_mistakes_in_an_entry_are_named(tmp_path: Path, entry: Any, message: str) -> None:
    mnist = {"reader": "idx", "path": "x", "classes": 10}
    with pytest.raises(FltrainError, match=message) as error:
        load(written(tmp_path, {"mnist": mnist, "mine": entry}))
    assert str(error.value).startswith(f"{tmp_path}/datasets.yaml: mine: ")
    assert "\n" not in str(error.value)
