"""Certificates of rows of a map that an audit kept, from its folder alone."""

import polars as pl

from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.runs.matrices import MatrixKey
from identilens.runs.result import Result
from identilens.runs.tables import HEAD
from identilens.studies.certify.result import Certainty
from identilens.studies.certify.rows import RowCertificates, certified_columns
from identilens.studies.head_views import axis_tokens
from identilens.studies.heads import named_places


def certify_kept(maps: pl.DataFrame, audit: Result, query: int | str) -> Certainty:
    """Return the certificates of the rows of the one map in ``maps`` that a query, a position or a token, names.

    Raises:
        InputError: If there is not one map, or the text has no such query.
    """
    if len(maps) != 1:
        raise InputError(
            f"expected one map with saved matrices; {len(maps)} match. Save matrices with examples= or "
            "matrices=True, give the kind if there are several, or use identilens.certify, which runs the model."
        )
    row = maps.row(0, named=True)
    key = MatrixKey(**{name: row[name] for name in HEAD}, name="raw")
    queries, keys = axis_tokens(audit.tokens.get(row["text"], {}), row)
    if (values := audit.matrices.get(str(key.named("values")))) is None:
        raise InputError(
            "nothing was proven of this map: its head has an attention sink, or weights that are known in half "
            'precision only. Against the latter, load the model with dtype="float32" (--dtype float32).'
        )
    projected = ProjectedValues(values, row["d_model"])
    visible = audit.matrices.get(str(key.named("visible")))
    rows = RowCertificates.empty()
    for position in named_places(queries, query, row["text"]):
        seen = None if visible is None else visible[position]
        at = {name: row[name] for name in HEAD} | {
            "query": position,
            "query_token": queries[position],
        }
        rows.add(
            at,
            certified_columns(audit.matrices[str(key)][position], projected, seen, order=True),
            keys,
        )
    return Certainty.of(rows.frames(), {**audit.provenance, "analysis": Certainty.analysis})
