"""The scripts against the plain stream: random commands, every answer and every count the same, on both kinds of server."""

import random
import struct
from typing import Any

import pytest

from queues.embedded import EmbeddedServer
from queues.queue import Claim
from queues.redis import RedisQueues
from queues.settings import QueueSettings
from queues.writer import QueueWriter
from tests.support.plain_stream import Batch, PlainStream
from tests.support.streams import KINDS, client, raw, stream
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, NotFound, QueueFull, QueuePaused

pytestmark = pytest.mark.contract

QUEUES = ("a", "b", "c")
PLACES = {"lease", "submitted", "applied", "released", "dead", "purged", "aside", "attempt 4"}
ADOPTED = {"adopted None", "adopted 0", "adopted 1", "adopted 2"}
SHARE = {"equal": 0.0, "proportional": 1.0, "temperature": 0.5}


class Pair:
    """Both, played with the same commands."""

    def __init__(self, server: EmbeddedServer, policy: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(1000.0)
        ids = iter(range(10**9))
        self.names: list[str] = []

        def new_id() -> str:
            self.names.append(f"{next(ids):06d}")
            return self.names[-1]

        limits: dict[str, Any] = {"attempts": 3, "budget": 1500}
        self.queues: QueueWriter = stream(
            server, clock=self.clock, new_id=new_id, policy=policy, temperature=2.0, lease_seconds=10.0, aging_seconds=3.0, **limits
        )
        kind = "fair" if policy in SHARE else policy
        self.plain = PlainStream(kind, power=SHARE.get(policy, 0.0), lease=10_000.0, aging=3000.0, **limits)
        self.claims: list[Claim[bytes]] = []
        self.sent: dict[tuple[str, str], int] = {}
        self.pushed = 0
        self.seen: set[str] = set()
        self.plain.now = 1000.0 * self.clock.now()

    def command(self) -> None:
        verbs = (self.push, self.push, self.push, self.claim, self.claim, self.claim, self.word, self.word, self.word, self.wait)
        rare = (self.configure, self.configure, self.dead, self.dead, self.release, self.reopen, self.adopt, self.wait_for_the_bell)
        self.rng.choice((*verbs, *verbs, *rare))()
        self.compare()

    def configure(self) -> None:
        queue = self.rng.choice(QUEUES)
        if queue in self.plain.lines and self.rng.random() < 0.6:
            state = self.rng.choice((*["open"] * 6, "paused", "draining", "stopped", "filling"))
            self.queues.set_state(queue, state)  # type: ignore[arg-type]
            self.plain.configure(queue, state=state)
            return
        batch = self.rng.randint(1, 5)
        settings = QueueSettings(
            batch_size=batch,
            most=self.rng.randint(batch, 30),
            weight=self.rng.choice((0.5, 1.0, 3.0)),
            priority=self.rng.randint(-2, 2),
            flush_seconds=self.rng.choice((0.0, 5.0)),
            flush_least=self.rng.randint(1, batch),
            out=self.rng.choice((0, 0, 1, 2)),
        )
        self.queues.configure(queue, settings)
        self.plain.configure(
            queue,
            batch=batch,
            most=settings.most,
            weight=settings.weight,
            priority=settings.priority,
            flush=1000 * settings.flush_seconds,
            least=settings.flush_least,
            out=settings.out,
        )

    def push(self) -> None:
        queue, producer, first = self.rng.choice(QUEUES), self.rng.choice(("", "p", "q")), 0
        samples = [b"%d" % (self.pushed + number) + b"." * self.rng.choice((0, 0, 40)) for number in range(self.rng.randint(0, 7))]
        self.pushed += len(samples)
        if self.plain.known.get(queue) and self.rng.random() < 0.5:
            samples.append(self.rng.choice(self.plain.known[queue]))
        if producer:
            first = max(1, self.plain.producers.get((queue, producer), 0) + self.rng.choice((1, 1, 1, 0, -3, 2)))
        want = self.plain.push(queue, samples, producer, first)
        try:
            found = ("OK", self.queues.push(queue, samples, producer=producer, first=first))
        except NotFound:
            found = ("UNKNOWN", 0)
        except QueueFull:
            found = ("BUSY", want[1])
        except QueuePaused:
            found = ("PAUSED", want[1])
        except Conflict as error:
            assert f"sample {want[1] + 1}," in error.message
            found = ("GAP", want[1])
        assert found == ("OK" if want[0] == "DUPLICATE" else want[0], want[1])

    def claim(self) -> None:
        found = self.queues.claim()
        self.same(found, self.plain.claim(self.names[-1]))
        if found:
            self.claims.append(found)

    def same(self, found: Claim[bytes] | None, want: Batch | None) -> None:
        shown = found and (found.id, found.task, found.attempt, list(found.samples))
        assert shown == (want and (want.id, want.queue, want.attempt, want.samples))

    def word(self) -> None:
        """Of any worker there ever was."""
        if not self.claims:
            return
        claim = self.rng.choice(self.claims[-6:] if self.rng.random() < 0.8 else self.claims)
        match self.rng.randrange(6):
            case 0:
                assert self.queues.renew(claim) is self.plain.renew(claim.id, claim.attempt)
            case 1:
                assert self.queues.submit(claim) is self.plain.submit(claim.id, claim.attempt)
            case 2 | 3:
                step = self.rng.randrange(20)
                assert self.queues.commit(claim, step) is self.plain.commit(claim.id, claim.attempt, step)
            case 4 | 5:
                counts = self.rng.random() < 0.7
                assert self.queues.nack(claim, "why", counts=counts) is self.plain.nack(claim.id, claim.attempt, "why", counts)

    def wait(self) -> None:
        self.clock.sleep(self.rng.choice((0.1, 1.0, 4.0, 11.0)))
        self.plain.now = round(1000.0 * self.clock.now())

    def release(self) -> None:
        step = self.rng.randrange(20)
        assert self.queues.release(step) == self.plain.release(step)

    def reopen(self) -> None:
        step = self.rng.randrange(20)
        want = [(batch.id, batch.queue, batch.step) for batch in self.plain.applied_after(step)]
        assert [(one.batch, one.queue, one.step) for one in self.queues.applied_after(step)] == want
        assert self.queues.reopen(step) == self.plain.reopen(step)

    def adopt(self) -> None:
        """A batch that is somewhere; or one of samples that wait, and of some that were never pushed."""
        step = self.plain.released + self.rng.randrange(4)
        known = [batch for batch in self.plain.batches.values() if batch.place not in ("released", "purged")]
        if known and self.rng.random() < 0.5:
            batch = self.rng.choice(known)
            queue, id, kept = batch.queue, batch.id, list(zip(batch.stamps, batch.samples, strict=True))
        elif self.plain.lines:
            queue = self.rng.choice(list(self.plain.lines))
            waiting = self.plain.lines[queue].waiting
            first = self.rng.randrange(len(waiting) + 1)
            kept = [*waiting[first : first + 2], (1.0, b"lost %d" % self.rng.randrange(3))]
            id = f"lost-{len(self.plain.batches):06d}"
        else:
            return
        claim = Claim(id, 1, queue, tuple(sample for _, sample in kept))
        stamps = b"".join(struct.pack(">d", stamp) for stamp, _ in kept)
        found = self.queues.adopt(claim, step, stamps)
        assert found == self.plain.adopt(queue, id, step, 1, kept)
        self.seen.add(f"adopted {found}")

    def wait_for_the_bell(self) -> None:
        assert self.queues.wait(0.01) is self.plain.wait()

    def dead(self) -> None:
        queue = self.rng.choice(QUEUES)
        if queue not in self.plain.lines:
            return
        known = [batch.id for batch in self.plain.dead(queue)]
        ids = self.rng.choice((None, [], known[:1], [*known[1:], "ghost"]))
        match self.rng.randrange(4):
            case 0 | 1:
                assert self.queues.retry(queue, ids) == self.plain.retry(queue, ids)
            case 2:
                assert self.queues.purge_dead(queue, ids) == self.plain.purge_dead(queue, ids)
            case 3:
                assert self.queues.purge_waiting(queue) == self.plain.purge_waiting(queue)

    def compare(self) -> None:
        assert self.queues.queues() == sorted(self.plain.lines)
        for queue, line in self.plain.lines.items():
            stats = self.queues.stats(queue)
            assert stats.counts == self.plain.counts(queue)
            assert stats.counts.conserved
            assert stats.state == line.state
            assert round(1000 * stats.oldest) == (self.plain.now - line.waiting[0][0] if line.waiting else 0)
            assert self.queues.waiting(queue) == tuple(sample for _, sample in line.waiting)
            want = [(batch.id, batch.attempt, batch.samples, batch.reason) for batch in self.plain.dead(queue)]
            assert [(c.id, c.attempt, list(c.samples), reason) for c, reason in self.queues.dead(queue)] == want
        for batch in self.plain.batches.values():
            self.seen |= {batch.place, f"attempt {batch.attempt}", "aside" if batch.aside else ""}
        client = raw(self.queues)
        assert int(client.hget(self.queues._key("meta"), "bytes")) == self.plain.bytes
        assert bool(client.exists(self.queues._key("bell"))) is self.plain.bell
        work = self.queues.work()
        assert (work.step, work.claimable) == (self.plain.step, self.plain.claimable())
        found = [(one.claim.id, one.claim.attempt, list(one.claim.samples), round(1000 * one.seconds)) for one in work.submitted]
        assert found == [(b.id, b.attempt, b.samples, self.plain.now - b.sent) for b in self.plain.submitted()]
        out = [one.batch for one in self.queues.out()]
        assert sorted(out) == sorted(b.id for b in self.plain.batches.values() if b.place in ("lease", "submitted"))


def test_who_asks_for_batches_is_known_for_a_day(embedded_server: EmbeddedServer) -> None:
    clock = ManualClock()
    queues = stream(embedded_server, clock=clock)
    other = RedisQueues(client(embedded_server), queues.name, worker="other", clock=clock)
    assert queues.workers() == {}
    queues.claim()
    clock.sleep(5.0)
    assert other.claim() is None
    assert list(other.workers().items()) == [("other", 0.0), (queues.worker, 5.0)]
    assert list(other.workers(1)) == ["other"]
    clock.sleep(86_400.0)
    other.claim()
    assert list(other.workers()) == ["other"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["arrival", "equal", "proportional", "temperature", "priority"])
def test_the_scripts_do_what_the_plain_stream_does(kind: str, policy: str, request: pytest.FixtureRequest) -> None:
    server: EmbeddedServer = request.getfixturevalue(f"{kind}_server")
    seen: set[str] = set()
    for seed in range(4):
        pair = Pair(server, policy, seed)
        for _ in range(5):
            pair.configure()
        for number in range(220):
            try:
                pair.command()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, command {number}: {error}") from error
        seen |= pair.seen
    assert seen >= PLACES | ADOPTED, "the walk came everywhere"
