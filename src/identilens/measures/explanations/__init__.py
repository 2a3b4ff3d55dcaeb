"""Explanations of attention and of input tokens, and how faithful and how stable each of them is."""

from identilens.measures.explanations.agreement import permutation_p as permutation_p
from identilens.measures.explanations.agreement import rank_agreement as rank_agreement
from identilens.measures.explanations.orders import normalised_area as normalised_area
from identilens.measures.explanations.orders import order_bounds as order_bounds
from identilens.measures.explanations.rows import explain_rows as explain_rows
from identilens.measures.explanations.rows import value_zeroing as value_zeroing
