"""A tokenizer for bracket strings, so that trained models can read "([])" as text."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from identilens.errors import InputError
from identilens.lab.dyck.language import START, Dyck
from identilens.lab.dyck.parsing import OPEN, token_names


def bracket_tokenizer(language: Dyck) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a language: one token per bracket, after a start token.

    Raises:
        InputError: For more types than there are bracket characters.
    """
    if language.types > len(OPEN):
        raise InputError(
            f"expected at most {len(OPEN)} types of brackets to write, got {language.types}; pass token ids instead"
        )
    vocabulary = {name: token for token, name in enumerate(token_names(language))}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # type: ignore[assignment]
    plain.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<start> $A", special_tokens=[("<start>", START)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        bos_token="<start>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
    )
