"""What a child answers to each message of a round: one object for the warm agent, the stock ClientApp and the in-process link."""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from child import body, policy, streamed
from child.counting import Counter
from child.home import ChildHome
from child.machine import describe
from child.references import References
from child.registry import Registry
from child.sets import SetCache
from child.settings import ChildSettings, load
from child.site import Site
from child.state import PrivateStore
from child.train import load_heads
from child.trainer import Trainer
from child.transfer import Transfer
from tasks.step import memory_ran_out
from trunkline.clock import Clock, SystemClock
from trunkline.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    Reason,
    RefusedValue,
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

logger = logging.getLogger(__name__)

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
        self.counter = Counter(self.registry, settings.policy)
        self.trainer = Trainer(self.name, self.home, settings, self.site, self.clock, self.stopping, self.progress)

    def counted(self) -> tuple[list[TaskCount], list[str]]:
        """See `Counter.all`."""
        return self.counter.all()

    def store(self, encoder: str) -> PrivateStore:
        """What is private to this site for one encoder, by its name."""
        if encoder not in self._stores:
            self._stores[encoder] = PrivateStore(self.home.private / encoder, self.home.master)
        return self._stores[encoder]

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
            counts, errors = self.counter.count(instruction.encoder.type, instruction.tasks)
            problems = [f"task {task}: {error.public}" for task, error in errors.items()]
            if not counts:
                found = " ".join(problems) or self.counter.offered(instruction)
                raise RefusedValue(Reason.NO_SAMPLES, f"samples of type {instruction.encoder.type!r} should be here, found {found}")
            if instruction.encoder.manifest in self._without_code:
                self.site.encoder(instruction.encoder)  # it may have come since
                self._without_code.discard(instruction.encoder.manifest)
        except RefusedValue as error:
            return self._confirmation(instruction, accepted=False, reason=error.reason, detail=error.message)
        if (stream := self.counter.stream(instruction.encoder.type, instruction.tasks)) is not None:
            confirmed = {count.task: count.samples for count in counts}
            streamed.note_confirmed(self.home, stream, instruction.job, instruction.round, confirmed)
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

    # -- initial set -> update -----------------------------------------------------------------------------------------------

    def _update(self, message: InitialSet, attachment: bytes | None) -> Answer:
        key = (message.job, message.round, message.base.digest)
        store = self.store(message.encoder.name)
        sent = store.sent(key)
        if sent is None or not _whole(self.home.updates / str(sent["digest"])):
            store.turn_to(key)
            sent = self._train(message, attachment, store).table()
        update = Update.of_table(dict(sent))
        path = self.home.updates / update.digest
        if message.transfer == "inline":
            return update, path.read_bytes()
        self.transfer.send(path, update.digest, message.upload_token, check=False)  # it was hashed just now
        return update, None

    def _train(self, message: InitialSet, attachment: bytes | None, store: PrivateStore) -> Update:
        base, delta, control = message.base, message.delta, message.control
        needed = {base.digest} | ({delta.held} if delta else set()) | ({control.digest} if control else set())
        variate = None if control is None else self.sets.get(control, None, message.control_token, None, spare=needed)
        initial = self.sets.get(base, delta, message.token, attachment, self.site.maker(message.encoder), spare=needed)
        store.note_set(message.base.digest)
        if (stream := self.counter.stream(message.encoder.type, message.tasks)) is not None:
            player = streamed.Player(self.home, stream, self.clock, self.settings.stream_seconds, self.stopping)
            return self.trainer.take_over(message, initial, player.play(message, initial), stream, store)
        names = tuple(task.task for task in self.counter.count(message.encoder.type, message.tasks)[0])
        if not names:
            raise RefusedValue(Reason.NO_SAMPLES, "samples should be here as they were when confirmed, found none.")
        specs = self.registry.of_type(message.encoder.type, names)
        return self.trainer.update(message, initial, variate, specs, store)

    # -- report request -> report --------------------------------------------------------------------------------------------

    def _report(self, message: ReportRequest, attachment: bytes | None) -> Report:
        started = time.perf_counter()
        store = self.store(message.encoder.name)
        store.commit(message.job, message.round)
        path = self.sets.get(message.target, message.delta, message.token, attachment)
        store.note_set(message.target.digest)
        scores: list[Score] = []
        alone: tuple[Score, ...] = ()
        stream = self.counter.stream(message.encoder.type, message.tasks)
        if stream is not None and self.settings.policy.report:
            scores = self._heldout(message, path, stream, store)
        elif stream is None and (self.settings.policy.report or message.settle is not None):
            encoder = self.site.encoder(message.encoder)
            with SetFile(path) as target:
                encoder.load_shared(target.read)
            private = store.load()
            body.load(encoder, private)
            rows = {task.task: task.samples for task in self.counter.count(message.encoder.type, message.tasks)[0]}
            tasks = self.site.tasks(encoder, self.registry.of_type(message.encoder.type, tuple(rows)), None)
            load_heads(tasks, private)
            self.trainer.settle(message, encoder, tasks, store)
            if self.settings.policy.report:
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

    def _heldout(self, message: ReportRequest, target: Path, stream: str, store: PrivateStore) -> list[Score]:
        """Scores of tasks that learn from a stream, on the held-out rows of its declaration, which count as validation."""
        if "validation" not in message.splits:
            return []
        encoder, private = self.site.encoder(message.encoder), store.load()
        with SetFile(target) as file:
            encoder.load_shared(file.read)
        body.load(encoder, private)
        tasks = self.site.tasks(encoder, streamed.heldout(self.home, stream, self.registry.of_type(message.encoder.type)), None)
        load_heads(tasks, private)
        scores = self.site.scores(encoder, tasks, ("train",))  # a table's rows are one split, which is called that
        return [score.model_copy(update={"split": "validation"}) for score in scores]

    # -- shared --------------------------------------------------------------------------------------------------------------

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
    settings = load(folder.settings)
    if transfer is None or name is None:
        from child.identity import Identity  # only where there is a master to talk to

        identity = Identity.read(folder.existing())
        transfer, name = transfer or identity.api(clock or SystemClock()), name or identity.name
    return Child(name, folder, settings, transfer, clock=clock)
