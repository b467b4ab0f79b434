"""What the ledger has on how tasks get on with each other."""

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from master.ledger import Ledger
from master.ledger_reader import JobReader
from master.records import Round
from master.sharing import gains
from master.sharing.advice import advise
from master.sharing.gains import Gain
from master.sharing.together import together

LATE, WINDOW = 2 / 3, 3
"""Losses are looked for in the last third of a job's rounds, the newest three of them. Before, the encoder has not been trained for
as long as the reference was, and every task would seem to lose.
"""


def gains_of(reader: JobReader, number: int, split: str = "validation") -> list[Gain]:
    """What each task gained in a round."""
    margin = reader.job.spec.get("alarm", {}).get("margin", gains.MARGIN)
    return gains.gains([row.report for row in reader.reports(number)], split, margin)


def hurt_in(reader: JobReader, round_: Round, wanted: int, *, last: bool = False) -> list[Gain]:
    """The tasks that sharing hurts, as it stands in a round.

    :param wanted: rounds that the job asks for.
    :param last: no round follows.
    """
    numbers = reader.fused(round_.number + 1)
    late = numbers[max(0, ceil(LATE * wanted) - 1) :]  # the last third, as far as it has been played
    if last or round_.reason:
        late = late or numbers[-1:]
    return gains.hurt([gains_of(reader, number) for number in late[-WINDOW:]])


def picture(ledger: Ledger, encoder: str, most: int) -> dict[str, Any]:
    """What `trunkline encoder conflicts` shows: cosines of the tasks over the newest rounds, gains, alarms, advice; JSON data.

    :param most: rounds that are looked at.
    :raises NotFound: no such encoder.
    """
    ledger.encoder(encoder)
    seen: list[tuple[JobReader, Round]] = []
    jobs = {job.id: job for job in ledger.jobs() if job.encoder == encoder}
    for job in jobs.values():
        reader = ledger.reader(job.id)
        seen += [(reader, round_) for round_ in reader.rounds() if round_.target is not None]
    seen = sorted(seen, key=lambda pair: pair[1].opened)[-most:]
    looks = [look for _, round_ in seen if (look := (round_.notes or {}).get("tasks")) is not None]
    found = together(looks)
    gained, hurting = _newest_gains(seen, jobs)
    return {
        "encoder": encoder,
        "rounds": [{"job": one.job, "round": one.number} for _, one in seen],
        **asdict(found),
        "gains": [gain.told() for gain in gained],
        "hurt": [gain.told() for gain in hurting],
        **asdict(advise(found, gained, hurting)),
    }


def _newest_gains(seen: Sequence[tuple[JobReader, Round]], jobs: dict[str, Any]) -> tuple[list[Gain], list[Gain]]:
    """Of the newest round that has any: on both splits where both were told, and the tasks that are hurt."""
    for reader, round_ in reversed(seen):
        told = [gain for split in ("validation", "test") for gain in gains_of(reader, round_.number, split)]
        if told:
            return told, hurt_in(reader, round_, int(jobs[round_.job].spec.get("rounds", 1)))
    return [], []
