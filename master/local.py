"""Children in this process: a link for tests, debugging and simulations of thousands.

Messages go through their JSON and back, so what works here works on a wire. A child is anything with `answer`; the real ones are
loaded by the entry point `trunkline.child`, because master and child share values, never code.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from master.link import Outgoing, Reply
from trunkline.clock import Clock, Deadline
from trunkline.errors import NotFound, Reason, TrunklineError
from trunkline.messages import Confirmation, Failure, Message, Report, Update, decode


class Answers(Protocol):
    """A child's side of the link."""

    def answer(self, message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]: ...


class LocalLink:
    """Asks children one after the other, in the order of their names.

    :param children: by name.
    :param debug: let a child's error through, with the message that met it in a note, instead of answering for it.
    """

    def __init__(self, children: Mapping[str, Answers], *, debug: bool = False) -> None:
        self._children, self._debug = dict(children), debug

    def children(self) -> Sequence[str]:
        return sorted(self._children)

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        for name in sorted(messages):
            if deadline.over():
                return
            reply, attachment = self._ask(name, messages[name])
            if isinstance(reply, Confirmation | Update | Report | Failure):
                yield name, reply, attachment

    def _ask(self, name: str, outgoing: Outgoing) -> tuple[Message, bytes | None]:
        text = outgoing.message.encode()
        try:
            reply, attachment = self._children[name].answer(decode(text), outgoing.attachment)
            return decode(reply.encode()), attachment
        except Exception as error:
            if self._debug:
                error.add_note(f"child {name} was answering {text}")
                raise
            reason = Reason.MALFORMED if isinstance(error, TrunklineError) else Reason.INTERNAL
            return Failure(child=name, reason=reason, detail=f"{type(error).__name__}: {error}"), None


class DelayedLink:
    """Children in this process who take time, for simulations of stragglers and of rounds that do not wait for them.

    The clock is one that moves when somebody sleeps on it (`ManualClock`). A child does one thing after the other; as over a
    network, an answer that comes after its exchange has ended is lost, and the child gives it again when it is asked again.

    :param seconds: how long a child takes for a message, by its name and the message.
    """

    def __init__(self, link: LocalLink, clock: Clock, seconds: Callable[[str, Message], float]) -> None:
        self._link, self._clock, self._seconds = link, clock, seconds
        self._last: dict[str, tuple[object, float]] = {}  # what each child was asked last, and when it has done it

    def children(self) -> Sequence[str]:
        return self._link.children()

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        now = self._clock.monotonic()
        answers: list[tuple[float, str, Reply, bytes | None]] = []
        for name, reply, attachment in self._link.exchange(messages, deadline):
            message = messages[name].message
            asked = (message.kind, getattr(message, "job", None), getattr(message, "round", None))
            before, done = self._last.get(name, (None, now))
            done = max(done, now)
            at = done if before == asked else done + self._seconds(name, message)  # the same again takes no longer
            self._last[name] = asked, at
            answers.append((at, name, reply, attachment))
        for at, name, reply, attachment in sorted(answers, key=lambda answer: answer[:2]):
            self._clock.sleep(min(max(0.0, at - self._clock.monotonic()), deadline.left()))
            if self._clock.monotonic() < at:
                return
            yield name, reply, attachment


def child_opener(name: str = "default") -> Callable[..., Any]:
    """What opens a real child in this process, by entry point.

    :raises NotFound: none is installed under this name.
    """
    for entry in entry_points(group="trunkline.child", name=name):
        return entry.load()
    raise NotFound(f"an entry point {name!r} of group `trunkline.child` should be installed, found none.")
