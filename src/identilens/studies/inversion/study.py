"""Whether a text can be read from its hidden states, or from a cache, token by token and without training."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.tokens.margins import Nearest, Noise
from identilens.models.candidates import Batches, Candidates, check_ids, joined
from identilens.models.lens import Lens
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.heads import TextStudy, filled
from identilens.studies.inversion.result import NEXT, SINGLE, Inversion
from identilens.studies.inversion.settings import InversionSettings

Layers = Sequence[Float[Tensor, "version position d"]]
"""States of a text by layer: as they are, then with each noise."""


class InversionStudy(TextStudy[InversionSettings, Inversion]):
    """Say which tokens of a text can be read from its hidden states or cache, exactly and without a probe.

    For a causal model and a known beginning, every token of the vocabulary gives one state: F_i(v). With the margin
    m_i = ½ min ‖F_i(v) − h_i‖ over v other than the text's own token, decoding to the nearest is right wherever the
    error of the stored state is smaller than the margin; if it is at every position, the whole text follows by
    induction. The noise of the forward pass itself (with a cache and without, in a batch and alone) is measured and
    taken off. Definitions, proof and limits: docs/concepts.md. Without certificates: Nikolaou et al. 2025 (SipIt,
    arXiv 2510.15511). Cost: one run of the whole vocabulary for each token; memory: one batch of candidates.

    For encoders margins are those of texts that differ in one token. An error below them is necessary for a certificate
    of every error of that length, not for reading the text; no position of an encoder is certified.

    Args:
        lens: The model.
        texts: Single texts or token ids.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: For an encoder-decoder, or ``stored="cache"`` of a model without a cache.
        NumericalError: If states are NaN or infinite.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.inversion(lens, "Snow fell.", layers=(1, 4), noise=("int8", "int4"), bits=8)
        >>> found.table.filter(layer=4).select("token", "rival").rows()[1:]
        [('S', 'M'), ('now', 'uck'), (' f', 'f'), ('ell', 'ill'), ('.', '".')]
        >>> found.bits()["certified_bits"].to_list()
        [4, 8]
    """

    name = "inversion"
    settings_type = InversionSettings
    result_type = Inversion

    def __init__(self, lens: Lens, texts: Any, settings: InversionSettings) -> None:
        super().__init__(lens, texts, settings)
        names = [*settings.noise, *(f"int{bits}" for bits in settings.bits)]
        # Noises of single bits come last.
        self.noises = list(map(Noise.read, dict.fromkeys(names)))
        self.candidates = Candidates(lens, self.items[0], settings.layers, stored=settings.stored)
        self.names = lens.reader.names(range(self.candidates.vocabulary))
        for text, item in enumerate(self.items):
            check_ids(item, text)

    def run(self, part: int) -> Output:
        """Return the margins of one text, and what each noise does to its states."""
        item, causal = self.items[part], self.candidates.causal
        ids, seed = item.tensors["input_ids"], self.settings.seed + part
        layers = [
            torch.stack([states, *(noise.applied(states, seed) for noise in self.noises)])
            for states in (read[0].double() for read in self.candidates.read(ids[None]))
        ]
        bits = [int(noise.size) if noise.kind == "token" else None for noise in self.noises]
        sizes = dict(zip(self.candidates.layers, map(self._sizes, layers), strict=True))
        none = [None] * len(self.noises)
        rows = []
        for row in (self._continued if causal else self._substituted)(ids, layers):
            position, decoded = row["position"], row["decoded"]
            self.tell(f"text {part}, token {position + 1} of {len(ids)}")
            norm, *error = sizes[row["layer"]][:, position].tolist()
            rows.append(
                {
                    **row,
                    "text": part,
                    "token": item.tokens["encoder"][position],
                    "rival": self.names[row["rival"]],
                    "norm": norm,
                    "noise": [noise.name for noise in self.noises],
                    "bits": bits,
                    "error": error,
                    "decoded": [self.names[token] for token in decoded] or none,
                    "recovered": [token == int(ids[position]) for token in decoded] or none,
                }
            )
        margin, norm = pl.col("margin"), pl.col("norm")
        table = (
            pl.DataFrame(rows)
            .sort("layer", maintain_order=True)
            .with_columns(
                forward_noise=pl.col("moved").max().over("layer"),
                relative_margin=pl.when(norm > 0).then(margin / norm).otherwise(0.0),
            )
        )
        below = pl.col("error") < margin - pl.col("forward_noise")
        certified = below.cum_min().over("layer", "noise") & causal
        noises = table.explode("noise", "bits", "error", "decoded", "recovered")
        noises = noises.with_columns(below=below, certified=certified)
        return Output(filled(Inversion.schema, {"table": [table], "noises": [noises]}))

    def _sizes(
        self, versions: Float[Tensor, "version position d"]
    ) -> Float[Tensor, "version position"]:
        """Return the length of each state, and how far each noise moves it; of an encoder, of all states together."""
        states, *noisy = versions
        causal, risk = self.candidates.causal, self.settings.risk / len(states)
        rivals = self.candidates.vocabulary if causal else self.settings.substitutes
        errors = [
            noise.error(states, changed, rivals, risk)
            for noise, changed in zip(self.noises, noisy, strict=True)
        ]
        sizes = torch.stack([states.norm(dim=1), *errors])
        return sizes if causal else sizes.norm(dim=1, keepdim=True).expand_as(sizes)

    def _continued(self, ids: Tensor, layers: Layers) -> Iterator[Row]:
        """Yield what decoding meets at each position and layer, the beginning known."""
        for position, token in enumerate(ids.tolist()):
            beginning = ids[:position]
            nearest = [Nearest(versions[:, position]) for versions in layers]
            batches = self.candidates.after(beginning)
            for row in self._nearest(nearest, batches, token, partial(joined, beginning)):
                yield {**row, "position": position, "change": NEXT}

    def _substituted(self, ids: Tensor, layers: Layers) -> Iterator[Row]:
        """Yield the nearest texts that differ in one token of an encoder's text."""
        embeddings: Any = self.lens.body.get_input_embeddings()
        table = embeddings.weight.detach().cpu().double()
        for position, token in enumerate(ids.tolist()):
            alike = (table - table[token]).norm(dim=1).argsort(stable=True)
            others = alike[alike != token][: self.settings.substitutes]
            texts = ids.repeat(len(others) + 1, 1)
            texts[1:, position] = others
            nearest = [Nearest(versions[0].flatten()[None]) for versions in layers]
            batches = self.candidates.batches(texts)
            for row in self._nearest(nearest, batches, 0, texts.__getitem__):
                rival = int(others[row["rival"] - 1])
                yield {**row, "position": position, "change": SINGLE, "rival": rival}

    def _nearest(
        self,
        nearest: Sequence[Nearest],
        batches: Batches,
        token: int,
        texts: Callable[[Tensor], Tensor],
    ) -> Iterator[Row]:
        """Yield the nearest candidate but the own one by layer: its number, half its distance, and the forward noise.

        That is how far the same states move if they run in another batch or without a cache. Decoded are the nearest
        candidates to the states with each noise.
        """
        for numbers, candidates in batches:
            for kept, states in zip(nearest, candidates, strict=True):
                kept.add(numbers, states)
        rivals = [kept.rival(token) for kept in nearest]
        again = self.candidates.read(texts(torch.tensor([rival.id for rival in rivals])))
        for number, (layer, rival) in enumerate(zip(self.candidates.layers, rivals, strict=True)):
            state = again[number][number].flatten()[-len(rival.state) :].double()
            moved = float((state - rival.state).norm())
            yield {
                "layer": layer,
                "rival": rival.id,
                "margin": rival.margin,
                "moved": max(moved, nearest[number].distance_to(token)),
                "decoded": nearest[number].ids[1:, 0].tolist(),
            }


inversion = study_function(InversionStudy, "inversion")
