"""What this site's tasks scored when it trained alone: kept here, and told with the scores of a round, so that they can be
compared.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from child.home import ChildHome
from trunkline.files import write_atomically
from trunkline.messages import Score

logger = logging.getLogger(__name__)


class References:
    """The newest run of each task with one encoder.

    :param encoder: its name; a run starts from a copy of some version of it.
    """

    def __init__(self, home: ChildHome, encoder: str) -> None:
        self._path = home.alone / f"{encoder}.json"

    def keep(self, scores: Iterable[Score], rows: Mapping[str, int], steps: int) -> None:
        """Replace what was kept of these tasks.

        :param rows: training samples, by task.
        :param steps: batches of the run, over all its tasks.
        """
        kept = self._read()
        told: dict[str, list[dict[str, Any]]] = {}
        for score in scores:
            told.setdefault(score.task, []).append(score.table())
        kept |= {task: {"rows": rows[task], "steps": steps, "scores": lines} for task, lines in told.items()}
        write_atomically(self._path, (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())

    def beside(self, scores: Sequence[Score], rows: Mapping[str, int]) -> tuple[Score, ...]:
        """The references of scores: same task, split and metric, from as many samples. Others are of data that has changed since.

        :param rows: training samples there are now, by task.
        """
        if not scores:
            return ()
        wanted = {(score.task, score.split, score.metric, score.samples) for score in scores}
        found: list[Score] = []
        for task, kept in sorted(self._read().items()):
            try:
                mine = [Score.of_table(line) for line in kept["scores"]] if kept["rows"] == rows.get(task) else []
            except (ValidationError, KeyError, TypeError):
                logger.warning("`%s` should hold scores of %s, found something else; it is not told", self._path, task)
                continue
            found += [score for score in mine if (score.task, score.split, score.metric, score.samples) in wanted]
        return tuple(found)

    def _read(self) -> dict[str, Any]:
        """What is kept; a file that was spoilt counts as none, since a run makes it again."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            logger.warning("`%s` should be a file of scores, found that it cannot be read; it counts as none", self._path)
            return {}
        return found if isinstance(found, dict) else {}
