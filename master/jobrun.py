"""One job, in the process that runs its rounds: everything is opened from the state folder, and the ledger says where to go on."""

import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from master.blobs import BlobStore
from master.home import MasterHome
from master.jobs import JobSpec
from master.ledger import JobLedger, Ledger
from master.link import Link
from master.meeting import Meeting
from master.phases.play import Play
from master.records import Job
from master.rounds import run as run_rounds
from master.tokens import Gate, new_secret
from queues.stream.home import StreamHome
from trunkline.clock import Clock, SystemClock
from trunkline.errors import Fenced, StorageFailed, TrunklineError
from trunkline.messages import EncoderRef
from trunkline.settings import build

logger = logging.getLogger(__name__)

LinkFactory = Callable[[Callable[[], Mapping[str, int]], Callable[[], Mapping[str, str]]], Link]
"""Makes the link of a run from two look-ups: node ids, and boot ids, of the children that take part, by child name."""

HEARTBEAT = 5.0
"""Seconds between two signs of life of a job's owner."""


def run(job_id: str, state: Path, link_factory: LinkFactory) -> None:
    """Own the job and play its rounds to their end. The outcome stands in the ledger; nothing is raised for a job that failed."""
    home, clock = MasterHome(state), SystemClock()
    daemon = home.daemon()  # which may have been told of another ledger by a flag, or by a file that lies elsewhere
    ledger = Ledger.open((daemon and daemon.ledger) or home.ledger_url(), clock)
    try:
        play(ledger, home, ledger.job(job_id), link_factory, clock)
    except Fenced as error:
        logger.info("job %s: %s", job_id, error)
    finally:
        ledger.close()


def play(ledger: Ledger, home: MasterHome, job: Job, link_factory: LinkFactory, clock: Clock) -> None:
    """Play a job over a link; write down how it ended.

    :raises Fenced: another owner took over, or the job was ended from outside.
    :raises StorageFailed: the disk refused. The job stays open, and the master starts it again until there is room.
    """
    pen = ledger.own(job.id, f"{platform.node()}:{os.getpid()}")
    encoder, spec = ledger.encoder(job.encoder), build(JobSpec, job.spec, f"job {job.id}")
    blobs = BlobStore(home.blobs)
    rounds = Play(
        id=job.id,
        spec=spec,
        encoder=EncoderRef(name=encoder.name, type=encoder.type, manifest=encoder.manifest),
        ledger=ledger,
        pen=pen,
        link=link_factory(lambda: _nodes(ledger), lambda: _boots(ledger)),
        blobs=blobs,
        gate=Gate(new_secret(home.grant_secret), clock),
        clock=clock,
        stream=None if spec.stream is None else Meeting(StreamHome(home.streams / spec.stream), ledger, blobs, clock),
    )
    with _Pulse(pen):
        try:
            rounds.spec.fuse_rule.check_installed()  # not at the first fusion, when everybody has trained
            reason = run_rounds(rounds)
        except (Fenced, StorageFailed):
            raise
        except TrunklineError as error:
            logger.error("job %s failed: %s", job.id, error)
            pen.finish("failed", f"{error.code}: {error}")
            return
        except Exception as error:
            logger.exception("job %s met an error of ours", job.id)
            pen.finish("failed", f"internal: {type(error).__name__}: {error}")
            return
        if reason != "paused":
            pen.finish("finished", reason)


def _nodes(ledger: Ledger) -> dict[str, int]:
    return {node.name: node.flower_id for node in ledger.nodes() if node.state == "active" and node.flower_id is not None}


def _boots(ledger: Ledger) -> dict[str, str]:
    return {node.name: node.boot for node in ledger.nodes() if node.boot is not None}


class _Pulse:
    """Tells the ledger, beside the rounds, that the owner lives: a round may wait long for an update."""

    def __init__(self, pen: JobLedger) -> None:
        self._pen, self._stop = pen, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(HEARTBEAT)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            try:
                self._pen.heartbeat()
            except Fenced:
                return  # the rounds meet the same fence at their next write
            except TrunklineError as error:
                logger.warning("no sign of life could be written: %s", error)
