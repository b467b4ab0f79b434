"""Which tasks of a site are meant, and how many training samples each has."""

import logging

from child import streamed
from child.registry import Registry
from child.settings import Policy
from trunkline.errors import SampleError, SpecError
from trunkline.messages import Instruction, TaskCount

logger = logging.getLogger(__name__)


class Counter:
    """Counts what the master may know of a site's samples.

    :param policy: whose tasks may take part.
    """

    def __init__(self, registry: Registry, policy: Policy) -> None:
        self.registry, self.policy = registry, policy

    def all(self) -> tuple[list[TaskCount], list[str]]:
        """Every task of this site with its training samples, and what is wrong with those that cannot be counted."""
        counts: list[TaskCount] = []
        problems: list[str] = []
        for encoder_type in self.registry.types():
            found, wrong = self.count(encoder_type)
            counts, problems = counts + found, problems + [f"task {task}: {error}" for task, error in wrong.items()]
        return counts, problems

    def count(self, encoder_type: str, wanted: tuple[str, ...] = ()) -> tuple[list[TaskCount], dict[str, SampleError]]:
        """Training samples of the tasks of a type, and what is wrong with the tasks that cannot be counted."""
        counts: list[TaskCount] = []
        problems: dict[str, SampleError] = {}
        specs = self.registry.of_type(encoder_type, self._allowed(wanted))
        for spec in specs:
            try:
                streamed.check_together(specs)
                samples = self.registry.count(spec)["train"]
            except (SampleError, SpecError) as error:
                logger.warning("task %s cannot be counted: %s", spec.name, error)
                problems[spec.name] = error if isinstance(error, SampleError) else SampleError(error.message, hint=error.hint)
                continue
            if samples:
                counts.append(
                    TaskCount(
                        task=spec.name, head=spec.head, metric=spec.measure, higher_is_better=spec.higher_is_better, samples=samples
                    )
                )
        return counts, problems

    def stream(self, encoder_type: str, wanted: tuple[str, ...] = ()) -> str | None:
        """The stream that the samples of the tasks of a type come through; None: they lie in files."""
        specs = self.registry.of_type(encoder_type, self._allowed(wanted))
        return streamed.stream_of(specs[0]) if specs else None

    def offered(self, instruction: Instruction) -> str:
        """What is here in the place of the tasks that a job asks for."""
        types = self.registry.types()
        if instruction.tasks and instruction.encoder.type in types:
            return f"none for the tasks {', '.join(instruction.tasks)} of the job."
        return f"tasks of type {', '.join(types) or 'none'}."

    def _allowed(self, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
        """The tasks that both the job and the site's policy allow; None: all."""
        mine = self.policy.tasks
        if wanted and mine:
            return tuple(task for task in wanted if task in mine)
        return wanted or mine or None
