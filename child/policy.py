"""The site's own say: whether an instruction is accepted here and now."""

from datetime import datetime
from fnmatch import fnmatchcase

from child.settings import Policy
from trunkline import codecs
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.messages import Instruction


def check(policy: Policy, instruction: Instruction, now: datetime) -> None:
    """:raises RefusedValue: `policy`, with the line of the policy that refuses; `codec`: one that is not known here.

    :param now: local time of the site.
    """
    try:
        codec = codecs.find(instruction.codec)
    except SpecError as error:  # now, not after the training
        raise RefusedValue(Reason.CODEC, error.message, hint="Upgrade the child.") from None
    encoder = instruction.encoder
    _among("encoders", policy.encoders, encoder.name)
    _among("types", policy.types, encoder.type)
    _among("codecs", policy.codecs, codec.name)
    _among("transfers", policy.transfers, instruction.transfer)
    if policy.jobs and not any(fnmatchcase(instruction.job, pattern) for pattern in policy.jobs):
        _refuse("jobs", ", ".join(policy.jobs), instruction.job)
    if policy.most_steps is not None and instruction.plan.steps > policy.most_steps:
        _refuse("most_steps", f"at most {policy.most_steps}", str(instruction.plan.steps))
    if policy.hours is not None and not within(policy.hours, now.strftime("%H:%M")):
        _refuse("hours", " to ".join(policy.hours), now.strftime("%H:%M"))


def within(hours: tuple[str, str], time: str) -> bool:
    """Whether a time of day lies in a span, its first minute in and its last out. The span may cross midnight.

    >>> within(("22:00", "06:00"), "23:30"), within(("22:00", "06:00"), "12:00")
    (True, False)
    """
    start, end = hours
    return start <= time < end if start <= end else time >= start or time < end


def _among(key: str, allowed: tuple[str, ...], found: str) -> None:
    if allowed and found not in allowed:
        _refuse(key, ", ".join(allowed), found)


def _refuse(key: str, wanted: str, found: str) -> None:
    raise RefusedValue(Reason.POLICY, f"this site's policy accepts `{key}` {wanted}, found {found}.")
