"""`trunkline encoder`: shared encoders and their versions."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from master.cli.base import noun, open_master, verb, where
from tasks.folder import DECLARATION
from trunkline.console import here
from trunkline.errors import Conflict, NotFound, Unreachable, UsageError
from trunkline.files import write_atomically
from trunkline.folders import check_new
from trunkline.terminal import Result, amount, moment, pairs, table

app = noun("Shared encoders and their versions.")

Name = Annotated[str, Argument(metavar="NAME", help="The encoder's name.")]
Number = Annotated[int, Argument(metavar="VERSION")]
Many = list[str] | None


@verb(app)
def create(
    name: Name,
    file: Annotated[Path | None, Option("--file", metavar="FILE", help="A declaration in TOML; flags count more than it.")] = None,
    type_: Annotated[
        str | None, Option("--type", help="What it reads; children choose their tasks by it.  [default: text]")
    ] = None,
    pretrained: Annotated[str | None, Option("--from", metavar="FOLDER|HUB", help="Weights of a Hugging Face encoder.")] = None,
    revision: Annotated[str | None, Option(help="Of the model at the hub.")] = None,
    config: Annotated[str | None, Option(metavar="FOLDER|HUB", help="A Hugging Face config, to start from a seed.")] = None,
    option: Annotated[Many, Option(metavar="KEY=VALUE", help="A key of the config, or of the module; may be repeated.")] = None,
    tokenizer: Annotated[str | None, Option(metavar="FOLDER|HUB", help="Its tokenizer, where --config has none.")] = None,
    seed: Annotated[int | None, Option(help="Where it starts from a seed.  [default: 0]")] = None,
    seeded: Annotated[bool, Option("--seeded", help="Each site makes the first parameters from the seed; none travel.")] = False,
    module: Annotated[str | None, Option(metavar="FILE.py:NAME", help="Your own torch.nn.Module for what is not text.")] = None,
    shape: Annotated[str | None, Option(metavar="SHAPE", help="Of a sample's features for a module: 384, or 3x32x32.")] = None,
    layers: Annotated[int | None, Option(help="Keep the first N; without it all.")] = None,
    freeze: Annotated[Many, Option(metavar="PATTERN", help="Parameters that stay; `embeddings` is all of them.")] = None,
    private: Annotated[Many, Option(metavar="PATTERN", help="Tensors each site keeps; `norms`: of normalisation layers.")] = None,
    pooling: Annotated[str | None, Option(help="mean, cls or max.  [default: mean]")] = None,
    max_length: Annotated[int | None, Option(metavar="N", help="Tokens at most.  [default: 128]")] = None,
    dropout: Annotated[float | None, Option(help="Without it, as its own config says.")] = None,
    lora: Annotated[int | None, Option(metavar="RANK", help="Train low-rank products instead of the matrices.")] = None,
    lora_alpha: Annotated[float | None, Option(help="Their scale is alpha / rank.  [default: 16]")] = None,
    lora_target: Annotated[
        Many, Option(metavar="PATTERN", help="Layers they are put on; may be repeated.  [default: *query, *value]")
    ] = None,
    keep: Annotated[
        Path | None, Option(metavar="FOLDER", help="Leave its files here too, e.g. for `trunkline-child alone`.")
    ] = None,
    send: Annotated[bool, Option("--send/--no-send", show_default=False, help="Whether it goes to the master.")] = True,
) -> Result:
    """Make an encoder and bring it to the master as version 1."""
    from master.cli import encoder_files
    from master.cli.encoder_spec import Wanted, spec_of

    wanted = Wanted(
        name=name,
        file=file,
        type=type_,
        pretrained=pretrained,
        revision=revision,
        config=config,
        options=tuple(option or ()),
        tokenizer=tokenizer,
        seed=seed,
        seeded=seeded,
        module=module,
        shape=shape,
        layers=layers,
        freeze=tuple(freeze or ()),
        private=tuple(private or ()),
        pooling=pooling,
        max_length=max_length,
        dropout=dropout,
        lora=lora,
        lora_alpha=lora_alpha,
        lora_targets=tuple(lora_target or ()),
    )
    spec = spec_of(wanted)
    note = here().note
    if not send:
        if keep is None:
            raise UsageError("`--keep FOLDER` should be said with `--no-send`, found neither a master nor a folder to write to.")
        encoder_files.make(spec, keep, (), note)
        return Result({"name": name, "folder": str(keep.absolute())}, [f"{name} is in {keep}"])
    with open_master() as https, encoder_files.scratch() as folder:
        if name in {one["name"] for one in https.call("GET", where("encoders"))}:
            raise Conflict(f"`NAME` should be new, found encoder {name!r} already.", hint=f"See `trunkline encoder show {name}`.")
        place = keep or folder / "encoder"
        encoder_files.make(spec, place, (), note)
        written = json.loads((place / DECLARATION).read_bytes())  # modules are named by file alone there
        made = encoder_files.send(https, place, spec.name, spec.type, written, note)
    return Result(made, [f"{made['name']}  version {made['current']['number']}  {amount(made['current']['size'])}"])


@verb(app, "list")
def list_() -> Result:
    """All encoders with their newest version."""
    with open_master() as https:
        found: list[dict[str, Any]] = https.call("GET", where("encoders"))
    rows = [
        {**one, "version": one["current"]["number"], "size": amount(one["current"]["size"]), "created": moment(one["created"])}
        for one in found
    ]
    return Result(found, table(rows, ("name", "type", "version", "size", "created"), "none; make one: trunkline encoder create"))


@verb(app)
def show(name: Name) -> Result:
    """One encoder: its declaration, its files, its tensors."""
    with open_master() as https:
        found: dict[str, Any] = https.call("GET", where("encoders", name))
    current = found["current"]
    about = {
        "name": found["name"],
        "type": found["type"],
        "version": current["number"],
        "digest": current["digest"],
        "size": amount(current["size"]),
        "tensors": len(found["shared"]),
        "created": moment(found["created"]),
        "manifest": found["manifest"],
    }
    files = [{"file": key, "size": amount(file["size"]), "digest": file["digest"][:12]} for key, file in found["files"].items()]
    spec = json.dumps(found["spec"], indent=1).splitlines()
    return Result(found, [*pairs(about), "", *spec, "", *table(files, ("file", "size", "digest"))])


@verb(app)
def versions(name: Name) -> Result:
    """All versions of an encoder, and where each came from."""
    with open_master() as https:
        found: list[dict[str, Any]] = https.call("GET", where("encoders", name, "versions"))
    from master.cli.lineage import maker

    rows = [
        {
            **one,
            "version": one["number"],
            "made_by": maker(one),
            "parent": one["parent_number"],
            "digest": one["digest"][:12],
            "children": len(one["weights"]) or None,
            "created": moment(one["created"]),
        }
        for one in found
    ]
    return Result(found, table(rows, ("version", "kind", "parent", "made_by", "round", "children", "digest", "created")))


@verb(app)
def diff(
    name: Name,
    old: Number,
    new: Number,
    most: Annotated[int, Option("--most", help="Tensors that are shown; the ones that moved most come first.")] = 20,
) -> Result:
    """How far two versions of an encoder are apart, tensor by tensor."""
    from master.cli import encoder_files

    note = here().note
    with open_master() as https, encoder_files.scratch() as folder:
        pair: dict[str, Any] = https.call("GET", where("encoders", name, "diff"), query={"old": old, "new": new})
        paths = [encoder_files.fetch_set(https, pair[side], folder / side, note) for side in ("old", "new")]
        from master.cli.diff import compare

        rows = compare(*paths)
    data = {"encoder": name, "old": old, "new": new, "same": pair["old"]["digest"] == pair["new"]["digest"], "tensors": rows}
    lines = ["the same"] if data["same"] else table(rows[:most], ("name", "shape", "changed", "largest", "rms", "relative"))
    return Result(data, lines)


@verb(app)
def conflicts(
    name: Name,
    rounds: Annotated[int, Option(metavar="N", help="Newest rounds that are looked at.")] = 10,
    page: Annotated[Path | None, Option(metavar="FILE", help="Write it as a page of HTML too.")] = None,
) -> Result:
    """How its tasks get on: whether they pull against each other, what each gains by sharing, and what to do about it."""
    from master.cli.conflicts import lines

    with open_master() as https:
        found: dict[str, Any] = https.call("GET", where("encoders", name, "conflicts"), query={"rounds": rounds})
    shown = lines(found)
    if page is not None:
        from master.cli.conflicts_page import page as write

        write_atomically(page, write(found).encode())
        shown += ["", f"also in {page}"]
    return Result(found, shown)


@verb(app)
def lineage(
    name: Name,
    most: Annotated[int, Option("--most", metavar="N", help="Batches of each stream, the newest.")] = 20,
) -> Result:
    """Where its parameters came from: versions of rounds, and batches of streams with their queues, newest first."""
    from master.cli.lineage import merged

    with open_master() as https:
        found: list[dict[str, Any]] = https.call("GET", where("encoders", name, "versions"))
        batches: dict[str, list[dict[str, Any]]] = {}
        for stream in https.call("GET", where("streams")):
            if stream["encoder"] == name and stream["state"] == "running":
                target = where("streams", stream["name"], "server", "lineage")
                try:
                    batches[stream["name"]] = https.call("GET", target, query={"most": most})
                except Unreachable as error:
                    here().note(str(error))
    data = {"encoder": name, "versions": found, "streams": batches}
    return Result(data, table(merged(found, batches), ("at", "what", "of", "by", "samples", "base")))


@verb(app)
def rollback(name: Name, version: Number) -> Result:
    """Publish an earlier version again, as the newest. Nothing is lost: the versions between stay."""
    with open_master() as https:
        made: dict[str, Any] = https.call("POST", where("encoders", name, "rollback"), json.dumps({"version": version}))
    return Result(made, [f"{made['encoder']}  version {made['number']}, the same as {version}"])


@verb(app)
def export(
    name: Name,
    out: Annotated[Path, Option("--out", metavar="FOLDER", help="A new folder.")],
    form: Annotated[str, Option("--format", help="hf, sentence-transformers or safetensors.")] = "hf",
    version: Annotated[int | None, Option("--version", metavar="N", help="Without it the newest.")] = None,
) -> Result:
    """Write a version as others read it: loads without Trunkline."""
    from master.cli import encoder_files
    from master.cli.card import card
    from tasks.export import FORMATS
    from tasks.export import export as write
    from trunkline.sets import SetFile

    if form not in FORMATS:
        raise UsageError(f"`--format` should be one of {', '.join(FORMATS)}, found {form!r}.")
    check_new(out, "--out")
    note = here().note
    with open_master() as https, encoder_files.scratch() as folder:
        found: dict[str, Any] = https.call("GET", where("encoders", name))
        number = version if version is not None else found["current"]["number"]
        chosen: dict[str, Any] = https.call("GET", where("encoders", name, "versions", number))
        line, rounds = _history(https, name, chosen)
        files = encoder_files.fetch(https, found, folder / "encoder", note)
        with SetFile(encoder_files.fetch_set(https, chosen, folder / "set", note)) as shared:
            write(files, shared, out, form, card(found, chosen, line, rounds, form))
    data = {"encoder": name, "version": number, "digest": chosen["digest"], "format": form, "out": str(out.absolute())}
    return Result(data, [f"{name} version {number} is in {out}"])


def _history(https: Any, name: str, version: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The versions that lead to one, newest first, and the rounds behind them."""
    known = {one["number"]: one for one in https.call("GET", where("encoders", name, "versions"))}
    line = [known[number] for number in version["lineage"]]
    rounds = []
    for one in line:
        if one["job"] is not None and one["round"] is not None:
            try:
                rounds.append(https.call("GET", where("jobs", one["job"], "rounds", one["round"])))
            except NotFound:
                continue  # a job that was deleted takes its rounds along; the version's own lines stay
    return line, rounds
