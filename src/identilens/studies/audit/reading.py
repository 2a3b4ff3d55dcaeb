"""The words of an audit's report."""

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
from identilens.studies.outcomes import of_head

AXES = (
    "Determined: how much of a row's attention stays on the same keys in every alternative, that is, in every "
    "distribution over the same keys with the same output. For each weight the least value over all alternatives is "
    "found by a linear program; their sum is the row's certain mass. No alternative lies farther away than 1 − certain "
    "mass (total variation).",
    "Influential: what happens to the model's answer without the head. It is removed from the model, and everything "
    "after it is computed again: the prediction changes by so many nats (KL divergence, the mean over positions), "
    "or, of a model without predictions, the final hidden states by a share of their length. A head is called "
    "influential when the prediction changes by at least a tenth, or the states by 0.3, of the change without the "
    "head that matters most. How large a head's output is stands beside it, relative to the mean of its layer's heads. "
    "The sink is the structural token (the first one, a special token, a full stop or a comma) that receives most of a "
    "map's attention. Its share of the norm says how much of the head's output comes from there.",
    "Neither axis follows from the other, and neither from the null share: a weight may lie in a direction without "
    "effect and still be fixed, because weights are non-negative and sum to 1.",
)
GROUPS = (
    "Both axes are continuous; groups are names of the chart's corners. A head is mostly certain when at least half of "
    "its attention, on average, stays on the same keys in every alternative whose output differs by no more than a "
    "rounding to bfloat16 (certain mass), else mostly open. It is influential when the model's prediction changes "
    "without it by at least a tenth (its final hidden states by 0.3) of the change without the head that matters most. "
    "Neither follows from the other. The lines in the chart stand at these two limits."
)
NO_ROWS = (
    "Certain mass or effects were not computed, so this report does not say how much of each head is determined, and "
    "which heads are influential. Choose a number of rows for each map with --certain-rows 4, and --effects removal "
    "(in Python: certain_rows=4, effects='removal')."
)
HEADS = (
    "Null share is the part of a map's squared weight in directions without effect on the head's output; it does not "
    "say that weights are free. Correlation compares a map with its effective attention (1: the same pattern). Both "
    "are means over texts."
)
LENGTH = (
    "How much the raw map looks like the effective one, by the number of keys (Brunner et al. 2020, Fig. 1a). The "
    "dashed line stands at d_v, the size of a head's values. The rank is at most d_v, so with more keys than that "
    "every map has a null space, and it grows with length."
)
TYPES = (
    "How much attention goes to each type of token: the model's special tokens, full stops and commas (“. ,”) and all "
    "others; sums over the tokens of a type, averaged over query tokens and texts. Effective attention can be "
    "negative.",
    "Received from all tokens (Brunner et al. 2020, Fig. 1b and 1c): a small point is a head, a line the mean over "
    "the heads of a layer. Raw and effective share one scale.",
    "Put on one type, by type of the query token (Brunner et al. 2020, Fig. 5): means over the heads of a layer, raw "
    "attention beside effective attention; pointing at a mean gives the lowest and the highest head.",
)
MAPS = (
    "Every map that was kept; of long texts, means over blocks of tokens. Click a row of a whole map to see how far "
    "each of its weights could move without changing the output, and how much each key contributes. Raw "
    "attention is the sum of its effective and its null part, cell by cell "
    "(Brunner et al. 2020, Fig. 6); the null part has no effect on the output."
)
NO_MAPS = (
    "This audit saved no attention matrices, so there is no map to look at. Those of --examples 3 texts are saved: "
    "whole up to --example-length 128 tokens, as means over blocks of longer texts. --matrices saves all "
    "(in Python: examples=3, example_length=128, matrices=True)."
)
READING = (
    "Raw attention, head output. Raw attention A is what a head computes after the softmax: each row has the weight of "
    "every key token for one query token. The head's output is A T, where T has one row for each key token: its value "
    "vector (bias included, unless the setting “value bias” is “out”) times the head's block of the output projection.",
    "Null space, rank, nullity. Weights can be changed by any x with xᵀT = 0 without changing the output: these x are "
    "the left null space of T. Its dimension, the nullity, is the number of keys less the rank of T, and the rank is "
    "at most d_v, the size of a head's values (Brunner et al. 2020, Eq. 6). Where it is 0, every direction of the "
    "weights has an effect. Changes that also keep the sum of each row have the simplex nullity as their dimension; "
    "it is at most one less.",
    "Effective and null attention. A = effective + null, row by row. Null attention lies in the left null space and "
    "has no effect on the output; effective attention is the part that the output depends on: it is orthogonal to the "
    "null part and is the smallest weights (in squared sum) with the same output (Brunner et al. 2020, Eq. 8 and 9). "
    "Effective attention can be negative, and its rows need not sum to 1.",
    "Certain mass. Σ_j lo_j of a row, with lo_j the least value of the weight on key j over all alternatives: 1 when "
    "the output fixes the row, 0 when every single weight might be zero. It is the mean over the rows that were drawn; "
    "its error is the standard error of that mean for the map. Alternatives have the same output exactly, or up to a "
    "rounding to bfloat16, the precision of most models in use: a change of 2⁻⁸ (0.4 %) of the output's length. With "
    "no more keys than d_v, no other weights have exactly the same output, but many have nearly the same.",
    "Simplex null share. The squared share of A that also keeps the sum of each row (the part in the null space of T "
    "with a column of ones); it is never larger than the null share. Both count directions and say nothing about how "
    "far a weight can go before one turns negative.",
    "Null share. ‖null‖² / ‖A‖², over all entries of a map; between 0 and 1: the share of the squared weight that lies "
    "in directions without effect on the output.",
    "Correlation. Pearson's correlation between the entries of raw and of effective attention, over the keys that "
    "each query may see. It is undefined where all entries are equal, as for a text of one token.",
    "Masked attention. Where a query sees only some keys (decoders, sliding windows), its null space is that of T "
    "restricted to those keys. Rank and nullity of such a map are those of its last row; earlier rows of a decoder "
    "see fewer keys, and their null space is never larger.",
    "Zero in floating point. The rank counts singular values of T above max(n, d_model) · eps · (the largest of "
    "them), with eps of float32, as in Bhardwaj et al. 2021. The reconstruction error, ‖effective · T − A T‖ / ‖A T‖, "
    "says how exactly effective attention gives the same output.",
    "What this does not say. A large null share does not mean that the weights are free: weights must also be "
    "non-negative and sum to 1. Certain mass says how much is fixed; “identilens certify” gives the "
    "range of each weight. A fixed weight can still be unimportant: look at its share of the norm. A map "
    "with a large null share is not wrong: the model did compute it. But an interpretation of its null part alone is "
    "one of directions without effect on the output. A map without a null space is not an explanation of a prediction.",
    "Sources. G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020. — R. Bhardwaj, N. Majumder, S. Poria, E. Hovy. More Identifiable yet Equally Performant "
    "Transformers for Text Classification. ACL 2021. — K. Clark, U. Khandelwal, O. Levy, C. D. Manning. What Does "
    "BERT Look At? An Analysis of BERT's Attention. BlackboxNLP 2019 (conventions of the token types). The end "
    "of the page says how to cite this run.",
)


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
            "tolerance": "0",
        }
        kept = of_head(audit.matrices[str(key)][position], projected, seen)
        rows.add(
            at, certified_columns(kept, order=True), keys, {"outcome": "head", "measured": None}
        )
    return Certainty.of(rows.frames(), {**audit.provenance, "analysis": Certainty.analysis})
