"""The doorbell on Celery as it is installed: what is set holds, a message is small, nothing piles up, and a station answers."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from queues import doorbell
from queues.doorbell import MESSAGE_LIMIT, MOST, broker_of, check_pool, effective_visibility, make_app, ring, waiting
from queues.embedded import EmbeddedServer
from queues.stream.station import SILENCE, Station
from queues.stream.worker import PATIENCE
from tests.support import small_stream
from tests.support.streams import KINDS, client
from trunkline.errors import Fenced, NotFound, SettingsError, Unreachable

pytestmark = pytest.mark.contract

Make = Callable[..., Celery]


@pytest.fixture(params=KINDS)
def redis(request: pytest.FixtureRequest) -> EmbeddedServer:
    found: EmbeddedServer = request.getfixturevalue(f"{request.param}_server")
    client(found).flushall()
    return found


@pytest.fixture
def make(redis: EmbeddedServer) -> Iterator[Make]:
    apps: list[Celery] = []

    def made(stream: str = "reviews", **options: Any) -> Celery:
        apps.append(make_app(broker_of(redis.url), stream, **options))
        return apps[-1]

    yield made
    for app in apps:
        app.close()


@pytest.fixture(autouse=True)
def _not_told_to_stop() -> Iterator[None]:
    yield
    state.should_stop = state.should_terminate = None


def keys(redis: EmbeddedServer) -> dict[str, Any]:
    """All that the broker holds, by its name; lists with what is in them."""
    connection = client(redis, f"{redis.url}?db=1")
    found = {key.decode(): connection.type(key) for key in connection.keys("*")}
    return {key: connection.lrange(key, 0, -1) if kind == b"list" else None for key, kind in found.items()}


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_is_under_a_kilobyte_and_says_the_stream_only(redis: EmbeddedServer, make: Make) -> None:
    name = "s" * 64  # the longest there is
    ring(make(name))
    (message,) = keys(redis)[f"trunkline:{name}:celery:doorbell"]
    assert len(message) < MESSAGE_LIMIT


def test_doorbells_do_not_pile_up(make: Make) -> None:
    app = make()
    assert [ring(app, 1), ring(app, 1)] == [1, 0]
    assert ring(app, 3) == 2
    assert ring(app, 1000) == MOST - 3
    assert ring(app, 1000) == 0
    assert waiting(app) == MOST


def test_all_keys_are_the_streams_own_and_two_streams_hear_nothing_of_each_other(redis: EmbeddedServer, make: Make) -> None:
    first, second = make("first"), make("second")
    ring(first, 2)
    assert (waiting(first), waiting(second)) == (2, 0)
    assert all(key.startswith(("trunkline:first:celery:", "trunkline:second:celery:")) for key in keys(redis))
    assert client(redis).dbsize() == 0  # the queues have the other database to themselves


def test_a_message_cannot_be_told_to_wait_and_is_no_pickle(make: Make) -> None:
    app = make()
    assert app.conf.accept_content == ["json"]
    assert (app.conf.task_serializer, app.conf.event_serializer) == ("json", "json")
    assert app.conf.beat_schedule == {}
    names = [name for name in app.tasks if not name.startswith("celery.")]
    assert names == [doorbell.TASK]


def test_nothing_of_a_producer_listens_for_results(redis: EmbeddedServer, make: Make) -> None:
    app = make()
    before = len(client(redis).client_list())
    for _ in range(20):
        ring(app, MOST)
        client(redis, f"{redis.url}?db=1").flushdb()
    assert app.conf.result_backend is None
    assert len(client(redis).client_list()) <= before + 3 + 20  # 20 are the clients of this test


# -- settings ----------------------------------------------------------------------------------------------------------


def test_what_is_set_holds(make: Make) -> None:
    app = make(visibility=7.0)
    conf = app.conf
    assert effective_visibility(app) == 7.0
    assert conf.visibility_timeout == conf.result_backend_transport_options["visibility_timeout"] == 7.0
    assert conf.task_acks_late
    assert conf.task_ignore_result
    assert (conf.worker_prefetch_multiplier, conf.worker_disable_prefetch, conf.worker_pool) == (1, True, "solo")
    assert conf.worker_soft_shutdown_timeout > 0
    assert (conf.task_time_limit, conf.task_soft_time_limit) == (None, None)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        options = channel.client.connection_pool.connection_kwargs
        assert (channel.unacked_restore_interval, channel.unacked_restore_throttle) == (5, 1)
        assert (options["socket_timeout"], options["health_check_interval"], options["db"]) == (doorbell.SOCKET_TIMEOUT, 25, 1)


@pytest.mark.parametrize(
    ("redis_url", "broker"),
    [
        ("unix:///run/a%20b/redis.sock", "redis+socket:///run/a%20b/redis.sock?virtual_host=1"),
        ("unix://user:word@/run/redis.sock?db=3", "redis+socket://user:word@/run/redis.sock?virtual_host=3"),
        ("redis://user:word@host:6379/2", "redis://user:word@host:6379/2"),
        ("rediss://host", "rediss://host"),
        ("redis+socket:///run/redis.sock?virtual_host=1", "redis+socket:///run/redis.sock?virtual_host=1"),
    ],
)
def test_celerys_address_of_a_redis(redis_url: str, broker: str) -> None:
    assert broker_of(redis_url) == broker


@pytest.mark.parametrize("pool", ["celery.concurrency.prefork", "celery.concurrency.eventlet", "celery.concurrency.gevent"])
def test_a_pool_that_forks_is_refused(pool: str) -> None:
    with pytest.raises(SettingsError, match="should be solo or threads"):
        check_pool(pool)


@pytest.mark.filterwarnings("ignore:You.re running the worker with superuser")
def test_a_worker_whose_pool_forks_does_not_start(make: Make) -> None:
    app = make(station=station()[0])
    with pytest.raises(SettingsError, match="found prefork"):
        app.Worker(pool="prefork", quiet=True)


def test_a_broker_that_is_not_there_is_told(tmp_path: Path) -> None:
    app = make_app(broker_of(f"unix://{tmp_path}/none.sock"), "reviews")
    for look in (ring, waiting, effective_visibility):
        with pytest.raises(Unreachable, match="broker of the doorbell should answer"):
            look(app)
    app.close()


def test_a_broker_that_comes_back_is_heard_again(redis: EmbeddedServer, make: Make) -> None:
    app = make()
    ring(app)
    redis.stop()
    with pytest.raises(Unreachable):
        ring(app, 2)
    redis.start()
    end = time.monotonic() + 20
    while True:
        try:
            ring(app, 2)
            break
        except Unreachable:  # the first call may still find the old connection
            assert time.monotonic() < end
    assert waiting(app) == 2


def test_a_broker_whose_memory_is_full_is_told_and_recovers(redis: EmbeddedServer, make: Make) -> None:
    app = make()
    ring(app)
    connection = client(redis)
    connection.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unreachable, match="maxmemory"):
            ring(app, 2)
    finally:
        connection.config_set("maxmemory", 0)
    assert ring(app, 2) == 1


def test_the_page_tells_of_the_numbers_that_are_set() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "workers.md").read_text(encoding="utf-8")
    assert f"for {SILENCE:g} s looks by itself" in page
    assert f"| {doorbell.VISIBILITY:g} s |" in page
    assert f"less than {MESSAGE_LIMIT >> 10} KB" in page
    assert f"tries for {PATIENCE:g} s" in page


# -- the station -------------------------------------------------------------------------------------------------------


class Drainer:
    """Stands for a worker; says what it is told to."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers, self.calls, self.together, self.now = list(answers), 0, 0, 0

    def drain(self, stopping: Callable[[], bool], seconds: float) -> int:
        self.calls += 1
        self.now += 1
        self.together = max(self.together, self.now)
        time.sleep(0.01)
        self.now -= 1
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def station(*answers: int | Exception, silence: float = 1000.0, slice: float = 20.0) -> tuple[Station, Drainer]:
    drainer = Drainer(*answers)
    return Station("reviews", lambda: drainer, silence=silence, slice=slice), drainer  # type: ignore[arg-type, return-value]


def test_a_doorbell_drains_and_one_of_another_stream_does_not() -> None:
    found, drainer = station(3)
    assert found.answer("reviews") == 3
    assert found.answer("others") == 0
    assert drainer.calls == 1


def test_one_drain_at_a_time() -> None:
    found, drainer = station()
    threads = [threading.Thread(target=found.answer, args=("reviews",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (drainer.calls, drainer.together) == (8, 1)


def test_the_watchdog_tells_of_what_no_doorbell_told(caplog: pytest.LogCaptureFixture) -> None:
    found, drainer = station(0, 2, silence=0.05)
    thread = threading.Thread(target=found.watch)
    thread.start()
    end = time.monotonic() + 20
    while drainer.calls < 3 and time.monotonic() < end:
        time.sleep(0.01)
    found.close()
    thread.join(20)
    assert not thread.is_alive()
    assert len([record for record in caplog.records if "was one lost" in record.getMessage()]) == 1


def test_a_stream_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    away = Unreachable("it should answer.")
    found, _ = station(away, away, 1)
    assert [found.answer("reviews") for _ in range(3)] == [0, 0, 1]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2  # away, and back
    assert not found.stopping()


@pytest.mark.parametrize("error", [Fenced("another's"), NotFound("gone")])
def test_a_stream_that_went_over_to_another_store_ends_the_worker(error: Exception) -> None:
    found, _ = station(error)
    assert found.answer("reviews") == 0
    assert found.error is error
    assert found.stopping()


def test_what_does_not_fit_in_one_slice_rings_again(make: Make) -> None:
    found, _ = station(1, slice=0.005)
    app = make(station=found)
    found.answer("reviews")
    assert waiting(app) == 1


# -- of a folder -------------------------------------------------------------------------------------------------------


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    home = small_stream.folder(tmp_path / "stream")
    with pytest.raises(Unreachable, match="should have a server that runs"):
        doorbell.station_of(home)


def test_celerys_own_program_finds_the_application(tmp_path: Path, redis: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="TRUNKLINE_STREAM should be the folder"):
        _ = doorbell.app
    home = small_stream.folder(tmp_path / "stream")
    home.write_server({"redis": redis.url, "broker": redis.url})
    monkeypatch.setenv("TRUNKLINE_STREAM", str(home.folder))
    with doorbell.app as app:
        assert ring(app) == 1
    with pytest.raises(AttributeError):
        _ = doorbell.no_such_thing
