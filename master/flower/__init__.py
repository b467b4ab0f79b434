"""Flower at the master. Nothing outside this package knows Flower, but for `child.fleet` and `child.app`.

link        the link between a round and its children
grid        Flower's Runtime API for one run, below the link
control     Flower's Control API: nodes and runs
app         the ServerApp in which a job's rounds run
serverapp   its process
superlinkd  the SuperLink's process
"""

from trunkline.pins import require

require("flwr", "1.42")  # parts that are internal to Flower are used

from master.flower.app import app  # noqa: E402
from master.flower.link import FlowerLink  # noqa: E402

__all__ = ["FlowerLink", "app"]
