"""Classifiers separate from their network, as flat vectors ``[H]``: applied, and trained by a server."""

from __future__ import annotations

from fltrain.core.lazy import Tensor, functional, nn, torch
from fltrain.methods.base import Layout, Method, State, Task


def parameters(layout: Layout, head: Tensor) -> State:
    """Return the parameters of the classifier by name, as views of a vector ``[H]``."""
    return {slot.name: slot.of(head) for slot in layout.classifier}


def logits(classifier: nn.Module, parameters: State, features: Tensor) -> Tensor:
    """Return the logits ``[n, classes]`` of features, from the classifier with the given parameters."""
    result: Tensor = torch.func.functional_call(classifier, parameters, (features,))
    return result


def on_server(task: Task, start: Tensor) -> State:
    """Return the state of a server that trains a classifier: ``head`` ``[H]`` and number of trainings."""
    return {"head": start[task.layout.head :].clone(), "trained": torch.zeros((), dtype=torch.int64)}


def train(
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
    """Return the server's state after plain SGD on the cross entropy of features ``[m, d]``, labels ``[m]``.

    The one training loop of servers; the local training of clients belongs to the engine.

    A step takes ``batch`` of these pairs, reshuffled in every epoch, or all pairs if ``batch`` is None.
    """
    head = state["head"].clone().requires_grad_()
    random = method.random(task, round=int(state["trained"]))
    for _ in range(epochs):
        order = torch.from_numpy(random.permutation(len(labels))).to(labels.device)
        for chosen in order.split(batch or len(labels)):
            outputs = logits(task.network.classifier, parameters(task.layout, head), features[chosen])
            (gradient,) = torch.autograd.grad(functional.cross_entropy(outputs, labels[chosen]), head)
            with torch.no_grad():
                head -= lr * gradient
    return {**state, "head": head.detach(), "trained": state["trained"] + 1}
