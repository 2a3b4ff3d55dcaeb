"""Writing our own models as folders that `load` reads."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, configuration and the tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
