"""What a site computes with: the encoder, kept loaded between messages, and for each its tables of samples and fresh heads."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from child import seeded
from child.home import ChildHome
from child.sets import Make
from child.settings import ChildSettings
from child.train import LocalTask
from child.transfer import Transfer
from tasks import encoders
from tasks.declared import read_spec
from tasks.encoders import Encoder
from tasks.evaluate import evaluate
from tasks.folder import FROZEN, SHARED
from tasks.heads import make_head
from tasks.specs import Module, TaskSpec
from tasks.step import choose_precision
from tasks.table import open_table
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.files import sha256_file
from trunkline.messages import EncoderRef, Plan, Score
from trunkline.values import Split

READY = "READY"
"""Marks an encoder's folder whose files are all there."""


class Site:
    """One loaded encoder, and the tasks that are computed with it."""

    def __init__(self, home: ChildHome, settings: ChildSettings, transfer: Transfer) -> None:
        self.home, self.settings, self.transfer = home, settings, transfer
        self._loaded: tuple[str, Encoder] | None = None

    def encoder(self, reference: EncoderRef) -> Encoder:
        """The encoder of a manifest, fetched once and kept in memory.

        :raises RefusedValue: `no_module`: it needs code that is not at this site.
        """
        if self._loaded is None or self._loaded[0] != reference.manifest:
            self._loaded = None  # let the old one go before the new one is loaded
            encoder = self._load(self.files(reference))
            self._loaded = (reference.manifest, encoder.to(self.settings.device))
        return self._loaded[1]

    def _load(self, folder: Path) -> Encoder:
        """:raises RefusedValue: `no_module`: told to the master, so without the folders that were searched here."""
        try:
            return encoders.load(folder, self.modules())
        except SpecError as error:
            if not isinstance(read_spec(folder).source, Module):
                raise
            hint = "Its file belongs into the child's `modules` folder."
            raise RefusedValue(Reason.NO_MODULE, error.message, hint=hint) from error

    def modules(self) -> tuple[Path, ...]:
        """Where the site's own code lies."""
        return (self.home.modules,)

    def files(self, reference: EncoderRef) -> Path:
        """The folder of an encoder's files; what is missing is made from the seed or fetched, by digest."""
        folder = self.home.encoders / reference.manifest
        if (folder / READY).exists():
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        files = self.transfer.manifest(reference.name, reference.manifest)
        for name in sorted(files, key=lambda name: (name == FROZEN, name)):  # what it may be made from comes first
            (digest, size), path = files[name], folder / name
            if path.exists() and sha256_file(path) == digest:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != FROZEN or not seeded.make(folder, FROZEN, digest, path, self.modules()):
                self.transfer.fetch(digest, size, None, path)
        (folder / READY).touch()
        return folder

    def maker(self, reference: EncoderRef) -> Make:
        """What makes the initial set of an encoder here, if it starts from a seed and the set that is asked for is its first."""
        return lambda digest, to: seeded.make(self.files(reference), SHARED, digest, to, self.modules())

    def plan(self, plan: Plan) -> Plan:
        """The master's plan with what the site decides itself."""
        torch.set_num_threads(self.settings.threads or plan.threads or torch.get_num_threads())
        precision = choose_precision(self.settings.precision or plan.precision, torch.device(self.settings.device))
        return plan.model_copy(update={"precision": precision})

    def tasks(self, encoder: Encoder, specs: Iterable[TaskSpec], plan: Plan | None) -> dict[str, LocalTask]:
        """Tables and fresh heads for these tasks; saved heads are loaded over them."""
        most = plan.max_length if plan else None
        return {
            spec.name: self._task(encoder, spec.model_copy(update={"max_length": most}) if most else spec, plan) for spec in specs
        }

    def scores(self, encoder: Encoder, tasks: Mapping[str, LocalTask], splits: Sequence[Split]) -> list[Score]:
        """Each task's metric on each split that has samples."""
        return [
            evaluate(encoder, task.head, task.table, task.spec, split)
            for _, task in sorted(tasks.items())
            for split in splits
            if task.table.count(split)
        ]

    def _task(self, encoder: Encoder, spec: TaskSpec, plan: Plan | None) -> LocalTask:
        table = open_table(spec, encoder, self.home.cache, self.home.folder, self.settings.memory, self.modules())
        seed = plan.seed if plan else 0
        head = make_head(spec, table.labels, encoder.hidden, seed, scale=table.scale, modules=self.modules())
        return LocalTask(spec, table, head.to(self.settings.device))
