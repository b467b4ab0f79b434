"""Flower at the child: a warm session on its Fleet API. Nothing else of the child knows Flower, but for `child.app`."""

from trunkline.pins import require

require("flwr", "1.42")  # the Fleet client is internal to Flower

from child.fleet.content import Incoming, pack, unpack  # noqa: E402
from child.fleet.errors import LinkLost, NotKnown, RunGone  # noqa: E402
from child.fleet.session import FleetSession  # noqa: E402

__all__ = ["FleetSession", "Incoming", "LinkLost", "NotKnown", "RunGone", "pack", "unpack"]
