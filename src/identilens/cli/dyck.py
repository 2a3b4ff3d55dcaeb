"""``identilens dyck``: Dyck transformers trained, looked into, constructed and pruned."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from identilens.cli.common import (
    DeviceOption,
    OutOption,
    OverwriteOption,
    ResumeOption,
    console,
    parse_numbers,
    progress,
    quiet_transformers,
    with_note,
)
from identilens.dyck.settings import DyckSetting, DyckTraining
from identilens.errors import InputError
from identilens.report import write_report
from identilens.results.stored import print_table
from identilens.studies.dyck_construct.study import Construction, check_constructions
from identilens.studies.dyck_prune.study import Pruning, prune_by_width
from identilens.studies.dyck_train.measuring import Measuring
from identilens.studies.dyck_train.study import analyse_dyck, train_dyck

_TRAINING, _MEASURING, _PRUNING, _CONSTRUCTION = DyckTraining(), Measuring(), Pruning(), Construction()

app = typer.Typer(help="Dyck languages: attention that solves the task without showing it.", no_args_is_help=True)

TypesOption = Annotated[int, typer.Option(help="Types of brackets.")]
DepthOption = Annotated[int, typer.Option(help="How many brackets may be open at once.")]
OpenOption = Annotated[float, typer.Option("--open-probability", help="Of an open bracket where both are possible.")]
LongOption = Annotated[
    str, typer.Option("--lengths", help="Shortest and longest prefix of the length generalisation, such as 400-500.")
]
LengthOption = Annotated[int, typer.Option(help="Brackets in a training sequence.")]
DataOption = Annotated[Literal["complete", "prefixes"], typer.Option(help="Balanced words, or prefixes.")]


@app.command()
def train(
    out: OutOption,
    types: TypesOption = 2,
    depth: DepthOption = 4,
    open_probability: OpenOption = 0.5,
    layers: Annotated[int, typer.Option(help="Layers; behind a minimal first layer one.")] = 2,
    heads: Annotated[int, typer.Option(help="Heads in a layer.")] = 1,
    hidden: Annotated[int, typer.Option(help="Size of hidden states and feed-forward block.")] = 50,
    block: Annotated[
        Literal["gpt", "paper", "minimal"], typer.Option(help="Standard block, the paper's Eq. 6, or attention alone.")
    ] = "gpt",
    first_layer: Annotated[
        Literal["learned", "one-hot", "type-depth", "angle"],
        typer.Option(help="Learned token embeddings, or a minimal first layer by Eq. 19, 20 or 21."),
    ] = "learned",
    positions: Annotated[Literal["none", "linear"], typer.Option(help="Position encoding.")] = "none",
    seeds: Annotated[str, typer.Option(help="Such as 0-29.")] = "0-9",
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Seeds in one batched computation; all by default.")
    ] = None,
    data: DataOption = _TRAINING.data,
    length: LengthOption = _TRAINING.length,
    tokens: Annotated[int, typer.Option(help="Brackets in the training set.")] = _TRAINING.tokens,
    epochs: Annotated[int, typer.Option(help="Times it is gone through.")] = _TRAINING.epochs,
    batch_size: Annotated[int, typer.Option(help="Sequences in a step.")] = _TRAINING.batch_size,
    learning_rate: Annotated[float, typer.Option(help="At the start of the cosine.")] = _TRAINING.learning_rate,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = _TRAINING.weight_decay,
    loss: Annotated[Literal["closing", "all"], typer.Option(help="Which next tokens count.")] = _TRAINING.loss,
    contrast: Annotated[float, typer.Option(help="Weight of the contrastive term; the paper's is 0.3.")] = 0.0,
    lengths: LongOption = "400-500",
    device: DeviceOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Train models from several seeds at once and look into them."""
    quiet_transformers()
    config = {
        "bracket_types": types, "max_depth": depth, "open_probability": open_probability, "num_hidden_layers": layers,
        "num_attention_heads": heads, "hidden_size": hidden, "intermediate_size": hidden, "block": block,
        "first_layer": first_layer, "positions": positions,
    }  # fmt: skip
    training = DyckTraining(
        length=length, data=data, tokens=tokens, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
        weight_decay=weight_decay, loss=loss, contrast=contrast,
    )  # fmt: skip
    setting = DyckSetting(_name(types, depth, layers, heads, first_layer, positions, contrast), config, training)
    with progress("seeds") as update:
        advance, watch = with_note(update)
        result = train_dyck(
            [setting],
            parse_numbers("--seeds", seeds),
            at_once=at_once,
            measuring=Measuring(lengths=parse_range(lengths)),
            device=device or "cpu",
            out=out,
            resume=resume,
            overwrite=overwrite,
            progress=advance,
            watch=watch,
        )
    result.show()
    console.print(f"report: {result.to_html(out / 'report.html')}", soft_wrap=True)


@app.command()
def analyse(
    models: Annotated[list[Path], typer.Argument(help="Folders of Dyck models of one configuration.")],
    out: OutOption,
    data: DataOption = _TRAINING.data,
    length: LengthOption = _TRAINING.length,
    lengths: LongOption = "400-500",
    sequences: Annotated[int, typer.Option(help="Sequences on which heads are changed.")] = _MEASURING.head_sequences,
    draws: Annotated[int, typer.Option(help="Random patterns a head.")] = _MEASURING.draws,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
) -> None:
    """Look into saved models: accuracy, stack-likeness, what each head's attention is used for, balance."""
    quiet_transformers()
    result = analyse_dyck(
        models,
        DyckTraining(length=length, data=data),
        measuring=Measuring(lengths=parse_range(lengths), head_sequences=sequences, draws=draws),
        out=out,
        overwrite=overwrite,
        resume=resume,
    )
    result.show()
    print_table("Heads", result.heads.drop("setting"))
    console.print(f"report: {result.to_html(out / 'report.html')}", soft_wrap=True)


@app.command()
def construct(
    out: OutOption,
    types: TypesOption = 2,
    depth: DepthOption = 4,
    open_probability: OpenOption = 0.5,
    lengths: Annotated[str, typer.Option(help="Lengths to test on.")] = "28,100,500,2000",
    count: Annotated[int, typer.Option(help="Prefixes of each length.")] = _CONSTRUCTION.count,
    spread: Annotated[float, typer.Option(help="Size of the balanced layer's attention logits.")] = 1.0,
    off_balance: Annotated[
        list[float] | None, typer.Option(help="Sizes, in logits, by which balance is broken; give it again for more.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of embeddings, logits and prefixes.")] = 0,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Build uniform and balanced attention that generates Dyck of any length, test it, and break it."""
    chosen = Construction(
        types, depth, open_probability, parse_numbers("--lengths", lengths), count,
        tuple(off_balance or _CONSTRUCTION.off_balance), spread, seed,
    )  # fmt: skip
    quiet_transformers()
    with progress("cases") as update:
        table = check_constructions(chosen, out=out, resume=resume, overwrite=overwrite, progress=update)
    print_table("Constructions of Corollary 1 and Theorem 1", table)
    console.print(f"model with uniform attention: {out / 'model'}", soft_wrap=True)
    console.print(f"report: {write_report(out)}", soft_wrap=True)


@app.command()
def prune(
    out: OutOption,
    layers: Annotated[
        int, typer.Option(help="Layers of the target; the random transformer has four times as many.")
    ] = 1,
    size: Annotated[int, typer.Option(help="Embedding size of the target.")] = _PRUNING.size,
    width: Annotated[int, typer.Option(help="Width of the target's feed-forward block.")] = _PRUNING.width,
    candidates: Annotated[
        str, typer.Option(help="Random products for each weight of the target.")
    ] = "4,6,8,10,12,14,16,18",
    seeds: Annotated[int, typer.Option(help="Random transformers for each of these.")] = _PRUNING.seeds,
    shared_layer: Annotated[int, typer.Option(help="Layer whose pruned weights two targets share.")] = 0,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Prune larger random transformers down to a small target (Theorem 3), and to two that share a layer."""
    chosen = Pruning(
        layers=layers, size=size, key_size=size, width=width, candidates=parse_numbers("--candidates", candidates),
        seeds=seeds, shared_layer=shared_layer,
    )  # fmt: skip
    with progress("transformers") as update:
        table = prune_by_width(chosen, out=out, resume=resume, overwrite=overwrite, progress=update)
    shown = [
        "candidates",
        "seed",
        "embedding",
        "key_size",
        "width",
        "weights",
        "kept",
        "error",
        "other_error",
        "shared",
    ]
    print_table("Error of pruned random transformers", table.select(shown))
    console.print(f"report: {write_report(out)}", soft_wrap=True)


def parse_range(text: str) -> tuple[int, int]:
    """Return the two ends of "400-500".

    Raises:
        InputError: For anything else.
    """
    first, _, last = text.partition("-")
    if not (first.strip().isdigit() and last.strip().isdigit()):
        raise InputError(f"--lengths takes a range such as 400-500; got {text!r}.")
    return int(first), int(last)


def _name(types: int, depth: int, layers: int, heads: int, first_layer: str, positions: str, contrast: float) -> str:
    """Return what the one setting of a run is called."""
    behind = "" if first_layer == "learned" else f" behind {first_layer}"
    parts = [f"{types} types, depth {depth}, {layers} {'layer' if layers == 1 else 'layers'}{behind}"]
    parts += [f"{heads} heads"] if heads > 1 else []
    parts += ["linear positions"] if positions == "linear" else []
    parts += [f"λ = {contrast:g}"] if contrast else []
    return ", ".join(parts)
