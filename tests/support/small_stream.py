"""A stream of two tasks whose encoder is a BERT of two layers, made in a blink."""

import json
from pathlib import Path
from typing import Any

from queues.redis import RedisQueues
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.specs import Config, EncoderSpec
from tests.support import tiny

TASKS = (
    {"name": "mood", "head": "single", "fields": ["text"], "label": "mood", "labels": ["bad", "good"], "batch_size": 4},
    {"name": "price", "head": "regression", "fields": ["text"], "label": "price", "batch_size": 2},
)


def spec(**change: Any) -> StreamSpec:
    table = {"name": "reviews", "encoder": "tiny", "tasks": list(TASKS), "evaluate_steps": 0, **change}
    return StreamSpec.model_validate_json(json.dumps(table))


def folder(path: Path, *, dropout: float = 0.0, **change: Any) -> StreamHome:
    """The folder of a stream; no server runs."""
    home = StreamHome(path)
    options = tiny.OPTIONS | {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    source = Config(options=options, seed=1, tokenizer=str(tiny.tokenizer(path.parent / "tokenizer")))
    encoders.create(EncoderSpec(name="tiny", source=source, max_length=16), home.encoder)
    home.create(spec(**change))
    return home


def learner(home: StreamHome) -> Learner:
    return Learner(home.spec, home.encoder, [home.modules])


def opened(home: StreamHome, queues: RedisQueues) -> RedisQueues:
    """The queues of the stream, as its server makes them."""
    queues.begin(home.epoch, home.spec.queues)
    for task in home.spec.tasks:
        queues.configure(task.name, task.settings)
    return queues


def samples(of: Learner, task: str, count: int, first: int = 0) -> list[bytes]:
    """Packed ones, all different from each other."""
    rows: list[dict[str, Any]] = []
    for number in range(first, first + count):
        words = [tiny.WORDS[(number * 7 + place * 3 + number // 11) % len(tiny.WORDS)] for place in range(2 + number % 5)]
        rows.append({"text": " ".join(words), "mood": ("bad", "good")[number % 2], "price": float(number % 13)})
    return of.packers[task].pack(rows)
