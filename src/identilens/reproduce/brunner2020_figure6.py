"""Figure 6 of Brunner et al. 2020: raw, effective and null attention of one head on the paper's passage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.models.loading import load
from identilens.reproduce.brunner2020 import BrunnerSettings, Figures, Rows, percent, reproduction
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.matrices import MatrixKey
from identilens.studies.audit.result import Audit
from identilens.studies.audit.study import audit

PASSAGE = (
    "research into military brats has consistently shown them to be better behaved than their civilian counterparts.",
    "hypothesizes as to why brats are better behaved: firstly, military parents have a lower threshold for "
    "misbehavior in their children; secondly, the mobility of teenagers might make them less likely to attract "
    "attention to themselves, as many want to fit in and are less secure with their surroundings; and thirdly, "
    "normative constraints are greater, with brats knowing that their behavior is under scrutiny and can affect "
    "the military member's career. teenage years are typically a period when people establish independence by "
    "taking some risks away from their",
)


@dataclass(frozen=True, kw_only=True)
class Figure6Settings(BrunnerSettings):
    """The head; the paper shows one of layer 4 of BERT-base.

    Attributes:
        layer: Layer, counted from 0.
        head: Head, counted from 0. Default: the one with the most raw attention on the first token and the separators.
    """

    layer: Annotated[int, Ge(0)] = 3
    head: Annotated[int, Ge(0)] | None = None


def figure6(settings: Figure6Settings, out: Path, **run: Any) -> Reproduction:
    """Raw, effective and null attention of one head on the passage of the paper."""
    lens = load(settings.model)
    result = audit(lens, [PASSAGE], layers=settings.layer, matrices=True, certain_rows=0, out=out / "run", **run)
    shares = places(result)
    head = settings.head
    if head is None:
        raw = shares.filter(attention="raw", place="first token and separators")
        head = int(raw.sort("share", descending=True)["head"][0])
    one = Figures(
        "brunner2020-figure6", "Figure 6", "mrpc", lambda _: compare(shares.filter(head=head), head), (),
        lambda _: {"places": shares},
    )  # fmt: skip
    made = reproduction(one, settings, lens, result, 1)
    drawn = maps(result)[head]
    names = result.tokens[0]["encoder"]
    charts = {"maps": token_map(drawn, names, names, f"Layer {settings.layer}, head {head}", side=420)}
    used = {**made.settings, "texts": "the paper's passage", "head": head}
    return Reproduction(made.name, made.source, used, made.tables, made.findings, charts)


def maps(result: Audit) -> dict[int, dict[str, Float[Tensor, "n n"]]]:
    """Return raw, effective and null attention by head."""
    kept = {(key.head, key.name): result.matrices[name] for name in result.matrices if (key := MatrixKey.parse(name))}
    heads = sorted({head for head, _ in kept})
    both = {head: (kept[head, "raw"], kept[head, "effective"]) for head in heads}
    return {head: {"raw": raw, "effective": part, "null": raw - part} for head, (raw, part) in both.items()}


def places(result: Audit) -> pl.DataFrame:
    """Return the share of absolute weight on structural tokens, near the diagonal and elsewhere, by head."""
    names, rows = result.tokens[0]["encoder"], []
    outer = torch.tensor([index == 0 or name in ("[SEP]", "</s>") for index, name in enumerate(names)])
    index = torch.arange(len(names))
    near = ((index[:, None] - index).abs() <= 1) & ~outer
    where = {"first token and separators": outer.expand(len(names), -1), "within 1 token": near}
    where["elsewhere"] = ~(where["first token and separators"] | near)
    for head, layers in maps(result).items():
        for attention, weights in layers.items():
            size = weights.double().abs()
            for place, chosen in where.items():
                share = float(size[chosen].sum() / size.sum())
                rows.append({"head": head, "attention": attention, "place": place, "share": share})
    return pl.DataFrame(rows)


def compare(shares: pl.DataFrame, head: int) -> Rows:
    """Return the paper's words on the three maps beside shares of absolute weight."""
    words = {
        "raw": "mostly structural or near the diagonal", "effective": "structural weights vanish",
        "null": "carries the structural weights",
    }  # fmt: skip
    return [
        ("6", f"{attention} attention of head {head}: structural, within 1 token, elsewhere", said,
         ", ".join(percent(share) for share in shares.filter(attention=attention)["share"]))
        for attention, said in words.items()
    ]  # fmt: skip


RECIPE = Recipe(Figure6Settings, figure6, "texts")
