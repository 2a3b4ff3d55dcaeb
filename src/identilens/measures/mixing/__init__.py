"""Mixing: how much each input token contributes to each hidden token (Brunner et al. 2020, 5)."""

from identilens.measures.mixing.alti import alti_contributions as alti_contributions
from identilens.measures.mixing.bounds import HeadRows as HeadRows
from identilens.measures.mixing.bounds import RolloutBounds as RolloutBounds
from identilens.measures.mixing.bounds import rollout_bounds as rollout_bounds
from identilens.measures.mixing.contributions import contributions as contributions
from identilens.measures.mixing.neighbours import by_relative_position as by_relative_position
from identilens.measures.mixing.neighbours import neighbour_groups as neighbour_groups
from identilens.measures.mixing.own import box_statistics as box_statistics
from identilens.measures.mixing.own import boxes_by_tag as boxes_by_tag
from identilens.measures.mixing.rollout import rollout_correlation as rollout_correlation
from identilens.measures.mixing.tracking import context_of_token as context_of_token
from identilens.measures.mixing.tracking import track_token as track_token
