"""One training from a parameter set that came in, and what is on disk after it: an update's file and the site's private state."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from child import body, heads, moments, streamed
from child.control import Control
from child.heads import Outputs
from child.home import ChildHome, keep_newest
from child.settings import ChildSettings
from child.site import Site
from child.state import Private, PrivateStore
from child.streamed import Played
from child.train import LocalTask, Trained, load_heads, train
from tasks.encoders import Encoder
from tasks.heads import make_head
from tasks.specs import TaskSpec
from trunkline import codecs
from trunkline.clock import Clock
from trunkline.files import sha256_file
from trunkline.messages import InitialSet, ReportRequest, Update
from trunkline.sets import SetFile

KEPT_UPDATES = 4
"""Files of updates that stay here: of the round under way, and of a few before it that may be asked for again."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trains for one child."""

    name: str
    home: ChildHome
    settings: ChildSettings
    site: Site
    clock: Clock
    stopping: Callable[[], bool]
    progress: Callable[[int, str, float], None]

    def update(
        self, message: InitialSet, base: Path, control: Path | None, specs: Sequence[TaskSpec], store: PrivateStore
    ) -> Update:
        """Train on the initial set; the update's file and the private state are on disk when this returns.

        :param base: where the initial set lies.
        :param control: where the server's control variate lies, if the job has one.
        """
        started = time.perf_counter()
        encoder, plan = self.site.encoder(message.encoder), self.site.plan(message.plan)
        tasks = self.site.tasks(encoder, specs, plan)
        with SetFile(base) as initial:
            encoder.load_shared(initial.read)
            private = store.load()
            body.load(encoder, private)
            load_heads(tasks, private)
            variates = Control(message.job, control, private) if plan.corrected else None
            trained = train(
                encoder,
                tasks,
                plan,
                private,
                correction=variates.correction(encoder) if variates else None,
                moments=moments.of(message.job, private) if plan.moments == "kept" else None,
                clock=self.clock,
                lease=self.settings.batch_lease,
                stopping=self.stopping,
                progress=self.progress,
            )
            after = body.kept(trained.private, encoder)
            if plan.moments == "kept":
                after = moments.kept(after, message.job, trained.moments)
            if variates is not None:
                after = variates.kept(after, encoder, initial.read, trained.steps * plan.learning_rate)
            update = self.write(message, encoder, initial, trained, after, time.perf_counter() - started, store)
        keep_newest(self.home.updates, KEPT_UPDATES, {update.digest})
        return update

    def take_over(self, message: InitialSet, base: Path, played: Played, stream: str, store: PrivateStore) -> Update:
        """The update of a round that was played with a stream, and its heads as this site's own.

        :param base: where the initial set lies.
        """
        started = time.perf_counter()
        encoder, before = self.site.encoder(message.encoder), store.load()
        with SetFile(base) as initial, SetFile(played.shared) as shared, SetFile(played.heads) as file:
            encoder.load_shared(shared.read)
            own = {name: shared.read(name) for name in encoder.private_tensors() if name in shared.spec}
            encoder.load_private(before.under(body.PREFIX) | own)
            trained = Trained(
                samples=played.samples,
                applied=played.applied,
                losses=played.losses,
                steps=played.steps,
                private=self._with_heads(before, encoder, stream, file),
                moments={},
            )
            after = body.kept(trained.private, encoder)
            update = self.write(message, encoder, initial, trained, after, played.seconds + time.perf_counter() - started, store)
        keep_newest(self.home.updates, KEPT_UPDATES, {update.digest})
        return update

    def _with_heads(self, before: Private, encoder: Encoder, stream: str, file: SetFile) -> Private:
        """The private state with the heads in a file, `TASK/NAME`, of a stream's tasks."""
        tensors, notes = dict(before.tensors), dict(before.notes)
        for task in sorted({name.split("/", 1)[0] for name in file}):
            spec = streamed.declared(self.home, stream, task)
            labels = spec.labels or ()
            head = make_head(spec.task, labels, encoder.hidden, 0, scale=spec.scale, modules=self.site.modules())
            with torch.no_grad():
                for name, parameter in head.named_parameters():
                    if f"{task}/{name}" in file.spec:
                        parameter.copy_(torch.from_numpy(file.read(f"{task}/{name}")))
            tensors = {name: array for name, array in tensors.items() if not name.startswith(f"{task}/")} | heads.kept(task, head)
            notes["heads"] = dict(notes.get("heads", {})) | {task: Outputs(spec.head, labels).note()}
        return Private(tensors, notes)

    def write(
        self,
        message: InitialSet,
        encoder: Encoder,
        base: SetFile,
        trained: Trained,
        after: Private,
        seconds: float,
        store: PrivateStore,
    ) -> Update:
        """Write an update's file, what it leaves out, and the private state after it; tell what is to be said of it.

        :raises RefusedValue: `not_finite`: so is what was trained; nothing is changed.
        """
        key, beside, factors = (message.job, message.round, message.base.digest), self.home.updates / ".new", encoder.factors()
        spec = codecs.owed_spec(codecs.find(message.codec), base.spec, factors)
        with store.owed(message.job) as owed, store.owing(key, spec) as left:
            codecs.encode(beside, message.codec, base, encoder.read_shared, factors, owed=owed, left=left, durable=False)
        digest, size = sha256_file(beside), beside.stat().st_size
        beside.replace(self.home.updates / digest)
        update = Update(
            job=message.job,
            round=message.round,
            child=self.name,
            base=message.base.digest,
            digest=digest,
            size=size,
            codec=message.codec,
            samples=dict(trained.samples),
            applied=dict(trained.applied),
            losses=dict(trained.losses),
            seconds=seconds,
            steps=trained.steps,
        )
        store.save(key, after, update.table(), owes=bool(spec))
        return update

    def settle(self, message: ReportRequest, encoder: Encoder, tasks: Mapping[str, LocalTask], store: PrivateStore) -> None:
        """Fit the heads to the target set and keep them so; asked again, they are as they were fitted the first time."""
        key = (message.job, message.round, message.target.digest)
        if message.settle is None or store.sent(key) is not None:
            return
        plan = self.site.plan(message.settle)
        trained = train(
            encoder, tasks, plan, store.load(), clock=self.clock, lease=self.settings.batch_lease, stopping=self.stopping
        )
        store.save(key, body.kept(trained.private, encoder), {"settled": message.target.digest})
        store.commit(message.job, message.round)
