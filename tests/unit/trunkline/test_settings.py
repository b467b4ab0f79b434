"""Settings: precedence, and an error that names the key, its source and what to write instead."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trunkline.errors import SettingsError
from trunkline.settings import build, from_environment, load
from trunkline.toml import read_toml


class Inner(BaseModel):
    """A part of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    patience: int = 3


class Sample(BaseModel):
    """Settings as the daemons have them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    address: str
    port: Annotated[int, Field(ge=0, le=65535)] = 8440
    name: str | None = None
    folder: Path = Path("state")
    names: tuple[str, ...] = ()
    report: bool = True
    level: Literal["info", "debug"] = "info"
    stop: Inner = Inner()
    stops: tuple[Inner, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Sample":
        if self.name == self.address:
            raise ValueError("`name` should differ from `address`, found one for both")
        return self


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "trunkline.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_flags_come_before_the_environment_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = file(tmp_path, 'address = "file"\nport = 1\nlevel = "debug"\nstop.patience = 9')
    found = load(Sample, path, "T", {"address": "flag", "name": None}, {"T_ADDRESS": "environment", "T_PORT": "2"})
    assert found == Sample(address="flag", port=2, level="debug", stop=Inner(patience=9))


def test_a_file_that_is_not_there_counts_as_empty(tmp_path: Path) -> None:
    assert load(Sample, tmp_path / "none.toml", "T", {"address": "x"}, {}) == Sample(address="x")


def test_what_the_file_leaves_out_a_flag_may_give(tmp_path: Path) -> None:
    assert load(Sample, file(tmp_path, "port = 7"), "T", {"address": "x"}, {}).port == 7


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("NAME", "123", "123"),
        ("NAME", "true", "true"),
        ("NAME", "1e5", "1e5"),
        ("FOLDER", "2026", Path("2026")),
        ("PORT", "9", 9),
        ("REPORT", "false", False),
        ("NAMES", '["a", "b"]', ("a", "b")),
        ("LEVEL", "debug", "debug"),
        ("STOP", "{patience = 5}", Inner(patience=5)),
    ],
)
def test_the_environment_is_read_as_each_key_wants_it(key: str, value: str, found: object) -> None:
    settings = build(Sample, {"address": "x"} | from_environment(Sample, "T", {f"T_{key}": value}), "it")
    assert getattr(settings, key.lower()) == found


def test_one_variable_cannot_set_two_keys() -> None:
    assert from_environment(Sample, "T", {"T_PORT": "1\naddress = 2"}) == {"port": "1\naddress = 2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('address = "x"\nprot = 1', r"`prot` in `.*trunkline\.toml` is not a known key; did you mean `port`\?"),
        ('address = "x"\nzzz = 1', r"`zzz` in .* is not a known key; known: address, folder, level, name, names, port"),
        ('address = "x"\n[stop]\npatienc = 1', r"`stop\.patienc` in .* is not a known key; did you mean `patience`\?"),
        ('address = "x"\n[[stops]]\npatients = 1', r"`stops\.0\.patients` in .*; did you mean `patience`\?"),
        ("address = 1", r"`address` in `.*toml` is wrong: Input should be a valid string, found 1\."),
        ('address = "x"\nport = 70000', r"`port` in .* is wrong: Input should be less than or equal to 65535, found 70000\."),
        ("port = 1", r"`address` in the settings should be set, found nothing\."),
        ('address = "x"\nname = "x"', r"^the settings is wrong: `name` should differ from `address`, found one for both\.$"),
        ("address =", r"`.*trunkline\.toml` should be TOML, found: "),
        (b'address = "\xff"', r"`.*trunkline\.toml` should be UTF-8, found invalid start byte at byte 11\."),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(Sample, file(tmp_path, text), "T", {}, {})


def test_what_is_wrong_elsewhere_is_named_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"`port` in the environment \(T_…\) is wrong: .*, found 'many'\."):
        load(Sample, file(tmp_path, 'address = "x"'), "T", {}, {"T_PORT": "many"})
    with pytest.raises(SettingsError, match=r"`level` in the flags is wrong: .*, found 'loud'\."):
        load(Sample, None, "T", {"address": "x", "level": "loud"}, {})


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(Sample, file(tmp_path, "port = -1\nprot = 1\n"), "T", {}, {})
    assert "`port`" in str(caught.value)
    assert "`prot`" in str(caught.value)


def test_a_value_of_any_length_makes_a_short_error() -> None:
    with pytest.raises(SettingsError) as caught:
        build(Sample, {"address": "x", "port": "9" * 10_000}, "it")
    assert len(str(caught.value)) < 300


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"should be readable, found: Is a directory\."):
        read_toml(tmp_path)
    with pytest.raises(SettingsError, match=r"should be a TOML file, found none\."):
        read_toml(tmp_path / "none")
