"""Mixing: how much of each input token is in each hidden token (Brunner et al. 2020, 5)."""

from identilens.mixing.analysis import mixing as mixing
from identilens.mixing.conllu import TaggedText as TaggedText
from identilens.mixing.conllu import read_conllu as read_conllu
from identilens.mixing.contributions import Contributions as Contributions
from identilens.mixing.contributions import contributions as contributions
from identilens.mixing.correlation import rollout_correlation as rollout_correlation
from identilens.mixing.jacobian import SquaredNorms as SquaredNorms
from identilens.mixing.jacobian import jacobian_norms as jacobian_norms
from identilens.mixing.neighbours import NEIGHBOUR_GROUPS as NEIGHBOUR_GROUPS
from identilens.mixing.neighbours import by_relative_position as by_relative_position
from identilens.mixing.neighbours import neighbour_groups as neighbour_groups
from identilens.mixing.own import box_statistics as box_statistics
from identilens.mixing.part_of_speech import boxes_by_tag as boxes_by_tag
from identilens.mixing.part_of_speech import part_of_speech as part_of_speech
from identilens.mixing.part_of_speech import spacy_tagger as spacy_tagger
from identilens.mixing.part_of_speech import tag_tokens as tag_tokens
from identilens.mixing.part_of_speech import token_tags as token_tags
from identilens.mixing.rollout import attention_rollout as attention_rollout
from identilens.mixing.rollout import mean_over_heads as mean_over_heads
from identilens.mixing.tracking import context_of_token as context_of_token
from identilens.mixing.tracking import find_token as find_token
from identilens.mixing.tracking import track_token as track_token
