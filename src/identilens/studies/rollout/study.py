"""What attention rollout may be while every head's output stays the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.linalg.memory import wide
from identilens.measures.attention.row_programs import ORDER_MARGIN
from identilens.measures.mixing.bounds import HeadRows, RolloutBounds, rollout_bounds
from identilens.measures.mixing.rollout import attention_rollout
from identilens.models.heads import CapturedLayer
from identilens.models.lens import Lens
from identilens.models.rollouts import require_attention_alone, self_attention
from identilens.models.sequences import names_at, sides
from identilens.models.substitution import Replacements
from identilens.runs.matrices import MatrixKey
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.heads import TextStudy, asked_places, check_asked, filled
from identilens.studies.rollout.result import Rollouts, end_maps
from identilens.studies.rollout.settings import RolloutSettings


class RolloutStudy(TextStudy[RolloutSettings, Rollouts]):
    """Bound attention rollout over all maps that leave the output of every head the same.

    Rollout (Abnar and Zuidema 2020) multiplies the attention of all layers, the residual connection counting half.
    Other maps with the same output of every head leave the model as it is, but not its rollout. Of each query and
    target: the value, proven ends of it over all these maps, and bounds of the target's rank. Derivation and limits:
    docs/rollout.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully, some layers are no attention, or
            there is cross attention.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.rollout(lens, idl.examples()[0], queries="once", targets=("tailor", "sitting"), tolerance=0)
        >>> found.table.select("query", "token", "value", "lo", "hi")
        shape: (4, 5)
        ┌───────┬─────────┬──────────┬──────────┬──────────┐
        │ query ┆ token   ┆ value    ┆ lo       ┆ hi       │
        │ ---   ┆ ---     ┆ ---      ┆ ---      ┆ ---      │
        │ i64   ┆ str     ┆ f64      ┆ f64      ┆ f64      │
        ╞═══════╪═════════╪══════════╪══════════╪══════════╡
        │ 7     ┆ tailor  ┆ 0.021131 ┆ 0.01648  ┆ 0.026716 │
        │ 7     ┆ sitting ┆ 0.010591 ┆ 0.005491 ┆ 0.017158 │
        │ 10    ┆ tailor  ┆ 0.020071 ┆ 0.015478 ┆ 0.025565 │
        │ 10    ┆ sitting ┆ 0.012898 ┆ 0.007907 ┆ 0.019364 │
        └───────┴─────────┴──────────┴──────────┴──────────┘
    """

    name = "rollout"
    unit = "layers"
    settings_type = RolloutSettings
    result_type = Rollouts

    def __init__(self, lens: Lens, texts: Any, settings: RolloutSettings) -> None:
        super().__init__(lens, texts, settings)
        sites = lens.sites(self.items[0])
        require_attention_alone(lens)
        if any(site.kind != sites[0].kind or site.kind == "cross" for site in sites):
            raise _several_stacks(type(lens.model).__name__)
        check_asked(self.items, settings.targets)
        self.tolerances = settings.read_tolerances(lens.dtype)
        self.layers = len(sites)

    def sizes(self) -> Sequence[int]:
        """Return the layers to go through for each text."""
        return [self.layers * len(self.tolerances)] * len(self.items)

    def run(self, part: int) -> Output:
        """Return the bounds of one text."""
        layers, heads = self_attention(self.lens, self.items[part]), []
        for layer in layers:
            own = [*layer.heads]
            for head in own:
                head.refuse_sink()
            heads.append([HeadRows(one.attention, one.projected, one.visible) for one in own])
        text = self._text(part, layers, heads)
        tables: dict[str, list[Any]] = {name: [] for name in Rollouts.schema}
        matrices = {}
        # Nothing is asked of a text without the tokens that were named.
        for number, tolerance in enumerate(
            self.tolerances if text.queries and text.targets else ()
        ):
            before = self.layers * number
            found = rollout_bounds(
                heads,
                torch.eye(len(text.names)).double()[text.targets],
                queries=text.queries,
                tolerance=tolerance.size,
                witnesses=self.settings.witnesses,
                step=lambda done, before=before: self.tell(f"text {part}", before + done),
            )
            for name, frame in text.tables(tolerance.name, found).items():
                tables[name].append(frame)
            if self.settings.witnesses and not matrices:
                matrices = _matrices(text, layers, heads, found)
                tables["witnesses"].append(self._put_back(text, tolerance.name, matrices))
        tokens = {part: {text.sequence: text.names}} if matrices else {}
        return Output(filled(Rollouts.schema, tables), matrices, tokens)

    def _text(
        self, part: int, layers: Sequence[CapturedLayer], heads: Sequence[Sequence[HeadRows]]
    ) -> "_Text":
        item, kind = self.items[part], layers[0].site.kind
        sequence, n = sides(kind, item.tokens).query, layers[0].queries.shape[1]
        names = names_at(item.tokens, sequence, n, self.lens.model.config)
        queries, targets = (
            asked_places(names, asked) for asked in (self.settings.queries, self.settings.targets)
        )
        maps = [torch.stack([one.weights for one in layer]).mean(0) for layer in heads]
        if any(one.shape != (n, n) for one in maps):
            raise _several_stacks(type(self.lens.model).__name__)
        values = attention_rollout(torch.stack(maps))[-1][queries]
        reach = torch.eye(n, dtype=torch.bool, device=values.device)
        for layer in layers:
            seen = torch.ones_like(reach) if layer.visible is None else layer.visible
            reach |= (seen.float() @ reach.float()) > 0
        return _Text(part, sequence, names, queries, targets, values, reach[queries])

    def _put_back(self, text: "_Text", tolerance: str, matrices: Mapping[str, Tensor]) -> list[Row]:
        """Return how far hidden states move when the maps of each end are put into the model."""

        def states(maps: Replacements) -> Float[Tensor, "layer number"]:
            run = self.lens.substitute(maps, self.items[text.number])
            return wide(run.hidden_states[text.sequence].flatten(1))

        plain, rows = states({}), []
        for target, end in product(text.targets, ("lo", "hi")):
            change = states(end_maps(matrices, text.number, f"{end}{target}")) - plain
            moved = float((change.norm(dim=1) / plain.norm(dim=1)).max())
            at = {"text": text.number, "tolerance": tolerance, "target": target}
            rows.append({**at, "token": text.names[target], "end": end, "moved": moved})
        return rows


def _several_stacks(model: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"rollout multiplies maps of one sequence onto itself, and {model} has layers whose keys are of another "
        "sequence or a shortened one, or several stacks of layers. Choose a model with one stack, or certify its heads "
        "one at a time."
    )


rollout = study_function(RolloutStudy, "rollout")


@dataclass(frozen=True)
class _Text:
    """A text, what is asked of it, the rollout of its queries, and which tokens can reach each of them."""

    number: int
    sequence: str
    names: Sequence[str]
    queries: list[int]
    targets: list[int]
    values: Float[Tensor, "query input"]
    seen: Bool[Tensor, "query input"]

    def tables(self, tolerance: str, found: RolloutBounds) -> dict[str, pl.DataFrame]:
        """Return the rows of the tables ``table`` and ``rows`` at one tolerance.

        Ranks are those among the tokens that a query can see.
        """
        seen, values, counts = self.seen, self.values, self.seen.sum(1)
        largest = values.argmax(1)
        at = {
            "text": self.number,
            "query": self.queries,
            "query_token": [self.names[query] for query in self.queries],
            "tolerance": tolerance,
        }
        whole = {
            "tokens": counts.tolist(),
            "largest": largest.tolist(),
            "token": [self.names[token] for token in largest.tolist()],
            "gap": found.gap,
        }
        higher = values[:, None] > values[:, self.targets, None]
        columns = {
            "seen": seen[:, self.targets],
            "value": found.value.mT,
            "lo": found.lo.mT,
            "hi": found.hi.mT,
            "rank": 1 + (higher & seen[:, None]).sum(2),
        }
        if len(self.targets) == len(self.names):
            # Which token is above which in every alternative.
            above = found.lo.mT[:, :, None] > found.hi.mT[:, None] + ORDER_MARGIN
            below = (above & seen[:, None]).sum(2)
            columns["highest_rank"] = 1 + (above & seen[:, :, None]).sum(1)
            columns["lowest_rank"] = counts[:, None] - below
            first = below.gather(1, largest[:, None])[:, 0] == counts - 1
            whole["certified"] = first.tolist()
        lists = {name: column.tolist() for name, column in columns.items()}
        lists["target"] = [self.targets] * len(self.queries)
        lists["token"] = [[self.names[target] for target in self.targets]] * len(self.queries)
        table = pl.DataFrame({**at, **lists}).explode(*lists).filter("seen")
        return {"table": table, "rows": pl.DataFrame({**at, **whole})}


def _matrices(
    text: _Text,
    layers: Sequence[CapturedLayer],
    heads: Sequence[Sequence[HeadRows]],
    found: RolloutBounds,
) -> dict[str, Tensor]:
    """Return the maps of the model, and those that reach the ends of each target, by name."""
    kept = {}
    ends = found.least_maps or (), found.greatest_maps or ()
    for layer, own, *maps in zip(layers, heads, *ends, strict=True):
        site = layer.site
        for number, head in enumerate(own):
            key = MatrixKey(text.number, site.layer, number, site.kind, "raw")
            kept[str(key)] = head.weights
            for end, (at, target) in product((0, 1), enumerate(text.targets)):
                name = f"{('lo', 'hi')[end]}{target}"
                kept[str(key.named(name))] = maps[end][at, number].clone()
    return kept
