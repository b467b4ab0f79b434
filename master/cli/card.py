"""The model card that goes with an exported encoder: what it is, what it was trained for, where it came from."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from master.cli.lineage import maker
from master.cli.progress import weighted_scores
from trunkline.terminal import moment

Table = Mapping[str, Any]

SPLITS = ("validation", "test")


def card(encoder: Table, version: Table, line: Sequence[Table], rounds: Sequence[Table], format: str) -> str:
    """The card as Markdown.

    :param version: the one that is exported.
    :param line: the versions that lead to it, newest first.
    :param rounds: the rounds behind those versions, as `round show` tells them, newest first.
    """
    parts = [_head(encoder, format), _about(encoder, version, rounds), _use(encoder, format), _tasks(rounds), _scores(rounds)]
    return "\n\n".join(part for part in [*parts, _lineage(line), _limits()] if part) + "\n"


def _head(encoder: Table, format: str) -> str:
    text = encoder["spec"]["source"]["kind"] != "module"
    library = "sentence-transformers" if format == "sentence-transformers" else "transformers"
    lines = ["---", "tags:", "- trunkline", "- federated-learning"]
    if text and format != "safetensors":
        lines += [
            f"library_name: {library}",
            "pipeline_tag: " + ("sentence-similarity" if "sentence" in library else "feature-extraction"),
        ]
    return "\n".join([*lines, "---"])


def _about(encoder: Table, version: Table, rounds: Sequence[Table]) -> str:
    spec = encoder["spec"]
    source = spec["source"]
    children = {child for one in rounds for child in one["weights"]}
    start = {
        "pretrained": f"the weights of `{_short(source.get('path'))}`",
        "config": f"a config and the seed {source.get('seed')}",
    }
    began = start.get(source["kind"], f"the module `{source.get('path')}` and the seed {source.get('seed')}")
    lines = [
        f"# {encoder['name']}",
        "",
        "A shared encoder, trained by Trunkline over samples that stayed at their sites. Task heads stayed there too.",
        "",
        f"- version {version['number']}, sha256 `{version['digest']}`",
        f"- type `{encoder['type']}`, started from {began}",
        f"- tuning: {_tuning(spec['tuning'])}; frozen: {', '.join(f'`{one}`' for one in spec['freeze']) or 'nothing'}",
        *_private(spec),
        f"- rounds: {len(rounds)}; children that took part: {len(children)}",
    ]
    if encoder["spec"]["source"]["kind"] != "module":
        lines.append(f"- pooling: {spec['pooling']}; at most {spec['max_length']} tokens")
    return "\n".join(lines)


def _short(path: Any) -> str:
    """A name at the hub as it is, a digest by its beginning, a folder (which older versions wrote down) by its last name."""
    if str(path).startswith("sha256:"):
        return f"{path[:23]}…"
    return path if not str(path).startswith(("/", "~", ".")) else PurePath(path).name


def _tuning(tuning: Any) -> str:
    return tuning if isinstance(tuning, str) else f"low-rank products of rank {tuning['rank']}, multiplied out"


def _private(spec: Table) -> list[str]:
    patterns = ", ".join(f"`{one}`" for one in spec.get("private", ()))
    return [f"- private to each site, and here as they began: {patterns}"] if patterns else []


def _use(encoder: Table, format: str) -> str:
    if encoder["spec"]["source"]["kind"] == "module" or format == "safetensors":
        return "`model.safetensors` holds every tensor of the network's `state_dict` under its own name."
    if format == "sentence-transformers":
        code = 'from sentence_transformers import SentenceTransformer\n\nvectors = SentenceTransformer("FOLDER").encode(["a text"])'
    else:
        code = (
            "from transformers import AutoModel, AutoTokenizer\n\n"
            'tokenizer, encoder = AutoTokenizer.from_pretrained("FOLDER"), AutoModel.from_pretrained("FOLDER")\n'
            'tokens = encoder(**tokenizer("a text", return_tensors="pt")).last_hidden_state'
        )
    return f"```python\n{code}\n```"


def _tasks(rounds: Sequence[Table]) -> str:
    """Tasks of the children whose updates went into a version; the newest word of each counts."""
    told: dict[tuple[str, str], Table] = {}
    for one in rounds:
        for member in one["members"]:
            if member["child"] in one["weights"]:
                for task in member["confirmation"].get("tasks", ()):
                    told.setdefault((task["task"], member["child"]), task)
    if not told:
        return "## Tasks\n\nNone yet: this is the encoder as it was made."
    rows = []
    for name in sorted({task for task, _ in told}):
        mine = [about for (task, _), about in told.items() if task == name]
        heads, metrics = (", ".join(sorted({about[key] for about in mine})) for key in ("head", "metric"))
        rows.append(f"| {name} | {heads} | {metrics} | {len(mine)} | {sum(about['samples'] for about in mine)} |")
    head = "| task | head | metric | children | training samples |\n|---|---|---|---|---|"
    return "\n".join(["## Tasks", "", head, *rows])


def _scores(rounds: Sequence[Table]) -> str:
    """What the newest round with reports says."""
    for one in rounds:
        scores = [score for report in one["reports"] for score in report["report"]["scores"]]
        found = {split: values for split in SPLITS if (values := weighted_scores(scores, split))}
        if not found:
            continue
        metrics = {score["task"]: score["metric"] for score in scores}
        lines = [
            f"## Scores of version {one['version']}",
            "",
            "Mean over the children's own samples, weighted by their number.",
            "",
        ]
        lines.append(f"| task | metric | {' | '.join(found)} |\n|---|---|{'---|' * len(found)}")
        for task in sorted({task for values in found.values() for task in values}):
            values = (f"{found[split][task]:.4f}" if task in found[split] else "-" for split in found)
            lines.append(f"| {task} | {metrics[task]} | {' | '.join(values)} |")
        return "\n".join(lines)
    return ""


def _lineage(line: Sequence[Table]) -> str:
    lines = ["## Lineage", "", "| version | sha256 | from | job | round | made |", "|---|---|---|---|---|---|"]
    for one in line:
        cells = (one["number"], f"`{one['digest'][:16]}`", one["parent_number"], maker(one), one["round"], moment(one["created"]))
        lines.append(f"| {' | '.join('-' if cell is None else str(cell) for cell in cells)} |")
    return "\n".join(lines)


def _limits() -> str:
    return (
        "## Limits\n\nTrained without differential privacy: parameters can tell something about the data they were trained on. "
        "The scores are the children's own words on their own samples."
    )
