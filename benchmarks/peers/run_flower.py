"""Flower's simulation runtime: a ServerApp with its FedAvg strategy, and ClientApps in Ray's actors.

``run_simulation`` starts the runtime that ``flwr run`` starts, without the local SuperLink in between. The
apps are written as in Flower's PyTorch quickstart. Each actor has a processor core and a thread; it keeps the
images in memory from its first client on.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Report, arguments, averaged_tensors, read, train

client = ClientApp()
server = ServerApp()


@client.train()
def train_client(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = message.content["config"]
    task = read(config["folder"])
    network = task.network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(network, task, config["server-round"] - 1, context.node_config["partition-id"])
    # All clients have equally many images.
    reply = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(reply), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    task, _ = arguments()
    network, report = task.network(), Report(task)

    def round_ended(round: int, arrays: ArrayRecord) -> None:
        if round > 0:  # it is called before the first round, too
            network.load_state_dict(arrays.to_torch_state_dict())
            report.round_ended(lambda: averaged_tensors(network))

    def all_there(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        # Flower goes on without clients that fail; then it would not be the same work.
        if len(replies) != task.clients:
            raise RuntimeError(f"{len(replies)} of {task.clients} clients have replied")
        return MetricRecord({"replies": len(replies)})

    result = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=all_there).start(
        grid=grid,
        initial_arrays=ArrayRecord(network.state_dict()),
        num_rounds=task.rounds,
        train_config=ConfigRecord({"folder": task.folder}),
        evaluate_fn=round_ended,
    )
    network.load_state_dict(result.arrays.to_torch_state_dict())
    report.finish(averaged_tensors(network))


if __name__ == "__main__":
    torch.set_num_threads(1)
    task, actors = arguments()
    run_simulation(
        server,
        client,
        num_supernodes=task.clients,
        backend_config={"init_args": {"num_cpus": actors}, "client_resources": {"num_cpus": 1}},
    )
