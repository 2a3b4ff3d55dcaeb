"""How much of attention is determined: measures on tensors, and the audit that applies them to texts."""

from identilens.attention.effective import EffectiveAttention as EffectiveAttention
from identilens.attention.effective import effective_attention as effective_attention
from identilens.attention.rank import RankReport as RankReport
from identilens.attention.rank import numerical_rank as numerical_rank
