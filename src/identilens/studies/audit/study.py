"""How much of each attention map is certain, how much is influential, and how much has no effect on the output."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS
from identilens.models.interface import evaluation_mode
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, Tables
from identilens.studies.audit.auditor import Auditor, means_by_type
from identilens.studies.audit.result import Audit
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.heads import Place, TextStudy
from identilens.studies.outcomes import head_effects, head_estimates, model_outcome
from identilens.studies.settings import Answered

ROWS = 4
"""Rows of each map of a text where few texts are looked at; fewer of each where there are more texts."""

_PART = 32
"""Number of texts in one part of a run. An interruption loses at most one part."""

_MATRICES = 256 * 2**20
"""Bytes of saved matrices from which on a text is in the next part."""

_BYTES = 8
"""Bytes of raw and effective attention, a query and key of a head."""

_REMOVED = 2**15
"""Most heads times tokens of a text of which each head is removed without being asked for, such as 256 by 128."""

_LONG = 2048
"""Most tokens of a text without whose heads the model is run without being asked for."""

_TOKENS = 6144
"""Most tokens of all texts together in whose maps rows are drawn, so that the linear programs end soon."""

_KEYS = 8192
"""Most keys of all rows together that are drawn of one map, if these are several."""

_STREAM = 0x7E87
"""Tells the draw of texts apart from other uses of a run's seed."""


class AuditStudy(TextStudy[AuditSettings, Audit]):
    """Measure how much of every attention map is certain, influential, and without effect on its head's output.

    Certain: certain mass of drawn rows of drawn texts (linear programs). Influential: what happens to the model's
    answer without the head, in some of these texts; norms of head outputs stand beside it. Without effect: rank and
    nullity of T (Brunner et al. 2020, Eq. 6), the share of squared weight in its null space (Eq. 8, 9), the correlation
    of raw and effective attention (Fig. 1a), and the attention to each token type (Fig. 1b, 1c, 5). Measures are
    computed layer by layer while the model runs. Padding is removed first. Definitions: docs/concepts.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If the model's attention has NaN or infinite entries, naming where.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> audit = idl.audit(lens, idl.examples()[:1], layers=(2, 3), certain_rows=1)
        >>> audit
        Audit: Certain: 69.0 % of a row's attention ...
        >>> round(audit.table["null_share"].mean(), 2)
        0.76
    """

    name = "audit"
    settings_type = AuditSettings
    result_type = Audit

    def __init__(self, lens: Lens, texts: Any, settings: AuditSettings) -> None:
        super().__init__(lens, texts, settings)
        sites = lens.sites(self.items[0])
        available = sorted({site.layer for site in sites})
        if missing := sorted(set(settings.layers or ()) - set(available)):
            raise InputError(
                f"the model has attention in layers {available}; got {missing}. Layers count from 0."
            )
        kept, means, rows, self._removals = self._drawn()
        self.auditor = Auditor(lens, self.items, sites, settings, kept, means, rows)
        self.parts = self._parts(sum(site.heads for site in sites))

    def identity(self) -> Identity:
        """Return the model and the texts, and what counts as zero."""
        tolerance = f"max(n, d_model) * {FLOAT32_EPS} * largest singular value"
        return Identity(
            self.lens.facts,
            self.items.digests,
            {"rank_tolerance": tolerance},
            seed=self.settings.seed,
        )

    def sizes(self) -> Sequence[int]:
        """Return the number of texts in each part."""
        return [len(part) for part in self.parts]

    def finish(self, tables: Tables) -> Output:
        """Return the tables, one of them joined over all parts."""
        return Output({**tables, "token_types": means_by_type(tables["token_types"])})

    def run(self, part: int) -> Output:
        """Return the rows and saved matrices of one part."""
        auditor = self.auditor
        auditor.start_part()
        # Texts of like length share a batch, so that little is padded.
        order = sorted(self.parts[part], key=self.items.lengths.__getitem__)
        done = 0
        for batch in self.lens.batches(self.items, order, self.settings.batch_size):
            self.lens.run(auditor.start_batch(batch), auditor.measure)
            with evaluation_mode(self.lens.model):
                auditor.measure_calls()
            done += len(batch)
            self.tell("", done)
        asked = [text for text in self.parts[part] if text in self._removals]
        return auditor.output([row for text in asked for row in self._effects(text)])

    def _drawn(self) -> tuple[set[int], set[int], dict[int, int], set[int]]:
        """Draw texts of all lengths, by the seed, of which more is measured than of the others.

        Returns:
            Those whose matrices are kept, of at most ``example_length`` tokens; longer ones, of whose maps means over
            blocks are kept; of how many rows of each of their maps certain mass is computed; those on which heads are
            removed.
        """
        settings, length = self.settings, self.items.lengths
        texts = range(len(length))
        order = np.random.default_rng([_STREAM, settings.seed]).permutation(len(length)).tolist()
        sums = accumulate(length[text] for text in order)
        drawn = [text for text, total in zip(order, sums, strict=True) if total <= _TOKENS]
        drawn = (drawn or order[:1])[: ROWS * settings.examples]
        rows = min(ROWS, ROWS * settings.examples // max(1, len(drawn)))
        most, maps = settings.example_length, 0 if settings.queries else settings.examples
        fitting = [text for text in order if length[text] <= most][:maps]
        long = [text for text in drawn if length[text] > most][:maps]
        short = [text for text in drawn if settings.effects != "auto" or length[text] <= _LONG]
        return (
            {*(texts if settings.matrices else fitting)},
            {*(() if settings.matrices else long)},
            {text: max(1, min(rows, _KEYS // max(1, length[text]))) for text in drawn},
            {*(() if settings.effects == "none" else short[: settings.examples])},
        )

    @cached_property
    def _outcome(self) -> Answered:
        return model_outcome(self.lens, self.items[min(self._removals)])

    def _effects(self, text: int) -> Iterator[Row]:
        """Yield the effect of each head on the model's answer to one text."""
        lens, item, settings = self.lens, self.items[text], self.settings
        sites, how = lens.sites(item), settings.effects
        heads = [
            (site, head)
            for site in sites
            if settings.layers is None or site.layer in settings.layers
            for head in range(site.heads)
        ]
        if how == "auto":
            how = "removal" if len(heads) * item.length <= _REMOVED else "estimate"
        answer = Answer(lens, item, self._outcome)
        effects = (
            head_effects(answer, heads)
            if how == "removal"
            else head_estimates(answer, heads, seed=settings.seed)
        )
        same = {"outcome": answer.outcome, "by": how}
        for head, effect in zip(heads, effects, strict=True):
            yield {**Place(text, *head).row, **same, "effect": effect}

    def _parts(self, heads: int) -> list[list[int]]:
        """Return the texts of each part: matrices stay in memory until it is written, so they make parts smaller."""
        each = heads * _BYTES * self.settings.matrices
        before = list(accumulate((each * n**2 for n in self.items.lengths), initial=0))
        texts = range(len(self.items))
        parts = groupby(texts, key=lambda text: (text // _PART, before[text] // _MATRICES))
        return [list(part) for _, part in parts]


audit = study_function(AuditStudy, "audit")
