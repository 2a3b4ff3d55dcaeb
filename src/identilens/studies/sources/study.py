"""How much each head adds to a logit from each source token, and what of that alternatives can change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import SettingError
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.sequences import names_at
from identilens.models.stream import (
    Stream,
    attention_row,
    read_stream,
    require_unembedding,
    token_of,
)
from identilens.models.substitution import Address, Rows
from identilens.models.token_names import token_names
from identilens.runs.settings import WORDED, Positions
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.heads import HeadSettings, TextStudy, asked_places
from identilens.studies.outcomes import ToleranceSettings, of_head
from identilens.studies.sources.result import Sources


@dataclass(frozen=True, kw_only=True)
class SourcesSettings(ToleranceSettings, HeadSettings):
    """Which logit, where, and how nearly the heads' outputs must stay.

    Attributes:
        queries: Position (or several, 3,10-12) or token at which the logit is read; the last by default. A token
            selects every position where it occurs; negative positions count from the end.
        target: The token whose logit is read (a text such as " river", or its number); the most likely one by default.
            Two tokens stand for the difference of their logits. In Python also a direction of the residual stream.
    """

    queries: Positions | None = None
    target: Annotated[tuple[str | Tensor, ...], WORDED] | None = None

    def check(self) -> None:
        """Check that tolerances can be read, and that there are one or two targets, or a direction."""
        super().check()
        target = self.target or ()
        directions = [one for one in target if isinstance(one, Tensor)]
        flat = all(one.ndim == 1 and bool(one.isfinite().all()) for one in directions)
        if len(target) > 2 or (directions and len(target) > 1) or not flat:
            raise SettingError(
                "target", "as one token, two, or one direction of d_model numbers", target
            )

    def recorded(self) -> dict[str, Any]:
        """Return the settings that change the numbers; a direction by its digest."""
        target = [
            hashlib.sha256(one.double().cpu().numpy().tobytes()).hexdigest()
            if isinstance(one, Tensor)
            else one
            for one in self.target or ()
        ]
        return {**super().recorded(), "target": target or None}


class SourcesStudy(TextStudy[SourcesSettings, Sources]):
    """Split a logit by head and source token, and bound each part over all alternatives of the head's row.

    The last hidden state is a sum: the embedding, what each head adds from each token, output biases and feed-forward
    networks. With the scale of the final norm frozen, a logit is linear in it, and key j adds a_ij c_j by head and
    token, c_j = t_j·u. Heads, biases, feed-forward networks and the embedding are the same for all maps that leave each
    head's output the same; how a head's part divides among tokens is not. Derivation and limits: docs/sources.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's logits are no such sum.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.sources(lens, "The cat sat on the mat and the cat", layers=3, heads=(0, 1))
        >>> found.logits.select("target", "logit", "heads").columns
        ['target', 'logit', 'heads']
        >>> bool(found.logits["error"].abs().max() < 1e-5)
        True
    """

    name = "sources"
    settings_type = SourcesSettings
    result_type = Sources

    def __init__(self, lens: Lens, texts: Any, settings: SourcesSettings) -> None:
        super().__init__(lens, texts, settings)
        require_unembedding(lens)
        sites = lens.sites(self.items[0])
        chosen = chosen_heads(sites, settings.layers, settings.heads, None)
        self.chosen = [(sites.index(site), head) for site, head in chosen]
        self.tolerances = settings.read_tolerances(lens.dtype)
        if any(one.size for one in self.tolerances) and any(site.normed for site in sites):
            raise SettingError(
                "tolerance",
                "0: the model normalises what its heads mix, so that what a key adds depends on the whole row",
                settings.tolerance,
            )

    def run(self, part: int) -> Output:
        """Return the sources of the logits of one text."""
        item, tables = self.items[part], {name: [] for name in Sources.schema}
        names = names_at(item.tokens, next(iter(item.tokens)), item.length, self.lens.model.config)
        asked = self.settings.queries or ("last",)
        self._logits: Any = self.lens.substitute({}, item).logits
        for query in asked_places(names, asked):
            stream = read_stream(self.lens, item, query)
            u, besides, value, target = self._read(stream)
            at = {"text": part, "query": query, "query_token": names[query], "target": target}
            layers = []
            for layer, more in zip(stream.layers, stream.feed_forward, strict=True):
                bias = float(layer.site.output_bias.double().cpu() @ u)
                parts = {
                    "heads": float(attention_row(layer, query) @ u) - bias,
                    "output_bias": bias,
                    "feed_forward": float(more @ u),
                }
                layers.append({**at, "layer": layer.site.layer, **parts})
            whole = {"embedding": float(stream.embedding @ u), "final_bias": besides}
            for name in ("heads", "output_bias", "feed_forward"):
                whole[name] = sum(one[name] for one in layers)
            error = sum(whole.values()) - value
            tables["layers"] += layers
            ends = {}
            for number, head in self.chosen:
                one = stream.layers[number].head(head)
                ends[one.address] = self._add(tables, at, one, u, names)
                self.tell(f"text {part}, layer {number}, head {head}")
            # Heads' outputs stay, so the ends of all heads can be put into the model together.
            ends_moved = []
            for number in range(many := max(map(len, ends.values()))):
                rows = {head: some[number % len(some)] for head, some in ends.items()}
                ends_moved.append(self._moved(rows, query, item))
                self.tell(f"text {part}, both ends put back, {number + 1} of {many}")
            whole |= {"error": error, "ends_moved": max(ends_moved, default=None)}
            tables["logits"].append({**at, "logit": value, **whole})
        return Output({name: table_of(Sources.schema[name], one) for name, one in tables.items()})

    def _read(self, stream: Stream) -> tuple[Float[Tensor, " d_model"], float, float, str]:
        """Return u, what the logit has besides h·u, the logit as the model has it, and what it is called."""
        target = self.settings.target or ()
        if target and isinstance(target[0], Tensor):
            u = target[0].double().cpu()
            if u.shape != stream.last.shape:
                words = f"as a direction of {len(stream.last)} numbers"
                raise SettingError("target", words, f"{len(u)} numbers")
            return u, 0.0, float(stream.last @ u), "the direction"
        tokens = [token_of(self.lens, str(one)) for one in target] or [int(stream.logits.argmax())]
        names = (
            token_names(self.lens.tokenizer, tokens) if self.lens.tokenizer else map(str, tokens)
        )
        parts = [(*stream.direction(token), float(stream.logits[token])) for token in tokens]
        u, besides, value = parts[0]
        for other, more, less in parts[1:]:
            u, besides, value = u - other, besides - more, value - less
        return u, besides, value, " − ".join(map(repr, names))

    def _add(
        self,
        tables: Mapping[str, list[Row]],
        at: Row,
        head: Head,
        u: Float[Tensor, " d_model"],
        names: Sequence[str],
    ) -> Float[Tensor, "alternative key"]:
        """Add what one head adds to the logit, by source token, and what alternatives can add, for each tolerance.

        Returns:
            Rows that reach the ends of all sources and leave the head's output the same; none without the tolerance 0.
        """
        head.refuse_sink()
        query, item = at["query"], self.items[at["text"]]
        row = head.row(query)
        kept = of_head(row, head.at(query), head.seen(query))
        exact = torch.zeros(0, len(row)).double()
        added = head.values.double() @ (head.row_projection(query) @ u)
        for tolerance in self.tolerances:
            solver = kept.solver(kept.allowed(tolerance), keep=True)
            ends = solver.ends()
            c = added[solver.keys]
            reached = torch.stack([c * one for one in ends])
            lo, hi = reached.amin(0), reached.amax(0)
            top = solver.top(ends, c.abs() / c.abs().max().clamp_min(1e-300))
            place = {**at, "tolerance": tolerance.name, "layer": head.layer, "head": head.head}
            numbers = (solver.inside, c, c * solver.inside, lo, hi)
            for key, *values in zip(
                solver.keys.tolist(), *(one.tolist() for one in numbers), strict=True
            ):
                own = dict(
                    zip(("weight", "coefficient", "contribution", "lo", "hi"), values, strict=True)
                )
                tables["table"].append({**place, "key": key, "token": names[key], **own})
            largest = int(solver.keys[(c * solver.inside).abs().argmax()])
            farthest = torch.zeros_like(row)
            farthest[solver.keys] = solver.farthest()
            if not tolerance.size:
                extremes = solver.extremes()
                exact = exact.new_zeros(len(extremes), exact.shape[1])
                exact[:, solver.keys] = extremes
            tables["rows"].append(
                {
                    **place,
                    "contribution": float(c @ solver.inside),
                    "largest": largest,
                    "token": names[largest],
                    "certified": top is not None,
                    "farthest": float((row - farthest).clamp_min(0.0).sum()),
                    "moved": self._moved({head.address: farthest}, query, item),
                    "gap": solver.gap,
                }
            )
        return exact

    def _moved(
        self, rows: Mapping[Address, Float[Tensor, " key"]], query: int, item: Item
    ) -> float:
        """Return the largest change of any logit of the text when heads have these rows at the query."""
        given = {head: Rows([query], row[None]) for head, row in rows.items()}
        changed: Any = self.lens.substitute(given, item).logits
        return float((changed - self._logits).abs().max())


sources = study_function(SourcesStudy, "sources")
