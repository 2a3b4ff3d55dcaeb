"""Whether each attention weight of a row can be trusted: determined, influential, both or neither."""

from collections.abc import Sequence

from identilens.models.heads import Head
from identilens.models.sequences import sides
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.heads import Place, RowSettings, RowStudy
from identilens.studies.trust.result import Trust
from identilens.studies.trust.rows import named_rows, trust_rows


class TrustStudy(RowStudy[RowSettings, Trust]):
    """Say for each attention weight whether the output determines it, and whether its key influences the output.

    For each row: a proven interval of each weight over all distributions with the same output; each key's share of
    what the keys add; its Contribution Weight; the change when it is removed; a verdict in plain words. At most two
    linear programs for each weight. Words and thresholds: docs/trust.md.

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
        >>> result = idl.trust(lens, idl.examples()[0], layers=3, heads=9, queries=10)
        >>> result
        Trust: At least 81 % of the attention of 'once' (query 10, ...
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

    name = "trust"
    settings_type = RowSettings
    result_type = Trust

    def output(self, place: Place, head: Head, queries: Sequence[int]) -> Output:
        """Return the weights of some rows of a head, with their verdicts."""
        tokens, side = self.heads.tokens(head, place.text), sides(head.kind, self.heads.items[place.text].tokens)
        rows = []
        for query in queries:
            visible = None if head.visible is None else head.visible[query]
            columns = trust_rows(head.attention[query], head.projected, visible)
            at = {**place.row, "query": query, "query_token": tokens[side.query][query]}
            rows += named_rows(at, columns, tokens[side.key])
        return Output({"table": table_of(Trust.schema["table"], rows)})


trust = study_function(TrustStudy, "trust")
