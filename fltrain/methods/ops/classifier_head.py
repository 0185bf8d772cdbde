"""Classifiers separate from their network, as flat vectors ``[H]``: applied, and trained by a server."""

from __future__ import annotations

import numpy as np

from fltrain.core.lazy import Tensor, functional, nn, torch
from fltrain.methods.base import Method
from fltrain.methods.types import Layout, State, Task


def parameters(layout: Layout, head: Tensor) -> State:
    """Return the parameters of the classifier by name, as views of a vector ``[H]``."""
    return {slot.name: slot.of(head) for slot in layout.classifier}


def logits(classifier: nn.Module, parameters: State, features: Tensor) -> Tensor:
    """Return the logits ``[n, classes]`` of features, from the classifier with the given parameters."""
    said: Tensor = torch.func.functional_call(classifier, parameters, (features,))
    return said


def train(
    classifier: nn.Module,
    layout: Layout,
    head: Tensor,
    features: Tensor,
    labels: Tensor,
    *,
    lr: float,
    epochs: int,
    batch: int | None,
    random: np.random.Generator,
) -> Tensor:
    """Return the head after plain SGD on the cross entropy of features ``[m, d]`` and labels ``[m]``.

    A step takes ``batch`` of these pairs, shuffled anew in every epoch, or all pairs if ``batch`` is None.
    """
    head = head.clone().requires_grad_()
    for _ in range(epochs):
        order = torch.from_numpy(random.permutation(len(labels))).to(labels.device)
        for chosen in order.split(batch or len(labels)):
            said = logits(classifier, parameters(layout, head), features[chosen])
            (gradient,) = torch.autograd.grad(functional.cross_entropy(said, labels[chosen]), head)
            with torch.no_grad():
                head -= lr * gradient
    return head.detach()


def on_server(task: Task, start: Tensor) -> State:
    """Return the state of a server that trains a classifier: ``head`` ``[H]`` and number of trainings."""
    return {"head": start[task.layout.head :].clone(), "trained": torch.zeros((), dtype=torch.int64)}


def renewed(
    method: Method,
    task: Task,
    state: State,
    features: Tensor,
    labels: Tensor,
    *,
    lr: float,
    epochs: int,
    batch: int | None,
) -> State:
    """Return the server's state after training its head; see ``train``, and ``on_server`` for the state."""
    head = train(
        task.network.classifier,
        task.layout,
        state["head"],
        features,
        labels,
        lr=lr,
        epochs=epochs,
        batch=batch,
        random=method.random(task, round=int(state["trained"])),
    )
    return {**state, "head": head, "trained": state["trained"] + 1}
