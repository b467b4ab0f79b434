"""Exactly a batch, always: four consumers race for the samples of a producer. To look whether there are enough and then to take
them, as one would write it first, hands out short batches; the scripts never do.
"""

import json
import subprocess
import sys
from collections import Counter

import pytest

from queues.embedded import EmbeddedServer
from tests.support.streams import KINDS, raw, stream

pytestmark = [pytest.mark.contract, pytest.mark.slow]

CONSUMERS, SAMPLES, AT_ONCE = 4, 20_000, 16

OURS = """
import json, sys
from queues.redis import RedisQueues, connect
queues, taken = RedisQueues(connect(sys.argv[1]), sys.argv[2]), []
wanted = dict(argument.split("=") for argument in sys.argv[3:])
print("here", flush=True)
while True:
    claim = queues.claim()
    if claim is None:
        if all(queues.counts(task).pushed == int(count) for task, count in wanted.items()):
            break
        continue
    queues.commit(claim)
    taken.append([claim.task, [int(sample) for sample in claim.samples]])
print(json.dumps(taken))
"""

NAIVE = """
import json, sys
from queues.redis import connect
client, taken = connect(sys.argv[1]), []
print("here", flush=True)
while True:
    if client.llen(sys.argv[2]) >= 32:
        samples = client.lpop(sys.argv[2], 32)
        if samples:
            taken.append(["a", [int(sample) for sample in samples]])
    elif client.exists(sys.argv[2] + ":over"):
        break
print(json.dumps(taken))
"""


class Race:
    """Processes that take what comes."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-c", program, *arguments]
        self.running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CONSUMERS)]
        for process in self.running:
            assert process.stdout
            assert process.stdout.readline() == "here\n"

    def taken(self) -> list[tuple[str, list[int]]]:
        found = []
        for process in self.running:
            out, _ = process.communicate(timeout=100)
            assert process.returncode == 0
            found += [(task, samples) for task, samples in json.loads(out)]
        return found


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    found: EmbeddedServer = request.getfixturevalue(f"{request.param}_server")
    return found


def test_the_scripts_hand_out_exactly_a_batch_of_one_task_in_its_order(server: EmbeddedServer) -> None:
    sizes = {"a": 32, "b": 8, "c": 50}
    counts = {"a": 12_000, "b": 5_003, "c": 2_997}
    assert sum(counts.values()) == SAMPLES
    queues = stream(server)
    for task, size in sizes.items():
        queues.open(task, size)
    race = Race(OURS, server.url, queues.name, *(f"{task}={count}" for task, count in counts.items()))
    for first in range(1, max(counts.values()) + 1, AT_ONCE):
        for task, count in counts.items():
            samples = [b"%d" % number for number in range(first, min(first + AT_ONCE, count + 1))]
            if samples:
                queues.push(task, samples, producer="p", first=first)
    found = race.taken()
    for task, size in sizes.items():
        own = sorted(samples for name, samples in found if name == task)
        assert [len(samples) for samples in own] == [size] * (counts[task] // size)
        assert [number for samples in own for number in samples] == list(range(1, size * len(own) + 1))
        told = queues.counts(task)
        assert (told.applied, told.queued, told.conserved) == (size * len(own), counts[task] % size, True)


def test_to_look_first_and_take_then_hands_out_short_batches(server: EmbeddedServer) -> None:
    client, key = raw(stream(server)), "naive"
    client.delete(key, f"{key}:over")
    race = Race(NAIVE, server.url, key)
    for first in range(1, SAMPLES + 1, AT_ONCE):
        client.rpush(key, *range(first, first + AT_ONCE))
    client.set(f"{key}:over", 1)
    sizes = Counter(len(samples) for _, samples in race.taken())
    assert sizes.keys() - {32}, "else the test above proves nothing"
