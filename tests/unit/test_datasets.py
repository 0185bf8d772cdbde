"""Datasets of the registry, downloads, and custom datasets, up to a trained run."""

import hashlib
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fltrain.core.errors import FltrainError
from fltrain.core.own import VARIABLE
from fltrain.data.datasets import Dataset, load, registry
from fltrain.data.fetch import OFFLINE, obtain, whereabouts
from fltrain.data.prepared import prepare
from fltrain.runs.record import Results

from .conftest import Register
from .helpers import pixels, tiny, trained, write_npz

CONFIG = Path(__file__).parents[2] / "config" / "datasets.yaml"


def test_another_registry_is_added_to_the_checkouts_registry(
    tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    registry.cache_clear()
    assert registry() == load(CONFIG)
    register("mine:\n  reader: npz\n  path: somewhere\n")
    assert {**load(CONFIG), "mine": registry()["mine"]} == registry(), "added to the project's"
    # It is read once: the ID of a run must not change while it is prepared.
    (tmp_path / "own-folder" / "datasets.yaml").write_text("yours:\n  reader: digits\n")
    assert "yours" not in registry()


DIGITS = {"reader": "digits", "channels": 1}


@pytest.mark.parametrize(
    ("values", "recorded"),
    [
        ({"mean": [0.3053], "std": [0.3759]}, None),
        ({"mean": [0.5], "std": [0.05]}, {"mean": [0.5], "std": [0.05]}),
        ({}, {"mean": None, "std": None}),  # measured
    ],
)
def test_another_normalisation_of_a_known_dataset_is_part_of_the_run_id(
    register: Register, values: dict[str, Any], recorded: dict[str, Any] | None
) -> None:
    before, partition = tiny().run_id, tiny().partition_id
    register({"digits": {**DIGITS, **values}, "mine": DIGITS})
    assert tiny().canonical["revisions"].get("normalisation") == recorded
    assert (tiny().run_id == before) == (recorded is None)
    assert tiny().partition_id == partition
    for spec in (tiny(dataset="mine"), tiny(dataset={"name": "digits", "normalisation": "unit"})):
        assert "normalisation" not in spec.canonical["revisions"]


def test_a_run_with_another_normalisation_is_stale_here(
    tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    register({"digits": {**DIGITS, "mean": [0.5], "std": [0.05]}})
    record = trained(tiny(), tmp_path)
    assert record.complete
    monkeypatch.delenv(VARIABLE)
    registry.cache_clear()
    stale = Results(tmp_path).record(record.run_id).stale
    assert stale == "normalisation {'mean': [0.5], 'std': [0.05]} -> None"


@pytest.mark.parametrize("name", ["test", "local_test", "validation"])
def test_a_dataset_cannot_have_the_name_of_a_split(register: Register, name: str) -> None:
    """Rows of further test sets are identified by dataset name, rows of the run's own images by split."""
    with pytest.raises(FltrainError, match=f": {name}: this is the name of a split; choose another"):
        register({"mine": {"reader": "digits"}, name: {"reader": "digits"}})
        tiny(dataset="mine", evaluation={"extra": [name]})


def test_the_normalisation_of_the_digits_is_measured() -> None:
    """Golden numbers have a digest of the images."""
    entry = registry()["digits"]
    raw = entry.reader.read(Path("nowhere"), entry)
    assert (len(raw.train_labels), len(raw.test_labels)) == (1438, 359)
    assert not set(map(bytes, raw.train_images)) & set(map(bytes, raw.test_images))
    for statistic in ("mean", "std"):
        measured = getattr(raw.train_images / 255, statistic)(axis=(0, 2, 3))
        assert getattr(entry, statistic) == pytest.approx(measured.tolist(), abs=5.1e-5)


def write_photographs(root: Path, size: int = 12, side: int = 8) -> Path:
    """A folder of colour images for each of three classes."""
    for seed, name in enumerate(("cat", "dog", "owl")):
        (root / name).mkdir(parents=True)
        for number in range(size):
            image = pixels(side, side, 3, seed=100 * seed + number)
            Image.fromarray(image).save(root / name / f"{number}.png")
    return root


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that FLTRAIN_DATA names."""
    folder = tmp_path / "offline"
    folder.mkdir()
    monkeypatch.setenv(OFFLINE, str(folder))
    return folder


PHOTOS = {
    "reader": {"name": "folder", "side": 8, "train_fraction": 0.8, "only": ["cat", "owl"]},
    "obtain": "Ask the photographer for photos.zip.",
    **{"classes": 2, "channels": 3, "side": 16, "train_images": 20, "test_images": 4},
}
"""A dataset like LC25000."""


@pytest.mark.parametrize("form", ["photos", "photos.zip", "photos.tar.gz"])
def test_a_manually_downloaded_dataset_is_found(
    tmp_path: Path, offline: Path, register: Register, form: str
) -> None:
    register({"photos": PHOTOS})
    results = Results(tmp_path / "results")
    assert whereabouts("photos", registry()["photos"], tmp_path) == "by hand"
    tree = write_photographs(offline / "photos" if form == "photos" else tmp_path / "tree", side=16)
    if form != "photos":
        kind = "zip" if form.endswith("zip") else "gztar"
        shutil.make_archive(str(offline / "photos"), kind, tree)
    assert whereabouts("photos", registry()["photos"], tmp_path) == str(offline)
    for _ in range(2):  # an archive is unpacked once
        source = obtain("photos", registry()["photos"], results.downloads)
        assert source == (tree if form == "photos" else results.downloads / "photos")
    dataset = Dataset(name="photos")
    data = prepare(dataset, results.data(dataset), results.downloads)
    assert (len(data.train_labels), len(data.test_labels), data.side) == (20, 4, 8)
    assert data.about["class_names"] == ["cat", "owl"]


def test_a_dataset_is_fetched_prepared_and_trained(
    tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    public = write_npz(tmp_path / "public" / "numbers.npz", 60, 30, (12, 12))
    handler = partial(SimpleHTTPRequestHandler, directory=str(public.parent))
    results = Results(tmp_path / "results")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        host = f"127.0.0.1:{serving.server_port}"
        checksum = f"sha256:{hashlib.sha256(public.read_bytes()).hexdigest()}"
        file = {"name": public.name, "urls": [f"http://{host}/{public.name}"], "checksum": checksum}
        facts = {"classes": 4, "channels": 1, "side": 12, "train_images": 60, "test_images": 30}
        register({"numbers": {"reader": "npz", "files": [file], **facts}})
        assert whereabouts("numbers", registry()["numbers"], results.downloads) == f"download from {host}"
        scheme = {"name": "iid", "clients": 4}
        record = trained(tiny(dataset="numbers", partition=scheme, model="lenet5", rounds=1), results.root)
        serving.shutdown()
        thread.join()
    assert [row["images"] for row in record.rows("evaluation")] == [30]
    assert (results.downloads / "numbers" / public.name).read_bytes() == public.read_bytes()
    # Another image size is made from the downloaded files.
    dataset = Dataset(name="numbers", image_size=16)
    assert prepare(dataset, results.data(dataset), results.downloads).side == 16
