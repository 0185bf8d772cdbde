"""The registry: what it says agrees with the libraries that know the sets, and mistakes in it are named."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import medmnist
import numpy as np
import pytest
import yaml
from PIL import Image
from torchvision import datasets as torchvision

from fltrain.core.errors import FltrainError
from fltrain.data.readers import Facts, observed
from fltrain.data.registry import DatasetEntry, Normalisation, RemoteFile, load

REGISTRY = Path(__file__).parents[2] / "config" / "datasets.yaml"
ENTRIES = load(REGISTRY)
MEDICAL = ("bloodmnist", "pathmnist", "organcmnist", "organsmnist")

Files = dict[str, tuple[tuple[str, ...], str]]
"""Name -> addresses and checksum."""


def files(name: str) -> Files:
    return {file.name: (file.urls, file.checksum) for file in ENTRIES[name].files}


# What is registered


def test_every_set_is_complete() -> None:
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


def test_files_are_what_the_downloader_takes() -> None:
    for entry in ENTRIES.values():
        for file in entry.files:
            assert isinstance(file, RemoteFile) and file.urls and file.checksum


@pytest.mark.parametrize(
    ("name", "known"), [("mnist", torchvision.MNIST), ("fmnist", torchvision.FashionMNIST)]
)
def test_mnist_and_fashion_mnist_agree_with_torchvision(name: str, known: Any) -> None:
    expected = {
        file: (tuple(mirror + file for mirror in known.mirrors), f"md5:{checksum}")
        for file, checksum in known.resources
    }
    assert files(name) == expected
    assert ENTRIES[name].classes == len(known.classes)


@pytest.mark.parametrize(
    ("name", "known"), [("cifar10", torchvision.CIFAR10), ("cifar100", torchvision.CIFAR100)]
)
def test_cifar_agrees_with_torchvision(name: str, known: Any) -> None:
    assert files(name) == {known.filename: ((known.url,), f"md5:{known.tgz_md5}")}


def test_svhn_agrees_with_torchvision() -> None:
    known = torchvision.SVHN.split_list
    expected = {file: ((url,), f"md5:{checksum}") for url, file, checksum in (known["train"], known["test"])}
    assert files("svhn") == expected


@pytest.mark.parametrize("name", MEDICAL)
def test_medical_sets_agree_with_medmnist(name: str) -> None:
    known, entry = medmnist.INFO[name], ENTRIES[name]
    assert files(name) == {f"{name}.npz": ((known["url"],), f"md5:{known['MD5']}")}
    assert entry.classes == len(known["label"])
    assert entry.channels == known["n_channels"]
    assert (entry.train_images, entry.test_images) == (
        known["n_samples"]["train"],
        known["n_samples"]["test"],
    )
    assert (entry.side, entry.licence) == (28, known["license"])


def test_sizes_are_those_of_the_newer_medmnist() -> None:
    assert ENTRIES["organcmnist"].facts == Facts(11, 1, 28, 12975, 8216)
    assert ENTRIES["organsmnist"].facts == Facts(11, 1, 28, 13932, 8827)


@pytest.mark.parametrize("name", ["mnist", "svhn", "organcmnist", "organsmnist", "digits", "femnist"])
def test_what_changes_its_meaning_in_a_mirror_is_never_flipped(name: str) -> None:
    assert not ENTRIES[name].horizontal_flip


@pytest.mark.parametrize("version", ["v4", "v6"])
def test_cifar10_1_is_treated_like_cifar10(version: str) -> None:
    entry, trained = ENTRIES[f"cifar10.1-{version}"], ENTRIES["cifar10"]
    assert (entry.of, entry.train_images) == ("cifar10", 0)
    for name in ("default", "ecgr", "half"):
        assert entry.normalisation(name) == trained.normalisation(name)


def test_digits_read_as_registered() -> None:
    entry = ENTRIES["digits"]
    assert observed(entry.reader.read(Path("nowhere"), entry.facts)) == entry.facts


def test_photographs_are_read_at_a_size_that_fits_into_memory() -> None:
    assert (ENTRIES["lc25000"].side, ENTRIES["lc25000"].side_read) == (768, 128)
    assert (ENTRIES["imagenet100"].side, ENTRIES["imagenet100"].side_read) == (None, 64)


def test_imagenet100_has_a_hundred_classes_of_imagenet() -> None:
    only = ENTRIES["imagenet100"].reader.model_dump()["only"]
    assert len(set(only)) == len(only) == 100
    assert list(only) == sorted(only) and all(re.fullmatch(r"n\d{8}", name) for name in only)


# Normalisations


def test_normalisations_by_name() -> None:
    entry = ENTRIES["cifar10"]
    assert entry.normalisation() == Normalisation(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    ecgr = entry.normalisation("ecgr")
    assert ecgr is not None and ecgr.std == (0.2023, 0.1994, 0.2010)
    assert entry.normalisation("unit") == Normalisation(mean=(0.0,) * 3, std=(1.0,) * 3)
    assert ENTRIES["fmnist"].normalisation("half") == Normalisation(mean=(0.5,), std=(0.5,))
    with pytest.raises(FltrainError, match=r"unknown normalisation 'egcr'; did you mean 'ecgr'\? \(known: "):
        entry.normalisation("egcr")


def test_normalisation_of_a_set_that_states_none() -> None:
    entry = DatasetEntry.parse({"reader": "npz", "path": "x"}, "test")
    assert entry.normalisation() is None
    assert entry.normalisation("half", channels=3) == Normalisation(mean=(0.5,) * 3, std=(0.5,) * 3)


# Bring your own


def written(folder: Path, content: Any) -> Path:
    path = folder / "datasets.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_set_in_three_lines(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), np.uint8)
    labels = np.arange(9)[:, None] % 3
    content = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "mine.npz", **content)
    (entry,) = load(written(tmp_path, f"mine:\n  reader: npz\n  path: {tmp_path}/mine.npz\n")).values()
    assert entry.own_copy is not None
    splits = entry.reader.read(entry.own_copy, entry.facts)
    assert observed(splits) == Facts(classes=3, channels=3, side=8, train_images=9, test_images=9)


def test_photographs_in_three_lines(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (9, 7 + number)).save(tmp_path / name / f"{number}.png")
    reader = "{name: folder, side: 4, train_fraction: 0.6}"
    (entry,) = load(written(tmp_path, f"mine:\n  reader: {reader}\n  path: {tmp_path}\n")).values()
    splits = entry.reader.read(tmp_path, entry.facts)
    assert entry.side_read == 4
    assert splits.class_names == ("cat", "dog")
    assert observed(splits) == Facts(classes=2, channels=3, side=4, train_images=6, test_images=4)


def test_own_copies_may_be_at_home() -> None:
    entry = DatasetEntry.parse({"reader": "npz", "path": "~/data/mine.npz"}, "test")
    assert entry.own_copy == Path.home() / "data" / "mine.npz"
    assert ENTRIES["mnist"].own_copy is None


# Mistakes

FILE = {"name": "x.npz", "urls": ["https://example.org/x.npz"], "checksum": "md5:" + 32 * "0"}
TINY = {"reader": "npz", "path": "x"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**TINY, "clases": 3}, r"mine: unknown key 'clases'; did you mean 'classes'\?"),
        ({**TINY, "reader": "nzp"}, r"mine: reader: unknown reader 'nzp'; did you mean 'npz'\?"),
        (
            {**TINY, "reader": {"name": "folder", "sides": 3}},
            r"unknown key 'sides'; did you mean 'side'\?",
        ),
        (
            {**TINY, "reader": {"name": "cifar", "version": "cifar-20"}},
            r"version: input should be 'cifar-10'",
        ),
        ({"path": "x"}, r"reader: field required"),
        ({"reader": "npz"}, r"reader 'npz' needs 'files', a 'path', or at least 'obtain'"),
        ({**TINY, "files": [FILE]}, r"either 'files' or 'path', not both"),
        ({**TINY, "classes": 1}, r"classes: input should be greater than or equal to 2, got 1"),
        ({**TINY, "classes": "ten"}, r"classes: input should be a valid integer, got 'ten'"),
        ({**TINY, "channels": 2}, r"channels: input should be 1 or 3, got 2"),
        ({**TINY, "mean": [0.5]}, r"'mean' and 'std' belong together"),
        ({**TINY, "mean": [0.5], "std": [0.5, 0.5]}, r"'mean' has 1 values and 'std' has 2"),
        ({**TINY, "mean": [0.5], "std": [0]}, r"std.* greater than 0"),
        (
            {**TINY, "channels": 3, "mean": [0.5], "std": [0.5]},
            r"normalisation 'default' has 1 values for 3 channel",
        ),
        (
            {**TINY, "channels": 1, "normalisations": {"odd": {"mean": [0, 0], "std": [1, 1]}}},
            r"normalisation 'odd' has 2 values for 1 channel",
        ),
        (
            {**TINY, "normalisations": {"half": {"mean": [0.4], "std": [0.6]}}},
            r"'half' is defined for every set",
        ),
        ({**TINY, "of": "mnits"}, r"mine: of: unknown data set 'mnits'; did you mean 'mnist'\?"),
        ({**TINY, "of": "mnist", "classes": 5}, r"mine: of: classes is 5, but mnist has 10"),
        ({"reader": "npz", "files": [{**FILE, "checksum": "0"}]}, r"files.0.checksum: .*pattern"),
        ({"reader": "npz", "files": [{**FILE, "urls": ["x.npz"]}]}, r"files.0.urls.0: .*pattern"),
        (
            {"reader": "npz", "files": [{**FILE, "name": "../x"}]},
            r"files.0.name: the name '../x' becomes part of a path",
        ),
        ({"reader": "npz", "files": [{**FILE, "size": 3}]}, r"files.0: unknown key 'size'"),
        (None, r"mine: input should be an object"),
    ],
)
def test_mistakes_in_an_entry(tmp_path: Path, entry: Any, message: str) -> None:
    mnist = {"reader": "idx", "path": "x", "classes": 10}
    with pytest.raises(FltrainError, match=message) as error:
        load(written(tmp_path, {"mnist": mnist, "mine": entry}))
    assert str(error.value).startswith(f"{tmp_path}/datasets.yaml: mine: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"found no entries, expected a mapping"),
        ("- mnist", r"found no entries, expected a mapping"),
        ("a: [", r"datasets.yaml: line 2: not YAML: .*"),
        ("a: \x00", r"datasets.yaml: not YAML: .*"),
        ({"My set": TINY}, r"data set 'My set': names consist of up to 100 lower-case letters"),
        ({"../up": TINY}, r"data set '../up': names consist of up to 100 lower-case letters"),
        ({101 * "x": TINY}, r"data set 'x+': names consist of up to 100 lower-case letters"),
        ({10: TINY}, r"line 1: YAML reads the key '10' as a number; write it in quotes"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(FltrainError, match=message) as error:
        load(written(tmp_path, content))
    assert "\n" not in str(error.value)


def test_missing_registry(tmp_path: Path) -> None:
    with pytest.raises(FltrainError, match=r"nowhere.yaml: no such file"):
        load(tmp_path / "nowhere.yaml")


def test_the_registry_is_cheap_to_load() -> None:
    heavy = "{'torch', 'torchvision', 'scipy', 'h5py', 'PIL', 'sklearn', 'requests', 'pandas'}"
    program = (
        "import sys; from pathlib import Path; from fltrain.data.registry import load; "
        f"load(Path({str(REGISTRY)!r})); print(sorted({heavy} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
