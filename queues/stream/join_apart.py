"""A worker for a stream of another machine, made from the stream's description."""

import hashlib
import random

from queues.redis import RedisQueues, connect
from queues.store.remote import RemoteReader
from queues.stream.apart import Machine, fetched, own_code
from queues.stream.described import Described
from queues.stream.heart import Heart
from queues.stream.model import Learner
from queues.stream.worker import Worker, own_name
from trunkline.errors import SpecError, Unreachable
from trunkline.https import Https


def join(https: Https, path: str, found: Described, redis: str, machine: Machine) -> Worker:
    """The worker, with all that it needs.

    :raises SpecError: the user's own code is not here, or the encoder or a head cannot be made.
    :raises Unreachable: the server of the queues does not answer.
    """
    import torch

    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    folder = machine.folder / hashlib.sha256(found.files.encode()).hexdigest()[:16]
    learner = Learner(found.spec, fetched(https, path, found, folder / "encoder"), [own_code(found, machine.modules, folder)])
    shapes = dict(found.tensors)
    if shapes != {name: tuple(p.shape) for name, p in learner.parameters().items()}:
        raise SpecError(
            "the encoder and heads that are made here should have the parameters of the stream, found others.",
            hint="Are master and worker of the same version?",
        )
    store = RemoteReader(https, path, shapes, half_gradients=machine.half_gradients, half_parameters=machine.half_parameters)
    name, spec = own_name(), found.spec
    try:
        queues, beats = (RedisQueues(connect(redis), spec.name, epoch=found.epoch, worker=name) for _ in range(2))
    except Unreachable as error:
        error.hint = "Give its address as it is seen from this machine: --redis URL."
        raise
    rng = random.Random()  # noqa: S311 - jitter, no secret
    return Worker(spec, learner, queues, store, clock=https.clock, heart=Heart(beats, spec.queues.lease_seconds), rng=rng)
