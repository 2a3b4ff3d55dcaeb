"""How much each input token contributes to each hidden token (Brunner et al. 2020, 5)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from identilens.errors import NumericalError, SettingError
from identilens.measures.mixing.contributions import contributions
from identilens.measures.mixing.tracking import find_token
from identilens.models.derivative.jacobian import (
    DEFAULT_PROBES,
    SquaredNorms,
    jacobian_norms,
    output_norms,
)
from identilens.models.layout import Kind
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap, HiddenState, Source
from identilens.models.rollouts import Rollout, rollouts_by_kind, self_attention
from identilens.runs.conllu import TaggedText
from identilens.runs.files import write_table
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Tables
from identilens.studies.heads import TextStudy, asked_places, shaped
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.settings import MixingSettings
from identilens.studies.mixing.tagging import parts_of, tag_tokens


class MixingStudy(TextStudy[MixingSettings, Mixing]):
    """Compute the contribution of every input token to every hidden token (Hidden Token Attribution).

    Brunner et al. 2020, Eq. 11. Each text runs alone, without padding, in evaluation mode. Encoder–decoders have three
    kinds of contributions: of the encoder's inputs to its states, of the decoder's inputs to its states, and of the
    encoder's inputs to the decoder's states ("cross"). Each kind is normalised separately; the column ``norm`` allows
    comparing them.

    Args:
        lens: The model; half precision is computed in float32.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`. Texts from a CoNLL-U file (`read_conllu`)
            bring parts of speech.

    Raises:
        InputError: For texts or options that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured or its first layer not be found.
        NumericalError: If a derivative is NaN or infinite, naming the text.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> text = "The ferry left the harbour before dawn, and nobody could say who had paid."
        >>> mixing = idl.mixing(lens, text, sketch_probes=4, rollouts=False)
        >>> mixing
        Mixing: Of each encoder hidden state, the token ...
    """

    name = "mixing"
    settings_type = MixingSettings
    result_type = Mixing

    def __init__(self, lens: Lens, texts: Any, settings: MixingSettings) -> None:
        super().__init__(lens, texts, settings)
        if settings.track is not None:
            find_token(
                [next(iter(item.tokens.values()), ()) for item in self.items], settings.track
            )
        # Of an encoder-decoder two sequences are read.
        both: tuple[Source, ...] = "encoder", "decoder"
        self.sources = both[: 1 + lens.model.config.is_encoder_decoder]
        maps = [HiddenMap(lens, self.items[0], source) for source in self.sources]
        available = {label.layer for hidden in maps for label in hidden.outputs}
        chosen = self.settings.layers
        missing = sorted(set(chosen or ()) - available)
        if missing or chosen == ():
            expected = f"from 1 (the first layer's output) to {max(available)}; the embeddings (0) are what contributes"
            raise SettingError("layers", expected, missing)
        self.tags = self._tagged(texts)

    def identity(self) -> Identity:
        """Return the model, the texts, and the settings that are in force."""
        settings = self.settings
        sketched = settings.method == "sketch"
        in_force = {
            "sketch_probes": settings.sketch_probes or DEFAULT_PROBES if sketched else None,
            "tags": None if self.tags is None else settings.tags,
        }
        return Identity(self.lens.facts, self.items.digests, in_force)

    def run(self, part: int) -> Output:
        """Return contributions and tokens of one text."""
        layers = self_attention(self.lens, self.items[part]) if self.settings.rollouts else ()
        rollouts = rollouts_by_kind(layers)
        tables, names = [pl.DataFrame(schema=pl.Schema(Mixing.schema["table"]))], []
        try:
            for number, source in enumerate(self.sources):
                hidden = HiddenMap(self.lens, self.items[part], source)
                for label, places, norms in self._norms(hidden, part, number):
                    rollout = rollouts.get(label.kind)
                    tables.append(_layer_table(part, label, places, norms, rollout))
                kinds: list[Kind] = [label.kind for label in hidden.outputs]
                for kind in dict.fromkeys(kinds):
                    sides = {"hidden": hidden.tokens(kind), "input": hidden.tokens()}
                    for side, tokens in sides.items():
                        names.append(
                            {
                                "text": part,
                                "kind": kind,
                                "side": side,
                                "position": range(len(tokens)),
                                "token": tokens,
                            }
                        )
        except NumericalError as error:
            raise NumericalError(f"text {part}: {error}") from error
        known = shaped(Mixing.schema["token_names"], names)
        return Output({"table": pl.concat(tables), "token_names": known})

    def finish(self, tables: Tables) -> Output:
        """Add the parts of speech."""
        return Output(tables if self.tags is None else {**tables, "tags": self.tags})

    def shown(self, result: Mixing, folder: Path | None) -> Mixing:
        """Return the result with the token to track, and keep it with the run, so that reports show it."""
        if self.settings.track is None:
            return result
        tracking = result.tracking(self.settings.track)
        if folder is not None:
            write_table(folder / "tracked.parquet", tracking.tracked)
        return tracking

    def _norms(
        self, hidden: HiddenMap, text: int, number: int
    ) -> Iterator[tuple[HiddenState, Sequence[int], SquaredNorms]]:
        """Yield the squared norms of layers, with the positions of the hidden tokens that they are of."""
        settings = self.settings
        chosen = [
            (index, label)
            for index, label in enumerate(hidden.outputs)
            if settings.layers is None or label.layer in settings.layers
        ]
        probes = settings.sketch_probes or DEFAULT_PROBES
        seed = int(np.random.SeedSequence([settings.seed, text, number]).generate_state(1)[0])
        if settings.queries:
            asked = None if settings.method == "exact" else probes
            options: dict[str, Any] = {"seed": seed, "at_once": hidden.passes_at_once}
            for index, label in chosen:
                for query in asked_places(hidden.tokens(label.kind), settings.queries):
                    norms = output_norms(
                        lambda inputs, index=index: hidden(inputs)[index],
                        hidden.inputs,
                        query,
                        probes=asked,
                        **options,
                    )
                    yield label, [query], norms
            return
        norms = jacobian_norms(
            hidden,
            hidden.inputs,
            method=settings.method,
            probes=probes,
            seed=seed,
            at_once=hidden.at_once,
        )
        for index, label in chosen:
            yield label, range(len(norms[index].squares)), norms[index]

    def _tagged(self, texts: Any) -> pl.DataFrame | None:
        """Return the tags of texts of a treebank, which are in memory; None for others and for single positions."""
        pair = isinstance(texts, tuple) and len(self.items) == 1
        listed = [texts] if pair or isinstance(texts, str) else texts
        if self.settings.queries or not isinstance(listed, list):
            return None
        entries = [parts_of(text) for text in listed]
        if not any(isinstance(part, TaggedText) for parts in entries for part in parts):
            return None
        if self.settings.max_length is not None:
            raise SettingError(
                "max_length", "to be left out: tags are of whole texts", self.settings.max_length
            )
        # An encoder-decoder reads the second text of a pair as its target, whose states stand one token behind.
        sources_only = self.lens.model.config.is_encoder_decoder
        read = [tuple(parts[:1] if sources_only else parts) for parts in entries]
        return tag_tokens(read, self.lens.tokenizer, self.settings.tags)


def _layer_table(
    text: int,
    label: HiddenState,
    places: Sequence[int],
    norms: SquaredNorms,
    rollout: Rollout | None,
) -> pl.DataFrame:
    shares = contributions(norms.squares, norms.variances, norms.freedom, norms.deviations)
    hidden, inputs = np.indices(norms.squares.shape).reshape(2, -1)
    raw, effective = (
        (None, None)
        if rollout is None
        else (part[label.layer - 1, list(places)] for part in rollout)
    )
    matrices = {
        "contribution": shares.shares,
        "standard_error": shares.errors,
        "margin": shares.margins,
        "norm": norms.squares.clamp_min(0).sqrt(),
        "raw_rollout": raw,
        "effective_rollout": effective,
    }
    flat = {
        name: None if part is None else part.flatten().cpu().numpy()
        for name, part in matrices.items()
    }
    columns = {
        "text": text,
        "kind": label.kind,
        "layer": label.layer,
        "hidden": np.array(places)[hidden],
        "input": inputs,
        **flat,
    }
    return pl.DataFrame(columns).cast(pl.Schema(Mixing.schema["table"]))


mixing = study_function(MixingStudy, "mixing")
