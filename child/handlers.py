"""What a child answers to each message of a round: one object for the warm agent, the stock ClientApp and the in-process link."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from child import body, policy
from child.control import Control
from child.home import ChildHome, keep_newest
from child.machine import describe
from child.references import References
from child.registry import Registry
from child.sets import SetCache
from child.settings import ChildSettings
from child.site import Site
from child.state import PrivateStore
from child.train import LocalTask, Trained, load_heads, train
from child.transfer import Transfer
from tasks.encoders import Encoder
from tasks.step import memory_ran_out
from trunkline import codecs
from trunkline.clock import Clock, SystemClock
from trunkline.codecs import Owed
from trunkline.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    Reason,
    RefusedValue,
    SampleError,
    SpecError,
    TrainingFailed,
    TrunklineError,
)
from trunkline.files import sha256_file
from trunkline.messages import (
    Confirmation,
    Failure,
    InitialSet,
    Instruction,
    Message,
    Report,
    ReportRequest,
    Score,
    TaskCount,
    Update,
)
from trunkline.sets import SetFile
from trunkline.settings import load as load_settings

logger = logging.getLogger(__name__)

KEPT_UPDATES = 4
"""Files of updates that stay here: of the round under way, and of a few before it that may be asked for again."""

Answer = tuple[Message, bytes | None]
"""A message, and the bytes that go with it where sets travel inside the messages."""


class Child:
    """One site: its samples, its heads, and what it does when the master asks.

    :param name: as the master knows it.
    :param transfer: moves parameter sets and encoder files.
    :param stopping: true once the process was asked to end; the step under way is finished, its update is sent.
    """

    def __init__(
        self,
        name: str,
        home: ChildHome,
        settings: ChildSettings,
        transfer: Transfer,
        *,
        clock: Clock | None = None,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[int, str, float], None] = lambda step, task, loss: None,
    ) -> None:
        self.name, self.home, self.settings, self.transfer = name, home, settings, transfer
        self.clock, self.stopping, self.progress = clock or SystemClock(), stopping, progress
        self.registry = Registry(home)
        self._stores: dict[str, PrivateStore] = {}
        self._without_code: set[str] = set()  # manifests of encoders whose code was not here when it was needed
        self.configure(settings)

    def configure(self, settings: ChildSettings) -> None:
        """Go on with other settings; what is loaded is loaded again when it is needed."""
        self.settings = settings
        self.site = Site(self.home, settings, self.transfer)
        self.sets = SetCache(self.home, settings.keep_sets, self.transfer)

    def counted(self) -> tuple[list[TaskCount], list[str]]:
        """Every task of this site with its training samples, and what is wrong with those that cannot be counted."""
        counts: list[TaskCount] = []
        problems: list[str] = []
        for encoder_type in self.registry.types():
            found, wrong = self._count(encoder_type, ())
            counts, problems = counts + found, problems + [f"task {task}: {error}" for task, error in wrong.items()]
        return counts, problems

    def answer(self, message: Message, attachment: bytes | None = None) -> Answer:
        """Do what a message asks. Whatever goes wrong on the way is the answer, never an exception."""
        try:
            if isinstance(message, Instruction):
                return self._confirm(message), None
            if isinstance(message, InitialSet):
                return self._update(message, attachment)
            if isinstance(message, ReportRequest):
                return self._report(message, attachment), None
            return self._failure(Reason.MALFORMED, f"a child should be sent an instruction, found a {message.kind}."), None
        except (RefusedValue, TrainingFailed) as error:
            if error.reason == Reason.NO_MODULE and isinstance(message, InitialSet | ReportRequest):
                self._without_code.add(message.encoder.manifest)
            logger.warning("a %s is refused: %s", message.kind, error)
            return self._failure(error.reason, error.public), None
        except TrunklineError as error:
            logger.error("a %s could not be answered: %s", message.kind, error)
            away = isinstance(error, ConnectionFailed | DeadlineExceeded)
            return self._failure(Reason.TRANSFER if away else Reason.INTERNAL, f"{error.code}: {error.public}"), None
        except Exception as error:
            if memory_ran_out(error):
                logger.error("a %s could not be answered: memory ran out", message.kind)
                return self._failure(Reason.MEMORY, "memory ran out."), None
            # A bug of ours, or of the site's own code. Its text may quote samples, so it stays in the log here.
            logger.exception("a %s met an error that should not be", message.kind)
            return self._failure(Reason.INTERNAL, f"{type(error).__name__}; the child's own log says more."), None

    # -- instruction -> confirmation ---------------------------------------------------------------------------------------

    def _confirm(self, instruction: Instruction) -> Confirmation:
        try:
            policy.check(self.settings.policy, instruction, datetime.fromtimestamp(self.clock.now()))
            counts, errors = self._count(instruction.encoder.type, instruction.tasks)
            problems = [f"task {task}: {error.public}" for task, error in errors.items()]
            if not counts:
                found = " ".join(problems) or self._offered(instruction)
                raise RefusedValue(Reason.NO_SAMPLES, f"samples of type {instruction.encoder.type!r} should be here, found {found}")
            if instruction.encoder.manifest in self._without_code:
                self.site.encoder(instruction.encoder)  # it may have come since
                self._without_code.discard(instruction.encoder.manifest)
        except RefusedValue as error:
            return self._confirmation(instruction, accepted=False, reason=error.reason, detail=error.message)
        return self._confirmation(instruction, accepted=True, detail=" ".join(problems), tasks=tuple(counts))

    def _confirmation(
        self,
        instruction: Instruction,
        *,
        accepted: bool,
        reason: Reason | None = None,
        detail: str = "",
        tasks: tuple[TaskCount, ...] = (),
    ) -> Confirmation:
        return Confirmation(
            job=instruction.job,
            round=instruction.round,
            child=self.name,
            accepted=accepted,
            reason=reason,
            detail=detail,
            tasks=tasks,
            holds=self.home.held_sets() if accepted else (),
            machine=describe(),
        )

    def _count(self, encoder_type: str, wanted: tuple[str, ...]) -> tuple[list[TaskCount], dict[str, SampleError]]:
        """Training samples by task, and what is wrong with the tasks that cannot be counted."""
        counts: list[TaskCount] = []
        problems: dict[str, SampleError] = {}
        for spec in self.registry.of_type(encoder_type, self._allowed(wanted)):
            try:
                samples = self.registry.count(spec)["train"]
            except (SampleError, SpecError) as error:
                logger.warning("task %s cannot be counted: %s", spec.name, error)
                problems[spec.name] = error if isinstance(error, SampleError) else SampleError(error.message, hint=error.hint)
                continue
            if samples:
                counts.append(
                    TaskCount(
                        task=spec.name, head=spec.head, metric=spec.measure, higher_is_better=spec.higher_is_better, samples=samples
                    )
                )
        return counts, problems

    def _offered(self, instruction: Instruction) -> str:
        """What is here in the place of the tasks that a job asks for."""
        types = self.registry.types()
        if instruction.tasks and instruction.encoder.type in types:
            return f"none for the tasks {', '.join(instruction.tasks)} of the job."
        return f"tasks of type {', '.join(types) or 'none'}."

    def _allowed(self, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
        """The tasks that both the job and the site's policy allow; None: all."""
        mine = self.settings.policy.tasks
        if wanted and mine:
            return tuple(task for task in wanted if task in mine)
        return wanted or mine or None

    # -- initial set -> update -----------------------------------------------------------------------------------------------

    def _update(self, message: InitialSet, attachment: bytes | None) -> Answer:
        key = (message.job, message.round, message.base.digest)
        store = self._store(message.encoder.name)
        sent = store.sent(key)
        if sent is None or not _whole(self.home.updates / str(sent["digest"])):
            store.turn_to(key)
            sent = self._train(message, attachment, store)
        update = Update.of_table(dict(sent))
        path = self.home.updates / update.digest
        if message.transfer == "inline":
            return update, path.read_bytes()
        self.transfer.send(path, update.digest, message.upload_token)
        return update, None

    def _train(self, message: InitialSet, attachment: bytes | None, store: PrivateStore) -> Mapping[str, object]:
        """Train on the initial set; the update's file and the private state are on disk when this returns."""
        started = time.perf_counter()
        server = None if message.control is None else self.sets.get(message.control, None, message.control_token, None)
        base_path = self.sets.get(message.base, message.delta, message.token, attachment, self.site.maker(message.encoder))
        store.note_set(message.base.digest)
        encoder = self.site.encoder(message.encoder)
        plan = self.site.plan(message.plan)
        names = [task.task for task in self._count(message.encoder.type, message.tasks)[0]]
        if not names:
            raise RefusedValue(Reason.NO_SAMPLES, "samples should be here as they were when confirmed, found none.")
        tasks = self.site.tasks(encoder, self.registry.of_type(message.encoder.type, tuple(names)), plan)
        with SetFile(base_path) as base:
            encoder.load_shared(base.read)
            private = store.load()
            body.load(encoder, private)
            load_heads(tasks, private)
            control = Control(message.job, server, private) if plan.corrected else None
            trained = train(
                encoder,
                tasks,
                plan,
                private,
                correction=control.correction(encoder) if control else None,
                clock=self.clock,
                lease=self.settings.batch_lease,
                stopping=self.stopping,
                progress=self.progress,
            )
            after = body.kept(trained.private, encoder)
            if control is not None:
                after = control.kept(after, encoder, base.read, trained.steps * plan.learning_rate)
            with store.owed(message.job) as owed:
                update = self._write(message, encoder, base, trained, time.perf_counter() - started, owed)
                with self._left(update, encoder, base, owed) as left:
                    store.save((message.job, message.round, message.base.digest), after, update.table(), left)
        keep_newest(self.home.updates, KEPT_UPDATES, {update.digest})
        return update.table()

    def _write(
        self,
        message: InitialSet,
        encoder: Encoder,
        base: SetFile,
        trained: Trained,
        seconds: float,
        owed: Owed | None = None,
    ) -> Update:
        beside = self.home.updates / ".new"
        codecs.encode(beside, message.codec, base, encoder.read_shared, encoder.factors(), owed=owed, durable=False)
        digest, size = sha256_file(beside), beside.stat().st_size
        beside.replace(self.home.updates / digest)
        return Update(
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

    @contextmanager
    def _left(self, update: Update, encoder: Encoder, base: SetFile, owed: Owed | None) -> Iterator[Owed | None]:
        """What is owed after an update; it is computed as it is read, while the encoder stands as it was sent."""
        with SetFile(self.home.updates / update.digest) as wire:
            decoder = codecs.Decoder(wire, update.codec, base)
            yield codecs.left(decoder, encoder.read_shared, owed, encoder.factors())

    # -- report request -> report --------------------------------------------------------------------------------------------

    def _report(self, message: ReportRequest, attachment: bytes | None) -> Report:
        started = time.perf_counter()
        store = self._store(message.encoder.name)
        store.commit(message.job, message.round)
        path = self.sets.get(message.target, message.delta, message.token, attachment)
        store.note_set(message.target.digest)
        scores: list[Score] = []
        alone: tuple[Score, ...] = ()
        if self.settings.policy.report:
            encoder = self.site.encoder(message.encoder)
            with SetFile(path) as target:
                encoder.load_shared(target.read)
            private = store.load()
            body.load(encoder, private)
            rows = {task.task: task.samples for task in self._count(message.encoder.type, message.tasks)[0]}
            tasks = self.site.tasks(encoder, self.registry.of_type(message.encoder.type, tuple(rows)), None)
            load_heads(tasks, private)
            if message.settle is not None:
                self._settle(message, encoder, tasks, store)
            scores = self.site.scores(encoder, tasks, message.splits)
            alone = References(self.home, message.encoder.name).beside(scores, rows)
        return Report(
            job=message.job,
            round=message.round,
            child=self.name,
            target=message.target.digest,
            scores=tuple(scores),
            alone=alone,
            seconds=time.perf_counter() - started,
        )

    def _settle(self, message: ReportRequest, encoder: Encoder, tasks: Mapping[str, LocalTask], store: PrivateStore) -> None:
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

    # -- shared --------------------------------------------------------------------------------------------------------------

    def _store(self, encoder: str) -> PrivateStore:
        if encoder not in self._stores:
            self._stores[encoder] = PrivateStore(self.home.private / encoder)
        return self._stores[encoder]

    def _failure(self, reason: Reason, detail: str) -> Failure:
        return Failure(child=self.name, reason=reason, detail=detail)


def _whole(update: Path) -> bool:
    """Whether an update that was made before lies here as it was: not being flushed to the disk, it may not survive a power cut."""
    return update.exists() and sha256_file(update) == update.name


def open_child(home: Path, transfer: Transfer | None = None, *, name: str | None = None, clock: Clock | None = None) -> Child:
    """The child whose folder this is.

    :param transfer: None: over the HTTPS API of the master that the child enrolled with.
    :param name: None: as enrolled.
    :raises NotFound: nobody enrolled there, and `transfer` or `name` is missing.
    """
    folder = ChildHome(home)
    settings = load_settings(ChildSettings, folder.settings, "TRUNKLINE_CHILD")
    if transfer is None or name is None:
        from child.identity import Identity  # only where there is a master to talk to

        identity = Identity.read(folder.existing())
        transfer, name = transfer or identity.api(clock or SystemClock()), name or identity.name
    return Child(name, folder, settings, transfer, clock=clock)
