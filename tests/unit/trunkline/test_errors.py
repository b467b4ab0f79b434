"""One tree, drawn as it is; codes that both command lines and the API can rely on."""

import re
from collections.abc import Iterator

import pytest

from trunkline import errors
from trunkline.errors import Reason, RefusedValue, TrainingFailed, TrunklineError


def tree(root: type[TrunklineError]) -> Iterator[type[TrunklineError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


ALL = [error for error in tree(TrunklineError) if error.__module__ == errors.__name__]


def make(error: type[TrunklineError], hint: str | None) -> TrunklineError:
    if issubclass(error, RefusedValue | TrainingFailed):
        return error(Reason.SHAPE, "`x` should be 1, found 2.", hint=hint)
    return error("`x` should be 1, found 2.", hint=hint)


def test_the_drawing_names_each_class_under_its_parent() -> None:
    drawn: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+)  ", line)
        if match:
            drawn.append((len(match[1]) // 4, match[2]))
    expected = {error.__name__: error.__bases__[0].__name__ for error in ALL if error is not TrunklineError}
    found: dict[str, str] = {}
    stack: list[str] = []
    for depth, name in drawn:
        del stack[depth:]
        if stack:
            found[name] = stack[-1]
        stack.append(name)
    assert found == expected


def test_codes_are_unique_words() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_exit_codes_are_those_of_the_command_line() -> None:
    drawn = {int(number) for number in re.findall(r"\((\d)\)", errors.__doc__ or "")}
    assert {error.exit_code for error in ALL} - {70} == drawn == {1, 2, 3, 4, 5}
    assert TrunklineError.exit_code == 70


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_message_and_hint_are_kept_apart_and_read_as_one(error: type[TrunklineError]) -> None:
    with_hint, without = make(error, "Do y."), make(error, None)
    assert str(with_hint) == "`x` should be 1, found 2. Do y."
    assert str(without) == "`x` should be 1, found 2."
    assert (with_hint.message, with_hint.hint) == ("`x` should be 1, found 2.", "Do y.")


def test_reasons_are_words_that_may_stand_in_a_ledger() -> None:
    assert all(re.fullmatch(r"[a-z_]+", reason) for reason in Reason)
    assert make(RefusedValue, None).reason is Reason.SHAPE  # type: ignore[attr-defined]


def test_what_is_told_to_other_sites_quotes_no_sample() -> None:
    assert TrunklineError("said.", hint="Do this.").public == "said. Do this."
    assert "secret" not in errors.SampleError("`a.csv`, line 3: found 'secret'.", hint="Not 'secret'.").public


def test_what_a_full_disk_says_to_another_site_names_no_path() -> None:
    error = errors.StorageFailed("`/srv/ward-7/sets` should take 84 MB, found: no space left on device.")
    assert "ward-7" in str(error) and "ward-7" not in error.public
