"""What is asked of an answer before it may touch parameters. Each refusal has a reason code that `trunkline round show` tells."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from trunkline.codecs import Decoder, Reach
from trunkline.errors import DamagedFile, Reason, RefusedValue
from trunkline.messages import Confirmation, Report, Update
from trunkline.sets import SetFile

MOST_TASKS = 100
"""Of one child. Tasks are compared pair by pair in every round: thousands would fill the master's memory and its ledger."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a round is waiting for."""

    job: str
    round: int
    base: str  # digest of the initial set
    codec: str
    confirmed: Mapping[str, Mapping[str, int]]  # samples by task, by member
    recorded: Collection[str]  # members whose update is in already


def check_confirmation(confirmation: Confirmation, *, child: str, job: str, number: int) -> None:
    """:raises RefusedValue: `sender`, `round`, `count`, `no_samples`, or the reason the child itself gives."""
    _check_sender(confirmation.child, child)
    _check_round(confirmation.job, confirmation.round, job, number)
    if not confirmation.accepted:
        raise RefusedValue(confirmation.reason or Reason.MALFORMED, confirmation.detail or "the child refused.")
    names = [task.task for task in confirmation.tasks]
    if len(set(names)) != len(names):
        raise RefusedValue(Reason.COUNT, f"each task should be confirmed once, found {', '.join(names)}.")
    if len(names) > MOST_TASKS:
        raise RefusedValue(
            Reason.COUNT,
            f"a child should confirm at most {MOST_TASKS} tasks, found {len(names)}.",
            hint="`tasks` of a job names those that it is about.",
        )
    if not any(task.samples for task in confirmation.tasks):
        raise RefusedValue(Reason.NO_SAMPLES, "a confirmation should count at least one sample, found none.")


def check_speaks(confirmation: Confirmation, least: int) -> None:
    """:raises RefusedValue: `wire`: the child is too old for what the job asks."""
    if confirmation.speaks[1] < least:
        raise RefusedValue(
            Reason.WIRE, f"the child should speak wire version {least} for what the job asks, found up to {confirmation.speaks[1]}."
        )


def check_update(update: Update, *, child: str, expected: Expected) -> None:
    """What can be told from the message alone.

    :raises RefusedValue: `sender`, `round`, `late`, `duplicate`, `base`, `codec`, `count`.
    """
    _check_sender(update.child, child)
    if update.job == expected.job and update.round < expected.round:
        raise RefusedValue(Reason.LATE, f"the update should be of round {expected.round}, found one of round {update.round}.")
    _check_round(update.job, update.round, expected.job, expected.round)
    if child not in expected.confirmed:
        raise RefusedValue(Reason.SENDER, f"{child} should be a member of round {expected.round}, found that it is not.")
    if child in expected.recorded:
        raise RefusedValue(Reason.DUPLICATE, f"{child} should send one update, found a second.")
    if update.base != expected.base:
        raise RefusedValue(Reason.BASE, f"the update should start from {expected.base[:12]}, found {update.base[:12]}.")
    if update.codec != expected.codec:
        raise RefusedValue(Reason.CODEC, f"the update should be in {expected.codec}, found {update.codec}.")
    _check_counts(update, expected.confirmed[child])


def check_file(update: Update, path: Path, base: SetFile, reach: Reach) -> None:
    """What can be told from the bytes: size, header, names, shapes, dtypes, finite after decoding.

    :param reach: of the base, see `trunkline.codecs.Decoder.check_finite`.
    :raises RefusedValue: `size`, `damaged`, `names`, `shape`, `dtype`, `not_finite`.
    """
    size = path.stat().st_size
    if size != update.size:
        raise RefusedValue(Reason.SIZE, f"the update should have {update.size} bytes as it says, found {size}.")
    try:
        with SetFile(path) as wire:
            Decoder(wire, update.codec, base).check_finite(reach)
    except DamagedFile as error:
        raise RefusedValue(Reason.DAMAGED, error.message) from None


def check_report(report: Report, *, child: str, job: str, number: int, target: str) -> None:
    """:raises RefusedValue: `sender`, `round`, `base`."""
    _check_sender(report.child, child)
    _check_round(report.job, report.round, job, number)
    if report.target != target:
        raise RefusedValue(Reason.BASE, f"the report should be on {target[:12]}, found {report.target[:12]}.")


def _check_sender(said: str, child: str) -> None:
    if said != child:
        raise RefusedValue(Reason.SENDER, f"the sender should be {child}, found a message that says {said}.")


def _check_round(job: str, number: int, wanted_job: str, wanted: int) -> None:
    if (job, number) != (wanted_job, wanted):
        raise RefusedValue(Reason.ROUND, f"the answer should be of job {wanted_job}, round {wanted}, found {job}, round {number}.")


def _check_counts(update: Update, confirmed: Mapping[str, int]) -> None:
    strange = sorted((set(update.samples) | set(update.applied)) - set(confirmed))
    if strange:
        raise RefusedValue(Reason.COUNT, f"the update should count confirmed tasks, found {', '.join(strange)}.")
    for task, samples in update.samples.items():
        if samples > confirmed[task]:
            raise RefusedValue(
                Reason.COUNT, f"{task} should have at most the {confirmed[task]} samples confirmed, found {samples}."
            )
        if samples > update.applied.get(task, 0):
            raise RefusedValue(
                Reason.COUNT, f"{task} should have applied its {samples} samples, found {update.applied.get(task, 0)} deliveries."
            )
