"""Could queries and keys of the head's size give the alternatives (Bhardwaj et al. 2021, Fig. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge

from identilens.errors import InputError, SettingError
from identilens.measures.attention.logits import logit_rank_study
from identilens.models.heads import LOGIT_ERROR
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.runs.provenance import Identity
from identilens.runs.settings import LIST, Numbers, Settings
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import table_of
from identilens.studies.logit_ranks.result import LogitRanks


@dataclass(frozen=True, kw_only=True)
class LogitRankSettings(Settings):
    """Which heads, and how many alternatives of each.

    Attributes:
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        count: Alternatives of each head; the paper has 1,000.
        lengths: Texts of so many times d_v tokens take part, from and up to; the paper takes 2-4.
        max_length: Cut longer texts to this many tokens.
        seed: Of the random numbers.
    """

    layers: Numbers | None = None
    heads: Numbers | None = None
    count: Annotated[int, Ge(1)] = 1000
    lengths: Annotated[tuple[float, float], LIST] = (2.0, 4.0)
    max_length: Annotated[int | None, Ge(1)] = None
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Check that the lengths go upwards."""
        if not 0 < self.lengths[0] <= self.lengths[1]:
            raise SettingError("lengths", "as two positive ends, the lower first", self.lengths)


class LogitRankStudy(Study[LogitRankSettings, LogitRanks]):
    """Find the least logit ranks of random alternatives, beside what the head could produce.

    The protocol of Bhardwaj et al. 2021, Fig. 5: alternatives with coefficients uniform on [−10, 10] in LN([T, 1]),
    rows scaled to stay on the simplex; one is held at a time. Bidirectional attention only: a mask leaves the
    hidden logits free.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, no text of a fitting length, or masked attention.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """

    name = "logit-ranks"
    unit = "heads"
    settings_type = LogitRankSettings
    result_type = LogitRanks

    def __init__(self, lens: Lens, texts: Any, settings: LogitRankSettings) -> None:
        self.lens, self.settings = lens, settings
        self.items = lens.read(texts, settings.max_length)
        sites = lens.sites(self.items[0])
        if all(site.kind != "encoder" for site in sites):
            raise InputError(
                "the model has no bidirectional attention: a mask leaves the hidden logits, and the rank, open."
            )
        chosen = list(chosen_heads(sites, settings.layers, settings.heads, "encoder"))
        low, high = settings.lengths
        self.units = [
            (text, site, head)
            for text, item in enumerate(self.items)
            for site, head in chosen
            if low * site.output_projection.shape[1] <= item.length <= high * site.output_projection.shape[1]
        ]
        if not self.units:
            d_v = chosen[0][0].output_projection.shape[1]
            raise InputError(
                f"no text has {low * d_v:g} to {high * d_v:g} tokens ({low:g} to {high:g} times d_v = {d_v}); the "
                f"longest has {max(item.length for item in self.items)}. Give longer texts, or other lengths."
            )

    def identity(self) -> Identity:
        """Return the model and the texts."""
        return Identity(self.lens.facts, [item.identity for item in self.items])

    def sizes(self) -> Sequence[int]:
        """Return one head for each part."""
        return [1] * len(self.units)

    def run(self, part: int) -> Output:
        """Return the row of one head on one text."""
        text, site, head = self.units[part]
        seen = read_head(self.lens, self.items[text], site.layer, head, site.kind)
        if seen.visible is not None:
            raise InputError(
                f"layer {site.layer} hides keys from some queries (a window), so that its logit rank is open."
            )
        weights = seen.attention
        if weights.min() <= 0 and seen.logit_error <= LOGIT_ERROR:
            # Sharp attention: weights too small for the model's precision still have logits that are known.
            weights = seen.recomputed
        generator = torch.Generator().manual_seed(self.settings.seed + part)
        found = logit_rank_study(weights, seen.projected, seen.d_k, count=self.settings.count, generator=generator)
        ranks = found.ranks.double()
        row = {
            "text": text,
            "layer": site.layer,
            "head": head,
            "kind": site.kind,
            "n_key": found.seq_len,
            "d_k": seen.d_k,
            "d_v": seen.values.shape[1],
            "simplex_nullity": found.simplex_nullity,
            "original_rank": found.original_rank,
            "lowest_rank": int(ranks.min()),
            "mean_rank": float(ranks.mean()),
            "highest_rank": int(ranks.max()),
            "realisable_share": found.realisable_share,
            "alternatives": self.settings.count,
            "mean_total_variation": found.mean_total_variation,
            "output_error": found.output_error,
        }
        return Output({"table": table_of(LogitRanks.schema["table"], [row])})


logit_ranks = study_function(LogitRankStudy, "logit_ranks")
