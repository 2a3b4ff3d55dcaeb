"""Whether a text can be read from its hidden states, or from a cache, token by token and without training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from typing import Any

import torch
from torch import Tensor

from identilens.measures.tokens.margins import Nearest, Noise, Rival
from identilens.models.candidates import BUDGET, Batches, Candidates, check_ids, joined
from identilens.models.lens import Lens
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.heads import TextStudy
from identilens.studies.inversion.result import NEXT, PAIR, SINGLE, Inversion
from identilens.studies.inversion.settings import InversionSettings

_PAIRED = 4
"""Substitutes of a token that are tried together with as many of its neighbour."""


def noises_of(settings: InversionSettings) -> list[Noise]:
    """Return the noises of settings, those of single bits last."""
    names = [*settings.noise, *(f"int{bits}" for bits in settings.bits)]
    read = map(Noise.read, names)
    return list({one.name: one for one in read}.values())


@dataclass(frozen=True)
class Met:
    """What decoding meets at one position of one layer.

    Attributes:
        layer: Number of the layer among those that are asked for.
        position: The position.
        change: What differs in the rivals; see `result.NEXT`.
        rivals: The tokens of the nearest rival in place of the text's own.
        margin: Half its distance.
        moved: How far the same states move if they run in another batch or without a cache.
        decoded: The nearest token to the state with each noise; empty for encoders.
    """

    layer: int
    position: int
    change: str
    rivals: tuple[int, ...]
    margin: float
    moved: float
    decoded: list[int]


class InversionStudy(TextStudy[InversionSettings, Inversion]):
    """Say which tokens of a text can be read from its hidden states or cache, exactly and without a probe.

    For a causal model and a known beginning, every token of the vocabulary gives one state: F_i(v). With the margin
    m_i = ½ min ‖F_i(v) − h_i‖ over v other than the text's own token, decoding to the nearest is right wherever the
    error of the stored state is smaller than the margin; if it is at every position, the whole text follows by
    induction. The noise of the forward pass itself (with a cache and without, in a batch and alone) is measured and
    taken off. Definitions, proof and limits: docs/concepts.md. Without certificates: Nikolaou et al. 2025 (SipIt,
    arXiv 2510.15511). Cost: one run of the whole vocabulary for each token; memory: one batch of candidates.

    For encoders margins are those of texts that differ in one token, or in two neighbours. An error below them is
    necessary for a certificate of every error of that length, not for reading the text; no position of an encoder is
    certified.

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
        self.noises = noises_of(settings)
        self.candidates = Candidates(
            lens,
            self.items[0],
            settings.layers,
            stored=settings.stored,
            budget=settings.memory_budget or BUDGET,
        )
        for text, item in enumerate(self.items):
            check_ids(item, text)

    def run(self, part: int) -> Output:
        """Return the margins of one text, and what each noise does to its states."""
        item = self.items[part]
        ids, noises, causal = item.tensors["input_ids"], self.noises, self.candidates.causal
        stored = [one[0].double() for one in self.candidates.read(ids[None])]
        noisy = [
            [one.applied(states, self.settings.seed + part) for one in noises] for states in stored
        ]
        way = self._continued if causal else self._substituted
        met = list(way(part, ids, stored, noisy))
        named = sorted({token for one in met for token in (*one.rivals, *one.decoded)})
        names = dict(zip(named, self.lens.reader.names(named), strict=True))
        rows: dict[str, list[Row]] = {"table": [], "noises": []}
        for number, layer in enumerate(self.candidates.layers):
            here = [one for one in met if one.layer == number]
            moved = max(one.moved for one in here)
            lengths = stored[number].norm(dim=1).tolist()
            errors = self._errors(stored[number], noisy[number])
            intact = [causal] * len(noises)
            for one in here:
                at = {"text": part, "layer": layer, "position": one.position, "change": one.change}
                size = lengths[one.position] if causal else hypot(*lengths)
                rows["table"].append(
                    {
                        **at,
                        "token": item.tokens["encoder"][one.position],
                        "norm": size,
                        "margin": one.margin,
                        "relative_margin": one.margin / size if size else 0.0,
                        "forward_noise": moved,
                        "rival": "".join(names[token] for token in one.rivals),
                    }
                )
                for place, noise in enumerate(noises):
                    below = errors[place][one.position] < one.margin - moved
                    intact[place] &= below
                    row = {
                        **at,
                        "noise": noise.name,
                        "bits": int(noise.size) if noise.kind == "token" else None,
                        "error": errors[place][one.position],
                        "below": below,
                        "certified": intact[place],
                        "decoded": names[one.decoded[place]] if causal else None,
                        "recovered": one.decoded[place] == ids[one.position] if causal else None,
                    }
                    rows["noises"].append(row)
        return Output({name: table_of(Inversion.schema[name], rows[name]) for name in rows})

    def _errors(self, states: Tensor, noisy: Sequence[Tensor]) -> list[list[float]]:
        """Return how far each noise moves the state at each position; of an encoder, all states of the text."""
        causal, risk = self.candidates.causal, self.settings.risk / len(states)
        rivals = self.candidates.vocabulary if causal else self.settings.substitutes + _PAIRED**2
        errors = [
            noise.error(states, one, rivals, risk)
            for noise, one in zip(self.noises, noisy, strict=True)
        ]
        return [(one if causal else one.norm().expand(len(states))).tolist() for one in errors]

    def _continued(
        self, part: int, ids: Tensor, stored: Sequence[Tensor], noisy: Sequence[Sequence[Tensor]]
    ) -> Iterator[Met]:
        """Yield what decoding meets at each position and layer, the beginning known."""
        for position, token in enumerate(ids.tolist()):
            self.tell(f"text {part}, token {position + 1} of {len(ids)}")
            beginning = ids[:position]
            found = [
                Nearest(torch.stack([one[position] for one in (states, *changed)]))
                for states, changed in zip(stored, noisy, strict=True)
            ]
            rivals = _searched(found, self.candidates.after(beginning), token)
            # Rivals run again without a cache and in another batch: what differs is noise of the forward pass.
            again = self.candidates.read(
                joined(beginning, torch.tensor([one.id for one in rivals]))
            )
            for number, (nearest, rival) in enumerate(zip(found, rivals, strict=True)):
                moved = _apart(again[number][number, -1], rival.state)
                yield Met(
                    number,
                    position,
                    NEXT,
                    (rival.id,),
                    rival.margin,
                    max(moved, nearest.own(token)),
                    nearest.ids[1:, 0].tolist(),
                )

    def _substituted(
        self, part: int, ids: Tensor, stored: Sequence[Tensor], _noisy: Sequence[Sequence[Tensor]]
    ) -> Iterator[Met]:
        """Yield the nearest texts that differ in one token of an encoder's text, or in two neighbours."""
        layer: Any = self.lens.body.get_input_embeddings()
        table, most = layer.weight.detach().cpu(), self.settings.substitutes
        near: list[Tensor] = []
        for position, token in enumerate(ids.tolist()):
            self.tell(f"text {part}, token {position + 1} of {len(ids)}")
            alike = Nearest(table[token][None], min(most + 1, len(table)))
            alike.add(torch.arange(len(table)), table)
            others = alike.ids[0][alike.ids[0] != token][:most, None]
            met, kept = self._differing(ids, stored, position, others, SINGLE)
            near.append(others[kept, 0])
            yield from met
        for position, pair in enumerate(pairwise(near)):
            yield from self._differing(ids, stored, position, torch.cartesian_prod(*pair), PAIR)[0]

    def _differing(
        self, ids: Tensor, stored: Sequence[Tensor], position: int, others: Tensor, change: str
    ) -> tuple[list[Met], Tensor]:
        """Return what is met if other tokens stand from a position on, and which are nearest at the deepest layer."""
        texts = ids.repeat(len(others) + 1, 1)
        texts[1:, position : position + others.shape[1]] = others
        found = [Nearest(states.flatten()[None], _PAIRED + 1) for states in stored]
        rivals = _searched(found, self.candidates.batches(texts), 0)
        again = self.candidates.read(texts[[one.id for one in rivals]])
        met = []
        for number, (nearest, rival) in enumerate(zip(found, rivals, strict=True)):
            moved = max(_apart(again[number][number].flatten(), rival.state), nearest.own(0))
            tokens = tuple(others[rival.id - 1].tolist())
            met.append(Met(number, position, change, tokens, rival.margin, moved, []))
        kept = found[-1].ids[0]
        return met, kept[kept > 0][:_PAIRED] - 1


def _searched(found: Sequence[Nearest], batches: Batches, own: int) -> list[Rival]:
    """Return the nearest rival at each layer after all batches."""
    for numbers, candidates in batches:
        for nearest, states in zip(found, candidates, strict=True):
            nearest.add(numbers, states)
    return [nearest.rival(own) for nearest in found]


def _apart(state: Tensor, other: Tensor) -> float:
    return float((state.double() - other).norm())


inversion = study_function(InversionStudy, "inversion")
