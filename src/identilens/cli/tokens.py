"""``identilens tokens``: can the input token still be read off its hidden state."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

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
    parse_layers,
    progress,
    with_note,
)
from identilens.cli.texts import read_texts
from identilens.studies.tokens.settings import TokenSettings
from identilens.studies.tokens.study import token_identifiability

_DEFAULTS = TokenSettings()


# Options that can be repeated take their choices from enums: typer knows no lists of literals.
class _Probe(StrEnum):
    naive = "naive"
    linear = "linear"
    mlp = "mlp"
    ridge = "ridge"


class _Distance(StrEnum):
    cosine = "cosine"
    l2 = "l2"


def tokens(
    model: ModelOption,
    out: OutOption,
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    pairs: PairsOption = False,
    limit: FirstTextsOption = None,
    experiment: Annotated[
        Literal["same-layer", "across-layers", "layer-to-layer", "neighbours", "data-share"],
        typer.Option(help="What is recovered from what."),
    ] = "same-layer",
    probe: Annotated[
        list[_Probe] | None,
        typer.Option(help="Map from hidden state to input; give it once for each. naive and linear by default."),
    ] = None,
    distance: Annotated[
        list[_Distance] | None,
        typer.Option(help="Of loss and look-up; give it once for each. Both by default."),
    ] = None,
    folds: Annotated[int, typer.Option(help="Random 70/15/15 splits of the sentences.")] = _DEFAULTS.folds,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to train on, from 1, such as 1,6,11-12; all by default, for data-share the last but one."
        ),
    ] = None,
    offset: Annotated[list[int] | None, typer.Option(help="Neighbours to recover, -3 to 3 by default.")] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Shares of the training sentences; 0.5, 0.8, 0.9, 1 by default.")
    ] = None,
    mlp_folds: Annotated[int | None, typer.Option(help="Fit the MLP on the first so many folds only.")] = None,
    learning_rate: Annotated[
        list[float] | None, typer.Option(help="Of trained probes, or several to search; the paper's seven by default.")
    ] = None,
    search: Annotated[
        Literal["first fold", "every fold"], typer.Option(help="Where the learning rate is searched.")
    ] = "first fold",
    patience: Annotated[int, typer.Option(help="Epochs without improvement before training stops.")] = (
        _DEFAULTS.patience
    ),
    max_epochs: Annotated[int, typer.Option(help="Limit on the epochs.")] = _DEFAULTS.max_epochs,
    batch_size: Annotated[int, typer.Option(help="Tokens in a step of training.")] = _DEFAULTS.batch_size,
    hidden_units: Annotated[int, typer.Option(help="Width of the MLP's hidden layer.")] = _DEFAULTS.hidden_units,
    compare_model: Annotated[
        str | None, typer.Option(help="A second checkpoint on the same texts, such as after fine-tuning.")
    ] = None,
    states: Annotated[
        Path | None, typer.Option(help="Folder to keep hidden states in for later runs; states/ in --out by default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of splits, initial weights and batches.")] = 0,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Say for every layer how many input tokens can be recovered from their hidden states."""
    texts = read_texts(text or [], file, column or [], encoding, pairs=pairs)[:limit]
    settings = TokenSettings(
        experiment=experiment,
        probes=tuple(one.value for one in probe) if probe else _DEFAULTS.probes,
        distances=tuple(one.value for one in distance) if distance else _DEFAULTS.distances,
        folds=folds,
        layers=parse_layers(layers),
        offsets=tuple(offset or _DEFAULTS.offsets),
        shares=tuple(share or _DEFAULTS.shares),
        learning_rates=tuple(learning_rate) if learning_rate else None,
        mlp_folds=mlp_folds,
        search=search,
        batch_size=batch_size,
        patience=patience,
        max_epochs=max_epochs,
        hidden_units=hidden_units,
        max_length=max_length,
    )
    lens = load_lens(model, device, dtype, trust_remote_code)
    compare = None if compare_model is None else load_lens(compare_model, device, dtype, trust_remote_code)
    with progress("folds") as update:
        advance, watch = with_note(update)
        result = token_identifiability(
            lens,
            texts,
            compare=compare,
            seed=seed,
            states=states or out / "states",
            out=out,
            resume=resume,
            overwrite=overwrite,
            progress=advance,
            watch=watch,
            settings=settings,
        )
    result.show()
    console.print(f"report: {result.to_html(out / 'report.html')}", soft_wrap=True)
