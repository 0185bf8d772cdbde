"""Properties of each partition scheme, against closed forms, literal loops and golden values."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fltrain.core.errors import FltrainError
from fltrain.core.rng import Purpose, stream
from fltrain.data.feature_skew import FeatureSkew
from fltrain.data.partition import Indices, LocalTest, Scheme, class_counts
from fltrain.data.partition.base import LabelSkew, local_split
from fltrain.data.partition.dirichlet import Dirichlet, DirichletTopUp, QuantitySkew
from fltrain.data.partition.fixed_classes import NByC, Pathological, contiguous, cyclic, random_balanced
from fltrain.data.partition.plain import ByWriter, Iid, Shards
from fltrain.engine.data import FederatedData
from fltrain.runs.spec import RunSpec

from ..properties.helpers import digits, skewed, with_tests
from .helpers import federation, tiny, trained

DIGITS = np.repeat(np.arange(10), 100)
MNIST = np.repeat(np.arange(10), 6000)
CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)
SEEDS = st.integers(0, 2**32)

few_examples = settings(deadline=None, max_examples=60)


def counts(scheme: Scheme, labels: Indices, seed: int = 0) -> Indices:
    """Images by client and class."""
    classes = int(labels.max()) + 1
    return class_counts(scheme.split(labels, classes, seed), labels, classes)


def planned(scheme: LabelSkew, classes: int, images: int, seed: int) -> Indices:
    """Images by client and class without assigning any: faster than ``counts``, and the same."""
    return scheme.counts(np.full(classes, images), stream(seed, Purpose.PARTITION))


@contextmanager
def refused_within(seconds: float, message: str) -> Iterator[None]:
    started = time.process_time()
    with pytest.raises(FltrainError, match=message):
        yield
    assert time.process_time() - started < seconds


EVERY_SCHEME = [
    Iid(clients=7),
    Dirichlet(clients=10, alpha=0.5),
    DirichletTopUp(clients=10, alpha=0.1, min_size=40),
    Pathological(clients=10),
    Pathological(clients=10, assignment="contiguous"),
    NByC(clients=10, classes_per_client=3),
    NByC(clients=10, classes_per_client=3, assignment="cyclic"),
    ByWriter(clients=10),
    ByWriter(clients=10, choice="random"),
    Shards(clients=10),
    QuantitySkew(clients=10),
]
WRITERS = np.random.default_rng(1).integers(0, 25, len(DIGITS)) * 7
each_scheme = pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=str)


def content(scheme: Scheme, seed: int) -> bytes:
    return b"|".join(client.tobytes() for client in scheme.split(DIGITS, 10, seed, WRITERS))


@each_scheme
def test_clients_are_disjoint_and_hold_the_promised_images(scheme: Scheme) -> None:
    for seed in range(5):
        clients = scheme.split(DIGITS, 10, seed, WRITERS)
        assert len(clients) == scheme.clients
        assert all(client.dtype == np.int64 for client in clients)
        assert min(map(len, clients)) >= getattr(scheme, "min_size", 1)
        images = np.concatenate(clients)
        assert len(np.unique(images)) == len(images) and set(images) <= set(range(len(DIGITS)))
        if scheme.name == "dirichlet_topup":
            assert (np.bincount(DIGITS[images]) > 100 - scheme.clients).all()
        elif scheme.name == "by_writer":
            assert len(images) == np.isin(WRITERS, np.unique(WRITERS[images])).sum()
        else:
            assert len(images) == len(DIGITS)
        assert scheme.name != "iid" or np.ptp([len(client) for client in clients]) <= 1


@each_scheme
def test_the_same_seed_gives_the_same_bytes(scheme: Scheme) -> None:
    assert content(scheme, 3) == content(scheme, 3)
    if getattr(scheme, "choice", "") != "first":
        assert len({content(scheme, seed) for seed in range(5)}) == 5


@each_scheme
def test_more_clients_than_images_are_refused(scheme: Scheme) -> None:
    crowd = scheme.model_copy(update={"clients": 1001})
    with refused_within(1, r"^partition\.clients: 1001 clients cannot share 1000 training images"):
        crowd.split(DIGITS, 10, 0, WRITERS)


@pytest.mark.parametrize("scheme", [case for case in EVERY_SCHEME if isinstance(case, LabelSkew)], ids=str)
def test_planned_numbers_equal_the_assigned_ones(scheme: LabelSkew) -> None:
    assert counts(scheme, DIGITS, 4).tolist() == planned(scheme, 10, 100, 4).tolist()


def test_quantity_skew_has_dirichlet_sizes_and_iid_labels() -> None:
    """Shares of Dirichlet(alpha) over M clients have the variance (1 - 1 / M) / (M (alpha M + 1))."""
    clients, alpha = 10, 0.5
    scheme = QuantitySkew(clients=clients, alpha=alpha, min_size=0)
    drawn = np.stack([planned(scheme, 10, 6000, seed) for seed in range(300)])
    assert (drawn.sum(axis=1) == 6000).all()
    shares = drawn.sum(axis=2) / 60_000
    variance = (1 - 1 / clients) / (clients * (alpha * clients + 1))
    assert shares.var() == pytest.approx(variance, rel=0.1)
    assert np.sort(shares, axis=1)[:, -1].mean() > 0.3  # equal shares would have 0.1
    # A client with n images has n / 10 of a class; the hypergeometric variance is at most the binomial one.
    expected = drawn.sum(axis=2, keepdims=True) / 10
    chi = ((drawn - expected) ** 2 / np.maximum(expected, 1))[shares > 0.01]
    assert chi.mean() == pytest.approx(0.9 * 0.9, rel=0.1)
    with refused_within(5, r"draws of quantity\(alpha=0.01\) .*the smallest client got"):
        planned(QuantitySkew(clients=100, alpha=0.01, min_size=100), 10, 6000, 0)


GREY = np.full((4000, 1, 4, 4), 128, np.uint8)
OWNERS = np.array_split(np.arange(4000), 4)


@pytest.mark.parametrize(("level", "power"), [("variance", 0.5), ("deviation", 1.0)])
def test_noise_of_a_client_has_its_level(level: str, power: float) -> None:
    skew = FeatureSkew(noise=0.02, level=level)
    noisy = skew.changed(GREY, OWNERS, 1)
    assert (GREY == 128).all()
    assert np.array_equal(noisy, skew.changed(GREY, OWNERS, 1))
    assert not np.array_equal(noisy, skew.changed(GREY, OWNERS, 2))
    for client, indices in enumerate(OWNERS):
        noise = (noisy[indices].astype(float) - 128) / 255
        rounding = 1 / 12 / 255**2
        expected = math.sqrt((0.02 * (client + 1) / 4) ** (2 * power) + rounding)
        assert noise.std() == pytest.approx(expected, rel=0.03)
        assert abs(noise.mean()) < 5 * expected / math.sqrt(noise.size)
    # Streams of clients do not depend on the images of other clients.
    fewer = [indices[:10] for indices in OWNERS]
    assert np.array_equal(skew.changed(GREY, fewer, 1)[fewer[3]], noisy[fewer[3]])
    black = FeatureSkew(noise=0.02).changed(np.zeros_like(GREY), OWNERS, 1)
    assert (black[OWNERS[3]] == 0).mean() == pytest.approx(0.5, abs=0.02)  # cut off, not wrapped around


def test_clients_have_turned_images() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2).repeat(2, axis=0)
    owners = [np.array([client]) for client in range(6)]
    quarters, halves = (FeatureSkew(rotations=k).changed(images, owners, 0) for k in (4, 2))
    assert quarters[:, 0].tolist()[:5] == [
        [[0, 1], [2, 3]],
        [[1, 3], [0, 2]],
        [[7, 6], [5, 4]],
        [[6, 4], [7, 5]],
        [[8, 9], [10, 11]],
    ]
    assert np.array_equal(halves[1::2], images[1::2, :, ::-1, ::-1])
    assert np.array_equal(halves[::2], images[::2])


def test_feature_skew_changes_all_images_of_clients_but_not_the_common_ones() -> None:
    data = digits()
    divided = with_tests(skewed(data))
    divided = replace(divided, validation=[indices[:2] for indices in divided.clients])
    divided = replace(divided, clients=[indices[2:] for indices in divided.clients])
    skew = FeatureSkew(rotations=2)
    pool = np.concatenate([data.train_images, data.test_images])
    plain = FederatedData.of(data, divided, torch.device("cpu"))
    turned = FederatedData.of(data, divided, torch.device("cpu"), feature_skew=skew)
    for client, parts in enumerate(zip(divided.clients, divided.tests, divided.validation, strict=True)):
        chosen = np.concatenate(parts)
        expected = pool[chosen][:, :, ::-1, ::-1] if client % 2 else pool[chosen]
        assert np.array_equal(turned.train.images[chosen], expected)
    assert torch.equal(turned.test.images, plain.test.images)
    with pytest.raises(FltrainError, match="feature_skew: changes no image; set 'noise' or 'rotations'"):
        RunSpec.parse(
            {"dataset": "digits", "partition": "iid", "model": "mlp", "method": "fedavg", "feature_skew": {}},
            "run",
        )


@given(alpha=st.floats(0.05, 5.0), clients=st.integers(2, 20), seed=SEEDS)
def test_a_capped_client_gets_no_further_images(alpha: float, clients: int, seed: int) -> None:
    held = counts(Dirichlet(clients=clients, alpha=alpha, min_size=0), DIGITS, seed)
    before = np.cumsum(held, axis=1) - held
    assert (held[before >= len(DIGITS) / clients] == 0).all()


def test_a_client_without_images_is_refused() -> None:
    """It could not train, and there would be no mean loss."""
    scheme = {"name": "dirichlet", "clients": 30, "alpha": 0.02, "min_size": 0}
    message = r"^partition: client \d+ has no images to train on; set min_size to 1 or more$"
    with pytest.raises(FltrainError, match=message):
        federation(tiny(partition=scheme, model="mlp"), digits())


def test_a_thousand_clients_with_little_alpha_are_refused_quickly_or_divided() -> None:
    scheme = Dirichlet(clients=1000, alpha=0.01)
    with refused_within(2, r"smallest client got 0 images at most, .*missed by 6\d\d clients or more"):
        scheme.split(MNIST, 10, 0)
    started = time.process_time()
    assert counts(scheme.model_copy(update={"min_size": 0}), MNIST).sum() == len(MNIST)
    assert time.process_time() - started < 2


@few_examples
@given(alpha=st.sampled_from([1e-300, 1e-3, 0.02, 1e3, 1e6]), capped=st.booleans(), seed=SEEDS)
def test_extreme_alphas_give_valid_partitions(alpha: float, capped: bool, seed: int) -> None:
    held = counts(Dirichlet(clients=7, alpha=alpha, capped=capped, min_size=0), DIGITS, seed)
    assert held.sum(axis=0).tolist() == [100] * 10
    if alpha >= 1e3:
        assert abs(held - 100 / 7).max() <= (6 if alpha == 1e3 else 1)
    if alpha <= 1e-3:
        assert (held.max(axis=0) >= 90).mean() > 0.7
    if alpha == 1e-300:
        assert set(held.ravel()) == {0, 100}
        # With the cap of 1000 / 7 images nobody gets a third class.
        assert not capped or held.sum(axis=1).max() <= 200


def test_a_class_without_images_is_skipped() -> None:
    labels = DIGITS[(DIGITS != 3) & (DIGITS != 9)]
    for scheme in (Dirichlet(clients=1), Dirichlet(clients=8), DirichletTopUp(clients=8, min_size=50)):
        held = class_counts(scheme.split(labels, 10, 0), labels, 10)
        assert not held[:, [3, 9]].any() and held.sum() > 700


def literal_topup(held: Indices, least: int) -> Indices:
    """Move single labels between lists that are ordered by class, as the authors' code does."""
    lists = [np.repeat(np.arange(held.shape[1]), row).tolist() for row in held]
    for poor in range(len(lists)):
        if len(lists[poor]) >= least:
            continue
        for rich in sorted(range(len(lists)), key=lambda client: -len(lists[client])):
            if rich == poor or len(lists[rich]) <= least:
                continue
            take = min(least - len(lists[poor]), len(lists[rich]) - least)
            lists[poor] += lists[rich][:take]
            del lists[rich][:take]
    return np.stack([np.bincount(labels, minlength=held.shape[1]) for labels in lists])


@few_examples
@given(alpha=st.floats(0.01, 2), clients=st.integers(1, 12), share=st.floats(0, 1), seed=SEEDS)
def test_topping_up_equals_the_literal_lists(alpha: float, clients: int, share: float, seed: int) -> None:
    before = counts(DirichletTopUp(clients=clients, alpha=alpha, min_size=0), DIGITS, seed)
    assert ((100 - before.sum(axis=0)) >= 0).all() and (100 - before.sum(axis=0) < clients).all()
    least = int(share * (before.sum() // clients))
    after = counts(DirichletTopUp(clients=clients, alpha=alpha, min_size=least), DIGITS, seed)
    assert after.tolist() == literal_topup(before, least).tolist()


@few_examples
@given(clients=st.integers(1, 40), classes=st.integers(1, 30), each=st.integers(1, 30), seed=SEEDS)
def test_balanced_deals_never_get_stuck(clients: int, classes: int, each: int, seed: int) -> None:
    each = min(each, classes)
    held = random_balanced(clients, each, classes, np.random.default_rng(seed))
    assert (held.sum(axis=1) == each).all()
    assert np.ptp(held.sum(axis=0)) <= 1


@few_examples
@given(clients=st.integers(1, 40), classes=st.integers(1, 30), each=st.integers(1, 30))
def test_contiguous_deals_equal_the_budget_loop(clients: int, classes: int, each: int) -> None:
    each = min(each, classes)
    budget = [each] * clients
    expected = np.zeros((clients, classes), bool)
    for label in range(classes):
        for client in [c for c in range(clients) if budget[c]][: math.ceil(clients * each / classes)]:
            expected[client, label] = True
            budget[client] -= 1
    assert (contiguous(clients, each, classes, np.random.default_rng(0)) == expected).all()


def test_cyclic_deals_are_windows_of_one_permutation() -> None:
    for clients, each, classes in ((10, 3, 10), (20, 5, 10), (10, 30, 100), (4, 3, 10)):
        held = cyclic(clients, each, classes, np.random.default_rng(5))
        order = np.random.default_rng(5).permutation(classes)
        stride = max(1, classes // clients)
        for client in range(clients):
            window = {int(order[(client * stride + place) % classes]) for place in range(each)}
            assert set(np.flatnonzero(held[client])) == window


@pytest.mark.parametrize(("clients", "each"), [(20, 2), (20, 4), (20, 6), (20, 8), (50, 2), (100, 2)])
@pytest.mark.parametrize("assignment", ["random_balanced", "contiguous"])
def test_pathological_clients_have_the_promised_sizes(clients: int, each: int, assignment: str) -> None:
    scheme = Pathological(clients=clients, classes_per_client=each, assignment=assignment, min_size=40)
    for seed in range(3):
        held = counts(scheme, MNIST, seed)
        if assignment == "random_balanced":
            assert ((held > 0).sum(axis=1) == each).all()
        assert held.sum(axis=1).min() >= 40
        for column in held.T:
            pieces = column[column > 0]
            share = 6000 / len(pieces)
            *others, rest = pieces if assignment == "contiguous" else np.sort(pieces)
            assert share / 10 <= min(others) and max(others) < share <= rest
            assert sum(others) + rest == 6000


FED2 = [(CIFAR10, 10, 3), (CIFAR10, 10, 10), (CIFAR10, 20, 5), (CIFAR10, 100, 5), (CIFAR100, 10, 30)]


@pytest.mark.parametrize(("labels", "nodes", "each"), FED2, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("assignment", ["random_balanced", "cyclic"])
def test_n_by_c_has_every_setting_of_fed2(labels: Indices, nodes: int, each: int, assignment: str) -> None:
    held = counts(NByC(clients=nodes, classes_per_client=each, assignment=assignment), labels)
    present = held > 0
    classes = held.shape[1]
    assert (present.sum(axis=1) == each).all()
    assert (present.sum(axis=0) == nodes * each // classes).all()
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


MANY_CLASSES = r"^partition\.classes_per_client: got 11, .*has 10 classes; use at most 10$"
NO_CLIENT = "leave class . without a client .*use at least 3 classes per client"
ROUNDING = r"after rounding down \d+ images are left for 10 clients, at most 9\d for the"
FEW_WRITERS = "^partition.clients: 26 clients, but the dataset has 25 writers; use at most 25$"


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (DirichletTopUp(clients=10, alpha=1, min_size=100), ROUNDING),
        (DirichletTopUp(clients=10, min_size=101), "need 1010 images, the training split has 1000"),
        (Pathological(classes_per_client=11), MANY_CLASSES),
        (NByC(classes_per_client=11), MANY_CLASSES),
        (Pathological(clients=4), NO_CLIENT),
        (Pathological(clients=4, assignment="contiguous"), NO_CLIENT),
        (NByC(clients=4, classes_per_client=2), NO_CLIENT),
        (NByC(clients=4, classes_per_client=2, assignment="cyclic"), NO_CLIENT),
        # Enough places, but not where they are needed.
        (NByC(clients=4, classes_per_client=3, assignment="cyclic"), NO_CLIENT),
        (ByWriter(clients=26), FEW_WRITERS),
        (Shards(clients=10, shards_per_client=101), r"partition\.shards_per_client: .* use at most 100"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_demands_are_refused(scheme: Scheme, message: str) -> None:
    with refused_within(1, message):
        scheme.split(DIGITS, 10, 0, WRITERS)
    if scheme.name == "by_writer":
        with refused_within(1, "^partition.name: 'by_writer' needs a dataset with known writers"):
            ByWriter(clients=5).split(DIGITS, 10, 0)


@pytest.mark.parametrize(
    "scheme", [Pathological(clients=10, min_size=0), NByC(clients=10, classes_per_client=2)]
)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (0, "class 9 has no training images, .* correct 'classes' of the dataset, or choose another scheme"),
        (1, "class 9 has 1 training image for the 2 clients that should hold it; lower clients or"),
    ],
)
def test_a_class_with_fewer_images_than_clients_is_refused(scheme: Scheme, images: int, message: str) -> None:
    labels = np.repeat(np.arange(10), [100] * 9 + [images])
    with refused_within(1, message):
        scheme.split(labels, 10, 0)


def test_clients_are_the_first_writers_or_random_ones() -> None:
    ids = np.unique(WRITERS)

    def chosen(choice: str, seed: int) -> list[int]:
        clients = ByWriter(clients=5, choice=choice).split(DIGITS, 10, seed, WRITERS)
        who = [int(WRITERS[client[0]]) for client in clients]
        assert [client.tolist() for client in clients] == [np.flatnonzero(i == WRITERS).tolist() for i in who]
        return who

    assert chosen("first", 0) == chosen("first", 1) == ids[:5].tolist()
    drawn = [chosen("random", seed) for seed in range(200)]
    assert all(who == sorted(set(who)) for who in drawn)
    assert np.bincount(np.searchsorted(ids, np.ravel(drawn))) == pytest.approx(1000 / len(ids), abs=26)


@few_examples
@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=80),
    fraction=st.sampled_from([1e-12, 0.1, 0.25, 1 / 3, 0.7, 0.999]),
    stratify=st.booleans(),
    seed=SEEDS,
)
def test_local_split_of_each_client(labels: list[int], fraction: float, stratify: bool, seed: int) -> None:
    truth = np.array(labels)
    # The client's images in any order, mixed with others.
    client = np.random.default_rng(seed).permutation(2 * len(truth))[: len(truth)]
    everyone = np.full(2 * len(truth), 9)
    everyone[client] = truth
    by = everyone if stratify else None
    (train,), (test,) = local_split([client], fraction, stream(seed, Purpose.TEST_SPLIT), by)
    assert sorted([*train, *test]) == sorted(client)
    assert 1 <= len(test) < len(truth)
    assert len(test) == min(max(1, math.ceil(round(fraction * len(truth), 8))), len(truth) - 1)
    if stratify:
        exact = np.bincount(truth, minlength=5) * len(test) / len(truth)
        held = np.bincount(everyone[test], minlength=5)
        assert (np.floor(exact) <= held).all() and (held <= np.ceil(exact)).all()


def test_a_client_of_one_image_cannot_be_split() -> None:
    with refused_within(1, r"^partition: client 1 has 1 image, a local test split needs 2; raise"):
        local_split([np.arange(4), np.array([5])], 0.25, stream(0, Purpose.TEST_SPLIT))
    with pytest.raises(FltrainError, match="fraction"):
        LocalTest.parse({"fraction": 1.0}, "local test")


def test_shards_are_those_of_the_fedavg_paper() -> None:
    """MNIST: 200 shards of 300 images, two for each of 100 clients; nobody has more than two classes."""
    held = counts(Shards(clients=100), MNIST)
    assert (held.sum(axis=1) == 600).all() and (held.sum(axis=0) == 6000).all()
    assert set(np.unique(held)) == {0, 300, 600}
    assert ((held > 0).sum(axis=1) <= 2).all()


def test_a_seed_of_the_partition_fixes_it_over_the_seeds_of_runs(tmp_path: Path) -> None:
    """Local test images are fixed, too; absent, the partition has the seed of the run, and IDs stay."""
    settings = {"model": "mlp", "rounds": 1, "local_test": {"fraction": 0.25}}
    scheme = {"name": "dirichlet", "clients": 10}
    free = [tiny(**settings, partition=scheme, seed=seed) for seed in (0, 1)]
    fixed = [tiny(**settings, partition={**scheme, "seed": 0}, seed=seed) for seed in (0, 1)]
    assert free[0].partition_id != free[1].partition_id
    assert fixed[0].partition_id == fixed[1].partition_id and fixed[0].run_id != fixed[1].run_id
    assert "seed" not in free[0].model_dump(mode="json")["partition"]
    used = [trained(spec, tmp_path).summary["digests"]["partition"] for spec in fixed]
    assert used[0] == used[1]
    parts = [federation(spec, digits()).data.clients for spec in (free[0], fixed[1], free[1])]
    assert all(torch.equal(first, other) for first, other in zip(parts[0], parts[1], strict=True))
    assert not all(torch.equal(first, other) for first, other in zip(parts[0], parts[2], strict=True))
