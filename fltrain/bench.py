"""``fltrain bench``: how fast runs are trained here, beside what the device can do and a bare PyTorch loop.

Clients with random images train round after round: with every method and executor, and in a bare loop,
which is what one would write by hand for federated averaging with this network. All take turns within each
repeat, with a large product of matrices as the measure of what the device can do; shares and ratios are of
times of the same repeat. On one thread of the CPU times are processor seconds, which other work on the
machine disturbs less than the clock.
"""

from __future__ import annotations

import csv
import gc
import io
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fltrain.core.config import suggest
from fltrain.core.errors import FltrainError, MethodError
from fltrain.core.files import replacing, write_text
from fltrain.data.datasets import registry
from fltrain.engine.clients import Clients, Kept, Round
from fltrain.engine.executors.choose import EXECUTORS
from fltrain.engine.executors.loop import LoopExecutor, Trained, batch_orders
from fltrain.engine.simulation import Diverged, ExecutorFactory, Simulation
from fltrain.engine.synthetic import rehearsal
from fltrain.methods import METHODS
from fltrain.models.build import build
from fltrain.models.catalogue import MODELS
from fltrain.runs.spec import Precision, RunSpec
from fltrain.runtime import profiler as kernels
from fltrain.runtime.determinism import Profile, determined
from fltrain.runtime.devices import synchronize
from fltrain.runtime.process import keep_freed_memory, peak_memory

BARE = "bare loop"
OPTIMISERS: Mapping[str, Mapping[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""Implementations of ``torch.optim.SGD``; the bare loop runs with each."""
TOLERANCE = 1e-6
"""By how much weights may differ after a round of federated averaging if the work was the same."""
ALIKE = 0.25
"""The same where kernels may round otherwise (clients side by side, CUDA), which deep networks with BatchNorm
magnify: length of the difference, over that of the way that the weights went."""
PROFILED = 3
"""Repeats in which a round is profiled, too."""
WORK = 50e9
"""Floating-point operations of a client in a round, if its number of steps is not given."""
STEPS = (2, 20)
"""Fewest and most steps of a client in a round, if their number is not given."""
MATRIX = {"cpu": 2048, "cuda": 8192}
"""Rows of the matrices whose product measures the device."""
NEVER = 10**6
BRIEF_ROUNDS = 8


@dataclass(frozen=True)
class Bench:
    """What is measured, and how.

    Attributes:
        models, datasets, methods, executors: names; methods with plug-ins as ``fedavg+flfa``. What does not
            go together is left out.
        device: where to compute.
        batch_size: images in a batch.
        clients: clients of a round.
        steps: batches of each of them in a round; as many as take some time on a processor, if None.
        repeats: timed rounds.
        threads: of the processor.
        determinism: see ``fltrain.runtime.determinism``.
        precision: of the products of layers, and of the product of matrices that they are compared with.
    """

    models: Sequence[str]
    datasets: Sequence[str]
    methods: Sequence[str]
    executors: Sequence[str]
    device: torch.device
    batch_size: int = 64
    clients: int = 2
    steps: int | None = None
    repeats: int = 5
    threads: int = 1
    determinism: Profile = "exact"
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        """Refuse names that nobody knows.

        Raises:
            FltrainError: with those that are known.
        """
        _check_names("models", self.models, MODELS)
        _check_names("datasets", self.datasets, registry())
        _check_names("executors", self.executors, EXECUTORS)
        _check_names("methods", [one for name in self.methods for one in name.split("+")], METHODS)
        for name in self.methods:
            base, *plugins = name.split("+")
            if METHODS[base].plugin or not all(METHODS[plugin].plugin for plugin in plugins):
                raise FltrainError(
                    f"--methods: {name!r} is not a method with plug-ins behind it, as fedavg+flfa is; "
                    f"plug-ins are {', '.join(one for one, method in METHODS.items() if method.plugin)}"
                )

    def spec(self, model: str, dataset: str, method: str, clients: int) -> RunSpec:
        """A run in which all clients train in every round, and nothing is tested.

        Raises:
            FltrainError: if these do not go together.
        """
        base, *plugins = method.split("+")
        settings = {
            "dataset": dataset,
            "partition": {"name": "iid", "clients": clients},
            "local_test": {"fraction": 0.5},  # some methods are not trained without
            "model": model,
            "method": base,
            "plugins": plugins,
            "training": {"epochs": 1, "batch_size": self.batch_size},
            "participation": {"fraction": 1.0},
            "rounds": NEVER,
            "evaluation": {"every": NEVER},
            "precision": self.precision,
        }
        return RunSpec.parse(settings, f"{model}, {dataset}, {method}")

    def simulation(self, spec: RunSpec, steps: int, executor: ExecutorFactory = LoopExecutor) -> Simulation:
        """Clients with random images of so many batches each."""
        clients = spec.partition.clients
        return rehearsal(spec, steps * self.batch_size, clients, self.device, executor)

    def clock(self) -> float:
        """Seconds: of the processor if this is what computes, alone; else on the clock."""
        if self.device.type == "cpu" and self.threads == 1:
            return time.process_time()
        return time.perf_counter()

    def seconds(self, work: Callable[[], object]) -> float:
        """Time that some work takes."""
        synchronize(self.device)
        started = self.clock()
        work()
        synchronize(self.device)
        return self.clock() - started


def _check_names(option: str, names: Collection[str], known: Collection[str]) -> None:
    listed = f"(known: {', '.join(known)})"
    if not names:
        raise FltrainError(f"--{option}: names nothing; give one or more, with commas {listed}")
    for name in names:
        if name not in known:
            raise FltrainError(f"--{option}: unknown {name!r}{suggest(name, known)} {listed}")


# ---------------------------------------------------------------- those who train
class Contender(Protocol):
    """Who takes part: trains the same clients, round after round.

    Attributes:
        method: what it is compared as.
        executor: how it runs the steps.
        exact: whether it rounds as the loop does, on a CPU.
        work: what it does in a round.
    """

    method: str
    executor: str
    exact: bool
    work: Work

    def turn(self, number: int) -> Callable[[], object]:
        """Prepare a round (counted from 0), and return what trains it."""

    @property
    def vector(self) -> Tensor:
        """The global model: parameters and running statistics."""


@dataclass(frozen=True)
class Work:
    """What is done in a round: local steps and images of all clients, floating-point operations of a step."""

    steps: int
    images: int
    flops: float


class Ours:
    """The engine with an executor."""

    def __init__(self, method: str, executor: str, simulation: Simulation, work: Work) -> None:
        self.method, self.executor, self.simulation, self.work = method, executor, simulation, work
        self.exact = EXECUTORS[executor].exact

    def turn(self, number: int) -> Callable[[], object]:
        return partial(self.simulation.round, number)

    @property
    def vector(self) -> Tensor:
        return torch.cat([self.simulation.server.weights, self.simulation.server.buffers])


class Bare:
    """Federated averaging without a framework. Clients and batch orders are given, and cost it nothing.

    A plain module, images normalised beforehand, ``torch.optim.SGD`` in one of its implementations, state
    dicts averaged by numbers of images. In the first round, whose weights are compared, images are laid out
    as the engine has them, as layouts round differently; then as loops by hand have them, channels first.
    """

    method = BARE
    exact = True

    def __init__(self, executor: str, reference: Simulation, work: Work) -> None:
        """Train what the reference trains, before its first round."""
        spec, data = reference.spec, reference.data
        self.executor, self.reference, self.work = executor, reference, work
        everything = torch.arange(len(data.train), device=reference.device)
        self.compared, self.labels = data.train.batch(everything)
        self.images = self.compared.clone(memory_format=torch.contiguous_format)
        _, channels, side, _ = data.train.images.shape
        self.model = build(spec.model, channels, side, data.classes, spec.seed).to(reference.device).train()
        self.model.products = reference.network.products
        self.state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def turn(self, number: int) -> Callable[[], object]:
        one = self.reference
        task = Round(number, one.task, one.spec.training, one.server, {})
        epochs, clients = one.spec.training.epochs, one.data.clients
        orders = [
            batch_orders(task, client, epochs, len(indices), indices.device)
            for client, indices in enumerate(clients)
        ]
        return partial(self.round, self.images if number else self.compared, orders)

    def round(self, images: Tensor, orders: Sequence[Tensor]) -> float:
        """Train all clients, each in its order ``[epochs, images]``; return the sum of the losses."""
        model, training, clients = self.model, self.reference.spec.training, self.reference.data.clients
        total = sum(map(len, clients))
        state = {
            name: torch.zeros_like(tensor, dtype=torch.float64) if tensor.is_floating_point() else tensor
            for name, tensor in self.state.items()
        }
        losses = torch.zeros((), device=self.reference.device)
        for indices, epochs in zip(clients, orders, strict=True):
            model.load_state_dict(self.state)
            optimiser = torch.optim.SGD(
                model.parameters(),
                lr=training.lr,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                **OPTIMISERS[self.executor],
            )
            for order in epochs:
                for chosen in indices[order].split(training.batch_size):
                    optimiser.zero_grad()
                    loss = functional.cross_entropy(model(images[chosen]), self.labels[chosen])
                    loss.backward()
                    optimiser.step()
                    losses += loss.detach()
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    state[name].add_(tensor, alpha=len(indices) / total)
                else:
                    state[name] = tensor.clone()
        self.state = {name: tensor.to(self.state[name].dtype) for name, tensor in state.items()}
        return float(losses)

    @property
    def vector(self) -> Tensor:
        layout = self.reference.model.layout
        return torch.cat([self.state[slot.name].flatten() for slot in (*layout.parameters, *layout.buffers)])


class Counting(LoopExecutor):
    """Counts the steps and the floating-point operations of the last local training."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.steps = self.flops = 0

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        mapping = {torch.ops.aten.convolution_backward: _flops_of_gradients}
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            trained = super().train(round, clients, kept)
        self.steps = sum(one.update.steps for one in trained)
        self.flops = counter.get_total_flops()
        return trained


def _flops_of_gradients(
    gradient: Sequence[int],
    images: Sequence[int],
    weight: Sequence[int],
    *settings: Any,
    **_: Any,
) -> int:
    """Operations of a convolution's backward pass, given shapes: each gradient takes as many as the output.

    PyTorch's own count takes the gradient of a grouped convolution's weight for that of a full one.
    """
    transposed, (of_images, of_weight, *_bias) = settings[4], settings[7]
    positions = (images if transposed else gradient)[2:]
    once: int = 2 * images[0] * math.prod(positions) * math.prod(weight)
    return once * (int(of_images) + int(of_weight))


class Issuing:
    """Notes when an executor has issued the training of clients, and when the device was done with it."""

    def __init__(self, executor: LoopExecutor) -> None:
        self.executor, self.name, self.shares = executor, executor.name, list[float]()

    def train(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> list[Trained]:
        device = self.executor.model.weights.device
        synchronize(device)
        started = time.perf_counter()
        trained = self.executor.train(round, clients, kept)
        issued = time.perf_counter()
        synchronize(device)
        self.shares.append((issued - started) / (time.perf_counter() - started))
        return trained

    def gradients(self, round: Round, clients: Sequence[int], kept: Mapping[int, Kept]) -> Tensor:
        return self.executor.gradients(round, clients, kept)


# ---------------------------------------------------------------- measurements
@dataclass
class Measured:
    """What was measured of a contender.

    Attributes:
        contender: it.
        memory: bytes that were taken at most to build it and to train two rounds.
        apart: by how much a weight or statistic differs at most, after the first round, from that of
            federated averaging with the loop; None if it does something else.
        seconds: of each timed round.
        shares: of the time of each profiled round, by group of kernels (CPU).
        host: share of a step's time that the host spends issuing it (CUDA).
    """

    contender: Contender
    memory: int
    apart: float | None
    seconds: list[float] = field(default_factory=list)
    shares: list[dict[str, float]] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    @property
    def profile(self) -> dict[str, float]:
        """Medians of the shares by group; what is not in kernels is the rest."""
        groups = {group: statistics.median(one[group] for one in self.shares) for group in kernels.GROUPS}
        return {**groups, kernels.OUTSIDE: 1 - sum(groups.values())} if self.shares else {}


@dataclass(frozen=True)
class Row:
    """What the table says of a combination: medians, and quartiles where two more columns say so.

    Attributes:
        model, dataset, method, executor: the combination; of the bare loop, the implementation of SGD.
        device, threads, precision, batch_size, clients, steps: how it was run; steps in a round, of all
            clients.
        repeats: timed rounds.
        samples_per_second: images of local steps, over the time of whole rounds.
        step_ms: milliseconds of a round for each of its local steps.
        gflop_per_step: operations of local training, counted.
        tflops: of these, per second.
        peak_tflops: what the product of two matrices reached.
        share_of_peak: one over the other, in the same repeat.
        host_share: CPU: share of the time that is not inside kernels; CUDA: time until a step is issued over
            the time that it takes. None if it was not measured.
        memory_mb: taken for tensors at most.
        apart: most that a weight or statistic differs from the loop's after a round of federated averaging.
        ratio: of the time to that of the fastest bare loop, in the same repeat.
    """

    model: str
    dataset: str
    method: str
    executor: str
    device: str
    threads: int
    precision: str
    batch_size: int
    clients: int
    steps: int
    repeats: int
    samples_per_second: float
    step_ms: float
    step_ms_low: float
    step_ms_high: float
    gflop_per_step: float
    tflops: float
    peak_tflops: float
    share_of_peak: float
    host_share: float | None
    memory_mb: float
    apart: float | None
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def cells(self) -> dict[str, str]:
        """How the table shows it."""
        return {
            "model": self.model,
            "data": self.dataset,
            "method": self.method,
            "executor": self.executor,
            "precision": self.precision,
            "samples/s": f"{self.samples_per_second:,.0f}",
            "ms/step": f"{self.step_ms:.2f}",
            "TFLOP/s": f"{self.tflops:.3f}",
            "of peak, %": f"{100 * self.share_of_peak:.1f}",
            "host, %": "" if self.host_share is None else f"{100 * self.host_share:.1f}",
            "memory, MB": f"{self.memory_mb:,.0f}",
            "apart": "" if self.apart is None else f"{self.apart:.0e}",
            "of bare (quartiles)": f"{self.ratio:.3f} ({self.ratio_low:.3f} to {self.ratio_high:.3f})",
        }


@dataclass(frozen=True)
class Profiled:
    """Where the time of a combination goes."""

    model: str
    dataset: str
    method: str
    executor: str
    batch_size: int
    group: str
    share: float
    ms_per_step: float


@dataclass
class Results:
    """All that was measured, why combinations were left out, and what memory the process took at most."""

    rows: list[Row] = field(default_factory=list)
    profiles: list[Profiled] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    memory_mb: float = 0.0


def measure(bench: Bench, report: Callable[[str], None]) -> Results:
    """Measure all combinations, one network on one data set after the other, and report what is done.

    Raises:
        FltrainError: if no combination goes together.
        MethodError: if an executor or the bare loop does not do the work of federated averaging.
    """
    keep_freed_memory()
    results = Results()
    tf32 = bench.precision == "tf32"
    with _threads(bench.threads), determined(bench.determinism, bench.device, tf32):
        for model, dataset in product(dict.fromkeys(bench.models), dict.fromkeys(bench.datasets)):
            before = len(results.rows)
            _measure_case(bench, model, dataset, results)
            report(f"{model}, {dataset}: {len(results.rows) - before} measured")
    if not results.rows:
        raise FltrainError(f"nothing to measure goes together: {results.left_out[0]}")
    results.memory_mb = peak_memory() / 1e6
    return results


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure_case(bench: Bench, model: str, dataset: str, results: Results) -> None:
    """Let all contenders for a network on a data set take turns."""
    try:
        spec = bench.spec(model, dataset, "fedavg", bench.clients)
        steps = bench.steps or _fitting_steps(bench, spec)
        race = Race(bench, bench.simulation(spec, steps), _counted(bench, spec, steps))
    except MethodError:
        raise
    except (FltrainError, Diverged) as error:
        results.left_out.append(str(error))
        return
    entered = 0
    for method in dict.fromkeys(bench.methods):
        try:
            run = bench.spec(model, dataset, method, bench.clients)
            work = _counted(bench, run, steps)
            for executor in dict.fromkeys(bench.executors):
                race.enter(method, executor, run, steps, work)
                entered += 1
        except MethodError:
            raise
        except (FltrainError, Diverged) as error:
            results.left_out.append(str(error))
    if entered:
        race.run()
        results.rows += race.rows(model, dataset)
        results.profiles += race.profiles(model, dataset)


def _fitting_steps(bench: Bench, spec: RunSpec) -> int:
    least, most = STEPS
    return max(least, min(most, round(WORK / _counted(bench, spec, 1).flops)))


def _counted(bench: Bench, spec: RunSpec, steps: int) -> Work:
    """The work of a round of all clients, from that of one client in the second round: it then has a past."""
    clients = spec.partition.clients
    alone = RunSpec.parse(
        {**spec.model_dump(mode="json"), "partition": {"name": "iid", "clients": 1}}, spec.composition.name
    )
    simulation = bench.simulation(alone, steps, Counting)
    simulation.round(0)
    counted, before = simulation.executor, simulation.costs.samples
    assert isinstance(counted, Counting)
    simulation.round(1)
    images = clients * (simulation.costs.samples - before)
    return Work(clients * counted.steps, images, counted.flops / counted.steps)


class Race:
    """All who train one network on one data set."""

    def __init__(self, bench: Bench, reference: Simulation, work: Work) -> None:
        """Let the bare loops train their first round; the reference is federated averaging with the loop."""
        self.bench, self.reference = bench, reference
        self.measured: list[Measured] = []
        self.peak: list[float] = []
        loop = Ours("fedavg", "loop", reference, work)
        start = loop.vector
        reference.round(0)
        self.expected = loop.vector
        self.way = float((self.expected - start).norm())
        for name in OPTIMISERS:
            self._start(partial(Bare, name, reference, work))

    def enter(self, method: str, executor: str, spec: RunSpec, steps: int, work: Work) -> None:
        """Add the engine with a method and an executor."""

        def make() -> Ours:
            simulation = self.bench.simulation(spec, steps, EXECUTORS[executor])
            return Ours(method, executor, simulation, work)

        entered = self._start(make)
        if self.bench.device.type == "cuda":
            entered.host = _issued(self.bench, spec, executor)

    def _start(self, make: Callable[[], Contender]) -> Measured:
        """Make a contender and let it train two rounds, in which all is prepared that will be used again."""
        made: list[tuple[Contender, float | None]] = []

        def begin() -> None:
            contender = make()
            contender.turn(0)()
            made.append((contender, self._apart(contender)))
            contender.turn(1)()

        memory = _most_memory(begin, self.bench.device)
        ((contender, apart),) = made
        self.measured.append(Measured(contender, memory, apart))
        return self.measured[-1]

    def _apart(self, contender: Contender) -> float | None:
        """How far whoever averages is from where the engine's loop is.

        Raises:
            MethodError: if that is too far for the same work.
        """
        if contender.method not in (BARE, "fedavg"):
            return None
        difference = contender.vector - self.expected
        apart = float(difference.abs().max())
        exact = contender.exact and self.bench.device.type == "cpu"
        if not (apart <= TOLERANCE if exact else float(difference.norm()) <= ALIKE * self.way):
            raise MethodError(
                f"{contender.method}, {contender.executor}: after a round of federated averaging with "
                f"{self.reference.spec.model.name} its weights differ by {apart:.1e} from those of the loop"
            )
        return apart

    def run(self) -> None:
        """Let all take turns, beginning with another one in each repeat."""
        size = MATRIX[self.bench.device.type]
        matrix = torch.rand(size, size, device=self.bench.device, dtype=self.reference.network.products)
        into = torch.empty_like(matrix)
        self.bench.seconds(lambda: torch.mm(matrix, matrix, out=into))
        number, shapes = 2, self._shapes()
        for repeat in range(self.bench.repeats):
            first = repeat % len(self.measured)
            turns = self.measured[first:] + self.measured[:first]
            self.peak.append(2 * size**3 / self.bench.seconds(lambda: torch.mm(matrix, matrix, out=into)))
            for one in turns:
                one.seconds.append(self.bench.seconds(one.contender.turn(number)))
            number += 1
            if self.bench.device.type == "cpu" and repeat < PROFILED:
                for one in turns:
                    one.shares.append(kernels.profiled(one.contender.turn(number), shapes, one.seconds[-1]))
                number += 1

    def _shapes(self) -> kernels.Shapes:
        layout = self.reference.model.layout
        vectors = frozenset({layout.size, layout.head, layout.size - layout.head})
        return kernels.Shapes(tuple(self.reference.data.train.images.shape[1:]), vectors)

    @property
    def fastest(self) -> Measured:
        """The bare loop that is compared with."""
        bare = [one for one in self.measured if one.contender.method == BARE]
        return min(bare, key=lambda one: statistics.median(one.seconds))

    def rows(self, model: str, dataset: str) -> list[Row]:
        """What the table says of all, bare loops first."""
        return [self._row(one, model, dataset) for one in self.measured]

    def _row(self, one: Measured, model: str, dataset: str) -> Row:
        bench, work, seconds = self.bench, one.contender.work, one.seconds
        rates = [work.steps * work.flops / taken for taken in seconds]
        low, middle, high = _quartiles([1e3 * taken / work.steps for taken in seconds])
        ratio_low, ratio, ratio_high = _quartiles(
            [mine / theirs for mine, theirs in zip(seconds, self.fastest.seconds, strict=True)]
        )
        host = statistics.median(one.host) if one.host else one.profile.get(kernels.OUTSIDE)
        return Row(
            model=model,
            dataset=dataset,
            method=one.contender.method,
            executor=one.contender.executor,
            device=bench.device.type,
            threads=bench.threads,
            precision=bench.precision,
            batch_size=bench.batch_size,
            clients=bench.clients,
            steps=work.steps,
            repeats=bench.repeats,
            samples_per_second=statistics.median(work.images / taken for taken in seconds),
            step_ms=middle,
            step_ms_low=low,
            step_ms_high=high,
            gflop_per_step=work.flops / 1e9,
            tflops=statistics.median(rates) / 1e12,
            peak_tflops=statistics.median(self.peak) / 1e12,
            share_of_peak=statistics.median(rate / peak for rate, peak in zip(rates, self.peak, strict=True)),
            host_share=host,
            memory_mb=one.memory / 1e6,
            apart=one.apart,
            ratio=ratio,
            ratio_low=ratio_low,
            ratio_high=ratio_high,
        )

    def profiles(self, model: str, dataset: str) -> list[Profiled]:
        """Where the time of each goes."""
        return [
            Profiled(
                model,
                dataset,
                one.contender.method,
                one.contender.executor,
                self.bench.batch_size,
                group,
                share,
                1e3 * share * statistics.median(one.seconds) / one.contender.work.steps,
            )
            for one in self.measured
            for group, share in one.profile.items()
        ]


def _quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def _most_memory(work: Callable[[], object], device: torch.device) -> int:
    """Do some work, and return the bytes that its tensors took at most."""
    gc.collect()  # what others have left is not to be given back meanwhile
    if device.type == "cpu":
        return kernels.tensor_bytes(work)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


def _issued(bench: Bench, spec: RunSpec, executor: str) -> list[float]:
    """Share of the time of a step that the host needs to issue it, in several rounds.

    Clients take a single step, so that what is issued fits into the queue of the device.
    """
    simulation = bench.simulation(spec, 1, lambda clients: Issuing(EXECUTORS[executor](clients)))
    for number in range(BRIEF_ROUNDS):
        simulation.round(number)
    assert isinstance(simulation.executor, Issuing)
    return simulation.executor.shares[BRIEF_ROUNDS // 2 :]


# ---------------------------------------------------------------- files
def profile_table(profiles: Sequence[Profiled]) -> list[dict[str, str]]:
    """Shares in per cent by group, a line for each combination."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for one in profiles:
        names = {"model": one.model, "data": one.dataset, "method": one.method, "executor": one.executor}
        line = lines.setdefault(tuple(names.values()), {**names})
        line[one.group] = f"{100 * one.share:.1f}"
    return list(lines.values())


def write(results: Results, path: Path, profile: bool = False) -> list[Path]:
    """Write the rows to a CSV file, a figure beside it, and the profiles if these are wanted.

    Raises:
        FltrainError: if the file is to be no CSV file, or cannot be written.
    """
    files = files_of(path, profile)
    write_text(files[0], _csv(results.rows, Row))
    draw(results.rows, files[1])
    for file in files[2:]:
        write_text(file, _csv(results.profiles, Profiled))
    return files


def files_of(path: Path, profile: bool = False) -> list[Path]:
    """The files that are written: table, figure, and profiles if these are wanted.

    Raises:
        FltrainError: if the first is to be no CSV file.
    """
    if path.suffix != ".csv":
        raise FltrainError(f"--out: {str(path)!r} does not end in .csv; name a CSV file")
    more = [path.with_name(f"{path.stem}.profile.csv")] if profile else []
    return [path, path.with_suffix(".png"), *more]


def _csv(rows: Sequence[Row] | Sequence[Profiled], kind: type[Row] | type[Profiled]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [one.name for one in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = asdict(row)
        writer.writerow(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in values.items()}
        )
    return text.getvalue()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw, for each network on a data set, times beside the bare loop, and what becomes of the device."""
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    from fltrain.reporting.figures import style

    cases = list(dict.fromkeys((row.model, row.dataset) for row in rows))
    most = max(sum((row.model, row.dataset) == case for row in rows) for case in cases)
    with matplotlib.rc_context(style.STYLE):
        canvas, panels = style.canvas(2, len(cases), height=22 + 7.0 * most)
        for (model, dataset), (times, shares) in zip(cases, panels, strict=True):
            shown = [row for row in rows if (row.model, row.dataset) == (model, dataset)]
            places = range(len(shown))
            for place, row in zip(places, shown, strict=True):
                colour = style.GREY if row.method == BARE else style.INDIGO
                times.plot([row.ratio_low, row.ratio_high], [place] * 2, color=colour)
                times.plot(row.ratio, place, "o", color=colour)
            times.axvline(1.0, color=style.BLACK, linewidth=0.8)
            times.set_yticks(places, [f"{row.method}, {row.executor}" for row in shown])
            times.set_xlabel("time / time of the bare loop")
            times.set_title(f"{model}, {dataset}, batch {shown[0].batch_size}", loc="left")
            lines = {"of the measured peak": [row.share_of_peak for row in shown]}
            if all(row.host_share is not None for row in shown):
                lines[_host(shown[0])] = [row.host_share or 0.0 for row in shown]
            for (label, values), look in zip(lines.items(), style.scale(2), strict=False):
                percent = [100 * value for value in values]
                shares.plot(percent, places, look.marker, color=look.colour, label=label)
            shares.set_yticks(places, [])
            shares.set_xlim(left=0)
            shares.set_xlabel("per cent")
            for axes in (times, shares):
                axes.set_ylim(len(shown) - 0.5, -0.5)
                axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        style.legend(canvas, [shares for _, shares in panels])
        repeats = f"Medians and quartiles of {rows[0].repeats} repeats"
        style.footnote(canvas, f"{repeats}, {rows[0].device}, {rows[0].threads} thread(s).")
        with replacing(path) as temporary:
            canvas.savefig(temporary, format="png", dpi=200)


def _host(row: Row) -> str:
    return "of the time not in kernels" if row.device == "cpu" else "of a step's time to issue it"
