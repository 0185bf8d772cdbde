"""Fed2: a network in groups, each for some classes and averaged over the clients that hold these classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fltrain import models
from fltrain.core.lazy import Tensor, functional, torch
from fltrain.methods.base import Aggregate, Local, Method, Network, Outputs, Server, State, Step, Task, Update
from fltrain.methods.ops.vectors import data_shares, mean


class Fed2(Method):
    """The last layers are cut into groups for disjoint sets of classes; its holders average a group.

    Attributes:
        groups: number of groups G; at most the number of classes.
        decoupled: number of last layers that are cut into groups (all, if the network has fewer).
        class_map: classes of a group: ``contiguous`` blocks, or blocks of a ``random`` order that is drawn
            once per run.
        width: rule for decoupled widths that G does not divide: the next multiple (``round_up``,
            ``round_down``), or ``uneven`` groups.
        entry: input of each group in the first decoupled layer: its share of the shared maps (``grouped``) or
            all of them (``dense``).
        count: a depthwise-separable block counts as one layer (``blocks``) or as its number of weights.
        norm: behind every convolution: GroupNorm, which in decoupled layers has the groups of the structure,
            BatchNorm, nothing, or the network's norm (``keep``).
        pair: holders of a group: clients with images of ``any`` or of ``all`` of its classes; ``off``: all
            clients.
        weighting: weights of the clients: data ``size``, or ``uniform`` (the formulas of the paper).
        mask_absent: leave logits of classes that the client lacks out of its training loss.
    """

    name: Literal["fed2"] = "fed2"
    citation: ClassVar[str] = "Yu et al., Fed2: feature-aligned federated learning, KDD 2021"
    neutral: ClassVar = {"groups": 1, "norm": "keep"}

    groups: int = Field(default=10, ge=1)
    decoupled: int = Field(default=6, ge=0)
    class_map: Literal["contiguous", "random"] = "contiguous"
    width: Literal["round_up", "round_down", "uneven"] = "round_up"
    entry: Literal["grouped", "dense"] = "grouped"
    count: Literal["blocks", "weight_layers"] = "blocks"
    norm: Literal["gn", "bn", "none", "keep"] = "gn"
    pair: Literal["any", "all", "off"] = "any"
    weighting: Literal["size", "uniform"] = "size"
    mask_absent: bool = False

    def adapt(self, network: Network, classes: int) -> Network:
        order = torch.randperm(classes) if self.class_map == "random" else torch.arange(classes)
        sizes = torch.tensor(models.decoupled.nearly_equal(classes, min(self.groups, classes)))
        class_groups = torch.empty_like(order)
        class_groups[order] = torch.arange(len(sizes)).repeat_interleave(sizes)
        return models.decoupled.decouple(
            network,
            self.decoupled,
            class_groups.tolist(),
            width=self.width,
            entry=self.entry,
            norm=self.norm,
            count=self.count,
        )

    def client_init(self, local: Local) -> State:
        return {"absent": local.class_counts == 0} if self.mask_absent else {}

    def loss(self, loss: Tensor, outputs: Outputs, step: Step, local: Local, step_state: State) -> Tensor:
        if not self.mask_absent:
            return loss
        logits = outputs.logits.masked_fill(step_state["absent"], float("-inf"))
        return functional.cross_entropy(logits, step.labels)

    def client_final(self, update: Update, local: Local, step_state: State) -> tuple[Update, State]:
        """Upload the groups that the client holds, one byte per group."""
        class_groups = getattr(local.task.network, "class_groups", ())
        if self.pair == "off" or not class_groups:
            return update, local.state
        # Without the number of groups, it would be read from the device.
        of_class = torch.tensor(class_groups, device=update.weights.device)
        members = functional.one_hot(of_class, max(class_groups) + 1)
        present = (local.class_counts > 0).float() @ members.float()
        held = present > 0 if self.pair == "any" else present == members.sum(0)
        return update.sending(self.name, {"held": held}), local.state

    def aggregate(self, task: Task, state: State, before: Server, updates: Sequence[Update]) -> Aggregate:
        """Average each group over the clients that hold it; keep a group without holders."""
        weights = [update.weights for update in updates]
        shares = data_shares(updates) if self.weighting == "size" else [1 / len(updates)] * len(updates)
        structure = getattr(task.network, "structure_groups", {})
        if self.pair == "off" or not structure:
            return Aggregate(mean(weights, shares), state)

        # Group of each weight. Weights without a group use -1, the last column below: all clients hold it.
        index = torch.full_like(before.weights, -1, dtype=torch.int64)
        for slot in task.layout.parameters:
            if slot.name in structure:
                rows = index.new_tensor(structure[slot.name])
                slot.of(index).copy_(rows.view(-1, *[1] * (len(slot.shape) - 1)))
        held = torch.stack([update.extras[self.name]["held"] for update in updates]).double()
        counted = functional.pad(held, (0, 1), value=1.0) * held.new_tensor(shares)[:, None]
        total = counted.sum(0)
        paired = torch.zeros_like(before.weights, dtype=torch.float64)
        for vector, share in zip(weights, counted / total.where(total > 0, 1.0), strict=True):
            paired.addcmul_(vector.double(), share[index])
        merged = paired.where((total > 0)[index], before.weights.double())
        return Aggregate(merged.to(before.weights.dtype), state)
