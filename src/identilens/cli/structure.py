"""``identilens structure``: what the attention of texts of one length has in common."""

from typing import Annotated, Literal

import typer

from identilens.cli.common import (
    ColumnOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    FileOption,
    FirstTextsOption,
    ModelOption,
    OutOption,
    OverwriteOption,
    RemoteCodeOption,
    ResumeOption,
    TextOption,
    console,
    load_lens,
    progress,
)
from identilens.cli.texts import read_texts
from identilens.studies.structure.study import POOL
from identilens.studies.structure.study import structure as run_structure


def structure(
    model: ModelOption,
    out: OutOption,
    length: Annotated[int, typer.Option("--length", "-n", help="Tokens of every text, special tokens included.")],
    text: TextOption = None,
    file: FileOption = None,
    column: ColumnOption = None,
    encoding: EncodingOption = "utf-8",
    limit: FirstTextsOption = None,
    cut: Annotated[
        Literal["clip", "window"], typer.Option(help="Keep the start of each text, or all windows of the length.")
    ] = "clip",
    shorter: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do with texts that are shorter than the length.")
    ] = "error",
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="l: smaller weights are cut; 2/n by default.")
    ] = None,
    scale: Annotated[Literal["mean", "sum"], typer.Option(help="Whether l is on the mean or the sum of weights.")] = (
        "mean"
    ),
    penalty: Annotated[float, typer.Option(help="What is left of a weight that is cut, as a share of it.")] = 0.0,
    clusters: Annotated[
        int | None, typer.Option(help="Number of representative texts; by the largest silhouette by default.")
    ] = None,
    pool: Annotated[int, typer.Option(help="Texts among which representatives are sought.")] = POOL,
    pairs: Annotated[int, typer.Option(help="Pairs of texts whose null spaces are compared.")] = 50,
    perturbed: Annotated[int, typer.Option(help="Representatives whose weights are perturbed.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of clusters and perturbations.")] = 0,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Say for every head what the attention of many texts has in common: W, the subspace R, patterns and norms."""
    texts = read_texts(text or [], file, column or [], encoding)[:limit]
    lens = load_lens(model, device, dtype, trust_remote_code)
    with progress("steps") as update:
        result = run_structure(
            lens,
            texts,
            length=length,
            cut=cut,
            shorter=shorter,
            threshold=threshold,
            scale=scale,
            penalty=penalty,
            clusters=clusters,
            pool=pool,
            pairs=pairs,
            perturbed=perturbed,
            seed=seed,
            out=out,
            resume=resume,
            overwrite=overwrite,
            progress=update,
        )
    result.show()
    console.print(f"report: {result.to_html(out / 'report.html')}", soft_wrap=True)
