"""Token identifiability: can the input token be recovered from its hidden state (Brunner et al. 2020, 4)."""

from identilens.measures.tokens.probes import LinearProbe as LinearProbe
