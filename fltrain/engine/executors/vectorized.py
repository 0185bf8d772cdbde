"""The ``vectorized`` executor: clients side by side, in one step on stacked weights, statistics and images.

``torch.vmap`` maps the local step over clients: convolutions become grouped ones, matrix products batched
ones. Numbers are added up in another order than one client after the other, so results agree up to rounding.

In a step, the clients whose batches have the same number of images go together. Nothing is padded, so
BatchNorm computes the same statistics; clients that have fewer steps finish earlier.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

# torch.func.functional_call does the same for a single call of a module.
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from fltrain.core.errors import FltrainError
from fltrain.engine.clients import Clients, ClientState, Round
from fltrain.engine.executors.lanes import Lanes, Member, Moving, runs_of
from fltrain.engine.executors.sequential import Cohort, LocalStep, SequentialExecutor, Sgd, Trained
from fltrain.engine.executors.views import PER_CLIENT, Numbers, signature, tensors_of
from fltrain.methods.composition import LocalHooks
from fltrain.methods.types import Loss, Outputs, Place, State
from fltrain.models.base import Part
from fltrain.models.flat import FlatModel, Slot
from fltrain.models.network import in_mode
from fltrain.runtime.determinism import tf32_products


class VectorizedExecutor(SequentialExecutor):
    """Clients of a round side by side, also those of several seeds."""

    name = "vectorized"
    exact = False
    numbers: ClassVar[Numbers] = PER_CLIENT

    def __init__(self, clients: Clients, recordings: Place = "device", lanes: int | None = None) -> None:
        """Prepare for the clients of a run; train ``lanes`` of them at once (None: all of a round)."""
        super().__init__(clients, recordings)
        self.lanes = lanes
        network, drawing = self.model.network, (nn.modules.dropout._DropoutNd, nn.RReLU)
        if any(isinstance(module, drawing) for module in network.modules()):
            raise self._refusal("the network draws random numbers in its forward pass (dropout)")
        if network.products and self.model.buffers.is_cpu and len(self.model.buffers):
            raise self._refusal("PyTorch cannot map BatchNorm in bfloat16 over clients on a CPU")

    def train(
        self, round: Round, clients: Sequence[int], client_states: Mapping[int, ClientState]
    ) -> list[Trained]:
        return self.train_all([Cohort(self, round, clients, client_states)])[0]

    @staticmethod
    def train_all(cohorts: Sequence[Cohort]) -> list[list[Trained]]:
        alike: dict[Any, list[Member]] = defaultdict(list)
        arrived: list[list[Member]] = []
        for cohort in cohorts:
            executor = cohort.executor
            assert isinstance(executor, VectorizedExecutor)
            function = executor._function() if len(cohorts) > 1 else b""
            sent = frozenset(map(id, tree_leaves([vars(cohort.round.server), cohort.round.payloads])))
            arrived.append([executor._member(cohort, client, sent) for client in cohort.clients])
            for member in arrived[-1]:
                alike[function, member.local.task.samples, signature(member.hooks)].append(member)
        for members in alike.values():
            members[0].executor._train_together(members)
        return [[cast(Trained, member.trained) for member in members] for members in arrived]

    def _function(self) -> bytes:
        """Return the logits of an image at fixed weights; runs share steps if these agree.

        A method may draw other parts of the network than its weights (the classes of Fed2's groups).
        """
        model, shape = self.model, self.clients.data.train.images.shape[1:]
        random = torch.Generator().manual_seed(0)
        weights, image = (torch.randn(size, generator=random) for size in (len(model.weights), shape.numel()))
        model.load(0.1 * weights, torch.ones_like(model.buffers), model.counters)
        with torch.no_grad(), in_mode(model.network, training=False):
            logits = model.network(image.view(1, *shape).to(model.weights.device))
        return bytes(logits.cpu().numpy())

    def _member(self, cohort: Cohort, client: int, sent: frozenset[int]) -> Member:
        round = cohort.round
        local, hooks = self._arrive(round, client, cohort.client_states.get(client))
        images = self.images(round)
        visits = self._visits(round, images, client)
        return Member(
            executor=self,
            cohort=len(cohort.clients),
            local=local,
            hooks=hooks,
            held={name: tensors_of(view, self.numbers) for name, view in hooks.locals_.items()},
            sent=sent,
            statistics={"buffers": self.model.buffers.clone(), "counters": self.model.counters.clone()},
            images=images,
            visits=visits,
            ahead=[(step, len(list(times))) for step, times in groupby(visits.steps)][::-1],
        )

    def _train_together(self, members: Sequence[Member]) -> None:
        """Train clients that hold tensors of the same names and shapes; they take turns in the lanes."""
        lanes = self._lanes(members)
        lanes.begin(members)
        waiting = {run: deque(own) for run, own in groupby(members, lambda member: member.executor)}
        while True:
            for lane, run in enumerate(lanes.runs):
                member = lanes.members[lane]
                if member and not member.ahead:
                    run._finish(member, lanes.leave(lane))
                if not lanes.members[lane] and waiting[run]:
                    run._enter(waiting[run].popleft(), lanes, lane)
            groups: dict[tuple[int, int], list[int]] = defaultdict(list)
            for lane, member in enumerate(lanes.members):
                if member:
                    groups[member.ahead[-1][0]].append(lane)
            if not groups:
                return
            # The largest group goes on; smaller ones grow meanwhile, as others come to the same kind of step.
            (phase, size), places = max(groups.items(), key=lambda group: len(group[1]))
            training = [member for lane in places if (member := lanes.members[lane])]
            times = min(member.ahead[-1][1] for member in training)
            for _ in range(times):
                self._step_together(lanes, places, phase, size)
            for member in training:
                step, left = member.ahead.pop()
                if left > times:
                    member.ahead.append((step, left - times))

    def _lanes(self, members: Sequence[Member]) -> Lanes:
        """Return lanes for clients of one or more runs."""
        return Lanes(runs_of(members, len), members)

    def _enter(self, member: Member, lanes: Lanes, lane: int) -> None:
        """Let a client begin its steps in a lane."""
        self.poll()
        member.trajectory = self._trajectory(member.local)
        lanes.enter(lane, member)

    def _finish(self, member: Member, moved: Moving) -> None:
        """Set the result of a client after its last step."""
        self.model.load(moved["weights"], moved["buffers"], moved["counters"])
        member.hooks.step_states = moved["step_states"]
        member.trained = self._trained(member.local, member.hooks, moved["losses"], member.trajectory)
        member.trajectory = None

    def _step_together(self, lanes: Lanes, places: Sequence[int], phase: int, size: int) -> None:
        """Take a step of the clients in some lanes, whose batches have ``size`` images."""
        index = None if len(places) == len(lanes.runs) else lanes.index(places)
        moved, gradient = self._mapped(lanes, places, index, phase, size)
        lanes.write(moved, index)
        lanes.record(places, gradient, moved["weights"])

    def _mapped(
        self, lanes: Lanes, places: Sequence[int], index: Tensor | None, phase: int, size: int
    ) -> tuple[Moving, Tensor]:
        """Return the tensors of some clients after a step, and the gradients.

        Raises:
            FltrainError: if PyTorch cannot map the step over clients.
        """
        moving, held = lanes.rows(index)
        inputs, labels = lanes.batch(places, index, moving["taken"], size)
        hooks, optimiser = lanes.hooks, self.optimisers[phase]

        def step(
            moving: Moving, held: dict[str, Any], inputs: Tensor, labels: Tensor
        ) -> tuple[Moving, Tensor]:
            return _step_of_one(self.model, hooks, optimiser, phase, moving, held, inputs, labels)

        try:
            with torch.no_grad():
                mapped = torch.vmap(step, in_dims=(0, lanes.dims, 0, 0))
                moved, gradient = mapped(moving, held, inputs, labels)
        except RuntimeError as error:
            message = " ".join(str(error).split())
            if any(word in message for word in ("vmap", "functorch")):
                raise self._refusal(f"PyTorch cannot map the step over clients ({message})") from None
            raise
        return moved, gradient

    @classmethod
    def _refusal(cls, reason: str) -> FltrainError:
        return FltrainError(f"executor {cls.name!r}: {reason}; use --executor sequential")


def _step_of_one(
    model: FlatModel,
    hooks: LocalHooks,
    optimiser: Sgd,
    phase: int,
    moving: Moving,
    held: Mapping[str, Any],
    images: Tensor,
    labels: Tensor,
) -> tuple[Moving, Tensor]:
    """Take a step of one client; return its tensors afterwards, and the gradient."""
    views = {name: replace(local, **held[name]) for name, local in hooks.locals_.items()}
    states = {name: dict(state) for name, state in moving["step_states"].items()}
    statistics = {"buffers": moving["buffers"], "counters": moving["counters"]}
    weights, velocities = moving["weights"].clone(), list(moving["velocities"])
    velocities[phase] = velocities[phase].clone()
    bound = LocalHooks(hooks.composition, views, states)
    step = FunctionalStep(images, labels, optimiser.part, model, bound, weights, statistics)
    loss, gradient = step.take(weights, optimiser, velocities[phase])
    moved = {
        "weights": weights,
        **statistics,
        "velocities": velocities,
        "step_states": bound.step_states,
        "losses": moving["losses"] + loss,
        "taken": moving["taken"] + len(labels),
    }
    return moved, gradient


@dataclass(frozen=True)
class FunctionalStep(LocalStep):
    """A local step as a function of weights and statistics.

    ``statistics`` (buffers and counters) and ``outputs`` change with it, and with all its parts.
    """

    weights: Tensor
    statistics: State

    def _gradient(
        self, loss: Loss | None, at: Tensor | None, part: Part, track: bool, route: bool, observe: bool
    ) -> tuple[Tensor, Tensor]:
        model, network = self.model, self.model.network
        tracked = track and self.part != "head"

        def value_of(weights: Tensor, statistics: State) -> tuple[Tensor, tuple[Any, ...]]:
            with (
                nullcontext() if tracked else model.untracked(),
                self._holding(weights, statistics),
                self.hooks.route(network) if route else nullcontext(),
            ):
                outputs, value = self._outputs(loss)
            return value, (value, outputs.features, outputs.logits, outputs.extras, statistics)

        with torch.enable_grad(), tf32_products(network.tf32):
            whole, (value, features, logits, extras, statistics) = torch.func.grad(value_of, has_aux=True)(
                self.weights if at is None else at, self._named_statistics(**self.statistics)
            )
        if tracked:
            for kind, slots in (("buffers", model.layout.buffers), ("counters", model.layout.counters)):
                if slots:
                    self.statistics[kind] = torch.cat([statistics[slot.name].flatten() for slot in slots])
        if observe and not loss:
            self.outputs.append((Outputs(features, logits, extras), self))
        where = model.layout.part(part)
        gradient = torch.zeros_like(whole)
        gradient[where] = whole[where]
        return gradient, value

    def frozen(self, weights: Tensor, buffers: Tensor, *, training: bool = False) -> Outputs:
        network = self.model.network
        statistics = self._named_statistics(buffers, self.statistics["counters"])
        with (
            torch.no_grad(),
            in_mode(network, training=training),
            self.model.untracked(),
            self._holding(weights, statistics),
        ):
            features = network.features(self.images)
            return Outputs(features, network.classifier(features))

    def _holding(self, weights: Tensor, statistics: State) -> AbstractContextManager[None]:
        """Return a context in which the network has these parameters and buffers."""
        tensors = {**_named(self.model.layout.parameters, weights), **statistics}
        context: AbstractContextManager[None] = _reparametrize_module(self.model.network, tensors)
        return context

    def _named_statistics(self, buffers: Tensor, counters: Tensor) -> State:
        """Return buffers and counters by name, each in its own memory.

        BatchNorm writes to them in place. Under ``vmap``, writes to a part of a larger tensor are lost.
        """
        layout = self.model.layout
        named = {**_named(layout.buffers, buffers), **_named(layout.counters, counters)}
        return {name: tensor.clone() for name, tensor in named.items()}


def _named(slots: Sequence[Slot], vector: Tensor) -> State:
    """Return the tensors of a flat vector by name.

    One split makes them all: separate slices would each have a gradient of the vector's length.
    """
    parts = vector.split([slot.shape.numel() for slot in slots])
    return {slot.name: part.view(slot.shape) for slot, part in zip(slots, parts, strict=True)}
