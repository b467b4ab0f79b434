"""The account at the end of a run: is every sample where it should be, did each change the parameters once, are they a replay's?"""

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queues.queue import Counts
from queues.redis import RedisQueues
from queues.stream.home import StreamHome
from queues.stream.record import Entry, Record
from queues.stream.seeds import dropout_seed
from tests.chaos import material
from tests.chaos.nursery import ROOT
from trunkline.errors import TrunklineError


@dataclass
class Account:
    """What was found; `wrong` is empty where all is well."""

    totals: list[dict[str, int]]  # of each producer, what it pushed
    counts: dict[str, Counts]
    waiting: dict[str, tuple[bytes, ...]]
    entries: list[Entry]
    wrong: list[str] = field(default_factory=list)
    replay: dict[str, Any] = field(default_factory=dict)

    def expect(self, so: bool, what: str) -> None:
        """Note what is wrong."""
        if not so:
            self.wrong.append(what)


def drained(queues: RedisQueues) -> bool:
    """Whether nothing is under way, and no queue holds a batch; what is dead is given all its attempts again."""
    try:
        for task, size in material.SIZES.items():
            queues.retry(task)
            counts = queues.counts(task)
            if counts.leased or counts.submitted or counts.dead or counts.queued >= size:
                return False
        return True
    except TrunklineError:
        return False


def taken(folder: Path, home: StreamHome, queues: RedisQueues, producers: int) -> Account:
    """Of a stream that is drained, whose server still runs."""
    totals = [json.loads((folder / f"producer-{number}.json").read_text()) for number in range(producers)]
    counts = {task: queues.counts(task) for task in material.SIZES}
    waiting = {task: queues.waiting(task) for task in material.SIZES}
    return Account(totals, counts, waiting, list(Record(home.applied).since(0)))


def check(account: Account, home: StreamHome, *, set_back: bool) -> None:
    """Look at all of it.

    :param set_back: whether the server of the queues was: then what lay in its queues came again, in another order.
    """
    _check_steps(account, home)
    named = material.named(material.learner(home), account.totals)
    for task in material.SIZES:
        _check_counts(account, task)
        _check_samples(account, task, named[task])
        _check_order(account, task, named[task], contiguous=not set_back)
    account.replay = _replayed(home, account.entries[-1].step if account.entries else 0)
    account.expect(account.replay.get("same") is True, f"a replay should come to the same parameters, found {account.replay}")


def _check_steps(account: Account, home: StreamHome) -> None:
    spec, entries = home.spec, account.entries
    batches = Counter(entry.batch for entry in entries)
    account.expect(max(batches.values(), default=0) <= 1, f"twice in the record: {[b for b, n in batches.items() if n > 1][:5]}")
    steps = [entry.step for entry in entries] if spec.together.mode == "each" else sorted({entry.step for entry in entries})
    account.expect(steps == list(range(1, len(steps) + 1)), "the record should have all steps, found gaps or repetitions")
    for entry in entries:
        good = entry.staleness == entry.step - 1 - entry.base and 0 <= entry.staleness <= spec.store.staleness
        account.expect(good, f"step {entry.step} is of a gradient of step {entry.base}")
        account.expect(entry.seed == dropout_seed(spec.learning.seed, entry.task, entry.batch), f"the seed of step {entry.step}")


def _check_counts(account: Account, task: str) -> None:
    counts, total = account.counts[task], sum(pushed[task] for pushed in account.totals)
    account.expect(counts.conserved, f"{task}: {counts} do not add up")
    account.expect(counts.pushed == total, f"{task}: {total} samples were pushed, the queue says {counts.pushed}")
    account.expect((counts.leased, counts.submitted, counts.dead, counts.purged) == (0, 0, 0, 0), f"{task}: not drained, {counts}")
    applied = sum(len(entry.samples) for entry in account.entries if entry.task == task)
    account.expect(counts.applied == applied, f"{task}: the record has {applied} samples, the queue says {counts.applied}")


def _check_samples(account: Account, task: str, named: dict[bytes, tuple[int, int]]) -> None:
    """Each once."""
    found = Counter(sample for entry in account.entries if entry.task == task for sample in entry.samples)
    found.update(account.waiting[task])
    twice = sorted(named.get(sample, (-1, -1)) for sample, times in found.items() if times > 1)
    lost = sorted(named[sample] for sample in named.keys() - found.keys())
    account.expect(not twice, f"{task}: {len(twice)} samples came twice, as (producer, number) {twice[:8]}")
    account.expect(not lost, f"{task}: {len(lost)} samples were lost, as (producer, number) {lost[:8]}")
    account.expect(not found.keys() - named.keys(), f"{task}: samples that nobody pushed")
    sizes = Counter(len(entry.samples) for entry in account.entries if entry.task == task)
    account.expect(set(sizes) <= {material.SIZES[task]}, f"{task}: batches of {dict(sizes)} samples")


def _check_order(account: Account, task: str, named: dict[bytes, tuple[int, int]], *, contiguous: bool) -> None:
    """In a batch, a producer's samples in their order, and none left out between."""
    for entry in account.entries:
        if entry.task != task:
            continue
        numbers: dict[int, list[int]] = {}
        for sample in entry.samples:
            producer, number = named.get(sample, (-1, -1))
            numbers.setdefault(producer, []).append(number)
        for producer, found in numbers.items():
            good = found == list(range(found[0], found[0] + len(found))) if contiguous else found == sorted(found)
            account.expect(good, f"{task}: step {entry.step} has samples {found} of producer {producer}")


def _replayed(home: StreamHome, step: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "queues.stream.replayed", str(home.folder), f"--until={step}", "--start=0", "--threads=1"]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    seconds = round(time.monotonic() - begun, 1)
    return json.loads(done.stdout) | {"seconds": seconds} if done.returncode == 0 else {"error": done.stderr[-2000:]}
