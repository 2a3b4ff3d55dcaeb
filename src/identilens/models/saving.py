"""Writing our own models as folders that `load` reads."""

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path
) -> None:
    """Write weights, configuration and the tokenizer, if there is one, without transformers' progress bars."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            enable_progress_bar()
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
