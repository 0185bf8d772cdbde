"""``fltrain bench``: work counted by hand, the bare loop against the engine, kernels by kind, refusals."""

import csv
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from fltrain import bench as benching
from fltrain import cli
from fltrain.bench import BARE, OPTIMISERS, STEPS, Bare, Bench, Work, files_of, measure
from fltrain.core.errors import FltrainError, MethodError
from fltrain.engine.executors.choose import EXECUTORS
from fltrain.engine.executors.loop import LoopExecutor
from fltrain.runtime import profiler as kernels

from .conftest import Register
from .helpers import CPU

SMALL: dict[str, Any] = {
    "models": ["mobilenet_tiny"],
    "datasets": ["digits"],
    "methods": ["fedavg"],
    "executors": list(EXECUTORS),
    "device": CPU,
    "batch_size": 4,
    "clients": 2,
    "steps": 3,
    "repeats": 1,
}
SHAPES = kernels.Shapes((3, 8, 8), frozenset({100}))


@pytest.fixture(autouse=True)
def _less_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benching.MATRIX, "cpu", 64)
    monkeypatch.setattr(benching, "PROFILED", 1)


@pytest.fixture
def one_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bare loop is enough where they are not what is looked at."""
    monkeypatch.setattr(benching, "OPTIMISERS", {"default": OPTIMISERS["default"]})


def small(**changes: Any) -> Bench:
    """What is measured in a moment."""
    return Bench(**{**SMALL, **changes})


def silent(_: str) -> None:
    """Report to nobody."""


# ---------------------------------------------------------------- work
def test_operations_are_those_counted_by_hand() -> None:
    """LeNet-5: two per multiplication; the first convolution's images need no gradient."""
    bench = small(models=["lenet5"], datasets=["mnist"])
    convolutions = 2 * 6 * 25 * 28 * 28, 2 * 16 * 6 * 25 * 10 * 10
    linear = 2 * (400 * 120 + 120 * 84 + 84 * 10)
    image = 2 * convolutions[0] + 3 * (convolutions[1] + linear)
    work = benching._counted(bench, bench.spec("lenet5", "mnist", "fedavg", 2), steps=3)
    assert work == Work(steps=2 * 3, images=2 * 3 * 4, flops=4 * image)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("module", [nn.Conv2d, nn.ConvTranspose2d])
def test_grouped_convolutions_do_less(module: type[nn.Conv2d], groups: int) -> None:
    """An image of 5 x 5 pixels becomes 5 x 5 by 3 x 3 weights for each pair of channels in a group."""
    convolution = module(8, 16, 3, padding=1, groups=groups)
    images = torch.rand(2, 8, 5, 5, requires_grad=True)
    mapping = {torch.ops.aten.convolution_backward: benching._flops_of_gradients}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        convolution(images).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 2 * 25 * 9 * 8 * 16 / groups


def test_methods_that_do_more_are_counted_as_such() -> None:
    bench = small()
    works = {
        method: benching._counted(bench, bench.spec("mobilenet_tiny", "digits", method, 2), steps=4)
        for method in ("fedavg", "fedprox", "moon", "perfedavg")
    }
    fedavg = works["fedavg"]
    assert works["fedprox"] == fedavg
    assert works["moon"].steps == fedavg.steps and works["moon"].flops > 1.2 * fedavg.flops
    assert works["perfedavg"] == Work(fedavg.steps, 2 * fedavg.images, 2 * fedavg.flops), "two batches a step"


def test_costly_networks_get_fewer_steps() -> None:
    """Between the fewest and the most, the operations decide, whatever the machine."""
    least, most = STEPS

    def steps(model: str, dataset: str, size: int) -> int:
        bench = small(batch_size=size)
        return benching._fitting_steps(bench, bench.spec(model, dataset, "fedavg", 2))

    assert steps("mobilenet_tiny", "digits", 4) == most
    assert steps("ecgr_cnn", "digits", 512) == least
    assert least < steps("ecgr_cnn", "digits", 64) < most


# ---------------------------------------------------------------- the bare loop
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_bare_loop_is_federated_averaging(name: str) -> None:
    """Weights and statistics of BatchNorm are the engine's, round after round."""
    bench = small()
    simulation = bench.simulation(bench.spec("mobilenet_tiny", "digits", "fedavg", 2), steps=3)
    bare = Bare(name, simulation, Work(6, 24, 1.0))
    for number in range(2):
        before = bare.vector
        bare.turn(number)()
        simulation.round(number)
        server = torch.cat([simulation.server.weights, simulation.server.buffers])
        assert torch.allclose(bare.vector, server, rtol=0, atol=1e-6)
        assert not torch.allclose(bare.vector, before, rtol=0, atol=1e-4)


def test_clients_count_by_their_images() -> None:
    """One client has three times the images of the other."""
    bench = small()
    simulation = bench.simulation(bench.spec("mobilenet_tiny", "digits", "fedavg", 2), steps=4)
    first, second = simulation.data.clients
    uneven = torch.cat([first, second[:8]]), second[8:]
    object.__setattr__(simulation.data, "clients", uneven)
    bare = Bare("default", simulation, Work(8, 32, 1.0))
    bare.turn(0)()
    simulation.round(0)
    server = torch.cat([simulation.server.weights, simulation.server.buffers])
    assert torch.allclose(bare.vector, server, rtol=0, atol=1e-6)


class Careless(LoopExecutor):
    """Forgets the last client's training."""

    def train(self, round: Any, clients: Any, kept: Any) -> Any:
        first, *_ = super().train(round, clients[:1], kept)
        return [first] * len(clients)


@pytest.mark.usefixtures("one_bare")
def test_an_executor_that_does_other_work_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTORS, "careless", Careless)  # type: ignore[index]
    with pytest.raises(MethodError, match=r"^fedavg, careless: .* mobilenet_tiny its weights differ by "):
        measure(small(executors=["careless"]), silent)


# ---------------------------------------------------------------- what is measured
@pytest.mark.slow
def test_all_combinations_have_a_row() -> None:
    said: list[str] = []
    results = measure(small(methods=["fedavg", "fedprox+flfa"], repeats=2), said.append)
    assert [(row.method, row.executor) for row in results.rows] == [
        *((BARE, name) for name in OPTIMISERS),
        *(("fedavg", name) for name in EXECUTORS),
        *(("fedprox+flfa", name) for name in EXECUTORS),
    ]
    assert said == [f"mobilenet_tiny, digits: {len(results.rows)} measured"]
    assert 1.0 in [row.ratio for row in results.rows if row.method == BARE], "the fastest, to itself"
    for row in results.rows:
        assert row.step_ms_low <= row.step_ms <= row.step_ms_high
        assert row.ratio_low <= row.ratio <= row.ratio_high
        assert (row.steps, row.repeats, row.batch_size) == (6, 2, 4)
        assert row.apart is not None or row.method == "fedprox+flfa"
        assert row.memory_mb > 0 and row.host_share is not None and row.host_share < 1
        # Of two repeats, medians are means; the mean of a product is not the product of means.
        assert row.samples_per_second * row.step_ms / 1e3 == pytest.approx(4, rel=0.5)
        assert row.tflops == pytest.approx(row.samples_per_second / 4 * row.gflop_per_step / 1e3)
    for names in {(one.method, one.executor) for one in results.profiles}:
        shares = [one for one in results.profiles if (one.method, one.executor) == names]
        assert [one.group for one in shares] == [*kernels.GROUPS, kernels.OUTSIDE]
        assert math.isclose(sum(one.share for one in shares), 1)
        busy = {one.group for one in shares if one.share > 0}
        assert busy >= {"convolution", "linear", "normalisation", "optimiser", "gather, augment"}, names


@pytest.mark.usefixtures("one_bare")
def test_layers_multiply_as_they_are_told() -> None:
    """The bare loop's do, too: with images as the engine has them it ends at the same weights."""
    bench = small(precision="bf16", executors=["loop"])
    assert {row.precision for row in measure(bench, silent).rows} == {"bf16"}

    spec = bench.spec("mobilenet_tiny", "digits", "fedavg", 2)
    simulation = bench.simulation(spec, steps=3)
    bare = Bare("default", simulation, Work(6, 24, 1.0))
    bare.turn(0)()
    simulation.round(0)
    vector = torch.cat([simulation.server.weights, simulation.server.buffers])
    assert torch.allclose(bare.vector, vector, rtol=0, atol=1e-6)
    plain = small().simulation(small().spec("mobilenet_tiny", "digits", "fedavg", 2), steps=3)
    plain.round(0)
    assert not torch.allclose(plain.server.weights, simulation.server.weights, rtol=0, atol=1e-6)


def test_the_cpu_has_no_products_of_ten_bits() -> None:
    with pytest.raises(FltrainError, match="precision: 'tf32' needs a GPU"):
        measure(small(precision="tf32"), silent)


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with benching._threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("one_bare")
def test_what_does_not_go_together_is_left_out() -> None:
    bench = small(models=["lenet5", "mobilenet_tiny"], methods=["fedma", "fedavg"], executors=["loop"])
    results = measure(bench, silent)
    assert {(row.model, row.method) for row in results.rows} == {
        ("mobilenet_tiny", BARE),
        ("mobilenet_tiny", "fedavg"),
    }
    lenet, fedma = results.left_out
    assert "needs images of at least 12 pixels" in lenet
    assert "fedma" in fedma
    with pytest.raises(FltrainError, match=r"nothing to measure goes together: .* at least 12 pixels"):
        measure(small(models=["lenet5"]), silent)


def test_the_time_to_issue_is_a_part_of_the_time() -> None:
    bench = small()
    spec = bench.spec("mobilenet_tiny", "digits", "fedavg", 2)
    for name in EXECUTORS:
        shares = benching._issued(bench, spec, name)
        assert shares and all(0 < share <= 1 for share in shares)


def test_images_of_unknown_size_are_refused(register: Register) -> None:
    register({"mine": {"reader": "npz", "path": "mine.npz"}})
    with pytest.raises(FltrainError, match="'mine': its images have a size that only the files can tell"):
        measure(small(datasets=["mine"]), silent)


# ---------------------------------------------------------------- kernels
def test_work_without_kernels_is_outside() -> None:
    shares = kernels.profiled(lambda: torch.zeros(4).view(2, 2).t().detach(), SHAPES, plain=1.0)
    assert shares[kernels.OUTSIDE] > 0
    assert {group for group, share in shares.items() if share > 0} <= {"elementwise", kernels.OUTSIDE}
    assert kernels.profiled(lambda: None, SHAPES, plain=1.0) == {
        **dict.fromkeys(kernels.GROUPS, 0.0),
        "not in kernels": 1,
    }


def test_kernels_are_told_apart_by_name_and_by_what_they_compute_on() -> None:
    images, maps = torch.rand(2, 3, 8, 8), torch.rand(2, 5, 8, 8)
    pixels = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    chosen = torch.tensor([3, 1])
    weights, gradient = torch.rand(100), torch.rand(100)
    convolution, linear = nn.Conv2d(3, 5, 3), nn.Linear(8, 4)
    norm, pool = nn.BatchNorm2d(5, track_running_stats=False), nn.MaxPool2d(2)
    optimiser = torch.optim.SGD([nn.Parameter(torch.rand(7))])
    optimiser.param_groups[0]["params"][0].grad = torch.ones(7)
    works = {
        "convolution": lambda: convolution(images),
        "linear": lambda: linear(maps),
        "pooling": lambda: pool(maps),
        "normalisation": lambda: norm(maps),
        "elementwise": lambda: maps.sigmoid(),
        "optimiser": lambda: weights.add_(gradient, alpha=-0.1),
        "gather, augment": lambda: pixels.index_select(0, chosen).float(),
        "copies": lambda: maps.clone(),
    }
    assert tuple(works) == kernels.GROUPS
    with torch.no_grad():
        for group, work in works.items():
            shares = kernels.profiled(work, SHAPES, plain=1.0)
            busy = {name: share for name, share in shares.items() if share > 0 and name != kernels.OUTSIDE}
            assert max(busy, key=lambda name: busy[name]) == group, busy
            assert 0 <= shares[kernels.OUTSIDE] < 1
        assert kernels.profiled(optimiser.step, SHAPES, plain=1.0)["optimiser"] > 0


def test_what_the_profiler_adds_is_taken_off_what_is_outside() -> None:
    """Of 10 s, 6 s in kernels and 2 s the profiler's own: the 6 s are of 8 s without it."""
    found = kernels.without_profiler({"linear": 0.5, "copies": 0.1}, profiler=2 / 10)
    assert found == pytest.approx({"linear": 5 / 8, "copies": 1 / 8, kernels.OUTSIDE: 2 / 8})


def test_the_most_memory_at_a_time_is_found() -> None:
    def together() -> None:
        kept = [torch.empty(250_000) for _ in range(4)]
        del kept

    def one_by_one() -> None:
        for _ in range(4):
            torch.empty(250_000)

    assert kernels.tensor_bytes(together) == 4_000_000
    assert kernels.tensor_bytes(one_by_one) == 1_000_000


# ---------------------------------------------------------------- command
ARGUMENTS = (
    "bench --models mobilenet_tiny --datasets digits --batch-size 4 --steps 2 --repeats 1 --device cpu"
)


def test_the_command_writes_table_figure_and_profile(tmp_path: Path) -> None:
    out = tmp_path / "new" / "bench.csv"
    arguments = [*ARGUMENTS.split(), "--executors", "loop", "--profile", "--out", str(out)]
    done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table, figure, profile = files_of(out, profile=True)
    assert sorted(out.parent.iterdir()) == sorted([table, figure, profile])
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["executor"] for row in rows] == [*OPTIMISERS, "loop"]
    assert {(row["device"], row["threads"], row["steps"]) for row in rows} == {("cpu", "1", "4")}
    assert all(float(row["samples_per_second"]) > 0 and float(row["ratio"]) > 0 for row in rows)
    groups = [row["group"] for row in csv.DictReader(profile.read_text().splitlines())]
    assert groups == len(rows) * [*kernels.GROUPS, kernels.OUTSIDE]
    assert figure.read_bytes().startswith(b"\x89PNG")
    for shown in ("samples/s", "not in kernels", "memory of the whole process", str(figure)):
        assert shown in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models lenet6", r"--models: unknown 'lenet6'; did you mean 'lenet5'\? \(known: .*resnet18"),
        ("--datasets mnits", r"--datasets: unknown 'mnits'; did you mean 'mnist'\? \(known: .*cifar10"),
        ("--methods fedavg,fedprx", r"--methods: unknown 'fedprx'; did you mean 'fedprox'\?"),
        ("--methods flfa", r"--methods: 'flfa' is not a method with plug-ins behind it, .*; plug-ins are "),
        ("--methods fedavg+fedprox", r"--methods: 'fedavg\+fedprox' is not a method with plug-ins"),
        ("--executors lop", r"--executors: unknown 'lop'; did you mean 'loop'\? \(known: loop"),
        ("--models ,", r"--models: names nothing; give one or more, with commas \(known: "),
        ("--out table.txt", r"--out: 'table.txt' does not end in \.csv; name a CSV file"),
        ("--models lenet5 --datasets digits", r"nothing to measure goes together: .* at least 12 pixels"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fltrain", "bench", "--device", "cpu", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        cli.main()
    _, err = capsys.readouterr()
    assert left.value.code == 2
    assert err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err)
    assert not list(tmp_path.iterdir())


def test_kernels_of_a_gpu_are_not_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli.bench, "pick_device", lambda *_, **__: torch.device("cuda"))
    out = str(tmp_path / "bench.csv")
    with pytest.raises(FltrainError, match=r"--profile: kernels are told apart on the CPU, not on 'auto'"):
        CliRunner().invoke(cli.app, ["bench", "--profile", "--out", out], catch_exceptions=False)
