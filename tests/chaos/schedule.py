"""What is done to whom, and when: drawn from a seed before anything starts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.material import LEASE
from tests.chaos.points import INSIDE, POINTS, VICTIMS

KINDS = {
    "kill": 8,  # SIGKILL of one
    "stop": 5,  # SIGSTOP, and SIGCONT later
    "point": 8,  # one is started anew and dies, or kills the server of the queues, or stops, where it is told
    "several": 3,  # SIGKILL of some at one moment
    "all": 1,  # of everybody, the server of the queues too
    "term": 2,  # SIGTERM, as at a clean end
    "copy": 3,  # of the folder of the server of the queues
    "back": 1,  # that server is set back to a copy
    "power": 1,  # the parameter server is killed and finds that the machine was started again
    "full": 1,  # the disk is full for a while
    "second": 1,  # another server on the same folder
}
"""Kinds of actions, and how often each is among them."""

ROLES = ("server", "redis", "worker", "celery", "producer")

GAP = 0.9
"""Mean seconds between two actions."""


@dataclass(frozen=True)
class Action:
    """One thing that is done."""

    at: float  # seconds since the beginning
    kind: str
    targets: tuple[str, ...]  # role, or role-number
    seconds: float  # that those killed stay away, or those stopped stay so
    point: str = ""
    count: int = 1
    victim: str = "self"

    def __str__(self) -> str:
        where = f" at {self.point!r} ({self.count}) {self.victim}" if self.point else ""
        return f"{self.at:7.2f} {self.kind} {' '.join(self.targets)}{where} {self.seconds:.2f} s"


def drawn(seed: int, seconds: float, actors: Sequence[str], kinds: Sequence[str] = tuple(KINDS)) -> list[Action]:
    """The actions of a run, by their times.

    :param actors: names of all that can be killed.
    :param kinds: of KINDS; others do not come.
    """
    rng, at, found = random.Random(seed), 1.0, list[Action]()
    weights = [KINDS[kind] for kind in kinds]
    while True:
        at += 0.1 + rng.expovariate(1 / GAP)
        if at >= seconds:
            return found
        found.append(_one(rng, at, rng.choices(kinds, weights)[0], actors))


def _one(rng: random.Random, at: float, kind: str, actors: Sequence[str]) -> Action:
    away = rng.choice((0.0, 0.05, 0.3 * rng.random(), 1.5 * rng.random()))
    if kind == "stop":
        stopped = rng.choice((0.2 * rng.random(), rng.random(), LEASE + 2.0 * rng.random()))
        return Action(at, kind, (_someone(rng, actors),), stopped)
    if kind == "point":
        target = _someone(rng, [name for name in actors if name != "redis"])
        role = target.partition("-")[0]
        names = POINTS["worker" if role == "celery" else role]
        if role == "server" and rng.random() < 0.4:
            names = INSIDE
        return Action(at, kind, (target,), away, rng.choice(names), rng.choice((1, 1, 2, 5, 20)), rng.choice(VICTIMS))
    if kind == "several":
        return Action(at, kind, tuple(rng.sample(list(actors), rng.randrange(2, 5))), away)
    if kind == "all":
        return Action(at, kind, tuple(actors), away)
    if kind == "term":
        return Action(
            at, kind, (_someone(rng, [name for name in actors if name.partition("-")[0] in ("server", "worker", "celery")]),), away
        )
    if kind == "full":
        return Action(at, kind, (), 0.2 + 1.5 * rng.random())
    if kind == "back":
        return Action(at, kind, ("redis", "server") if rng.random() < 0.5 else ("redis",), away)
    return Action(at, kind, ("server",) if kind in ("power", "second") else (_someone(rng, actors),), away)


def _someone(rng: random.Random, actors: Sequence[str]) -> str:
    """Each role as often as another, however many play it."""
    roles = [role for role in ROLES if any(name.partition("-")[0] == role for name in actors)]
    role = rng.choice(roles)
    return rng.choice([name for name in actors if name.partition("-")[0] == role])
