"""Tokenizers of tiny models: single characters, and the chat templates of three families; plain runs of answers."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import identilens as idl
from helpers.gated import GATED, gated
from helpers.zoo import VOCAB, build

SPECIAL = ["<pad>", "<bos>", "<eos>", "<im_start>", "<im_end>", "<head>", "</head>", "<unk>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,:;?'-\n"
LETTERS += "".join(map(chr, range(0x3B1, 0x3B1 + VOCAB - len(SPECIAL) - len(LETTERS))))
"""As many as the models have tokens."""

TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<im_start>' + m['role'] + '\n' + m['content'] + '<im_end>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<im_start>assistant\n' }}{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for m in messages %}{{ '<head>' + m['role'] + '</head>\n\n' }}"
        "{{ m['content'] | trim + '<im_end>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<head>assistant</head>\n\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ '<im_start>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
        "{{ first if loop.first else '' }}{{ m['content'] | trim }}{{ '<im_end>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<im_start>model\n' }}{% endif %}"
    ),
}
"""Forms of chats: every message between marks; trimmed after a header; the system's text before the user's."""

MESSAGES = [
    {"role": "system", "content": "be brief. "}, {"role": "user", "content": "  snow fell.  "},
    {"role": "assistant", "content": "where?"}, {"role": "user", "content": "on the harbour."},
]  # fmt: skip


def tokenizer(template=None):
    """A fast tokenizer of single characters; text that is no chat begins with <bos>."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    backend.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[3:7],
    )
    made.chat_template = TEMPLATES.get(template)
    return made


@torch.no_grad()
def log_probabilities(lens, ids, answer):
    """The log-probability of each token of an answer, by one plain run."""
    logits = lens.model(torch.tensor([[*ids, *answer]])).logits[0, -len(answer) - 1 : -1]
    return logits.double().log_softmax(-1)[range(len(answer)), answer]


def greedy(lens, ids, tokens, **options):
    """What the model generates after some tokens, by ``generate``."""
    given = torch.tensor([ids])
    mask = torch.ones_like(given)
    return lens.model.generate(
        given, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options
    )


def answering(family, template=None):
    """A tiny random model with such a tokenizer."""
    model = gated(family).model.float() if family in GATED else build(family)
    return idl.Lens(model, tokenizer(template))
