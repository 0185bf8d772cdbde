"""Readers: small files in the official layouts are read back; damaged ones are refused in one line."""

import gzip
import io
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat
from torchvision.transforms import CenterCrop, Compose, Resize

from fltrain.data.readers import READERS, Facts, RawSplits, Reader
from fltrain.data.readers.base import UNKNOWN
from fltrain.data.readers.cifar import array_of, restricted_load

from .helpers import error_line, pixels, write_tar

Pixels = NDArray[np.uint8]
Spoil = Callable[[Path], object]


def reader(name: str, **options: Any) -> Reader:
    return READERS[name].parse({"name": name, **options}, "test")


def facts(*numbers: int) -> Facts:
    """Facts in the order of their fields."""
    return Facts(**dict(zip(Facts.model_fields, numbers, strict=True)))


def refused(name: str, source: Path, message: str, facts: Facts = UNKNOWN, **options: Any) -> None:
    """The reader refuses the source with one line in which the pattern occurs."""
    assert re.search(message, error_line(lambda: reader(name, **options).read(source, facts)))


def well_formed(splits: RawSplits) -> None:
    for split in ("train", "test"):
        images, labels = getattr(splits, f"{split}_images"), getattr(splits, f"{split}_labels")
        assert (images.dtype, images.ndim) == (np.uint8, 4)
        assert images.flags.c_contiguous and images.flags.writeable
        assert (labels.dtype, labels.shape) == (np.int64, (len(images),))


IDX_FACTS = facts(10, 1, 6, 20, 10)


def idx(array: Pixels) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, compressed: bool = True, **contents: bytes) -> Path:
    """The four files; ``contents`` replaces some by ``<split>_<kind>``."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in (("train", 20), ("t10k", 10)):
        arrays = {"images": pixels(size, 6, 6), "labels": np.arange(size, dtype=np.uint8) % 10}
        for kind, array in arrays.items():
            content = contents.get(f"{split}_{kind}", idx(array))
            name = f"{split}-{kind}-idx{array.ndim}-ubyte"
            file = folder / (f"{name}.gz" if compressed else name)
            file.write_bytes(gzip.compress(content) if compressed else content)
    return folder


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read(tmp_path: Path, compressed: bool) -> None:
    splits = reader("idx").read(write_idx(tmp_path / "MNIST" / "raw", compressed), IDX_FACTS)
    well_formed(splits)
    np.testing.assert_array_equal(splits.train_images[:, 0], pixels(20, 6, 6))
    np.testing.assert_array_equal(splits.test_labels, np.arange(10))
    assert len(reader("idx").read(tmp_path, IDX_FACTS).test_labels) == 10  # in any subfolder


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"train_images": idx(pixels(20))}, r"found the header 00 00 08 01, expected 00 00 08 03"),
        ({"train_images": idx(pixels(20, 6, 6)) + b"x"}, r"not readable as an IDX file \(.*721"),
        ({"train_labels": idx(np.full(20, 10, np.uint8))}, r"found labels 10 to 10, expected 0 to 9"),
    ],
)
def test_bad_idx_files_are_refused(tmp_path: Path, contents: dict[str, bytes], message: str) -> None:
    refused("idx", write_idx(tmp_path, **contents), message, IDX_FACTS)


class Python2(pickle._Pickler):
    """Writes texts as Python 2 did, which Python 3 does not support."""

    def save_text(self, text: str | bytes) -> None:
        content = text.encode() if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(content)) + content)

    dispatch = {**pickle._Pickler.dispatch, str: save_text, bytes: save_text}


def py2_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    Python2(stream, 2).dump(value)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch(size: int, seed: int, labels: bytes = b"labels") -> dict[bytes, Any]:
    return {
        b"batch_label": b"a batch",
        b"data": pixels(size, 3072, seed=seed),
        labels: [number % 10 for number in range(size)],
        b"filenames": [b"a.png"] * size,
    }


def cifar10() -> dict[str, bytes]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {name: py2_pickle(batch(10, seed)) for seed, name in enumerate(names)}


def write_cifar(folder: Path, files: dict[str, bytes], version: str = "cifar-10") -> Path:
    parent = "cifar-10-batches-py" if version == "cifar-10" else "cifar-100-python"
    files = {f"{parent}/{name}": content for name, content in {"readme.html": b"", **files}.items()}
    return write_tar(folder / f"{version}-python.tar.gz", files)


CIFAR_FACTS = facts(10, 3, 32, 50, 10)


@pytest.mark.parametrize("form", ["archive", "archive in a folder", "folder in a folder"])
def test_cifar10_is_read(tmp_path: Path, form: str) -> None:
    archive, folder = tmp_path / "cifar-10-python.tar.gz", tmp_path / "cifar-10-batches-py"
    if form.startswith("archive"):
        write_cifar(tmp_path, cifar10())
    else:
        folder.mkdir()
        for name, content in cifar10().items():
            (folder / name).write_bytes(content)
    splits = reader("cifar", version="cifar-10").read(archive if form == "archive" else tmp_path, CIFAR_FACTS)
    well_formed(splits)
    expected = np.concatenate([pixels(10, 3072, seed=seed) for seed in range(5)])
    np.testing.assert_array_equal(splits.train_images.reshape(50, 3072), expected)
    np.testing.assert_array_equal(splits.test_images.reshape(10, 3072), pixels(10, 3072, seed=5))
    np.testing.assert_array_equal(splits.train_labels, np.tile(np.arange(10), 5))


def test_cifar100_is_read_with_the_fine_labels(tmp_path: Path) -> None:
    files = {
        name: py2_pickle({**batch(100, 0, b"fine_labels"), b"coarse_labels": [0] * 100})
        for name in ("train", "test")
    }
    write_cifar(tmp_path, files, "cifar-100")
    splits = reader("cifar", version="cifar-100").read(tmp_path, facts(10, 3, 32, 100, 100))
    assert splits.train_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


UNREADABLE = r"test_batch: not readable as a batch of CIFAR \(.+\)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (py2_pickle([1]), UNREADABLE),
        (py2_pickle({**batch(10, 0), b"data": [1, 2]}), UNREADABLE),
        (py2_pickle({**batch(10, 0), b"data": np.zeros((10, 3072), "<f4")}), r"an array of type b'f4'"),
        (py2_pickle({**batch(10, 0), b"labels": [11] * 10}), r"found labels 11 to 11, expected 0 to 9"),
        (py2_pickle(batch(10, 0))[:-9], UNREADABLE),
    ],
)
def test_bad_cifar_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write_cifar(tmp_path, {**cifar10(), "test_batch": content})
    refused("cifar", tmp_path, message, CIFAR_FACTS, version="cifar-10")


class Shell:
    """An object whose unpickling runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_cannot_run_code(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "executed"
    content = pickle.dumps({"data": Shell(marker)}, protocol)
    write_cifar(tmp_path, {**cifar10(), "test_batch": content})
    refused("cifar", tmp_path, r"it refers to \w+\.system, which no such file needs", version="cifar-10")
    assert not marker.exists()
    pickle.loads(content)  # the command is real
    assert marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cnumpy._core.multiarray\n_reconstruct\n.",
        b"ccopyreg\n_reconstructor\n.",
        b"(ibuiltins\nlist\n.",  # INST
        b"(cbuiltins\nlist\no.",  # OBJ
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",  # STACK_GLOBAL
        b"Psomething\n.",  # a persistent id
        b"\x80\x02\x82\x01.",  # the extension registry
        b"cnumpy\ndtype\n(S'O'\ntR.",
        b"cnumpy\nndarray\n(tR.",
        b"cnumpy\ndtype\n(N}S'__code__'\nNstb.",  # a change of the stand-in
        b"cnumpy.core.multiarray\n_reconstruct\n(tR(K\1K\1cnumpy\ndtype\n\x89S'x'\ntb.",  # bytes of no type
    ],
)
def test_pickles_of_other_types_are_refused(content: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, TypeError, AttributeError, ValueError)):
        array_of(restricted_load(content))


def write_svhn(folder: Path, **changes: Any) -> Path:
    for split, size in (("train", 20), ("test", 10)):
        images = pixels(32, 32, 3, size)
        labels = (np.arange(size, dtype=np.uint8) % 10 + 1)[:, None]
        savemat(folder / f"{split}_32x32.mat", {"X": images, "y": labels, **changes})
    return folder


SVHN_FACTS = facts(10, 3, 32, 20, 10)


def test_svhn_is_read(tmp_path: Path) -> None:
    splits = reader("svhn").read(write_svhn(tmp_path), SVHN_FACTS)
    well_formed(splits)
    np.testing.assert_array_equal(splits.train_images[7, 2], pixels(32, 32, 3, 20)[:, :, 2, 7])
    assert splits.test_labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((32, 32, 3))}, r"train_32x32.mat: not readable as a MATLAB file"),
        ({"y": np.zeros((20, 1), np.uint8)}, r"train_32x32.mat, y: found labels 0 to 0, expected 1 to 10"),
    ],
)
def test_bad_svhn_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refused("svhn", write_svhn(tmp_path, **changes), message, SVHN_FACTS)


def arrays(*form: int, **changes: Any) -> dict[str, Any]:
    """The arrays of a MedMNIST file for images of this shape; None leaves an array out."""
    content: dict[str, Any] = {}
    for split, size in (("train", 20), ("val", 6), ("test", 10)):
        content[f"{split}_images"] = pixels(size, *form)
        content[f"{split}_labels"] = (np.arange(size, dtype=np.uint8) % 5)[:, None]
    content.update(changes)
    return {key: value for key, value in content.items() if value is not None}


def write_npz(folder: Path, content: dict[str, Any]) -> Path:
    np.savez_compressed(folder / "some.npz", **content)
    return folder


@pytest.mark.parametrize(
    ("form", "channels"),
    [((8, 8), 1), ((8, 8, 1), 1), ((8, 8, 3), 3)],
)
def test_npz_files_are_read(tmp_path: Path, form: tuple[int, ...], channels: int) -> None:
    write_npz(tmp_path, arrays(*form))
    splits = reader("npz").read(tmp_path, facts(5, channels, 8, 20, 10))
    well_formed(splits)
    np.testing.assert_array_equal(
        splits.train_images.transpose(0, 2, 3, 1), pixels(20, *form).reshape(20, 8, 8, channels)
    )
    assert splits.test_labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert splits.notes == ("the validation split (6 images) is not used",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Facts(classes=4), r"train_labels: found labels 0 to 4, expected 0 to 3"),
        (Facts(test_images=9_000), r"found 10 test images, expected 9,000"),
        ({"test_labels": None}, r"some.npz: not readable as a numpy archive \(.*test_labels"),
        ({"train_images": pixels(20, 8, 8) / 255}, r"train_images: found float64 images, expected uint8"),
        ({"train_images": pixels(0, 8, 8)}, r"train_images: found no images"),
        ({"test_images": pixels(10, 9, 9)}, r"training images of \(1, 8, 8\) but .* \(1, 9, 9\)"),
        ({"train_labels": np.full(20, -1)}, r"found labels -1 to -1, expected 0 or more"),
        ({"train_labels": np.full(20, 2**64 - 1, np.uint64)}, r"to 18446744073709551615, expected 0 or more"),
        ({"train_labels": np.full(20, 7)}, r"labels up to 7 but no label 5; .*or state 'classes'"),
        ({"train_images": np.array([object()] * 20)}, r"not readable as a numpy archive \(.*pickle"),
    ],
)
def test_bad_npz_files_are_refused(tmp_path: Path, wrong: dict[str, Any] | Facts, message: str) -> None:
    changes, facts = ({}, wrong) if isinstance(wrong, Facts) else (wrong, UNKNOWN)
    refused("npz", write_npz(tmp_path, arrays(8, 8, **changes)), message, facts)


def test_a_page_saved_as_npz_is_shown(tmp_path: Path) -> None:
    """Numpy would recommend to load it as a pickle."""
    (tmp_path / "some.npz").write_text("<html>503</html>")
    message = r"some.npz: not readable as a numpy archive \(.*it begins with b'<html>503</html>'; replace it"
    refused("npz", tmp_path, message)


def test_classes_without_images_in_a_split_give_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No model can learn them, or no test can find that it did."""
    few = arrays(8, 8, train_labels=np.arange(20) % 4, test_labels=np.arange(10) % 3 + 2)
    notes = ["no training images of class 4", "no test images of class 0, 1"]
    assert [*reader("npz").read(write_npz(tmp_path, few)).notes[-2:]] == notes
    assert caplog.messages == [f"{tmp_path}: {note}" for note in notes]


@pytest.mark.parametrize(("facts", "label"), [(UNKNOWN, 0), (UNKNOWN, 7), (Facts(classes=10), 7)])
def test_a_dataset_of_one_class_is_refused(tmp_path: Path, facts: Facts, label: int) -> None:
    """Any model would reach 100 %."""
    labels = {"train_labels": np.full(20, label), "test_labels": np.full(10, label)}
    message = rf": all images are of class {label}, expected at least two classes; check the labels"
    refused("npz", write_npz(tmp_path, arrays(8, 8, **labels)), message, facts)


@pytest.mark.parametrize(("split", "images"), [("training", 20), ("test", 10)])
def test_a_split_of_one_class_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: str, images: int
) -> None:
    key = {"training": "train_labels", "test": "test_labels"}[split]
    write_npz(tmp_path, arrays(8, 8, **{key: np.full(images, 3)}))
    note = f"all {images} {split} images are of class 3: a constant prediction reaches 100 %"
    assert note in reader("npz").read(tmp_path, Facts(classes=5)).notes
    assert caplog.messages == [f"{tmp_path}: {note}"]


@pytest.mark.parametrize(
    ("name", "write", "missing", "unreadable"),
    [
        ("idx", write_idx, "found no train-images-idx3-ubyte.gz or train-images", "as an IDX file"),
        ("cifar", lambda folder: write_cifar(folder, cifar10()), "found no cifar-10", "as an archive"),
        ("svhn", write_svhn, "found no train_32x32.mat", "as a MATLAB file"),
        ("npz", lambda folder: write_npz(folder, arrays(8, 8)), r"found no \*.npz", "as a numpy archive"),
    ],
)
def test_incomplete_files_are_refused(
    tmp_path: Path, name: str, write: Spoil, missing: str, unreadable: str
) -> None:
    options = {"version": "cifar-10"} if name == "cifar" else {}
    refused(name, tmp_path / "nowhere", r"nowhere: no such file or folder; correct 'path'", **options)
    refused(name, tmp_path, missing, **options)
    write(tmp_path)
    path = next(path for path in tmp_path.iterdir() if "train" in path.name or name in ("cifar", "npz"))
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"no archive"):
        path.write_bytes(damaged)
        refused(name, tmp_path, rf"{path.name}: .*{unreadable}", **options)


def write_cifar10_1(folder: Path, images: Any, labels: Any) -> Path:
    np.save(folder / "cifar10.1_v6_data.npy", images)
    np.save(folder / "cifar10.1_v6_labels.npy", labels)
    return folder


def test_cifar10_1_has_test_images_only(tmp_path: Path) -> None:
    images = pixels(20, 32, 32, 3)
    write_cifar10_1(tmp_path, images, np.arange(20, dtype=np.int32) % 10)
    splits = reader("cifar10_1", version="v6").read(tmp_path, facts(10, 3, 32, 0, 20))
    well_formed(splits)
    assert splits.train_images.shape == (0, 3, 32, 32)
    np.testing.assert_array_equal(splits.test_images.transpose(0, 2, 3, 1), images)
    refused("cifar10_1", tmp_path / "none", r"none: no such file or folder", version="v6")
    write_cifar10_1(tmp_path, images, np.array([Shell(tmp_path / "executed")] * 20))
    refused("cifar10_1", tmp_path, r"v6_labels.npy: not readable as a numpy array \(.*pickle", version="v6")
    assert not (tmp_path / "executed").exists()


WRITERS = {"f10_02": (4, 2), "f09_01": (3, 1), "f11_00": (5, 0), "f12_00": (0, 3)}
"""Training and test images of each writer; the last two are in one split only."""


def femnist(size: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    images = (pixels(size, 28, 28, seed=seed) / np.float32(255)).astype(np.float32)
    return images, (np.arange(size) + seed).astype(np.int32) % 62


def write_hdf5(folder: Path, writers: dict[str, tuple[int, int]] = WRITERS) -> Path:
    folder.mkdir(exist_ok=True)
    for part, split in enumerate(("train", "test")):
        with h5py.File(folder / f"fed_emnist_{split}.h5", "w") as file:
            for seed, (writer, sizes) in enumerate(writers.items()):
                images, labels = femnist(sizes[part], seed)
                file[f"examples/{writer}/pixels"], file[f"examples/{writer}/label"] = images, labels
    return folder


FEMNIST_FACTS = Facts(classes=62, channels=1, side=28)


def check_femnist(splits: RawSplits) -> None:
    well_formed(splits)
    assert splits.writers is not None and splits.writers.dtype == np.int64
    assert splits.writers.tolist() == [0, 0, 0, 1, 1, 1, 1]  # f09_01, f10_02
    assert splits.test_writers is not None and splits.test_writers.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(splits.train_images[:3, 0], pixels(3, 28, 28, seed=1))
    np.testing.assert_array_equal(splits.train_images[3:, 0], pixels(4, 28, 28, seed=0))
    assert splits.train_labels.tolist() == [1, 2, 3, 0, 1, 2, 3]
    assert splits.test_labels.tolist() == [1, 0, 1]
    assert splits.notes[0] == "2 of 4 writers have both training and test images: 7 and 3 in all"


def test_femnist_is_read_from_its_archive(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "files")
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    archive = write_tar(tmp_path / "fed_emnist.tar.bz2", files)
    shutil.rmtree(tmp_path / "files")
    check_femnist(reader("femnist").read(tmp_path, FEMNIST_FACTS))
    check_femnist(reader("femnist").read(archive, FEMNIST_FACTS))
    check_femnist(reader("femnist").read(write_hdf5(tmp_path / "files"), FEMNIST_FACTS))
    shutil.rmtree(tmp_path / "files")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]
    archive.write_bytes(archive.read_bytes()[:1000])
    refused("femnist", tmp_path, r"tar.bz2: not readable as an archive \(.+\)")
    write_tar(archive, {"readme.html": b""})
    refused("femnist", tmp_path, r"tar.bz2: found no fed_emnist_train.h5")


IMAGES, LABELS = femnist(4, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"other": [1]}, r"fed_emnist_train.h5: not readable as an HDF5 file \(.*'examples'"),
        ({"examples/a/pixels": IMAGES}, r"fed_emnist_train.h5: not readable as an HDF5 file \(.*'label'"),
        ({"examples/a/pixels": IMAGES + 2}, r"a: found pixels 2.* to .*, expected floats from 0 to 1"),
    ],
)
def test_bad_femnist_files_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = write_hdf5(tmp_path, {"a": (2, 0), "b": (0, 2)}) / "fed_emnist_train.h5"
    refused("femnist", tmp_path, r"2 writers, but none with both")
    labels = {} if "'label'" in message or "other" in content else {"examples/a/label": LABELS}
    with h5py.File(path, "w") as file:
        for name, value in {**labels, **content}.items():
            file[name] = value
    refused("femnist", tmp_path, message, FEMNIST_FACTS)
    path.write_bytes(b"no HDF5")
    refused("femnist", tmp_path, r"fed_emnist_train.h5: not readable as an HDF5 file \(.+\)")


def write_image(path: Path, image: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)


def write_tree(root: Path, names: Sequence[str], size: int, side: int = 6) -> Path:
    """Images ``<class>/<class><number>.png``, numbered from 1 without leading zeros."""
    for seed, name in enumerate(names):
        for number in range(size):
            path = root / name / f"{Path(name).name}{number + 1}.png"
            write_image(path, pixels(side, side, 3, seed=100 * seed + number))
    return root


def drawn(seed: int, side: int = 6) -> Pixels:
    return pixels(side, side, 3, seed=seed).transpose(2, 0, 1)


def test_a_folder_with_two_trees_is_read(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", ["class10", "class9"], 12)
    write_tree(tmp_path / "val", ["class10", "class9"], 3)
    (tmp_path / "train" / "class9" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "class9" / "._class91.png").write_text("what a Mac leaves behind")
    splits = reader("folder").read(tmp_path, facts(2, 3, 6, 24, 6))
    well_formed(splits)
    assert splits.class_names == ("class9", "class10")
    assert splits.train_labels.tolist() == [0] * 12 + [1] * 12
    expected = np.stack([drawn(seed) for seed in (*range(100, 112), *range(12))])
    np.testing.assert_array_equal(splits.train_images, expected)
    np.testing.assert_array_equal(splits.test_images[0], drawn(100))
    write_tree(tmp_path / "train", ["class8"], 2)
    assert reader("folder", only=["class9", "class10"]).read(tmp_path).class_names == splits.class_names


def test_a_folder_is_divided_by_file_order(tmp_path: Path) -> None:
    """Layout and division of LC25000: classes two levels down, file numbers without leading zeros."""
    write_tree(tmp_path, ["colon_image_sets/colon_n", "lung_image_sets/lung_aca"], 15)
    splits = reader("folder", train_fraction=0.8).read(tmp_path)
    assert splits.class_names == ("colon_n", "lung_aca")
    assert (len(splits.train_labels), len(splits.test_labels)) == (24, 6)
    np.testing.assert_array_equal(splits.test_images, [drawn(seed) for seed in (12, 13, 14, 112, 113, 114)])
    assert splits.test_labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_photographs_are_cropped_and_resized(tmp_path: Path) -> None:
    """As in torchvision, for any shape."""
    usual = Compose([Resize(10), CenterCrop(10)])
    shapes = [(40, 60), (90, 30), (10, 10), (8, 8), (7, 23), (41, 40), (333, 500)]
    photographs = [pixels(*shape, 3) for shape in shapes]
    for split in ("train", "test"):
        for number, photograph in enumerate(photographs):
            write_image(tmp_path / split / "a" / f"{number}.png", photograph)
        write_image(tmp_path / split / "b" / "0.png", photographs[0])
    splits = reader("folder", side=10).read(tmp_path)
    for image, photograph in zip(splits.train_images, photographs, strict=False):
        expected = np.asarray(usual(Image.fromarray(photograph)))
        np.testing.assert_array_equal(image.transpose(1, 2, 0), expected)
    assert reader("folder", side=10).read(tmp_path, side=5).train_images.shape == (8, 3, 5, 5)


def test_all_kinds_of_images_are_read_as_colour_images(tmp_path: Path) -> None:
    """Grey, transparent, CMYK and indexed images become colour images; several formats are read."""
    colour = Image.new("RGB", (6, 6), (200, 100, 50))
    names = ["1.png", "2.BMP", "3.jpeg", "4.png", "5.gif.png", "6.tiff"]
    modes = ["RGB", "RGB", "CMYK", "RGBA", "P", "L"]
    for split in ("train", "test"):
        for name, mode in zip(names, modes, strict=True):
            write_image(tmp_path / split / "a" / name, colour.convert(mode))
        write_image(tmp_path / split / "b" / "1.png", colour)
    splits = reader("folder").read(tmp_path)
    assert splits.train_images.shape == (7, 3, 6, 6)
    for image in splits.train_images[:5]:
        assert abs(image[:, 3, 3].astype(int) - [200, 100, 50]).max() < 60
    assert len(np.unique(splits.train_images[5])) == 1


def test_an_orientation_that_is_not_applied_is_noted(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_tree(tmp_path / split, ["a", "b"], 2)
    orientation = Image.Exif()
    orientation[0x0112] = 6
    Image.fromarray(pixels(6, 6, 3)).save(tmp_path / "train" / "a" / "a0.png", exif=orientation)
    splits = reader("folder").read(tmp_path)
    assert splits.notes == ("the EXIF orientation of 1 image is not applied, as in torchvision",)
    np.testing.assert_array_equal(splits.train_images[0], pixels(6, 6, 3).transpose(2, 0, 1))


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            write_image(tmp_path / split / name / "1.png", pixels(6, 6))
    assert reader("folder").read(tmp_path).train_images.shape == (2, 1, 6, 6)
    assert reader("folder").read(tmp_path, Facts(channels=3)).train_images.shape == (2, 3, 6, 6)
    write_image(tmp_path / "test" / "b" / "2.png", pixels(6, 6, 3))
    refused("folder", tmp_path, r"2.png: found a colour image after grey ones; state 'channels'")
    assert reader("folder").read(tmp_path, Facts(channels=1)).test_images.shape == (3, 1, 6, 6)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: shutil.rmtree(root / "test"), r"found only train, expected folders train and test"),
        (lambda root: write_tree(root / "test", ["c"], 1), r"found c in only one of train and test"),
        (lambda root: write_tree(root / "train", ["b/a"], 1), r"train: found two folders 'a' with images"),
        (lambda root: write_tree(root / "train", ["a"], 9, side=7), r"a1.png: .*7 x 7.*expected 6 x 6"),
        (lambda root: (root / "train/a/a0.png").write_bytes(b"x"), r"a0.png: not readable as an image"),
        (
            lambda root: write_image(root / "train/a/a3.png", pixels(6, 6).astype(np.uint16)),
            r"a3.png: found more than 8 bits per channel \(mode I;16\)",
        ),
    ],
)
def test_bad_image_folders_are_refused(tmp_path: Path, spoil: Spoil, message: str) -> None:
    for split in ("train", "test"):
        write_tree(tmp_path / split, ["a", "b"], 2)
    if "a1.png" in message:
        write_image(tmp_path / "train" / "a" / "a0.png", pixels(6, 6, 3))
    spoil(tmp_path)
    refused("folder", tmp_path, message)


@pytest.mark.parametrize(
    ("options", "facts", "message"),
    [
        ({}, UNKNOWN, r"found neither, expected folders train and test.*set .*'train_fraction'"),
        ({"train_fraction": 0.1}, UNKNOWN, r"3 images of 'a'; train_fraction 0.1 leaves none for training"),
        ({"only": ["a", "bb"], "train_fraction": 0.5}, UNKNOWN, r"called bb; did you mean 'b'\?"),
        (
            {"train_fraction": 0.5},
            Facts(classes=5),
            r"found 2 folders with images \(a, b\), expected 5 classes",
        ),
    ],
)
def test_invalid_folder_options_are_refused(
    tmp_path: Path, options: dict[str, Any], facts: Facts, message: str
) -> None:
    write_tree(tmp_path, ["a", "b"], 3)
    refused("folder", tmp_path, message, facts, **options)
