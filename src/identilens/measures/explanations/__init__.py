"""Explanations of attention and of input tokens, and how faithful and how stable each of them is."""

from identilens.measures.explanations.agreement import rank_agreement as rank_agreement
from identilens.measures.explanations.bootstrap import Interval as Interval
from identilens.measures.explanations.bootstrap import bootstrap_interval as bootstrap_interval
from identilens.measures.explanations.orders import OrderBounds as OrderBounds
from identilens.measures.explanations.orders import area as area
from identilens.measures.explanations.orders import normalised_area as normalised_area
from identilens.measures.explanations.orders import order_bounds as order_bounds
from identilens.measures.explanations.orders import removal_order as removal_order
from identilens.measures.explanations.orders import removal_sets as removal_sets
from identilens.measures.explanations.rationales import comprehensiveness as comprehensiveness
from identilens.measures.explanations.rationales import sufficiency as sufficiency
from identilens.measures.explanations.rows import ROW_EXPLANATIONS as ROW_EXPLANATIONS
from identilens.measures.explanations.rows import explain_rows as explain_rows
from identilens.measures.explanations.rows import value_zeroing as value_zeroing
