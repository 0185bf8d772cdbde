"""pfl's simulated backend: FederatedAveraging on a PyTorchModel, users as tensors in memory.

With two workers ``torchrun`` starts two processes, among which pfl divides the users of a round.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import TEST_BATCH, Report, Task, arguments, averaged_tensors
from torch import Tensor, nn
from torch.nn import functional


class Trainable(nn.Module):
    """A network as pfl wants it, with its loss and its metrics."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self.network(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        self.eval()
        return {"accuracy": Weighted(int((self.network(images).argmax(1) == labels).sum()), len(labels))}


class ModelWithStatistics(PyTorchModel):
    """pfl averages parameters only; this averages BatchNorm's running means and variances as well."""

    def __init__(self, model: nn.Module, **options: object) -> None:
        super().__init__(model, **options)
        self._variable_map |= {name: item for name, item in model.named_buffers() if item.is_floating_point()}


class Rounds(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self, task: Task) -> None:
        self.report = Report(task)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.report.round_ended(lambda: averaged_tensors(model.pytorch_model.network))
        return False, Metrics()


def run(task: Task) -> tuple[nn.Module, Report]:
    np.random.seed(0)  # all workers draw the same users
    images, labels = task.train
    rounds = Rounds(task)

    def user(client: int) -> PyTorchTensorDataset:
        # pfl goes through a user's images in their order. Epochs lie one behind the other here, each in its
        # order: batches divide them evenly.
        chosen = task.orders(len(rounds.report.ends), client).flatten()
        return PyTorchTensorDataset((images[chosen], labels[chosen]), user_id=str(client))

    network = Trainable(task.network())
    model = ModelWithStatistics(
        network,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=task.momentum, weight_decay=task.weight_decay
        ),
        central_optimizer=torch.optim.SGD(averaged_tensors(network), lr=1.0),
    )
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(task.clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds,  # and in the first round
            train_cohort_size=task.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_batch_size=task.batch_size, local_num_epochs=1, local_learning_rate=task.lr),
        NNEvalHyperParams(local_batch_size=TEST_BATCH),
        [rounds],
    )
    return network.network, rounds.report


if __name__ == "__main__":
    task, _ = arguments()
    torch.set_num_threads(1)
    network, report = run(task)
    if os.environ.get("RANK", "0") == "0":
        report.finish(averaged_tensors(network))
