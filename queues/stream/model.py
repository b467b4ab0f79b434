"""The encoder and the heads of a stream, and all of their parameters by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from queues.redis import Claim
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.encoders import Encoder
from tasks.heads import Head, make_head
from tasks.packed import Packer
from tasks.step import Gradient, gradient
from trunkline.errors import SpecError


class Learner:
    """What a stream trains.

    :param folder: the encoder's, with its initial parameter set.
    :param modules: folders with the user's own code.
    :raises SpecError: the encoder or a head cannot be made, or cannot learn from a stream.
    """

    def __init__(self, spec: StreamSpec, folder: Path, modules: Sequence[Path] = ()) -> None:
        self.spec = spec
        self.encoder: Encoder = encoders.load(folder, modules)
        _check_buffers(self.encoder)
        made = {task.name: task for task in spec.tasks}
        self.packers = {name: Packer(task.task, self.encoder.processor) for name, task in made.items()}
        self.heads: dict[str, Head] = {
            name: make_head(
                task.task, task.labels or (), self.encoder.hidden, spec.learning.seed, scale=task.scale, modules=modules
            )
            for name, task in made.items()
        }
        self.shared: Mapping[str, nn.Parameter] = {f"shared/{name}": p for name, p in self.encoder.trainable().items()}
        self.private: Mapping[str, Mapping[str, nn.Parameter]] = {
            task: {f"head/{task}/{name}": p for name, p in head.named_parameters() if p.requires_grad}
            for task, head in self.heads.items()
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """All that a store holds, by name: `shared/NAME`, `head/TASK/NAME`."""
        return {**self.shared, **{name: p for head in self.private.values() for name, p in head.items()}}

    def needed(self, task: str) -> dict[str, nn.Parameter]:
        """What a gradient of a task is computed on."""
        return {**self.shared, **self.private[task]}

    def gradient(self, claim: Claim[bytes], seed: int) -> Gradient:
        """Of one batch, on the parameters as they are now.

        :param seed: of dropout.
        :raises SampleError: a sample is not one of this task.
        :raises TrainingFailed: `not_finite`, `memory`, `training`.
        """
        learning = self.spec.learning
        batch = self.packers[claim.task].batch(claim.samples)
        head = self.heads[claim.task]
        return gradient(self.encoder, head, batch, micro_batch=learning.micro_batch, precision=learning.precision, seed=seed)


def _check_buffers(encoder: Encoder) -> None:
    """:raises SpecError: a forward pass changes the encoder, which nobody but the worker that made it would see."""
    for name, module in encoder.body.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise SpecError(
                f"an encoder that learns from a stream should keep no running statistics, found them in {name!r}.",
                hint="Use a layer or group normalisation, or freeze it with track_running_stats=False.",
            )
