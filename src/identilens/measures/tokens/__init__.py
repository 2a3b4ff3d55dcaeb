"""Token identifiability: can the input token be recovered from its hidden state (Brunner et al. 2020, 4)."""

from identilens.measures.tokens.margins import Nearest as Nearest
from identilens.measures.tokens.margins import Noise as Noise
from identilens.measures.tokens.probes import Probe as Probe
