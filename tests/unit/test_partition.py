"""Partition schemes: every image goes to one client, the shares have the distribution that theory says."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fltrain.core.errors import FltrainError
from fltrain.data.partition import Dirichlet, Iid, Indices, Scheme
from fltrain.runs.record import Results

from .helpers import tiny, trained

CLASSES = 10
BALANCED = np.repeat(np.arange(CLASSES), 100)
SEEDS = st.integers(0, 2**32)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Indices, Scheme]:
    """Labels with or without absent classes, and a scheme that can divide them."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=60, max_size=200)))
    clients = draw(st.integers(1, 12))
    dirichlet = st.builds(
        Dirichlet,
        clients=st.just(clients),
        alpha=st.floats(1.0, 10.0),
        capped=st.booleans(),
        min_size=st.integers(0, 60 // clients // 4),
    )
    return labels, draw(st.one_of(st.just(Iid(clients=clients)), dirichlet))


def counts(clients: list[Indices], labels: Indices) -> np.ndarray:
    """Images by client and class."""
    return np.stack([np.bincount(labels[client], minlength=CLASSES) for client in clients])


# ------------------------------------------------------------------------------------ every scheme
@given(problems(), SEEDS)
def test_every_image_goes_to_one_client(problem: tuple[Indices, Scheme], seed: int) -> None:
    labels, scheme = problem
    clients = scheme.split(labels, CLASSES, seed)
    assert len(clients) == scheme.clients
    assert sorted(np.concatenate(clients).tolist()) == list(range(len(labels)))
    assert min(map(len, clients)) >= getattr(scheme, "min_size", 1)
    assert {client.dtype for client in clients} == {np.dtype(np.int64)}


@given(problems(), SEEDS)
def test_the_seed_decides(problem: tuple[Indices, Scheme], seed: int) -> None:
    labels, scheme = problem

    def content(seed: int) -> bytes:
        clients = scheme.split(labels, CLASSES, seed)
        return b"|".join(client.tobytes() for client in clients)

    assert content(seed) == content(seed)
    assert content(seed) != content(seed + 1)


@pytest.mark.parametrize("scheme", [Iid(clients=3), Dirichlet(clients=3, alpha=1.0)])
def test_the_images_of_a_client_are_in_no_order(scheme: Scheme) -> None:
    for client in scheme.split(BALANCED, CLASSES, 0):
        assert abs(np.corrcoef(np.arange(len(client)), client)[0, 1]) < 0.2


def test_more_clients_than_images_are_refused() -> None:
    message = r"^partition\.clients: 61 clients cannot share 60 training images; use at most 60$"
    with pytest.raises(FltrainError, match=message):
        Iid(clients=61).split(BALANCED[:60], CLASSES, 0)
    assert len(Iid(clients=60).split(BALANCED[:60], CLASSES, 0)) == 60


# ------------------------------------------------------------------------------------ iid
@given(images=st.integers(1, 300), clients=st.integers(1, 40), seed=SEEDS)
def test_iid_sizes_differ_by_one_at_most(images: int, clients: int, seed: int) -> None:
    clients = min(images, clients)
    sizes = [len(part) for part in Iid(clients=clients).split(np.zeros(images, int), CLASSES, seed)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_does_not_look_at_the_labels() -> None:
    shuffled = np.random.default_rng(0).permutation(BALANCED)
    first, second = (Iid(clients=7).split(labels, CLASSES, 3) for labels in (BALANCED, shuffled))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


# ------------------------------------------------------------------------------------ dirichlet
def class_shares(scheme: Dirichlet, seeds: int) -> np.ndarray:
    """Share of each class that each client holds, over many seeds: ``[seeds, clients, classes]``."""
    drawn = [counts(scheme.split(BALANCED, CLASSES, seed), BALANCED) for seed in range(seeds)]
    return np.stack(drawn) / 100


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_plain_dirichlet_has_the_moments_of_theory(alpha: float) -> None:
    clients = 5
    shares = class_shares(Dirichlet(clients=clients, alpha=alpha, capped=False, min_size=0), seeds=400)
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    error = np.sqrt(variance / (400 * CLASSES))
    assert shares.mean(axis=(0, 2)) == pytest.approx(1 / clients, abs=4 * error + 0.005)
    # Shares are cut to whole images, of which a class has 100.
    assert shares.var() == pytest.approx(variance, rel=0.05)
    # Classes are divided independently of one another.
    per_class = shares[:, 0].T
    off_diagonal = np.corrcoef(per_class)[np.triu_indices(CLASSES, k=1)]
    assert abs(off_diagonal.mean()) < 0.03 and abs(off_diagonal).max() < 4.5 / np.sqrt(400)


def test_capped_dirichlet_favours_no_client() -> None:
    shares = class_shares(Dirichlet(clients=5, alpha=0.3, min_size=0), seeds=400)
    assert shares.mean(axis=(0, 2)) == pytest.approx(1 / 5, abs=0.02)


@given(alpha=st.floats(0.05, 5.0), clients=st.integers(2, 20), seed=SEEDS)
def test_a_capped_client_gets_nothing_more(alpha: float, clients: int, seed: int) -> None:
    scheme = Dirichlet(clients=clients, alpha=alpha, min_size=0)
    held = counts(scheme.split(BALANCED, CLASSES, seed), BALANCED)
    before = np.cumsum(held, axis=1) - held
    assert (held[before >= len(BALANCED) / clients] == 0).all()


def test_capping_evens_out_sizes() -> None:
    def spread(capped: bool) -> float:
        scheme = Dirichlet(clients=10, alpha=0.3, capped=capped, min_size=0)
        sizes = class_shares(scheme, seeds=100).sum(axis=2)
        return float(sizes.std(axis=1).mean())

    assert spread(capped=True) < 0.7 * spread(capped=False)


def test_smaller_alpha_is_more_skewed() -> None:
    def largest_share(alpha: float) -> float:
        held = class_shares(Dirichlet(clients=5, alpha=alpha, capped=False, min_size=0), seeds=50)
        return float(held.max(axis=1).mean())

    assert largest_share(0.05) > largest_share(0.5) + 0.1 > largest_share(5.0) + 0.2


def test_every_client_gets_the_smallest_size() -> None:
    for seed in range(20):
        sizes = [len(c) for c in Dirichlet(clients=10, alpha=0.3, min_size=30).split(BALANCED, CLASSES, seed)]
        assert min(sizes) >= 30


# ------------------------------------------------------------------------------------ what cannot be done
def test_a_refusal_says_what_was_reached_and_what_to_change() -> None:
    scheme = Dirichlet(clients=20, alpha=0.05, min_size=40, max_draws=30)
    with pytest.raises(FltrainError) as caught:
        scheme.split(BALANCED, CLASSES, 0)
    message = str(caught.value)
    assert re.match(r"partition: .* 30 draws .*alpha=0\.05.* 20 clients", message)
    reached = int(re.search(r"(\d+) images at most", message)[1])
    assert 0 <= reached < 40 and "min_size is 40" in message
    assert message.endswith("raise alpha, or lower min_size or clients")


def test_the_minimum_reached_is_the_best_of_all_draws() -> None:
    hopeless = Dirichlet(clients=10, alpha=0.5, min_size=100, max_draws=50)
    with pytest.raises(FltrainError) as caught:
        hopeless.split(BALANCED, CLASSES, 0)
    reached = int(re.search(r"(\d+) images at most", str(caught.value))[1])
    possible = Dirichlet(clients=10, alpha=0.5, min_size=reached, max_draws=50)
    assert min(map(len, possible.split(BALANCED, CLASSES, 0))) == reached
    with pytest.raises(FltrainError):
        Dirichlet(clients=10, alpha=0.5, min_size=reached + 1, max_draws=50).split(BALANCED, CLASSES, 0)


def test_more_than_all_images_are_refused_at_once() -> None:
    with pytest.raises(FltrainError) as caught:
        Dirichlet(clients=101, alpha=0.3, min_size=10).split(BALANCED, CLASSES, 0)
    assert str(caught.value) == (
        "partition.min_size: 101 clients with at least 10 images each need 1010 images, "
        "the training split has 1000; lower min_size or clients"
    )


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("alpha", [1e-3, 0.01, 0.1])
def test_a_thousand_clients_are_divided_or_refused_in_bounded_time(alpha: float, capped: bool) -> None:
    labels = np.repeat(np.arange(CLASSES), 6000)
    scheme = Dirichlet(clients=1000, alpha=alpha, capped=capped, min_size=1, max_draws=200)
    started = time.perf_counter()
    try:
        clients = scheme.split(labels, CLASSES, 0)
        assert len(np.unique(np.concatenate(clients))) == len(labels)
    except FltrainError as refusal:
        assert "in 200 draws" in str(refusal)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("capped", [True, False])
def test_shares_that_underflow_are_still_a_partition(capped: bool) -> None:
    labels = np.repeat(np.arange(CLASSES), 60)
    clients = Dirichlet(clients=50, alpha=1e-4, capped=capped, min_size=0).split(labels, CLASSES, 0)
    assert sorted(np.concatenate(clients).tolist()) == list(range(len(labels)))


def test_a_client_without_images_is_refused(tmp_path: Path) -> None:
    """It could not train, and there would be no mean loss."""
    scheme = {"name": "dirichlet", "clients": 30, "alpha": 0.02, "min_size": 0}
    spec = tiny(partition=scheme, model="mlp", rounds=1)
    message = r"^partition: client \d+ has no images to train on; set min_size to 1 or more$"
    with pytest.raises(FltrainError, match=message):
        trained(spec, tmp_path)
    assert not Results(tmp_path).record(spec.run_id).complete
