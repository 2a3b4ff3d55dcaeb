"""``identilens mixing``: how much of each input token is in each hidden token."""

from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import typer

from identilens.cli.common import (
    ColumnOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    FileOption,
    FirstTextsOption,
    MaxLengthOption,
    ModelOption,
    OutOption,
    OverwriteOption,
    PairsOption,
    RemoteCodeOption,
    ResumeOption,
    TextOption,
    console,
    load_lens,
    parse_bytes,
    parse_layers,
    progress,
)
from identilens.cli.texts import read_texts
from identilens.errors import InputError
from identilens.measures.mixing import find_token, spacy_tagger, tag_tokens, track_token
from identilens.models import Lens
from identilens.models.derivative.jacobian import DEFAULT_PROBES
from identilens.results import Mixing
from identilens.results.stored import print_table
from identilens.runs.conllu import read_conllu
from identilens.studies.mixing.study import mixing as run_mixing


def mixing(
    model: ModelOption,
    out: OutOption,
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    pairs: PairsOption = False,
    conllu: Annotated[Path | None, typer.Option(help="CoNLL-U file: its sentences, with parts of speech.")] = None,
    spacy: Annotated[str | None, typer.Option(help="spaCy pipeline that tags the texts' parts of speech.")] = None,
    tags: Annotated[
        Literal["xpos", "upos"], typer.Option(help="The treebank's or pipeline's own tags, or universal ones.")
    ] = "xpos",
    limit: FirstTextsOption = None,
    probes: Annotated[int | None, typer.Option(help=f"Probes a token for the sketch; {DEFAULT_PROBES}.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exact norms instead of a sketch; several times slower.")] = (
        False
    ),
    wrt: Annotated[
        Literal["embeddings", "embedding_sum"], typer.Option(help="What enters the first layer, or the norm before it.")
    ] = "embeddings",
    layers: Annotated[str | None, typer.Option(help="Layers to keep, from 1, such as 1,6,10-12; all by default.")] = (
        None
    ),
    track: Annotated[str | None, typer.Option(help="Print what this token takes from where, layer by layer.")] = None,
    memory_budget: Annotated[str, typer.Option(help="Bytes of tensors that a sweep may hold at once.")] = "256MiB",
    seed: Annotated[int, typer.Option(min=0, help="Of the random probes.")] = 0,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Say for every layer how much of each input token is in each hidden token (Hidden Token Attribution)."""
    if exact and probes is not None:
        raise InputError("--exact takes no probes. Give either --exact or --probes.")
    budget, kept = parse_bytes(memory_budget), parse_layers(layers)
    texts, tagged = _read(text, file, column, encoding, pairs, conllu, tags, limit)
    tagger = spacy_tagger(spacy, fine=tags == "xpos") if spacy else None
    if (tagged or tagger) and max_length is not None:
        raise InputError("parts of speech need whole texts: leave --max-length out, or --conllu and --spacy.")
    lens = load_lens(model, device, dtype, trust_remote_code)
    if track is not None:
        _check_token(lens, texts, max_length, track)
    found_tags = tag_tokens(tagged or texts, lens.tokenizer, tagger) if tagged or tagger else None
    with progress("texts") as update:
        result = run_mixing(
            lens,
            texts,
            layers=kept,
            method="exact" if exact else "sketch",
            wrt=wrt,
            probes=DEFAULT_PROBES if probes is None else probes,
            memory_budget=budget,
            max_length=max_length,
            seed=seed,
            out=out,
            resume=resume,
            overwrite=overwrite,
            progress=update,
        )
    if found_tags is not None:
        result = result.with_tags(found_tags)
        result.save(out)
    result.show()
    if track is not None:
        _show_track(result, track)
    console.print(f"report: {result.to_html(out / 'report.html', track=track)}", soft_wrap=True)


def _read(
    text: list[str] | None,
    file: Path | None,
    column: list[str] | None,
    encoding: str,
    pairs: bool,
    conllu: Path | None,
    tags: Literal["xpos", "upos"],
    limit: int | None,
) -> tuple[list[Any], list[Any] | None]:
    """Return the texts, and the same with tags where they come from a CoNLL-U file."""
    if conllu is None:
        return read_texts(text or [], file, column or [], encoding, pairs=pairs)[:limit], None
    if text or file or pairs:
        raise InputError("--conllu brings its own texts: leave out --text, --file and --pairs.")
    tagged = read_conllu(conllu, tags, limit)
    return [sentence.text for sentence in tagged], tagged


def _check_token(lens: Lens, texts: list[Any], max_length: int | None, token: str) -> None:
    """Find the token before hours are spent on the run."""
    items = lens.read(texts, max_length)
    find_token([list(next(iter(item.tokens.values()))) for item in items], token)


def _show_track(result: Mixing, token: str) -> None:
    kind = result.kinds[0]
    text, position = find_token(
        [result.names(number, kind) for number in range(result.provenance["texts"]["count"])], token
    )
    rows = track_token(result.table, result.tokens, position, text)
    wide = rows.with_columns((pl.col("contribution") * 100).round(1)).pivot(
        "layer", index=["position", "token"], values="contribution"
    )
    names = result.names(text, kind)
    title = f"What {names[position]!r} (text {text}, position {position}) takes from each token, per cent, by layer"
    print_table(title, wide)
