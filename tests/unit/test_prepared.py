"""Prepared datasets and partitions: contents of the files, and detection of damage."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file

from fltrain.core import files
from fltrain.core.errors import FltrainError
from fltrain.core.files import digest, read_arrays
from fltrain.data.datasets import Dataset, registry
from fltrain.data.partition import Division, LocalTest
from fltrain.data.partition.dirichlet import Dirichlet
from fltrain.data.partition.plain import ByWriter
from fltrain.data.prepared import (
    SHEET_COLUMNS,
    PreparedData,
    load_or_prepare,
    load_prepared,
    partition,
    prepare,
    stored_partition,
)
from fltrain.runs.record import Results

from .conftest import Register
from .helpers import cli, error_line, flip, pixels, tiny, trained, write_npz

DIGITS = Dataset(name="digits")
ARRAYS_OF_DATA = ("train_images", "train_labels", "test_images", "test_labels")


@pytest.fixture
def prepared(digits_file: Path, tmp_path: Path) -> Path:
    """A prepared file that a test may damage."""
    return Path(shutil.copy(digits_file, tmp_path))


def mine(tmp_path: Path, register: Register, **entry: Any) -> PreparedData:
    """Prepare a custom dataset, ``mine.npz``."""
    register({"mine": {"reader": "npz", "path": str(tmp_path / "mine.npz"), **entry}})
    return prepare(Dataset(name="mine"), tmp_path / "mine.safetensors", tmp_path)


def test_prepared_data_are_read_back(digits: PreparedData) -> None:
    entry = registry()["digits"]
    raw = entry.reader.read(Path("nowhere"), entry)
    for name in ARRAYS_OF_DATA:
        ours, theirs = getattr(digits, name), getattr(raw, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    assert (digits.classes, digits.channels, digits.side) == (10, 1, 8)
    assert (digits.mean, digits.std, digits.writers) == ((0.3053,), (0.3759,), None)


def test_images_are_resized_bilinearly(tmp_path: Path, digits: PreparedData) -> None:
    dataset = Dataset(name="digits", image_size=16)
    data = prepare(dataset, tmp_path / "digits-16px.safetensors", tmp_path)
    large, small = data.train_images, digits.train_images
    assert (large.shape, large.dtype, data.side) == ((len(small), 1, 16, 16), np.uint8, 16)
    # Output pixel i lies at (i + 1/2) / 2 - 1/2 of the input; at the border the outermost pixel is repeated.
    at = np.clip((np.arange(16) + 0.5) / 2 - 0.5, 0, 7)
    low, share = np.floor(at).astype(int), at % 1
    high = np.minimum(low + 1, 7)
    image = small[0, 0].astype(float)
    rows = image[low] * (1 - share)[:, None] + image[high] * share[:, None]
    expected = rows[:, low] * (1 - share) + rows[:, high] * share
    assert abs(large[0, 0] - expected).max() <= 1
    assert np.array_equal(data.train_labels, digits.train_labels)


def test_the_file_has_metadata(digits: PreparedData, tmp_path: Path, register: Register) -> None:
    assert digits.about["dataset"] == {"name": "digits", "image_size": None, "normalisation": "default"}
    assert (
        digits.about["digest"]
        == digits.digest
        == digest({name: getattr(digits, name) for name in ARRAYS_OF_DATA})
    )
    histogram = digits.about["histogram"]
    for split in ("train", "test"):
        assert histogram[split] == np.bincount(getattr(digits, f"{split}_labels")).tolist()
    assert sum(histogram["train"]) == 1438 and digits.about["notes"] == []
    # A class without images is counted; the reader's notes are stored.
    path = write_npz(tmp_path / "mine.npz")
    content = dict(np.load(path))
    np.savez(path, **content, val_images=content["test_images"], val_labels=content["test_labels"])
    data = mine(tmp_path, register, classes=5)
    assert data.about["histogram"] == {"train": [10] * 4 + [0], "test": [5] * 4 + [0]}
    assert data.about["notes"] == ["the validation split (20 images) is not used"]
    assert data.classes == 5


def base(array: NDArray[Any]) -> Any:
    """The object at the end of a chain of views."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_arrays_are_mapped_and_the_file_is_never_changed(prepared: Path) -> None:
    before = prepared.read_bytes()
    data = load_prepared(DIGITS, prepared)
    for name in ARRAYS_OF_DATA:
        array = getattr(data, name)
        assert isinstance(base(array), np.memmap)
        array[:] = array[::-1].copy()
    assert prepared.read_bytes() == before
    again = load_prepared(DIGITS, prepared)
    assert np.array_equal(again.train_images, data.train_images[::-1])


def test_a_contact_sheet_is_written_next_to_the_file(tmp_path: Path) -> None:
    path, tile, scale = Results(tmp_path).data(DIGITS), 10, 4
    data = prepare(DIGITS, path, tmp_path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["digits.png", "digits.safetensors"]
    sheet = np.asarray(Image.open(path.with_suffix(".png")))
    assert sheet.shape == (10 * tile * scale, SHEET_COLUMNS * tile * scale, 3)
    sheet = sheet[::scale, ::scale]
    for label, column in [(0, 0), (3, 0), (9, 11)]:
        expected = data.train_images[np.flatnonzero(data.train_labels == label)[column]]
        drawn = sheet[tile * label :, tile * column :][: data.side, : data.side]
        assert np.array_equal(drawn, np.repeat(expected.transpose(1, 2, 0), 3, axis=2))
    assert (sheet[tile - 2 : tile] == 255).all() and (sheet[:, tile - 2 : tile] == 255).all()


def test_a_normalisation_needs_no_separate_file(tmp_path: Path) -> None:
    results = Results(tmp_path)
    plain, half = (
        tiny(dataset={"name": "digits", "normalisation": name}, rounds=1, model="mlp")
        for name in ("default", "half")
    )
    assert results.data(plain.dataset) == results.data(half.dataset)
    assert plain.partition_id == half.partition_id and plain.run_id != half.run_id
    first = trained(plain, tmp_path)
    inode = results.data(plain.dataset).stat().st_ino
    second = trained(half, tmp_path)
    assert results.data(half.dataset).stat().st_ino == inode
    assert len(list((tmp_path / "data").iterdir())) == 2
    for part in ("data", "partition"):
        assert first.summary["digests"][part] == second.summary["digests"][part]
    assert first.metrics != second.metrics
    data = load_prepared(half.dataset, results.data(half.dataset))
    assert (data.mean, data.std) == ((0.5,), (0.5,))


def test_without_a_registered_mean_the_training_images_are_used(tmp_path: Path, register: Register) -> None:
    write_npz(tmp_path / "mine.npz", shape=(8, 8, 3))
    data = mine(tmp_path, register)
    values = data.train_images / 255
    assert data.mean == pytest.approx(values.mean(axis=(0, 2, 3)).tolist())
    assert data.std == pytest.approx(values.std(axis=(0, 2, 3)).tolist())
    unit = load_prepared(Dataset(name="mine", normalisation="unit"), tmp_path / "mine.safetensors")
    assert (unit.mean, unit.std) == ((0.0,) * 3, (1.0,) * 3)


def drop_an_array(path: Path) -> None:
    with files.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    arrays.pop(sorted(arrays)[-1])
    save_file(arrays, path, metadata=metadata)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit": lambda path: flip(path, -1000),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no arrays here, but more than eight bytes of text"),
    "foreign": lambda path: save_file({"images": np.zeros(3)}, path),
    "an array less": drop_an_array,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "missing": Path.unlink,
}


def refuses(read: Callable[[], Any], path: Path, ending: str) -> None:
    """Reading a file ends with one line: its name, and a reason with this ending."""
    message = error_line(read)
    assert message.startswith(f"{path}: ") and message.endswith(ending)


AGAIN = "delete it to have it made again"
OLDER = f"prepared from other settings or an older version; {AGAIN}"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(prepared: Path, damage: str) -> None:
    DAMAGES[damage](prepared)
    fetch = f"fltrain data fetch digits --results {prepared.parent.parent}"
    ending = f"no such prepared dataset; run `{fetch}`" if damage == "missing" else AGAIN
    refuses(lambda: load_prepared(DIGITS, prepared), prepared, ending)


def test_missing_data_name_the_command_that_makes_them(tmp_path: Path) -> None:
    dataset, results = Dataset(name="digits", image_size=16), Results(tmp_path / "a folder")
    message = error_line(lambda: load_prepared(dataset, results.data(dataset)))
    program, *arguments = shlex.split(message.split("`")[1])
    assert Path(program).name == "fltrain"
    cli(*arguments)
    assert load_prepared(dataset, results.data(dataset)).side == 16


def test_data_of_other_settings_are_refused(prepared: Path, register: Register) -> None:
    normalisation = {"mean": list(DIGITS.entry.mean or ()), "std": list(DIGITS.entry.std or ())}
    register({"digits": {"reader": "digits", **normalisation}, "other": {"reader": "digits"}})
    assert load_prepared(Dataset(name="digits"), prepared).classes == 10
    for other in (Dataset(name="digits", image_size=16), Dataset(name="other")):
        refuses(lambda other=other: load_prepared(other, prepared), prepared, OLDER)


ROUGH = {"mean": [0.3], "std": [0.4]}


@pytest.mark.parametrize("changes", [ROUGH, {"normalisations": {"rough": ROUGH}}], ids=["default", "named"])
def test_another_normalisation_needs_another_revision(
    changes: dict[str, Any], tmp_path: Path, register: Register
) -> None:
    """Run IDs contain the revision: otherwise, runs would be taken for those with the old one."""
    write_npz(tmp_path / "mine.npz")
    mine(tmp_path, register)
    entry = {"reader": "npz", "path": str(tmp_path / "mine.npz")}
    register({"mine": {**entry, **changes}})
    with pytest.raises(FltrainError, match=r"'mine': 'mean', 'std' or .* increase its 'revision'"):
        load_prepared(Dataset(name="mine"), tmp_path / "mine.safetensors")
    register({"mine": {**entry, **changes, "revision": 2}})
    path = tmp_path / "mine.safetensors"
    refuses(lambda: load_prepared(Dataset(name="mine"), path), path, OLDER)
    again = load_or_prepare(Dataset(name="mine"), path, tmp_path / "downloads")
    assert load_prepared(Dataset(name="mine"), path).about == again.about and again.about["revision"] == 2
    register({"mine": {**entry, **changes}})
    refuses(lambda: load_or_prepare(Dataset(name="mine"), path, tmp_path), path, OLDER)


def test_images_that_have_changed_need_another_revision(tmp_path: Path, register: Register) -> None:
    """A copy elsewhere is the same; a deleted file has not changed."""
    source, prepared = write_npz(tmp_path / "mine.npz"), tmp_path / "mine.safetensors"
    mine(tmp_path, register)
    moved = source.rename(tmp_path / "moved.npz")
    register({"mine": {"reader": "npz", "path": str(moved)}})
    dataset = Dataset(name="mine")
    load_prepared(dataset, prepared)
    write_npz(moved, train=80)
    with pytest.raises(FltrainError, match=r"'mine': .*moved\.npz has changed since it was prepared"):
        load_prepared(dataset, prepared)
    moved.unlink()
    load_prepared(dataset, prepared)


SCHEME = Dirichlet(clients=10)


def test_a_partition_follows_its_scheme_and_its_digest_its_settings(digits: PreparedData) -> None:
    divisions = [Division(SCHEME, None, 5), Division(SCHEME, LocalTest(), 5), Division(SCHEME, None, 6)]
    plain, own_tests, other = (partition(division, digits) for division in divisions)
    assert partition(divisions[0], digits).digest == plain.digest
    assert len({plain.digest, own_tests.digest, other.digest}) == 3
    expected = SCHEME.split(digits.train_labels, digits.classes, 5)
    assert len(plain.clients) == 10 and plain.tests is None and own_tests.tests is not None
    assert all(map(np.array_equal, plain.clients, expected))


def test_a_stored_partition_is_checked(digits: PreparedData, tmp_path: Path) -> None:
    path, own_tests = tmp_path / "partition.safetensors", Division(SCHEME, LocalTest(), 5)
    for _ in range(2):  # made, then compared
        made = stored_partition(own_tests, digits, path)
        assert made.digest == partition(own_tests, digits).digest
    arrays, about = read_arrays(path, "partition")
    assert (about["digest"], about["seed"]) == (made.digest, 5)
    assert np.array_equal(arrays["indices"], np.concatenate(made.clients))
    assert np.array_equal(arrays["counts"].sum(1), [len(client) for client in made.clients])
    for other in (Division(SCHEME, None, 5), Division(SCHEME, LocalTest(), 6)):
        ending = f"made from other data or settings; {AGAIN}"
        refuses(lambda other=other: stored_partition(other, digits, path), path, ending)
    flip(path, -1000)
    refuses(lambda: stored_partition(own_tests, digits, path), path, AGAIN)


@pytest.fixture
def written(tmp_path: Path, register: Register) -> PreparedData:
    """Images of six writers; the second has twice as many as the others."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, size in (("train", 6), ("test", 2)):
        with h5py.File(folder / f"fed_emnist_{split}.h5", "w") as file:
            for writer in range(6):
                count = 2 * size if writer == 1 else size
                images = pixels(count, 8, 8, seed=writer) / np.float32(255)
                file[f"examples/w{writer}/pixels"], file[f"examples/w{writer}/label"] = (
                    images,
                    np.arange(count) % 3,
                )
    register({"written": {"reader": "femnist", "path": str(folder)}})
    return prepare(Dataset(name="written"), tmp_path / "data" / "written.safetensors", tmp_path)


def test_writers_have_their_own_test_images(written: PreparedData) -> None:
    """A writer's training and test images are pooled, and divided like any client's images."""
    assert isinstance(base(written.writers), np.memmap)
    arrays = {name: getattr(written, name) for name in (*ARRAYS_OF_DATA, "writers", "test_writers")}
    assert digest(arrays) == written.digest
    made = partition(Division(ByWriter(clients=4), LocalTest()), written)
    authors = np.concatenate([written.writers, written.test_writers])
    for writer, (train, test) in enumerate(zip(made.clients, made.tests or (), strict=True)):
        assert sorted([*train, *test]) == np.flatnonzero(authors == writer).tolist()
        assert len(test) == (4 if writer == 1 else 2)


def test_writers_can_be_used_as_clients(tmp_path: Path, written: PreparedData) -> None:
    scheme = {"name": "by_writer", "clients": 6}
    spec = tiny(dataset="written", partition=scheme, participation={"fraction": 1}, model="mlp", rounds=1)
    record = trained(spec, tmp_path)
    assert record.summary["digests"]["data"] == written.digest
    assert record.costs["samples"] == 42
