"""One minor version of a library, or a clear error."""

import pytest

from trunkline.errors import SettingsError
from trunkline.pins import require


def test_the_installed_flower_is_the_one_we_were_written_for() -> None:
    require("flwr", "1.42")


@pytest.mark.parametrize("found", ["1.4.2", "1.41.9", "1.43.0", "2.42.0", "1.420", "none"])
def test_another_one_is_named(found: str) -> None:
    with pytest.raises(SettingsError, match=rf"`flwr` should be version 1\.42\.\*, found {found}\."):
        require("flwr", "1.42", found)


def test_one_that_is_not_there() -> None:
    with pytest.raises(SettingsError, match=r"found none\. Install it"):
        require("no-such-library-of-anybody", "1.0")
