"""Effective attention, intervals and alternatives: measures on tensors, and analyses that apply them to texts."""

from identilens.linalg import ProjectedValues as ProjectedValues
from identilens.measures.attention.detectors import PATTERNS as PATTERNS
from identilens.measures.attention.detectors import pattern_keys as pattern_keys
from identilens.measures.attention.determined import certain_mass as certain_mass
from identilens.measures.attention.determined import functional_interval as functional_interval
from identilens.measures.attention.effective import effective_attention as effective_attention
from identilens.measures.attention.influence import contribution_weights as contribution_weights
from identilens.measures.attention.influence import norm_share as norm_share
from identilens.measures.attention.influence import removal_effect as removal_effect
from identilens.measures.attention.intervals import attention_intervals as attention_intervals
from identilens.measures.attention.logits import least_logit_rank as least_logit_rank
from identilens.measures.attention.logits import logit_rank_study as logit_rank_study
from identilens.measures.attention.rank import numerical_rank as numerical_rank
from identilens.measures.attention.realisable.alternative import (
    realisable_alternative as realisable_alternative,
)
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap as SoftmaxMap
from identilens.measures.attention.realisable.softmax_map import (
    generic_dimension as generic_dimension,
)
from identilens.measures.attention.realisable.softmax_map import (
    realisable_dimension as realisable_dimension,
)
from identilens.measures.attention.realisable.softmax_map import softmax_map as softmax_map
from identilens.measures.attention.samplers import far_alternatives as far_alternatives
from identilens.measures.attention.samplers import sample_alternatives as sample_alternatives
from identilens.measures.attention.simplex import simplex_space as simplex_space
from identilens.measures.attention.simplex import total_variation as total_variation
