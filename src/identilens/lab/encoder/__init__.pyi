from .logit_ranks import rank_by_length as rank_by_length
