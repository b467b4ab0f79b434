"""What a daemon logs goes to a file and to standard error, as long as the daemon runs."""

import logging
from pathlib import Path

import pytest

from trunkline.errors import StorageFailed
from trunkline.logs import logging_to


def test_the_log_goes_to_a_file_while_it_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, path = logging.getLogger(), tmp_path / "logs" / "agent.log"
    before = root.level, list(root.handlers)
    with logging_to(path, "info", quiet=("chatty",)):
        logging.getLogger("ours").info("said")
        logging.getLogger("ours").debug("too fine")
        logging.getLogger("chatty").info("too much")
    logging.getLogger("ours").warning("too late")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert line.endswith("INFO ours: said") and line in capsys.readouterr().err
    assert (root.level, list(root.handlers)) == before


def test_a_log_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(StorageFailed, match="logs"), logging_to(tmp_path / "logs" / "agent.log", "info", quiet=()):
        pass
