"""Parameter sets over the master's HTTPS API: two clients at once fetch one, then each sends one of its own."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figures import Note, Section, megabytes, seconds
from benchmarks.ours import PATIENCE, Fleet, fleet
from child.api import MasterApi
from master.home import MasterHome
from master.tokens import Gate, new_secret
from trunkline.clock import Clock
from trunkline.files import sha256_file
from trunkline.sets import write_set

ABOUT = """Two clients at once, TLS on, each blob hashed on both sides and flushed to the disk before it counts. Seconds
until both are done, median of the repeats after the first."""


def measure(elements: int, repeats: int, folder: Path, clock: Clock, note: Note) -> Section:
    """Down and up, `repeats` times."""
    with fleet(folder, clock) as made:
        digest, size = made.add_set("random", elements, 20)
        gate = Gate(new_secret(MasterHome(folder / "master").grant_secret), clock)
        note(f"blobs: {repeats} times {size} bytes, down and up, two clients at once")
        clients = {name: child.api(clock, random.Random(), PATIENCE) for name, child in made.children.items()}
        try:
            times = [_once(made, gate, clients, digest, size, number) for number in range(1, repeats + 1)]
        finally:
            for client in clients.values():
                client.close()
    later = times[1:] or times
    rows = [
        (way, megabytes(len(clients) * size), seconds(times[0][at]), seconds(median(one[at] for one in later)))
        for at, way in enumerate(("down", "up"))
    ]
    return Section("Blobs", ABOUT, ("way", "bytes", "first (s)", "later (s)"), rows)


def _once(made: Fleet, gate: Gate, clients: dict[str, MasterApi], digest: str, size: int, number: int) -> tuple[float, float]:
    """Seconds down and seconds up."""
    files = {name: made.folder / f"{name}-{number}" for name in clients}
    down = {name: gate.issue(name, "bench", number, digest, "down", size, 600.0) for name in clients}
    up = {name: gate.issue(name, "bench", number, digest, "up", 2 * size, 600.0) for name in clients}
    fetching = _together(made.clock, [lambda n=n: clients[n].fetch(digest, size, down[n], files[n]) for n in clients])
    rng = np.random.default_rng(number)
    sent: dict[str, str] = {}
    for name, path in files.items():
        path.unlink()
        write_set(path, {"values": rng.standard_normal(size // 4, dtype=np.float32)})
        sent[name] = sha256_file(path)
    sending = _together(made.clock, [lambda n=n: clients[n].send(files[n], sent[n], up[n]) for n in clients])
    for path in files.values():
        path.unlink()
    return fetching, sending


def _together(clock: Clock, work: Sequence[Callable[[], None]]) -> float:
    started = clock.monotonic()
    with ThreadPoolExecutor(len(work)) as pool:
        for one in [pool.submit(do) for do in work]:
            one.result()
    return clock.monotonic() - started
