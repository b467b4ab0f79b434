"""A Celery task a sample, as streams are often trained today: what the comparison's worker runs.

Nothing of Trunkline moves these samples; it lends the model alone. Each message is a sample as base64 in JSON. What the
environment says: EACH_BROKER; EACH_WAY, `none` (nothing is trained), `one` (a step a sample) or `batch` (samples are gathered
in the worker, and lost with it); EACH_COUNT, samples after which EACH_REPORT is written; EACH_FOLDER, the folder of a stream,
whose model it is.
"""

import base64
import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("each", broker=os.environ.get("EACH_BROKER", "memory://"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

_gathered: list[bytes] = []
_seen = {"count": 0, "cpu": 0.0}


@app.task
def learn(sample: str) -> None:
    """One sample."""
    if not _seen["count"]:
        _seen["cpu"] = time.process_time()
    way = os.environ["EACH_WAY"]
    data = base64.b64decode(sample)
    if way == "one":
        _step([data])
    elif way == "batch":
        _gathered.append(data)
        if len(_gathered) == _model()[0].spec.tasks[0].batch_size:
            _step(_gathered)
            _gathered.clear()
    _seen["count"] += 1
    if _seen["count"] == int(os.environ["EACH_COUNT"]):
        _report(Path(os.environ["EACH_REPORT"]))


@app.task
def warm() -> None:
    """The model is loaded, and took a step's time."""
    if os.environ["EACH_WAY"] != "none":
        _model()
    Path(os.environ["EACH_REPORT"] + ".warm").touch()


@cache
def _model() -> Any:
    import torch

    from benchmarks.streams.plain import PlainLoop
    from queues.stream.home import StreamHome
    from queues.stream.model import Learner

    torch.set_num_threads(1)
    home = StreamHome(Path(os.environ["EACH_FOLDER"]))
    learner = Learner(home.spec, home.encoder, [home.modules])
    return learner, PlainLoop(learner)


def _step(samples: list[bytes]) -> None:
    learner, loop = _model()
    loop.step([learner.packers["sentiment"].batch(samples)])


def _report(path: Path) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"ended": time.monotonic(), "cpu": time.process_time() - _seen["cpu"]}), encoding="utf-8")
    beside.rename(path)
