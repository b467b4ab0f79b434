"""A Celery task a sample beside the queue: what carrying a sample costs, and how many are trained a second."""

import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from celery import Celery

from benchmarks import machine
from benchmarks.figures import Aim, Note, Section
from benchmarks.streams import subject
from benchmarks.streams.hands import made
from benchmarks.streams.queue import SIZE, Carried, carried, server_cpu
from benchmarks.streams.served import ROOT, SENTIMENT, declared, served
from master.demo.processes import Processes
from queues.connection import connect
from queues.embedded import EmbeddedServer
from queues.stream.create import create
from queues.stream.home import StreamHome
from trunkline.clock import Clock, Deadline

TASK = "benchmarks.streams.each_app.learn"

COLUMNS = ("way", "samples/s", "server, us", "producer, us", "worker, us", "ours is")

ABOUT = """A Celery task a sample (5.7, `solo`, its usual settings, no results kept, a sample of {size} bytes as base64 in
JSON) beside ours (push, claim, commit, batches of 32), the same server that writes to its disk each second. First without
training, {count} samples (four times as many through ours); then {model}, nothing frozen, one worker, one thread: {trained}
samples. *A step a sample* is the loop that such a task suggests; *gathered* keeps 32 samples in the worker's memory,
acknowledged, so a worker that is killed loses them. Ours trains through the whole of a stream, where nothing is lost. Processor
time in microseconds a sample; what each worker's training takes is the same work in both."""


def measure(count: int, batches: int, folder: Path, clock: Clock, note: Note, *, tiny: bool = False) -> Section:
    """Without training, then with."""
    server = EmbeddedServer(folder / "redis", clock=clock, durable=False)
    server.start()
    try:
        theirs = _carried(server.url, made(count, SIZE), "none", folder / "none", clock)
        note(f"celery: {theirs.rate:.0f} samples/s, nothing trained")
        ours = carried(server.url, "ours", 32 * count // 8)
        rows = [_row("nothing trained: ours", ours, None), _row("nothing trained: a task a sample", theirs, ours)]
        model = subject.minilm(folder / "encoder", tiny=tiny)
        home, samples = _home(folder, model, 32 * batches)
        found = {way: _carried(server.url, samples, way, folder / way, clock, home) for way in ("one", "batch")}
    finally:
        server.stop()
    trained = _ours(folder / "ours", model, samples, clock)
    note(f"celery: trained {found['one'].rate:.1f} and {found['batch'].rate:.1f} samples/s, ours {trained:.1f}")
    rows.append(("trained: ours", f"{trained:.1f}", "", "", "", ""))
    for way, name in (("one", "trained: a step a sample"), ("batch", "trained: gathered, 32 a step")):
        rows.append((name, f"{found[way].rate:.1f}", "", "", "", f"{trained / found[way].rate:.2f} x"))
    name = "a tiny BERT" if tiny else "MiniLM"
    about = ABOUT.format(size=SIZE, count=f"{count:,}", model=name, trained=len(samples))
    return Section("Beside a Celery task a sample", about, COLUMNS, rows, aims(ours, theirs))


def _row(name: str, one: Carried, ours: Carried | None) -> tuple[str, ...]:
    times = "" if ours is None else f"{ours.rate / one.rate:.0f} x as fast, 1/{sum(one.each) / sum(ours.each):.0f} of the processor"
    return (name, f"{one.rate:,.0f}", *(f"{value:.1f}" for value in one.each), times)


def aims(ours: Carried, theirs: Carried) -> list[Aim]:
    """The queue should be the better way."""
    return [
        Aim("samples a second without training, ours by a Celery task a sample's", ours.rate / theirs.rate, 1.0),
        Aim("processor time a sample, a Celery task's by ours", sum(theirs.each) / sum(ours.each), 1.0),
    ]


def _home(folder: Path, encoder: Path, count: int) -> tuple[StreamHome, Sequence[bytes]]:
    """A stream's folder, for its model alone, and packed samples."""
    spec = declared([SENTIMENT])
    home = create(folder / "model", spec, {path.name: path for path in encoder.iterdir() if path.is_file()})
    return home, subject.learner(spec, encoder).packers["sentiment"].pack(subject.reviews(count))


def _carried(url: str, samples: Sequence[bytes], way: str, folder: Path, clock: Clock, home: StreamHome | None = None) -> Carried:
    """Send a task for each sample to one worker."""
    folder.mkdir()
    broker = f"redis+socket://{url.removeprefix('unix://')}?virtual_host=2"
    report = folder / "report.json"
    values = {"EACH_BROKER": broker, "EACH_WAY": way, "EACH_COUNT": str(len(samples)), "EACH_REPORT": str(report)}
    values |= {"EACH_FOLDER": str(home.folder)} if home is not None else {}
    client = connect(url)
    with _worker(folder, values, clock) as processes, Celery("each", broker=broker, set_as_current=False) as app:
        app.send_task(TASK.replace("learn", "warm"), ignore_result=True)
        _wait(Path(f"{report}.warm"), processes, clock)
        server, began, cpu = server_cpu(client), time.monotonic(), time.process_time()
        for sample in samples:
            app.send_task(TASK, (base64.b64encode(sample).decode("ascii"),), ignore_result=True)
        producer = time.process_time() - cpu
        _wait(report, processes, clock)
        spent = server_cpu(client) - server
        client.close()
    told = json.loads(report.read_text(encoding="utf-8"))
    return Carried(told["ended"] - began, spent, producer, told["cpu"], len(samples))


@contextmanager
def _worker(folder: Path, values: Mapping[str, str], clock: Clock) -> Iterator[Processes]:
    environment = {**machine.environment(), **values, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with Processes(folder, clock, environment) as processes:
        command = [sys.executable, "-P", "-m", "celery", "-A", "benchmarks.streams.each_app", "worker", "--pool", "solo"]
        processes.start("worker", [*command, "--loglevel", "WARNING"])
        yield processes


def _wait(path: Path, processes: Processes, clock: Clock, seconds: float = 900.0) -> None:
    deadline = Deadline(clock, seconds, "Celery's worker")
    while not path.exists():
        deadline.check()
        processes.check()
        clock.sleep(0.01)


def _ours(folder: Path, encoder: Path, samples: Sequence[bytes], clock: Clock) -> float:
    """Samples a second through a stream and one worker."""
    spec = declared([SENTIMENT])
    size = spec.tasks[0].batch_size
    with served(folder, spec, encoder, clock) as stream:
        stream.work("worker")
        stream.push(samples[:size])
        stream.settle(1)
        began = time.monotonic()
        stream.push(samples)
        return len(samples) / (stream.settle(1 + len(samples) // size, 1800.0) - began)
