"""How the weights of an identifiable encoder start; tensors that were loaded keep what they hold."""

import math

import torch
from torch import nn
from transformers import initialization as init

from identilens.encoder.layer import XavierLinear


@torch.no_grad()
def initialise(module: nn.Module, embedding_std: float = 1.0) -> None:
    """Give a module its first weights.

    Embeddings are normal (Bhardwaj et al. 2021, section 6: N(0, 1)), the maps to queries, keys and values Xavier
    uniform, other linear maps as torch makes them.
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=embedding_std)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, XavierLinear):
        init.xavier_uniform_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.in_features)
        init.uniform_(module.weight, -bound, bound)
        init.uniform_(module.bias, -bound, bound)
