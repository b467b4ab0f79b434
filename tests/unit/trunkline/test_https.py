"""Tries end, pauses are jittered and bounded, and what cannot get better is not tried again. No socket is opened here."""

import random
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from master import pki
from trunkline.clock import ManualClock
from trunkline.connections import Connections, split_url
from trunkline.errors import Conflict, DamagedFile, NotAuthorized, TrunklineError, Unreachable, UsageError
from trunkline.https import Https, Patience


def https(clock: ManualClock, seed: int = 0, **patience: float) -> Https:
    return Https("https://127.0.0.1:1", None, "token", clock, random.Random(seed), Patience(**patience))


def failing(
    error: TrunklineError, calls: list[float], clock: ManualClock, takes: float = 0.0, until: int = 10**9
) -> Callable[[], str]:
    def once() -> str:
        calls.append(clock.monotonic())
        clock.seconds += takes
        if len(calls) > until:
            return "done"
        raise error

    return once


def test_it_gives_up_after_its_patience_and_says_what_it_tried() -> None:
    clock, calls = ManualClock(0.0), list[float]()
    with pytest.raises(Unreachable, match=r"Tried to call for 120 s\.") as caught:
        https(clock, progress=120.0).tried(failing(Unreachable("nobody there.", hint="h"), calls, clock), "to call")
    assert caught.value.hint == "h"
    assert 120.0 <= clock.monotonic() < 121.0 and 10 < len(calls) < 60


@pytest.mark.parametrize("seed", range(20))
def test_pauses_double_with_jitter_up_to_the_longest(seed: int) -> None:
    clock = ManualClock()
    with pytest.raises(Unreachable):
        https(clock, seed, progress=300.0, first_pause=0.1, longest_pause=8.0).tried(failing(Unreachable("x"), [], clock), "x")
    expected = 0.1
    for pause in clock.slept[:-1]:
        assert 0.5 * expected <= pause <= 1.5 * expected
        expected = min(2 * expected, 8.0)


def test_two_hundred_callers_do_not_come_back_together() -> None:
    """Given a master that was away, When 200 agents come back, Then their third tries spread over more than their pause."""
    times = []
    for seed in range(200):
        clock, calls = ManualClock(0.0), list[float]()
        https(clock, seed, first_pause=1.0).tried(failing(Unreachable("x"), calls, clock, until=2), "x")
        times.append(calls[2])
    spread = sorted(times)
    assert spread[180] - spread[20] > 1.0
    assert max(sum(start <= other < start + 0.1 for other in spread) for start in spread) < 40


@pytest.mark.parametrize("error", [NotAuthorized("no"), Conflict("no"), UsageError("no"), DamagedFile("no")])
def test_what_cannot_get_better_is_not_tried_again(error: TrunklineError) -> None:
    clock, calls = ManualClock(), list[float]()
    with pytest.raises(type(error)):
        https(clock).tried(failing(error, calls, clock), "x")
    assert len(calls) == 1 and clock.slept == []


def test_a_gain_buys_time() -> None:
    """Given a try that gains something every 50 s, Then 120 s of patience last for as long as it gains."""
    clock, calls = ManualClock(0.0), list[float]()
    once = failing(Unreachable("x"), calls, clock, takes=50.0, until=20)
    assert https(clock, progress=120.0).tried(once, "x", lambda: min(len(calls), 10**9)) == "done"
    assert clock.monotonic() > 1_000
    clock, calls = ManualClock(0.0), list[float]()
    once = failing(Unreachable("x"), calls, clock, takes=50.0)
    with pytest.raises(Unreachable):
        https(clock, progress=120.0).tried(once, "x", lambda: min(len(calls), 5))
    assert 5 * 50 + 120 <= clock.monotonic() <= 5 * 50 + 220


def test_no_patience_is_one_try() -> None:
    clock, calls = ManualClock(), list[float]()
    with pytest.raises(Unreachable):
        https(clock, progress=0.0).tried(failing(Unreachable("x"), calls, clock), "x")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://m.example:8440", ("m.example", 8440)),
        ("https://m.example", ("m.example", 443)),
        ("https://[::1]:8440", ("::1", 8440)),
        ("https://10.0.0.7:1/", ("10.0.0.7", 1)),
    ],
)
def test_an_address(url: str, found: tuple[str, int]) -> None:
    assert split_url(url) == found


@pytest.mark.parametrize("url", ["", "m.example:8440", "http://m.example", "https://", "https://m:x", "https://m:99999", "ftp://m"])
def test_what_is_no_address_says_how_one_looks(url: str) -> None:
    with pytest.raises(UsageError, match=r"https://master\.example:8440"):
        split_url(url)


@pytest.mark.parametrize("ca", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_an_authority_that_is_none(ca: str) -> None:
    with pytest.raises(DamagedFile, match="authority"):
        Https("https://127.0.0.1:1", ca, None, ManualClock(), random.Random(0))


def test_a_client_trusts_one_authority_and_no_other(tmp_path: Path) -> None:
    tls = pki.ensure(tmp_path, ["localhost"], 1_700_000_000.0)
    context = Connections("https://127.0.0.1:1", tls.ca.read_text(), 1.0)._context
    assert [one["subject"][0][0][1] for one in context.get_ca_certs()] == ["Trunkline master authority"]
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
