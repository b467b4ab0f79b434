"""A message of ours inside a Flower message: one record, which holds the JSON and, where it travels inline, a parameter set."""

import logging
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from google.protobuf.message import DecodeError

from trunkline.values import ATTACHMENT, RECORD, TEXT

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message from the master."""

    run_id: int
    message_id: str
    kind: str  # query | train | evaluate
    text: str  # ours, as JSON; empty where the message was not of ours
    attachment: bytes | None
    created: float  # seconds since the epoch, by the master's clock
    ttl: float  # seconds from then on in which an answer counts
    received: float  # seconds, by this side's monotonic clock
    header: Any  # Flower's own message without its content


def pack(text: str, attachment: bytes | None) -> RecordDict:
    """A message of ours as the content of a Flower message."""
    fields: dict[str, str | bytes] = {TEXT: text}
    if attachment is not None:
        fields[ATTACHMENT] = attachment
    return RecordDict({RECORD: ConfigRecord(fields)})  # type: ignore[arg-type]


def unpack(content: RecordDict) -> tuple[str, bytes | None]:
    """Our message in the content of a Flower message; an empty text where there is none, which then reads as malformed."""
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        return "", None
    text, attachment = record.get(TEXT), record.get(ATTACHMENT)
    return text if isinstance(text, str) else "", attachment if isinstance(attachment, bytes) else None


def record_first(message: Message) -> list[str]:
    """The ids of the parts of a message of ours, in the order in which they are sent: the other side waits for the record only."""
    content = message.content
    return [content[RECORD].object_id, content.object_id, message.metadata.message_id]


def record_id(tree: ObjectTree) -> str | None:
    """The id of the one record in a message of ours, which is all of it that is fetched: the rest is known from the header. None
    where the message has another form; whatever a foreign message holds is not fetched.
    """
    for _ in range(2):  # from the message to its content, from there to the record
        if len(tree.children) != 1:
            return None
        tree = tree.children[0]
    return None if tree.children else tree.object_id


def open_record(content: bytes) -> tuple[str, bytes | None]:
    """Our text and attachment in a record as Flower writes it."""
    try:
        return unpack(RecordDict({RECORD: ConfigRecord.inflate(content)}))
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        logger.warning("a message that cannot be read: %r", error)
        return "", None
