"""FedMA: neurons are matched across clients before they are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from fltrain import models
from fltrain.core.lazy import Tensor, torch
from fltrain.methods.base import (
    Aggregate,
    Local,
    Method,
    Needs,
    Network,
    Schedule,
    Server,
    State,
    Task,
    Update,
)
from fltrain.methods.ops.neuron_matching import Pool, align, grow, row_weights
from fltrain.methods.ops.vectors import data_shares, data_weighted_mean


class FedMA(Method):
    """Clients' hidden neurons are put in a common order before the networks are averaged.

    For plain chains of convolutions and linear layers. The row of a class in the last layer is averaged with
    the clients' numbers of images of the class as weights.

    Attributes:
        mode: ``hungarian_fixed`` assigns neurons by least squared distance to the previous global model's (in
            the first round to the largest client's); widths are constant. ``bbp_map`` (the authors') may
            open new neurons, and fixes one layer per round; clients train the layers above it. N layers take
            N rounds, in which all clients must take part.
        sweeps: maximum number of assignments; ``hungarian_fixed`` stops when assignments repeat.
        sigma: variance of clients' neurons around the global ones; this and the following for ``bbp_map``.
        sigma0: variance of global neurons around the prior mean, which is 0 (0.1 for biases).
        gamma: mass parameter of the Beta process; larger values open more new neurons.
        growth: maximum growth of the widths of hidden layers, as a fraction.
    """

    name: Literal["fedma"] = "fedma"
    citation: ClassVar[str] = "Wang et al., Federated learning with matched averaging, ICLR 2020"

    mode: Literal["hungarian_fixed", "bbp_map"] = "hungarian_fixed"
    sweeps: int = Field(default=5, ge=1)
    sigma: float = Field(default=1.0, gt=0)
    sigma0: float = Field(default=1.0, gt=0)
    gamma: float = Field(default=7.0, gt=0)
    growth: float = Field(default=1.25, gt=1)

    @property
    def _grows(self) -> bool:
        return self.mode == "bbp_map"

    def adapt(self, network: Network, classes: int) -> Network:
        models.chain.chained(network)
        return models.chain.widened(network, self.growth) if self._grows else network

    def server_init(self, task: Task, start: Tensor) -> State:
        """Return the number of rounds; for ``bbp_map``, also the origin of the neurons.

        ``sources`` ``[clients, neurons]`` has, for every neuron of the global model (all hidden layers in a
        row), the client's neuron that is part of it; -1 for none.
        """
        state = {"rounds": torch.zeros((), dtype=torch.int64)}
        if self._grows:
            chain = _chain(task)
            sources = []
            for layer, width in enumerate(chain.widths):
                used = chain.neurons(start, layer).any(1)  # spare neurons are zero
                sources.append(torch.arange(width, device=used.device).where(used, -1))
            state["sources"] = torch.cat(sources).int().expand(task.clients, -1).clone()
        return state

    @property
    def needs(self) -> Needs:
        return Needs(schedule=Schedule(all_clients=True) if self._grows else None)

    # ---------------------------------------------------------------- client
    def payload(self, state: State) -> State:
        return state if self._grows else {}

    def start_weights(self, weights: Tensor, state: State, local: Local) -> Tensor:
        """With growth, return the fixed layers from the server and the other layers from the client."""
        if not self._grows:
            return weights
        chain = _chain(local.task)
        sources = local.payload["sources"][local.client].long().split(chain.widths)
        fixed = int(local.payload["rounds"]) % len(chain)
        if not fixed:  # a new pass begins, with the client's share of the global model
            return chain.restricted(weights, [source >= 0 for source in sources])
        client_weights = local.state["weights"].clone()
        chain.reorder_inputs(client_weights, fixed, sources[fixed - 1])
        client_weights[: chain.start(fixed)] = weights[: chain.start(fixed)]
        return client_weights

    def client_init(self, local: Local) -> State:
        """Return the mask of the trained weights; an empty state if all are trained."""
        chain = _chain(local.task)
        fixed = int(local.payload["rounds"]) % len(chain) if self._grows else 0
        if not fixed:
            return {}
        places = torch.arange(len(local.start), device=local.start.device)
        return {"trained": places >= chain.start(fixed)}

    def correct(self, gradient: Tensor, weights: Tensor, local: Local, step_state: State) -> Tensor:
        return gradient * step_state["trained"] if step_state else gradient

    def post_step(self, weights: Tensor, local: Local, step_state: State) -> Tensor:
        """Undo weight decay in fixed layers; the optimiser adds it after ``correct``."""
        return weights.where(step_state["trained"], local.start) if step_state else weights

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        # A client continues from its upload, because others' neurons were matched with it.
        update = update.sending(self.name, {"classes": local.class_counts})
        return update, {"weights": update.weights} if self._grows else {}

    # ---------------------------------------------------------------- server
    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        chain = _chain(task)
        counts = torch.stack([update.extras[self.name]["classes"] for update in updates])
        rows = row_weights(counts, data_shares(updates))
        merge = self._merge_and_grow if self._grows else self._merge
        vectors, merged, renewed = merge(chain, task, state, before, updates)
        chain.set_rows(merged, vectors, rows)
        renewed = {**renewed, "rounds": state["rounds"] + 1}
        return Aggregate(merged, renewed, row=self._row(chain, state))

    def _merge(
        self, chain: models.chain.Chain, task: Task, state: State, before: Server, updates: Sequence[Update]
    ) -> tuple[list[Tensor], Tensor, State]:
        """Return the clients' networks in a common order, and their mean."""
        sizes = [update.samples for update in updates]
        reference = before.weights if state["rounds"] else sizes.index(max(sizes))
        vectors = [update.weights for update in updates]
        aligned = align(chain, vectors, reference, data_shares(updates), self.sweeps)
        return aligned, data_weighted_mean(updates, aligned), state

    def _merge_and_grow(
        self, chain: models.chain.Chain, task: Task, state: State, before: Server, updates: Sequence[Update]
    ) -> tuple[list[Tensor], Tensor, State]:
        """Return the clients' networks in a common order, and the global model.

        This fixes the lowest layer that is not yet fixed. The layers above it are also matched, so that a
        global model can be tested, but every client keeps its own.
        """
        fixed = int(state["rounds"]) % len(chain)
        random = self.random(task, round=int(state["rounds"]))
        vectors, merged = [update.weights.clone() for update in updates], before.weights.clone()
        sources = state["sources"].clone()
        held, views = (state["sources"] >= 0).split(chain.widths, 1), sources.split(chain.widths, 1)
        for layer in range(fixed, chain.last):
            places = [mask.nonzero()[:, 0] for mask in held[layer]]
            neurons = [
                chain.neurons(vector, layer)[place] for vector, place in zip(vectors, places, strict=True)
            ]
            prior = chain.prior(merged, layer)
            pool = Pool(len(vectors), chain.widths[layer], prior, self.sigma, self.sigma0, self.gamma)
            grow(pool, neurons, self.sweeps, random)
            chain.write(merged, layer, pool.means)
            for client, (vector, place) in enumerate(zip(vectors, places, strict=True)):
                source = torch.full_like(views[layer][client], -1, dtype=torch.int64)
                source[pool.members[client]] = place
                chain.reorder_inputs(vector, layer + 1, source)
                if layer == fixed:
                    views[layer][client] = source
        return vectors, merged, {**state, "sources": sources}

    def _row(self, chain: models.chain.Chain, state: State) -> dict[str, Any] | None:
        """With growth, return the number of layers fixed in the round and the earlier hidden widths."""
        if not self._grows:
            return None
        used = (state["sources"] >= 0).any(0).split(chain.widths)
        return {"fixed": int(state["rounds"]) % len(chain), "widths": [int(layer.sum()) for layer in used]}


def _chain(task: Task) -> models.chain.Chain:
    return models.chain.Chain.of(task.network, task.layout)
