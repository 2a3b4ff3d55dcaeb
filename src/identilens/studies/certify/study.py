"""What a head's output fixes of each attention weight of a row, and what the weight's key adds to that output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.heads import Head
from identilens.models.sequences import sides
from identilens.runs.study import Output, study_function
from identilens.studies.certify.result import Certainty
from identilens.studies.certify.rows import RowCertificates, certified_columns
from identilens.studies.heads import Place, RowSettings, RowStudy


@dataclass(frozen=True, kw_only=True)
class CertifySettings(RowSettings):
    """Which rows of which heads, and what is certified of them.

    Attributes:
        pin_tolerance: Largest width of an interval whose weight counts as pinned.
        order: Certify also which keys have the same order in every alternative; takes about twice as long.
    """

    pin_tolerance: Annotated[float, Ge(0), Lt(1)] = PIN_TOLERANCE
    order: bool = False


class CertifyStudy(RowStudy[CertifySettings, Certainty]):
    """Say for each attention weight whether the output determines it, and whether its key influences the output.

    For each row: a proven interval of each weight over all distributions with the same output; each key's share of
    what the keys add; its Contribution Weight; the change when it is removed; a verdict in plain words; the key that is
    first in every alternative; with ``order``, all pairs of keys whose order is the same in every alternative. At most
    two linear programs for each weight. Words and thresholds: docs/certify.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, a head or query that is not there, or attention with
            sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an interval cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.certify(lens, idl.examples()[0], layers=3, heads=9, queries=10)
        >>> result
        Certainty: At least 81 % of the attention of 'once' (query 10, ...
        >>> result.table["verdict"].value_counts(sort=True)
        shape: (4, 2)
        ┌──────────────────────────────┬───────┐
        │ verdict                      ┆ count │
        │ ---                          ┆ ---   │
        │ str                          ┆ u32   │
        ╞══════════════════════════════╪═══════╡
        │ negligible                   ┆ 17    │
        │ free, little influence       ┆ 15    │
        │ determined, influential      ┆ 9     │
        │ determined, little influence ┆ 1     │
        └──────────────────────────────┴───────┘
    """

    name = "certify"
    settings_type = CertifySettings
    result_type = Certainty

    def output(self, place: Place, head: Head, queries: Sequence[int]) -> Output:
        """Return the certificates of some rows of a head."""
        tokens = self.heads.tokens(head, place.text)
        side = sides(head.kind, self.heads.items[place.text].tokens)
        rows, settings = RowCertificates.empty(), self.settings
        for query in queries:
            columns = certified_columns(
                head.attention[query],
                head.projected,
                None if head.visible is None else head.visible[query],
                pin_tolerance=settings.pin_tolerance,
                order=settings.order,
            )
            at = {**place.row, "query": query, "query_token": tokens[side.query][query]}
            rows.add(at, columns, tokens[side.key])
        return Output(rows.frames())


certify = study_function(CertifyStudy, "certify")
