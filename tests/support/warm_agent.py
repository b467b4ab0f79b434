"""A warm agent as a process, for tests that kill it. Its order is JSON on the command line."""

import json
import random
import signal
import sys
import threading
import time
from pathlib import Path

from child.fleet import FleetSession, LinkLost, NotKnown, RunGone
from child.pace import Pace
from child.talk import talk
from tests.support.fleet import StandIn
from trunkline.clock import SystemClock


def main() -> None:
    started = time.monotonic()
    order = json.loads(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    clock, rng, node_id = SystemClock(), random.Random(), order["node_id"]
    pace = Pace(rng, first_away=0.1, longest_away=0.5)
    child = StandIn(order["name"])
    while not stop.is_set():
        try:
            with FleetSession(
                order["address"],
                Path(order["ca"]).read_bytes(),
                Path(order["key"]),
                clock,
                rng,
                node_id=node_id,
                limit=2.0,
                stop=stop.is_set,
            ) as fleet:
                node_id = fleet.node_id
                print("online", node_id, time.monotonic() - started, flush=True)
                serve(fleet, child, pace, order["mode"], stop)
        except (NotKnown, LinkLost) as error:
            print("away", type(error).__name__, error, flush=True)
            stop.wait(pace.away())


def serve(fleet: FleetSession, child: StandIn, pace: Pace, mode: str, stop: threading.Event) -> None:
    while not stop.is_set():
        incoming = fleet.receive()
        now = time.monotonic()
        if incoming is None:
            stop.wait(min(0.05, pace.idle(now)))
            continue
        pace.seen(now)
        print("took", incoming.kind, flush=True)
        if mode == "hang":
            stop.wait(3600)
        if mode == "slow":
            stop.wait(3)
        text, attachment = talk(child, incoming.text, incoming.attachment)
        try:
            fleet.reply(incoming, "no JSON" if mode == "malformed" else text, attachment, 0.0)
            print("answered", incoming.kind, flush=True)
        except RunGone as error:
            print("gone", error, flush=True)


if __name__ == "__main__":
    main()
