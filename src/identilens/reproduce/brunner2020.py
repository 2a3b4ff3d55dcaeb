"""Brunner et al. 2020: every figure, on any model; published numbers stand beside measured ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.labels import said
from identilens.models.loading import load
from identilens.reproduce.brunner2020_settings import (
    MAPS,
    OWN,
    PASSAGE,
    SEPARATORS,
    SHARES,
    SPEECH,
    TUNED,
    Rows,
    figure,
    record,
    reproduction,
)
from identilens.reproduce.inputs import corpus_texts, tuned_model
from identilens.reproduce.options import HeadFigure, TunedFigure
from identilens.reproduce.record import Reproduction, chosen_charts
from identilens.runs.matrices import MatrixKey
from identilens.runs.tables import Tables
from identilens.studies.audit.result import Audit
from identilens.studies.audit.study import audit
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.study import mixing
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.study import token_identifiability


def compared(
    frame: pl.DataFrame, number: str, quantity: str, published: str, measured: str
) -> Rows:
    """Return a row of the comparison for each row of a frame, whose columns fill the templates; see `said`."""
    return [
        (number, *(" ".join(said(part, row)) for part in (quantity, published, measured)))
        for row in frame.iter_rows(named=True)
    ]


def raw_and_effective(result: Audit) -> Rows:
    """Return the comparison of Figure 1: correlation, null space, and where separators receive most."""
    n_key, d_v, lengths = pl.col("n_key"), pl.col("d_v"), result.by_length().sort("n_key")
    maps = result.table.select(
        d_v.first(),
        short=pl.col("pearson").filter(n_key <= d_v).mean(),
        bounded=((n_key - d_v).clip(0) == pl.col("nullity")).mean(),
    )
    both = pl.col("pearson", "n_key")
    ends = lengths.select(both.first().name.suffix("_first"), both.last().name.suffix("_last"))
    return [
        *compared(maps, "1a", "correlation, texts of at most d_v tokens", "1", "{short:.6f}"),
        *compared(
            ends,
            "1a",
            "correlation, shortest and longest texts",
            "falls with length",
            "{pearson_first:.3f} (n = {n_key_first}), {pearson_last:.3f} (n = {n_key_last})",
        ),
        *compared(
            maps,
            "1a",
            "maps whose nullity is max(n − d_v, 0)",
            "all",
            "{bounded:.1%} (d_v = {d_v})",
        ),
        *peaks("1b", "raw", result),
        *peaks("1c", "effective", result),
    ]


def peaks(number: str, measure: str, result: Audit) -> Rows:
    """Return the layer in whose mean a separator receives most."""
    separators = result.received().filter(pl.col("key_type").is_in(["[SEP]", "</s>"]))
    layers = separators.group_by("key_type", "layer").agg(most=pl.mean(measure))
    peak = layers.sort("most", "layer").group_by("key_type", maintain_order=True).last()
    return compared(
        peak.with_columns(pl.col("layer") + 1),
        number,
        f"largest layer mean of {measure} attention on {{key_type}}",
        SEPARATORS[measure],
        "{most:.4f} (layer {layer}, from 1)",
    )


def audit_tables(result: Audit) -> Tables:
    """Return correlation by length, and attention by token type."""
    return {
        "by_length": result.by_length(),
        "received": result.received(),
        "token_types": result.token_types,
    }


def figure6(settings: HeadFigure, out: Path, **run: Any) -> Reproduction:
    """Return raw, effective and null attention of one head on the passage of the paper."""
    lens = load(settings.model)
    result = audit(
        lens,
        [PASSAGE],
        layers=settings.layer,
        matrices=True,
        certain_rows=0,
        out=out / "run",
        **run,
    )
    names = result.tokens[0]["encoder"]
    outer = [index == 0 or name in ("[SEP]", "</s>") for index, name in enumerate(names)]
    structural = torch.tensor(outer).expand(len(names), -1)
    near = torch.ones_like(structural).tril(1).triu(-1) & ~structural
    places = {"structural": structural, "near": near, "elsewhere": ~(structural | near)}

    def matrix(head: int, name: str) -> Float[Tensor, "query key"]:
        return result.matrices[str(MatrixKey(0, settings.layer, head, "encoder", name))]

    head = max(result.table["head"], key=lambda head: float(matrix(head, "raw")[structural].sum()))
    raw, effective = matrix(head, "raw"), matrix(head, "effective")
    maps, rows = {"raw": raw, "effective": effective, "null": raw - effective}, []
    for attention, weights in maps.items():
        size = weights.double().abs()
        shares = {name: float(size[cells].sum() / size.sum()) for name, cells in places.items()}
        rows.append({"attention": attention, "published": MAPS[attention], **shares})
    shares = pl.DataFrame(rows)
    comparison = compared(
        shares,
        "6",
        f"{{attention}} attention of head {head}: structural, within 1 token, elsewhere",
        "{published}",
        "{structural:.1%}, {near:.1%}, {elsewhere:.1%}",
    )
    return reproduction(
        comparison,
        result,
        {**record(settings, lens, "the paper's passage"), "head": head},
        {"places": shares},
        {"maps": token_map(maps, names, names, f"Layer {settings.layer}, head {head}", side=420)},
    )


def same_layer(number: str, chance: str, published: str, result: TokenIdentifiability) -> Rows:
    """Return the comparison of Figure 2a, 38 or 39: chance, and every probe at the last layer."""
    last = result.same_layer().filter(layer_tested=pl.col("layer_tested").max())
    return [
        *compared(last.head(1), number, "chance", chance, "{chance:.1%}"),
        *compared(
            last,
            number,
            "{probe}, {distance}, layer {layer_tested}",
            published,
            "{rate:.1%}",
        ),
    ]


def across_layers(result: TokenIdentifiability) -> Rows:
    """Return the comparison of Figures 2 and 7 to 10."""
    rows = same_layer("2a", "1.7 %", "93 % (linear, cosine, layer 12)", result)
    cells = result.means().filter(probe="linear", distance="cosine")
    first, last = cells["layer_trained"].min(), cells["layer_trained"].max()
    for trained, tested, published in (
        (first, last, "“drops quickly to below 70% at layers 11 and 12”"),
        (last, last, "94 %"),
        (last, first, "“almost monotonically increases when testing on earlier layers”"),
    ):
        rows += compared(
            cells.filter(layer_trained=trained, layer_tested=tested),
            "2b",
            "linear, cosine, trained on {layer_trained}, tested on {layer_tested}",
            published,
            "{rate:.1%}",
        )
    overfit = result.same_layer().filter(
        pl.col("probe").is_in(["linear", "mlp"]), distance="l2", layer_tested=last
    )
    return rows + compared(
        overfit,
        "7",
        "{probe}, L2, training and test, layer {layer_tested}",
        "both overfit to the same degree",
        "{train_rate:.1%}, {rate:.1%}",
    )


def by_layer(number: str, where: str, published: str, result: TokenIdentifiability) -> Rows:
    """Return a comparison with a curve of the paper: rates of every probe at the first and the last layer."""
    layer = pl.col("layer_tested")
    ends = result.means().filter((layer == layer.min()) | (layer == layer.max()))
    return compared(ends, number, "{probe}, {distance}, " + where, published, "{rate:.1%}")


def data_share(result: TokenIdentifiability) -> Rows:
    """Return the comparison of section B.2."""
    shares = result.means().filter(probe="mlp").sort("distance", "share")
    published = pl.DataFrame(SHARES, schema_overrides=shares.schema)
    return compared(
        shares.join(published, ["distance", "share"], "left").fill_null("not given"),
        "B.2",
        "MLP, {distance}, layer {layer_tested}, {share:.0%} of the sentences",
        "{published}",
        "{rate:.1%}",
    )


def token_tables(result: TokenIdentifiability) -> Tables:
    """Return the means over folds."""
    return {"means": result.means()}


def tuned_figure(number: str, task: Literal["mrpc", "cola"]) -> Callable[..., Reproduction]:
    """Return what makes Figure 12 or 13: naive look-up from layer to layer before and after fine-tuning."""

    def make(settings: TunedFigure, out: Path, **run: Any) -> Reproduction:
        tuned = load(tuned_model(task, settings, out))
        # The paper looks up tokens of MRPC in both figures.
        lens, texts = load(settings.model), corpus_texts(settings, "mrpc")
        result, after = (
            token_identifiability(
                model,
                texts,
                experiment="layer-to-layer",
                probes="naive",
                folds=settings.folds,
                out=out / name,
                **run,
            )
            for name, model in (("run", lens), ("tuned-run", tuned))
        )
        columns = "distance", "layer_tested"
        both = result.means().join(after.means(), columns, suffix="_tuned")
        rows = compared(
            both.sort("layer_tested")
            .tail(2)
            .with_columns(published=pl.col("distance").replace_strict(TUNED)),
            number,
            "naive, {distance}, layer {layer_tested}, before and after",
            "{published}",
            "{rate:.1%}, {rate_tuned:.1%}",
        )
        return reproduction(
            rows,
            result,
            {
                **record(settings, lens, f"{len(texts)} of mrpc"),
                "fine-tuned parameters (digest)": tuned.digest,
            },
            {"means": both},
            chosen_charts(after, "rate_by_layer"),
        )

    return make


def ends_of(result: Mixing) -> pl.DataFrame:
    """Return the rows of the first, the middle and the last layer."""
    layers = result.by_layer().sort("layer")
    last = len(layers) - 1
    return layers[[0, last // 2, last]]


def own_contributions(result: Mixing) -> Rows:
    """Return the comparison of Figures 3 and 4."""
    ends = pl.concat([ends_of(result), pl.DataFrame(OWN)], how="horizontal")
    return [
        *compared(
            ends,
            "3a",
            "median own contribution, layer {layer} ({name})",
            "{own}",
            "{median_own:.1%}",
        ),
        *compared(
            ends,
            "3b",
            "not their own largest contributor, layer {layer} ({name})",
            "{others}",
            "{not_largest:.1%}",
        ),
        *neighbours("4a", result),
    ]


def other_corpus(first: str, second: str, result: Mixing) -> Rows:
    """Return the comparison for another corpus: the paper gives curves only."""
    rows = compared(
        ends_of(result),
        first,
        "median own contribution and not largest, layer {layer}",
        "curve only",
        "{median_own:.1%}, {not_largest:.1%}",
    )
    return rows + neighbours(second, result)


def neighbours(number: str, result: Mixing) -> Rows:
    """Return the layer in which the closest and the farthest neighbours contribute most."""
    frame = result.neighbours.sort("share", maintain_order=True)
    groups, rows = result.neighbours["group"], []
    for group, published in ((groups.first(), "the first layers"), (groups.last(), "deep layers")):
        rows += compared(
            frame.filter(group=group).tail(1),
            number,
            "layer with most of group {group}",
            published,
            "{layer} ({share:.1%})",
        )
    return rows


def speech(result: Mixing) -> Rows:
    """Return the comparison of Figures 26 to 37: parts of speech in the first and the last layer."""
    frame, layer = result.speech, pl.col("layer")
    rows: Rows = [
        ("26 to 37", "corpus", "not named in section C.5", "single sentences of UD English EWT")
    ]
    for tag, published in SPEECH.items():
        rows += compared(
            frame.filter(layer == layer.min(), tag=tag),
            "26",
            "median own contribution of {tag}, layer {layer}",
            published,
            "{median:.1%}",
        )
    last = frame.filter(layer == layer.max(), pl.col("tag").is_in(["NN", "DT"]))
    both = last.pivot("tag", index="layer", values="median")
    if len(both.columns) == 3:
        rows += compared(
            both.with_columns(points=100 * (pl.col("NN") - pl.col("DT"))),
            "37",
            "median own contribution, NN − DT, layer {layer}",
            "nouns above determiners",
            "{points:+.1f} points ({NN:.1%} − {DT:.1%})",
        )
    return rows


def mixing_tables(result: Mixing) -> Tables:
    """Return the tables behind the figures."""
    frames = {
        "own_by_layer": result.own_boxes,
        "neighbours": result.neighbours,
        "positions": result.positions,
        "part_of_speech": result.speech,
        "class_token": result.class_context,
    }
    return {name: frame for name, frame in frames.items() if len(frame)}


tokens = partial(figure, token_identifiability, token_tables)
mixed = partial(figure, mixing, mixing_tables)
CURVES = ("own_contribution", "neighbours", "relative_positions")
FIGURES = {
    "brunner2020-figure1": figure(
        audit,
        audit_tables,
        "wiki",
        raw_and_effective,
        "correlation_by_length",
        "token_types",
        "attention_to_type",
    ),
    "brunner2020-figure2": tokens(
        "mrpc",
        across_layers,
        "rate_by_layer",
        "train_and_test",
        "lines",
    ),
    "brunner2020-figure3": mixed(
        "mrpc",
        own_contributions,
        *CURVES,
        "class_token",
        "tracked_token",
    ),
    "brunner2020-figure6": figure6,
    "brunner2020-figure11": tokens(
        "mrpc",
        partial(by_layer, "11", "layer {layer_tested}", "falls in later layers, L2 below cosine"),
        "rate_by_layer",
    ),
    "brunner2020-figure12": tuned_figure("12", "mrpc"),
    "brunner2020-figure13": tuned_figure("13", "cola"),
    "brunner2020-figure14": tokens(
        "mrpc",
        partial(
            by_layer,
            "14 to 17",
            "layer {layer_tested}, offset {offset}",
            "falls with distance and depth",
        ),
        "lines",
    ),
    "brunner2020-figure26": mixed("ewt", speech, "part_of_speech"),
    "brunner2020-figure38": tokens(
        "cola",
        partial(same_layer, "38", "9 %", "curve only"),
        "rate_by_layer",
    ),
    "brunner2020-figure39": tokens(
        "mnli",
        partial(same_layer, "39", "2.6 %", "curve only"),
        "rate_by_layer",
        most=500,
    ),
    "brunner2020-figure40": mixed("cola", partial(other_corpus, "40", "41"), *CURVES),
    "brunner2020-figure42": mixed("mnli", partial(other_corpus, "42", "43"), *CURVES, most=4000),
    "brunner2020-b2": tokens("mrpc", data_share, "rate_by_share"),
}
