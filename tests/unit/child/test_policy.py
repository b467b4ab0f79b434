"""A site's policy decides on an instruction, line by line; its hours are the site's own."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from child import policy
from child.handlers import Child
from child.home import ChildHome
from child.registry import Registry
from child.settings import ChildSettings, Policy
from child.transfer import FolderTransfer
from tests.support.world import sentiment, write_reviews
from trunkline.clock import ManualClock
from trunkline.errors import Reason, RefusedValue, SettingsError
from trunkline.messages import Confirmation, EncoderRef, Instruction, Plan, SetRef
from trunkline.settings import build

NIGHT, DAY = ("22:00", "06:00"), ("08:00", "17:30")


def instruction(**change: object) -> Instruction:
    encoder = EncoderRef(name="reviews", type="text", manifest="a" * 64)
    plain = {"job": "nightly-1", "round": 1, "encoder": encoder, "base": SetRef(digest="b" * 64, size=1, version=1)}
    return Instruction.model_validate(plain | {"plan": Plan(steps=20, total_steps=40)} | change)


def policy_of(**lines: object) -> Policy:
    return build(Policy, lines, "the policy")


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-01T{time}")


@pytest.mark.parametrize(
    ("hours", "accepted", "refused"),
    [
        (NIGHT, ["22:00", "23:59:59", "00:00", "05:59:59"], ["06:00", "12:00", "21:59:59"]),
        (DAY, ["08:00", "12:00", "17:29:59"], ["17:30", "00:00", "07:59:59", "23:59"]),
        (("09:00", "00:00"), ["09:00", "23:59:59"], ["00:00", "08:59"]),
        (("00:00", "00:01"), ["00:00", "00:00:59"], ["00:01", "23:59"]),
    ],
)
def test_the_first_minute_is_in_and_the_last_is_out(hours: tuple[str, str], accepted: list[str], refused: list[str]) -> None:
    mine = policy_of(hours=hours)
    for time_ in accepted:
        policy.check(mine, instruction(), at(time_))
    for time_ in refused:
        with pytest.raises(RefusedValue, match=rf"accepts `hours` {hours[0]} to {hours[1]}, found {time_[:5]}\.") as caught:
            policy.check(mine, instruction(), at(time_))
        assert caught.value.reason is Reason.POLICY


@pytest.mark.parametrize("hours", [NIGHT, DAY, ("13:07", "13:08")])
def test_a_span_and_its_opposite_share_the_day(hours: tuple[str, str]) -> None:
    minutes = [(datetime(2026, 1, 1) + timedelta(minutes=number)).strftime("%H:%M") for number in range(24 * 60)]
    assert all(policy.within(hours, minute) != policy.within((hours[1], hours[0]), minute) for minute in minutes)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Sets the time zone of this process, and puts it back."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("name", "accepted"), [("UTC", False), ("Asia/Tokyo", True), ("America/Los_Angeles", False)])
def test_the_hours_are_those_of_the_sites_own_clock(zone: pytest.MonkeyPatch, tmp_path: Path, name: str, accepted: bool) -> None:
    """Given three sites that are open at night, When it is 15:00 UTC, Then only the one where it is midnight takes part."""
    zone.setenv("TZ", name)
    time.tzset()
    clock = ManualClock(datetime.fromisoformat("2026-03-01T15:00+00:00").timestamp())
    settings = ChildSettings(policy=policy_of(hours=NIGHT))
    answer, _ = Child("amy", ChildHome(tmp_path), settings, NOWHERE, clock=clock).answer(instruction())
    assert isinstance(answer, Confirmation)
    # Nothing is declared here, so a policy that accepts leads on to that.
    assert (answer.accepted, answer.reason) == (False, Reason.NO_SAMPLES if accepted else Reason.POLICY)


NOWHERE = FolderTransfer(
    lambda digest: Path(digest), lambda path, digest, grant: None, lambda grant, digest: None, lambda digest: False, lambda *_: {}
)
"""No byte is asked for before an instruction is accepted."""


@pytest.mark.parametrize(
    ("lines", "change", "said"),
    [
        ({"encoders": ["mail"]}, {}, "`encoders` mail, found reviews"),
        ({"types": ["image"]}, {}, "`types` image, found text"),
        ({"codecs": ["float32"]}, {"codec": "bf16"}, "`codecs` float32, found bf16"),
        ({"codecs": ["float32", "int8"]}, {"codec": "topk:share=0.05"}, "`codecs` float32, int8, found topk"),
        ({"transfers": ["blob"]}, {"transfer": "inline"}, "`transfers` blob, found inline"),
        ({"jobs": ["weekly-*", "test"]}, {}, r"`jobs` weekly-\*, test, found nightly-1"),
        ({"most_steps": 19}, {}, "`most_steps` at most 19, found 20"),
    ],
)
def test_each_line_refuses_what_it_does_not_name(lines: dict[str, object], change: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedValue, match=f"this site's policy accepts {said}"):
        policy.check(policy_of(**lines), instruction(**change), at("12:00"))


def test_what_the_lines_name_is_accepted() -> None:
    lines = {"encoders": ["reviews"], "types": ["text"], "codecs": ["float32"], "transfers": ["blob"], "jobs": ["nightly-*"]}
    policy.check(policy_of(**lines, most_steps=20, hours=DAY), instruction(), at("12:00"))
    policy.check(Policy(), instruction(), at("03:00"))


def test_a_codec_is_named_without_its_options() -> None:
    policy.check(policy_of(codecs=["topk", "int4"]), instruction(codec="topk:share=0.05"), at("12:00"))
    with pytest.raises(SettingsError, match="should be one of float32, bf16"):
        policy_of(codecs=["zip"])


def test_a_codec_that_is_not_known_here_is_refused_before_the_training() -> None:
    with pytest.raises(RefusedValue, match=r"`codec` should be one of float32, .*, found 'wavelet'") as caught:
        policy.check(Policy(), instruction(codec="wavelet:level=3"), at("12:00"))
    assert caught.value.reason is Reason.CODEC


@pytest.mark.parametrize("hours", [["08:00", "08:00"], ["24:00", "06:00"], ["8:00", "9:00"], ["08:00"]])
def test_hours_that_are_no_span_are_told_at_once(hours: list[str]) -> None:
    with pytest.raises(SettingsError, match="hours"):
        policy_of(hours=hours)


def test_a_job_for_tasks_that_are_not_here_is_told_so(tmp_path: Path) -> None:
    """Given a site with a task of the type, When a job asks for another task, Then that is named and not the type, which fits."""
    home = ChildHome(tmp_path)
    Registry(home).add(sentiment(write_reviews(tmp_path / "reviews.csv", 20)))
    answer, _ = Child("amy", home, ChildSettings(), NOWHERE).answer(instruction(tasks=("sentimnet",)))
    assert isinstance(answer, Confirmation)
    assert answer.detail == "samples of type 'text' should be here, found none for the tasks sentimnet of the job."
