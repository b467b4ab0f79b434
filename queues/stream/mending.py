"""What a server does at its start, and whenever the server of the queues was set back: both should know of the same steps.

Three places know what was applied: the store with the parameters, the record beside it, and the queues. The store is right. What it
applied and the queues do not know is adopted from the record; what the queues know and it did not apply comes back.
"""

import logging
from collections.abc import Callable

from queues.queue import Claim
from queues.store.store import StoreWriter, Verdict
from queues.stream.recording import RecordWriter
from queues.writer import Marks, QueueWriter
from trunkline.errors import Conflict

log = logging.getLogger(__name__)

MOST = 10_000
"""Batches that are out, of each kind, that are looked at."""


def mend(
    queues: QueueWriter, store: StoreWriter, record: RecordWriter, marks: Marks, beat: Callable[[], None], *, accept: bool = False
) -> None:
    """Bring queues and record to what the store knows.

    :param marks: how far the queues are.
    :param beat: called again and again: it may take long.
    :param accept: go on although samples are lost, or some may be applied twice.
    :raises Conflict: that would be so; says which, and nothing was changed.
    """
    if cut := record.cut(store.step):
        log.info("%d batches of the record were never applied", cut)
    if marks.step > store.step:
        _take_back(queues, store, marks, accept)
    else:
        _bring_forward(queues, store, record, marks, beat, accept)


def _take_back(queues: QueueWriter, store: StoreWriter, marks: Marks, accept: bool) -> None:
    if marks.released > store.step and not accept:
        raise Conflict(
            f"the store should be at least at step {marks.released}, whose samples were let go, found it at {store.step}: "
            "its folder was set back.",
            hint="Bring its folder back; or accept that what these samples taught is lost.",
        )
    for one in queues.out(MOST):  # computed on parameters that will never have been: later ones may have the same step
        queues.nack(Claim(one.batch, one.attempt, one.queue, ()), "the store was set back", counts=False)
    count = queues.reopen(store.step)
    log.warning("the store is at step %d, the queues knew of %d: %d batches come back", store.step, marks.step, count)


def _bring_forward(
    queues: QueueWriter, store: StoreWriter, record: RecordWriter, marks: Marks, beat: Callable[[], None], accept: bool
) -> None:
    first = min(marks.step, marks.released)  # a step that the queues know may have been another before the store was set back
    known = {entry.step for entry in record.since(first - 1)} | _settle(queues, store) | set(store.added().values())
    missing = [step for step in range(marks.step + 1, store.step + 1) if step not in known]
    if missing and not accept:
        raise Conflict(
            f"the queues should know of all {store.step} steps of the store, found that they know of {marks.step}, and the record "
            f"does not tell what step {missing[0]} was: samples that wait may have been applied before.",
            hint="Bring the data of the queues' server back; or accept that samples may be applied twice.",
        )
    applied = set()
    for entry in record.since(first - 1):
        beat()
        if entry.task:
            applied.add(entry.batch)
            claim = Claim(entry.batch, entry.attempt, entry.task, entry.samples)
            found = queues.adopt(claim, entry.step, entry.stamps)
            store.done(entry.batch, entry.attempt, Verdict.APPLIED)
            if found is not None:
                log.info("batch %s was applied at step %d, and the queues did not know", entry.batch, entry.step)
    if known.issuperset(range(first + 1, store.step + 1)):
        for one in queues.applied_after(marks.released, MOST):
            if one.batch not in applied and store.applied(one.batch) is None:
                log.warning("batch %s came back when the store was set back, and the queues did not know", one.batch)
                queues.unapplied(one.batch)
    for task in queues.queues():
        beat()
        if count := queues.sift(task):
            log.info("%d samples of task %s waited again, and had been applied", count, task)


def _settle(queues: QueueWriter, store: StoreWriter) -> set[int]:
    """Batches that a server applied and had no time to commit; return their steps."""
    found = set()
    for one in queues.out(MOST):
        step = store.applied(one.batch)
        if step is not None:
            queues.adopt(Claim(one.batch, one.attempt, one.queue, ()), step, b"")
            store.done(one.batch, one.attempt, Verdict.APPLIED)
            found.add(step)
    return found
