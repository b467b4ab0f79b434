"""What stock Flower runs in the comparison: FedAvg without evaluation, and a client that adds a small number. Travels as a bundle.

Nothing of Trunkline is imported here. The client adds what ours adds, so that on neither side two sets are the same bytes.
"""

import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


class Timed(FedAvg):
    """FedAvg that writes down when a round begins and when its result is there."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path, self.begun = path, 0.0

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        self.begun = time.time()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        given = list(replies)
        result = super().aggregate_train(server_round, given)
        good = sum(reply.has_content() for reply in given)
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps({"round": server_round, "seconds": time.time() - self.begun, "replies": good}), file=file)
        return result


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Play the rounds that the run's configuration asks for."""
    config = context.run_config
    rng = np.random.default_rng(0)
    count = int(config["tensors"])
    each = int(config["elements"]) // count
    arrays = ArrayRecord(numpy_ndarrays=[rng.standard_normal(each, dtype=np.float32) for _ in range(count)])
    strategy = Timed(str(config["out"]), fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train nothing."""
    shift = np.float32(1e-3 * (1 + int(context.node_config["partition-id"])))
    arrays = [values + shift for values in message.content["arrays"].to_numpy_ndarrays()]  # type: ignore[union-attr]
    content = RecordDict({"arrays": ArrayRecord(numpy_ndarrays=arrays), "metrics": MetricRecord({"num-examples": 10})})
    return Message(content, reply_to=message)
