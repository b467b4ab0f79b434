"""A worker for a stream, made from the stream's folder."""

import random

from queues.redis import RedisQueues, connect
from queues.store.reader import FileReader
from queues.store.store import StoreReader
from queues.stream.heart import Heart
from queues.stream.home import StreamHome
from queues.stream.model import Learner
from queues.stream.scores import Scores
from queues.stream.worker import Worker, own_name
from trunkline.clock import Clock, SystemClock
from trunkline.errors import SettingsError, Unreachable


def join(home: StreamHome, *, threads: int | None = None, clock: Clock | None = None, store: StoreReader | None = None) -> Worker:
    """A worker that computes for a stream whose server runs.

    :param threads: of torch; None: as torch likes it, which is all cores.
    :param store: None: the one in the folder.
    :raises Unreachable: no server runs.
    :raises SettingsError: the store is of a kind that other processes do not reach.
    :raises SpecError: the encoder or a head cannot be made.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    clock, spec, table = clock or SystemClock(), home.spec, home.server()
    if table is None:
        raise Unreachable(f"the stream in `{home.folder}` should have a server that runs, found none.")
    learner = Learner(spec, home.encoder, [home.modules])
    if store is None:
        if spec.store.kind != "file":
            raise SettingsError(f"`store.kind` should be file for workers of other processes, found {spec.store.kind!r}.")
        store = FileReader(home.store, clock=clock)
    name, url, epoch = own_name(), table["redis"], home.epoch
    queues, beats = (RedisQueues(connect(url), spec.name, epoch=epoch, worker=name) for _ in range(2))
    heart = Heart(beats, spec.queues.lease_seconds)
    scores = Scores(home, learner, queues, store, clock)
    rng = random.Random()  # noqa: S311 - jitter, no secret
    return Worker(spec, learner, queues, store, clock=clock, heart=heart, scores=scores, rng=rng)
