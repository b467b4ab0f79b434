"""Settings are checked when they are made; nothing that would hang or never end is accepted."""

from pathlib import Path

import pytest

from master.settings import MasterSettings, load
from trunkline.errors import SettingsError

WAITS = [name for name in MasterSettings.model_fields if name.endswith("_seconds")]


def test_the_defaults_are_good_and_closed_to_other_machines() -> None:
    settings = load(environ={})
    assert settings.host == "127.0.0.1"
    assert settings.reached_as() == "127.0.0.1"
    assert set(settings.certificate_names()) == {"127.0.0.1", "localhost", "::1"}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), 1e12, "soon"])
def test_no_wait_is_zero_negative_or_endless(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        load(flags={name: value}, environ={})


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"port": 9000, "superlink_port": 9000}, "superlink_port"),
        ({"log_level": "loud"}, "log_level"),
        ({"max_blob_bytes": 0}, "max_blob_bytes"),
        ({"prot": 8440}, "did you mean `port`"),
    ],
)
def test_a_wrong_value_is_named(flags: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(flags=flags, environ={})


def test_flags_go_before_the_environment_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trunkline.toml"
    path.write_text('host = "10.0.0.1"\nport = 1111\nsuperlink_port = 2222\nnames = ["m.example"]\n')
    settings = load(path, {"port": 3333, "host": None}, {"TRUNKLINE_PORT": "4444", "TRUNKLINE_SUPERLINK_PORT": "5555"})
    assert (settings.host, settings.port, settings.superlink_port, settings.names) == ("10.0.0.1", 3333, 5555, ("m.example",))


@pytest.mark.parametrize(
    ("flags", "reached", "named"),
    [
        ({"host": "0.0.0.0"}, "127.0.0.1", set()),
        ({"host": "::"}, "127.0.0.1", set()),
        ({"host": "10.0.0.7"}, "10.0.0.7", {"10.0.0.7"}),
        ({"host": "0.0.0.0", "names": ["m.example", "10.0.0.7"]}, "m.example", {"m.example", "10.0.0.7"}),
    ],
)
def test_the_address_in_an_invitation_stands_in_the_certificate(flags: dict[str, object], reached: str, named: set[str]) -> None:
    settings = load(flags=flags, environ={})
    assert settings.reached_as() == reached
    assert reached in settings.certificate_names()
    assert settings.reached_here() in settings.certificate_names()
    assert set(settings.certificate_names()) == named | {"localhost", "127.0.0.1", "::1"}


def test_commands_beside_the_master_need_no_name_that_resolves() -> None:
    settings = load(flags={"host": "0.0.0.0", "names": ("master.invalid",)}, environ={})
    assert (settings.reached_as(), settings.reached_here()) == ("master.invalid", "127.0.0.1")
    assert load(flags={"host": "::", "names": ("master.invalid",)}, environ={}).reached_here() == "localhost"
    assert load(flags={"host": "10.0.0.5"}, environ={}).reached_here() == "10.0.0.5"


def test_what_a_request_starts_is_the_general_table_under_the_encoder_s_own() -> None:
    settings = MasterSettings(on_request={"*": {"rounds": 3, "rule": "mean"}, "text": {"rounds": 7}})
    assert settings.job_on_request("text")["rounds"] == 7
    assert settings.job_on_request("image")["rounds"] == 3
    assert settings.job_on_request("text")["encoder"] == "text"
    with pytest.raises(SettingsError, match="did you mean `rounds`"):
        MasterSettings(on_request={"*": {"round": 3}}).job_on_request("text")
