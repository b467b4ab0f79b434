"""Work behind the caller's back: in order, never far behind, and never silently lost."""

import threading

import pytest

from trunkline.behind import Behind


def test_everything_is_done_in_order_when_the_block_ends() -> None:
    done: list[int] = []
    with Behind() as behind:
        for number in range(100):
            behind.do(done.append, number)
    assert done == list(range(100))


def test_the_caller_gets_no_further_ahead_than_it_may() -> None:
    """Given work that waits, When as much waits as may, Then the next call waits for the first piece."""
    go, made = threading.Event(), []

    def work() -> None:
        go.wait(10)

    def caller() -> None:
        with Behind(most=2) as behind:
            for number in range(4):
                behind.do(work)
                made.append(number)

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join(0.2)
    assert made == [0, 1] and thread.is_alive()
    go.set()
    thread.join(10)
    assert made == [0, 1, 2, 3]


def fail() -> None:
    raise ValueError("no room")


def test_what_fails_is_told_at_the_end() -> None:
    with pytest.raises(ValueError, match="no room"), Behind() as behind:
        behind.do(fail)


def test_what_fails_is_told_before_much_more_is_asked_for() -> None:
    done: list[int] = []
    with pytest.raises(ValueError, match="no room"), Behind(most=2) as behind:
        behind.do(fail)
        for number in range(10):
            behind.do(done.append, number)
    assert len(done) <= 2


def test_a_caller_that_fails_is_not_outdone() -> None:
    """What the caller raised is what comes out, and nothing goes on afterwards."""
    before = threading.active_count()
    with pytest.raises(KeyError), Behind() as behind:
        behind.do(fail)
        raise KeyError
    assert threading.active_count() == before
