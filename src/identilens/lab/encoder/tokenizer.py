"""Word-level tokenizers for text in basic-English form, built from a training part and saved with the model."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PADDING, UNKNOWN, FIRST = "[PAD]", "[UNK]", "[CLS]"

_SPACED = ("'", ".", ",", "(", ")", "!", "?")
_DROPPED = ('"',)
_BLANK = ("<br />", ";", ":")


def normalizer() -> normalizers.Normalizer:
    """Return the basic-English normalisation of Bhardwaj et al. 2021 (footnote 9).

    Text becomes lower case. Apostrophes, full stops, commas, brackets, exclamation and question marks become separate
    words. HTML line breaks, semicolons and colons become spaces. Double quotes are removed.
    """
    return normalizers.Sequence(
        [
            normalizers.Lowercase(),
            *(normalizers.Replace(mark, f" {mark} ") for mark in _SPACED),
            *(normalizers.Replace(mark, "") for mark in _DROPPED),
            *(normalizers.Replace(mark, " ") for mark in _BLANK),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )


def build_tokenizer(
    texts: Iterable[str], *, max_words: int = 100_000, max_length: int = 512
) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose vocabulary is the most frequent words of the texts, most frequent first.

    Each text is encoded as [CLS] and its words. The vocabulary has ``max_words`` entries, special tokens included;
    other words become [UNK]. With truncation, texts are cut to ``max_length`` tokens.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = [PADDING, UNKNOWN, FIRST]
    tokenizer.train_from_iterator(
        texts,
        trainers.WordLevelTrainer(
            vocab_size=max_words, special_tokens=special, show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{FIRST} $A", special_tokens=[(FIRST, special.index(FIRST))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        cls_token=FIRST,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
