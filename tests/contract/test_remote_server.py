"""A parameter server whose worker is elsewhere: real queues, the master's API between, and connections that break."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from queues.embedded import EmbeddedServer
from queues.queue import Claim, Outcome
from queues.store.remote import RemoteReader
from queues.store.store import Sent, Verdict
from queues.stream.server import ParameterServer
from queues.stream.spec import StreamSpec
from queues.writer import QueueWriter
from tests.support import few_numbers
from tests.support.api import QUICK
from tests.support.elsewhere import Master, master
from tests.support.few_numbers import computed, loop, numbered, same, values
from tests.support.proxy import Cut, proxy
from tests.support.streams import client
from tests.support.streams import server as running
from trunkline.clock import ManualClock

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with running("embedded", tmp_path_factory.mktemp("redis")) as made:
        yield made


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with master(tmp_path_factory.mktemp("master")) as made:
        yield made


@dataclass
class Rig:
    """One stream: its server here, a worker's side of its store through the master."""

    spec: StreamSpec
    queues: QueueWriter
    server: ParameterServer
    reader: RemoteReader

    def claim(self) -> Claim[bytes]:
        claim = self.queues.claim()
        assert claim is not None
        return claim

    def hand_in(self, claim: Claim[bytes], sent: Sent | None = None) -> None:
        self.reader.send(sent or computed(claim, self.reader))
        assert self.queues.submit(claim) is Outcome.OK

    def verdict(self, claim: Claim[bytes]) -> Verdict | None:
        return self.reader.verdict(claim.id, claim.attempt, 0.0)


Make = Callable[..., Rig]


@pytest.fixture
def make(there: Master, redis: EmbeddedServer) -> Iterator[Make]:
    with ExitStack() as opened:

        def rig(name: str, *cuts: Cut, store: dict[str, Any] | None = None, **how: Any) -> Rig:
            spec = few_numbers.spec({"a": 2, "b": 3}, name=name, store=store or {})
            writer, depot = opened.enter_context(there.store(spec, few_numbers.parameters(spec)))
            clock, epoch = ManualClock(), depot.home.epoch
            queues, its = (QueueWriter(client(redis), name, epoch=epoch, worker="w", clock=clock) for _ in range(2))
            opened.callback(queues.close)
            queues.begin(epoch, spec.queues)
            for task in spec.tasks:
                queues.configure(task.name, task.settings)
            server = ParameterServer(depot.home, spec, its, writer, clock)
            server.start()
            opened.callback(server.stop)
            between = opened.enter_context(proxy(there.running.port, *cuts))
            https = opened.enter_context(there.https(port=between.port, patience=replace(QUICK, progress=30.0)))
            return Rig(spec, queues, server, there.reader(depot, https, **how))

        yield rig


def test_one_worker_elsewhere_ends_where_a_plain_loop_ends(make: Make) -> None:
    lot = random.Random(3)
    rig = make("loop", *(Cut(down=lot.randrange(500, 6000), up=lot.choice((None, 2500, 4000))) for _ in range(20)))
    rig.queues.push("a", numbered(1, 20), producer="p", first=1)
    rig.queues.push("b", numbered(1, 21), producer="p", first=1)
    batches = []
    while (claim := rig.queues.claim()) is not None:
        rig.hand_in(claim)
        rig.server.turn()
        assert rig.verdict(claim) is Verdict.APPLIED
        batches.append((claim.task, claim.samples))
    assert len(batches) == 17
    assert same(values(rig.spec, rig.reader), loop(rig.spec, batches))


def test_stale_gradients_of_halves_are_computed_again_and_each_batch_counts_once(make: Make) -> None:
    """Given four gradients of the same step, as bfloat16, and a bound of one, Then two are applied and two come back."""
    rig = make("stale", store={"staleness": 1}, half_gradients=True)
    rig.queues.push("a", numbered(1, 8), producer="p", first=1)
    claims = [rig.claim() for _ in range(4)]
    for claim in claims:
        rig.hand_in(claim)
    rig.server.turn()
    assert [rig.verdict(claim) for claim in claims] == [Verdict.APPLIED] * 2 + [Verdict.STALE] * 2
    again = [rig.claim() for _ in range(2)]
    assert {(claim.id, claim.attempt) for claim in again} == {(claim.id, 2) for claim in claims[2:]}
    for claim in again:
        rig.hand_in(claim)
        rig.server.turn()
        assert rig.verdict(claim) is Verdict.APPLIED
    assert rig.queues.claim() is None
    counts = rig.queues.counts("a")
    assert (counts.applied, counts.conserved, rig.reader.step()) == (8, True, 4)


def test_what_is_not_finite_counts_against_the_batch(make: Make) -> None:
    rig = make("nan")
    rig.queues.push("a", numbered(1, 2), producer="p", first=1)
    for _ in range(3):
        claim = rig.claim()
        good = computed(claim, rig.reader)
        rig.hand_in(claim, replace(good, tensors={"shared/w": torch.full((1, few_numbers.WIDTH), float("nan"))}))
        rig.server.turn()
        assert rig.verdict(claim) is Verdict.REFUSED
    ((_, reason),) = rig.queues.dead("a")
    assert "should be finite" in reason
    assert rig.reader.step() == 0


def test_a_gradient_that_did_not_come_is_computed_by_another(make: Make) -> None:
    """A worker that says it handed in what it withdrew, or lost: the batch comes back, and it counts for nothing."""
    rig = make("lost")
    rig.queues.push("a", numbered(1, 2), producer="p", first=1)
    claim = rig.claim()
    rig.reader.send(computed(claim, rig.reader))
    rig.reader.withdraw(claim.id, claim.attempt)
    assert rig.queues.submit(claim) is Outcome.OK
    rig.server.turn()
    again = rig.claim()
    assert (again.id, again.attempt) == (claim.id, 2)
    rig.hand_in(again)
    rig.server.turn()
    assert rig.verdict(again) is Verdict.APPLIED
