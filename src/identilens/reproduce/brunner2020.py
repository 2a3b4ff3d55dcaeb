"""Brunner et al. 2020: every figure, on any model; published numbers stand beside measured ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.models.loading import load
from identilens.reproduce.brunner2020_settings import (
    ACROSS,
    CHANCE,
    MAPS,
    OWN,
    PASSAGE,
    SEPARATORS,
    SHARES,
    SPEECH,
    TREEBANK,
    TUNED,
    AcrossLayers,
    AuditFigure,
    DataShare,
    HeadFigure,
    LayerToLayer,
    MixingFigure,
    Neighbours,
    Rows,
    SameLayer,
    TunedFigure,
    figure,
    record,
    reproduction,
)
from identilens.reproduce.inputs import FineTuning, tuned_model
from identilens.reproduce.record import Figure, Reproduction, chosen_charts
from identilens.runs.matrices import MatrixKey
from identilens.runs.progress import Progress
from identilens.runs.tables import Row, Tables, percent
from identilens.studies.audit.result import Audit
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.study import audit
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.settings import MixingSettings
from identilens.studies.mixing.study import mixing
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import TokenSettings
from identilens.studies.tokens.study import token_identifiability


def raw_and_effective(result: Audit) -> Rows:
    """Return the comparison of Figure 1: correlation, null space, and where structural tokens receive most."""
    table, d_v = result.table, int(result.table["d_v"][0])
    bounded = table.select(
        ((pl.col("n_key") - pl.col("d_v")).clip(0) == pl.col("nullity")).mean()
    ).item()
    short = table.filter(pl.col("n_key") <= d_v)["pearson"]
    lengths = result.by_length().sort("n_key")
    first, last = lengths.row(0, named=True), lengths.row(-1, named=True)
    rows = [
        (
            "1a",
            "correlation, texts of at most d_v tokens",
            "1",
            "no such text" if short.is_empty() else f"{short.mean():.6f}",
        ),
        (
            "1a",
            "correlation, shortest and longest texts",
            "falls with length",
            f"{first['pearson']:.3f} (n = {first['n_key']}), {last['pearson']:.3f} (n = {last['n_key']})",
        ),
        (
            "1a",
            "maps whose nullity is max(n − d_v, 0)",
            "all",
            f"{100 * bounded:.1f} % (d_v = {d_v})",
        ),
    ]
    return rows + peaks(result)


def peaks(result: Audit) -> Rows:
    """Return where each structural token receives most raw, and most effective attention, in the mean of a layer."""
    structural = result.received().filter(
        pl.col("key_type").is_in(["[CLS]", "<s>", "[SEP]", "</s>"])
    )
    layers = structural.group_by("key_type", "layer").agg(pl.col("raw", "effective").mean())
    rows: Rows = []
    for token in layers["key_type"].unique().sort():
        for number, measure in (("1b", "raw"), ("1c", "effective")):
            most = (
                layers.filter(key_type=token)
                .sort("layer")
                .sort(measure, maintain_order=True)
                .row(-1, named=True)
            )
            published = SEPARATORS[measure] if token in ("[SEP]", "</s>") else "curve only"
            measured = f"{most[measure]:.4f} (layer {most['layer'] + 1}, from 1)"
            rows.append(
                (
                    number,
                    f"largest layer mean of {measure} attention on {token}",
                    published,
                    measured,
                )
            )
    return rows


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
    names, rows, maps = result.tokens[0]["encoder"], [], {}
    outer = torch.tensor(
        [index == 0 or name in ("[SEP]", "</s>") for index, name in enumerate(names)]
    )
    index = torch.arange(len(names))
    near = ((index[:, None] - index).abs() <= 1) & ~outer
    where = {"first token and separators": outer.expand(len(names), -1), "within 1 token": near}
    where["elsewhere"] = ~(where["first token and separators"] | near)
    for head, maps[head] in sorted(maps_by_head(result).items()):
        for attention, weights in maps[head].items():
            size = weights.double().abs()
            for place, cells in where.items():
                share = float(size[cells].sum() / size.sum())
                rows.append({"head": head, "attention": attention, "place": place, "share": share})
    shares = pl.DataFrame(rows)
    head = settings.head
    if head is None:
        structural = shares.filter(attention="raw", place="first token and separators")
        head = int(structural.sort("share", descending=True)["head"][0])
    compared = [
        (
            "6",
            f"{attention} attention of head {head}: structural, within 1 token, elsewhere",
            words,
            ", ".join(
                percent(share) for share in shares.filter(head=head, attention=attention)["share"]
            ),
        )
        for attention, words in MAPS.items()
    ]
    charts = {
        "maps": token_map(
            maps[head], names, names, f"Layer {settings.layer}, head {head}", side=420
        )
    }
    used = {**record(settings, lens, "the paper's passage"), "head": head}
    return reproduction(compared, result, used, {"places": shares}, charts)


def maps_by_head(result: Audit) -> dict[int, dict[str, Float[Tensor, "n n"]]]:
    """Return raw, effective and null attention by head."""
    maps: dict[int, dict[str, Tensor]] = {}
    for name in result.matrices:
        if key := MatrixKey.parse(name):
            maps.setdefault(key.head, {})[key.name] = result.matrices[name]
    order = ("raw", "effective")
    return {
        head: {name: pair[name] for name in order} | {"null": pair["raw"] - pair["effective"]}
        for head, pair in maps.items()
    }


def rates(means: pl.DataFrame, probe: str, distance: str, **where: object) -> pl.DataFrame:
    """Return the rows of one probe and distance by the layer tested; ``where`` are values of other columns."""
    return means.filter(probe=probe, distance=distance, **where).sort(
        "layer_tested", "layer_trained"
    )


def same_layer(number: str, result: TokenIdentifiability) -> Rows:
    """Return the comparison of Figure 2a, 38 or 39."""
    same = result.same_layer()
    last = same["layer_tested"].max()
    rows = [(number, "chance", CHANCE[number], percent(same["chance"][0]))]
    for probe, distance in same.select("probe", "distance").unique(maintain_order=True).iter_rows():
        published = (
            "93 % (layer 12)"
            if (number, probe, distance) == ("2a", "linear", "cosine")
            else "curve only"
        )
        cell = rates(same, probe, distance, layer_tested=last)
        rows.append(
            (number, f"{probe}, {distance}, layer {last}", published, percent(cell["rate"][0]))
        )
    return rows


def across_layers(result: TokenIdentifiability) -> Rows:
    """Return the comparison of Figures 2 and 7 to 10."""
    means, rows = result.means(), same_layer("2a", result)
    ends = {"first": means["layer_trained"].min(), "last": means["layer_trained"].max()}
    for trained, tested, published in ACROSS:
        cell = rates(
            means, "linear", "cosine", layer_trained=ends[trained], layer_tested=ends[tested]
        )
        if len(cell):
            quantity = f"linear, cosine, trained on {ends[trained]}, tested on {ends[tested]}"
            rows.append(("2b", quantity, published, percent(cell["rate"][0])))
    for probe in ("linear", "mlp"):
        cell = rates(result.same_layer(), probe, "l2", layer_tested=ends["last"])
        if len(cell):
            quantity = f"{probe}, L2, training and test, layer {ends['last']}"
            measured = f"{percent(cell['train_rate'][0])}, {percent(cell['rate'][0])}"
            rows.append(("7", quantity, "both overfit to the same degree", measured))
    return rows


def by_layer(
    number: str, published: str, columns: Sequence[str], result: TokenIdentifiability
) -> Rows:
    """Return a comparison with a curve of the paper: rates of every probe at the first and the last layer."""
    means = result.means()
    ends = (means["layer_tested"].min(), means["layer_tested"].max())
    cells = (
        means.filter(pl.col("layer_tested").is_in(ends))
        .group_by("probe", "distance", "layer_tested", *columns, maintain_order=True)
        .agg(pl.col("rate").first())
    )
    rows: Rows = []
    for row in cells.iter_rows(named=True):
        rate = row.pop("rate")
        quantity = ", ".join(
            f"{name.removesuffix('_tested')} {value}" for name, value in row.items()
        )
        rows.append((number, quantity, published, percent(rate)))
    return rows


def data_share(result: TokenIdentifiability) -> Rows:
    """Return the comparison of section B.2."""
    rows: Rows = []
    for row in result.means().filter(probe="mlp").sort("distance", "share").iter_rows(named=True):
        share, distance = row["share"], row["distance"]
        published = (
            f"{SHARES[share]} (layer 11)" if distance == "l2" and share in SHARES else "not given"
        )
        quantity = f"MLP, {distance}, layer {row['layer_tested']}, {share:.0%} of the sentences"
        rows.append(("B.2", quantity, published, percent(row["rate"])))
    return rows


def token_tables(result: TokenIdentifiability) -> Tables:
    """Return the means over folds."""
    return {"means": result.means()}


def tuned_figure(number: str, task: Literal["mrpc", "cola"]) -> Figure:
    """Return Figure 12 or 13: naive look-up from layer to layer before and after fine-tuning."""

    def make(
        settings: TunedFigure, out: Path, *, progress: Progress | None, **run: bool
    ) -> Reproduction:
        how = FineTuning(**settings.values_of(FineTuning))
        overwrite = run.get("overwrite", False)
        tuned = tuned_model(
            task, settings.model, settings.data, out, how, progress, overwrite=overwrite
        )
        # The paper looks up tokens of MRPC in both figures.
        lens, texts = load(settings.model), settings.texts("mrpc")
        result = token_identifiability(
            lens,
            texts,
            experiment="layer-to-layer",
            probes="naive",
            folds=settings.folds,
            compare_model=str(tuned),
            out=out / "run",
            progress=progress,
            **run,
        )
        means, rows = result.means(), []
        last = means["layer_tested"].max()
        for distance, published in TUNED.items():
            cells = rates(means, "naive", distance, layer_tested=last)
            before, after = (
                cells.filter(checkpoint=name)["rate"][0] for name in ("model", "compared")
            )
            quantity = f"naive, {distance}, layer {last}, before and after"
            rows.append((number, quantity, published, f"{percent(before)}, {percent(after)}"))
        used = record(settings, lens, f"{len(texts)} of mrpc")
        used["fine-tuned parameters (digest)"] = result.provenance["settings"]["compared"]["digest"]
        return reproduction(
            rows, result, used, token_tables(result), chosen_charts(result, "rate_by_layer")
        )

    return Figure(f"Brunner et al. 2020, Figure {number}", TunedFigure, make, "folds")


def ends_of(result: Mixing) -> list[Row]:
    """Return the rows of the first, the middle and the last layer."""
    layers = result.by_layer().sort("layer")
    return [layers.row(index, named=True) for index in (0, (len(layers) - 1) // 2, -1)]


def own_contributions(result: Mixing) -> Rows:
    """Return the comparison of Figures 3 and 4."""
    rows = []
    for (name, (median, share)), row in zip(OWN.items(), ends_of(result), strict=True):
        layer = f"layer {row['layer']} ({name})"
        rows.append(("3a", f"median own contribution, {layer}", median, percent(row["median_own"])))
        rows.append(
            (
                "3b",
                f"not their own largest contributor, {layer}",
                share,
                percent(row["not_largest"]),
            )
        )
    return rows + neighbours("4a", result)


def other_corpus(first: str, second: str, result: Mixing) -> Rows:
    """Return the comparison for another corpus: the paper gives curves only."""
    rows = [
        (
            first,
            f"median own contribution and not largest, layer {row['layer']}",
            "curve only",
            f"{percent(row['median_own'])}, {percent(row['not_largest'])}",
        )
        for row in ends_of(result)
    ]
    return rows + neighbours(second, result)


def neighbours(number: str, result: Mixing) -> Rows:
    """Return the layer in which the closest and the farthest neighbours contribute most."""
    frame = result.series.neighbours
    groups = frame["group"].unique(maintain_order=True)
    rows: Rows = []
    for name, published in zip(
        (*groups[:1], *groups[-1:]), ("the first layers", "deep layers"), strict=False
    ):
        peak = frame.filter(group=name).sort("share").row(-1, named=True)
        measured = f"{peak['layer']} ({percent(peak['share'])})"
        rows.append((number, f"layer with most of group {name}", published, measured))
    return rows


def speech(result: Mixing) -> Rows:
    """Return the comparison of Figures 26 to 37: parts of speech in the first and the last layer."""
    frame = result.series.speech
    first, last = frame["layer"].min(), frame["layer"].max()
    medians = {(row["layer"], row["tag"]): row["median"] for row in frame.iter_rows(named=True)}
    rows: Rows = []
    for tag, published in SPEECH.items():
        measured = percent(medians.get((first, tag))) or "no such token"
        rows.append(("26", f"median own contribution of {tag}, layer {first}", published, measured))
    noun, determiner = medians.get((last, "NN")), medians.get((last, "DT"))
    difference = "no such tokens"
    if noun is not None and determiner is not None:
        difference = (
            f"{100 * (noun - determiner):+.1f} points ({percent(noun)} − {percent(determiner)})"
        )
    return [
        *rows,
        (
            "37",
            f"median own contribution, NN − DT, layer {last}",
            "nouns above determiners",
            difference,
        ),
    ]


def mixing_tables(result: Mixing) -> Tables:
    """Return the tables behind the figures."""
    series = result.series
    frames = {
        "own_by_layer": series.own,
        "neighbours": series.neighbours,
        "positions": series.positions,
    }
    frames |= {
        f"class_token_{number}": context.frame
        for number, context in enumerate(series.class_context)
    }
    frames["part_of_speech"] = series.speech
    return {name: frame for name, frame in frames.items() if len(frame)}


tokens = partial(figure, token_identifiability, TokenSettings, token_tables)
mixed = partial(figure, mixing, MixingSettings, mixing_tables, MixingFigure)
CURVES = ("own_contribution", "not_largest", "neighbours", "relative_positions")
FIGURES = {
    "brunner2020-figure1": figure(
        audit,
        AuditSettings,
        audit_tables,
        AuditFigure,
        "Figures 1 and 5",
        "wiki",
        raw_and_effective,
        "correlation_by_length",
        "token_types",
        "attention_to_type",
    ),
    "brunner2020-figure2": tokens(
        AcrossLayers,
        "Figures 2 and 7 to 10",
        "mrpc",
        across_layers,
        "rate_by_layer",
        "train_and_test",
        "across_layers",
    ),
    "brunner2020-figure3": mixed(
        "Figures 3, 4 and 18 to 25",
        "mrpc",
        own_contributions,
        *CURVES,
        "class_token",
        "tracked_token",
    ),
    "brunner2020-figure6": Figure("Brunner et al. 2020, Figure 6", HeadFigure, figure6, "texts"),
    "brunner2020-figure11": tokens(
        LayerToLayer,
        "Figure 11",
        "mrpc",
        partial(by_layer, "11", "falls in later layers, L2 below cosine", ()),
        "rate_by_layer",
    ),
    "brunner2020-figure12": tuned_figure("12", "mrpc"),
    "brunner2020-figure13": tuned_figure("13", "cola"),
    "brunner2020-figure14": tokens(
        Neighbours,
        "Figures 14 to 17",
        "mrpc",
        partial(by_layer, "14 to 17", "falls with distance and depth", ("offset",)),
        "neighbours",
    ),
    "brunner2020-figure26": mixed(
        "Figures 26 to 37", "ewt", speech, "part_of_speech", note=TREEBANK
    ),
    "brunner2020-figure38": tokens(
        SameLayer, "Figure 38 (CoLA)", "cola", partial(same_layer, "38"), "rate_by_layer"
    ),
    "brunner2020-figure39": tokens(
        SameLayer, "Figure 39 (MNLI)", "mnli", partial(same_layer, "39"), "rate_by_layer", most=500
    ),
    "brunner2020-figure40": mixed(
        "Figures 40 and 41 (CoLA)", "cola", partial(other_corpus, "40", "41"), *CURVES
    ),
    "brunner2020-figure42": mixed(
        "Figures 42 and 43 (MNLI)", "mnli", partial(other_corpus, "42", "43"), *CURVES, most=4000
    ),
    "brunner2020-b2": tokens(DataShare, "section B.2", "mrpc", data_share, "rate_by_share"),
}
