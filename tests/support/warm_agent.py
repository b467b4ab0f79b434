"""A warm agent as a process, for tests that kill it. Its order is JSON on the command line."""

import json
import random
import signal
import sys
import time
from pathlib import Path

from child.fleet import FleetSession, LinkLost, NotKnown, RunGone
from child.pace import Pace
from child.talk import talk
from tests.support.fleet import StandIn
from trunkline.clock import SystemClock


def main() -> None:
    order = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    clock, rng, node_id = SystemClock(), random.Random(), order["node_id"]
    pace = Pace(rng, first_away=0.1, longest_away=0.5)
    child = StandIn(order["name"])
    while True:
        try:
            with FleetSession(
                order["address"], Path(order["ca"]).read_bytes(), Path(order["key"]), clock, rng, node_id=node_id, limit=2.0
            ) as fleet:
                node_id = fleet.node_id
                print("online", node_id, flush=True)
                serve(fleet, child, pace, order["mode"])
        except (NotKnown, LinkLost) as error:
            print("away", type(error).__name__, error, flush=True)
            time.sleep(pace.away())


def serve(fleet: FleetSession, child: StandIn, pace: Pace, mode: str) -> None:
    while True:
        incoming = fleet.receive()
        now = time.monotonic()
        if incoming is None:
            time.sleep(min(0.05, pace.idle(now)))
            continue
        pace.seen(now)
        print("took", incoming.kind, flush=True)
        if mode == "hang":
            time.sleep(3600)
        if mode == "slow":
            time.sleep(3)
        text, attachment = talk(child, incoming.text, incoming.attachment)
        try:
            fleet.reply(incoming, "no JSON" if mode == "malformed" else text, attachment, 0.0)
            print("answered", incoming.kind, flush=True)
        except RunGone as error:
            print("gone", error, flush=True)


if __name__ == "__main__":
    main()
