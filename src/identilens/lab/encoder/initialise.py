"""Initial weights of an identifiable encoder; loaded tensors do not change."""

import math

import torch
from torch import nn
from transformers import initialization as init

from identilens.lab.encoder.layer import XavierLinear


@torch.no_grad()
def initialise(module: nn.Module, embedding_std: float) -> None:
    """Set the initial weights of a module.

    Embeddings are normal (Bhardwaj et al. 2021, section 6: N(0, 1)). Maps to queries, keys and values are Xavier
    uniform. Other linear maps have torch's default.
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
