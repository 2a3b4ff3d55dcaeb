"""What the report of a mixing analysis says beside its charts."""

from collections.abc import Sequence

import polars as pl

from identilens.charts.page import Section
from identilens.charts.viewer import TokenMap
from identilens.runs.tables import counted
from identilens.studies.mixing.series import Series


def sections(
    series: Series, charts: Sequence[str], maps: Sequence[TokenMap], texts: int
) -> list[Section]:
    """Return the parts of the report."""
    groups = (
        ("part_of_speech",),
        ("class_token", "class_token_separator"),
        ("own_share", "rollout_correlation"),
    )
    speech, classes, rollout = ([name for name in names if name in charts] for names in groups)
    context = [name for name in ("neighbours", "relative_positions") if name in charts]
    boxes = series.own.select(
        "kind", "layer", "q1", "median", "q3", "mean", "not_largest", "tokens"
    )
    raw, effective = (
        series.own_medians.filter(pl.col("measure") == f"{name} rollout")["median"]
        for name in ("raw", "effective")
    )
    return [
        Section(
            "own",
            "How much of a token is still itself",
            _OWN,
            ["own_contribution", "not_largest"],
            boxes,
        ),
        Section("neighbours", "Where context comes from", _CONTEXT, context),
        Section("class-token", "The class token", _CLASS if classes else _NO_CLASS, classes),
        Section(
            "token",
            "One token through the layers",
            _TOKEN,
            ["tracked_token"],
            maps=maps,
            note=_held(maps, texts),
        ),
        Section("speech", "Parts of speech", _SPEECH if speech else _NO_SPEECH, speech),
        Section(
            "rollout",
            "What attention alone says",
            _ROLLOUT if rollout else _NO_ROLLOUT,
            rollout,
            series.correlation if rollout else None,
            note=_EQUAL
            if (bool(len(raw)) and bool(((raw - effective).abs() < 1e-3).all()))
            else "",
        ),
        Section("reading", "How to read this report", _READING),
    ]


def _held(maps: Sequence[TokenMap], texts: int) -> str:
    shown = len({one.choices["text"] for one in maps})
    if not shown:
        return (
            "No text of this analysis is short enough to travel inside this file with all its numbers. "
            + _ANY_TEXT
        )
    small = ", to keep the file small" if shown < texts else ""
    return (
        f"This page contains every token of {shown} of {counted(texts, 'text')}{small}. {_ANY_TEXT}"
    )


_ANY_TEXT = "In Python, track_token of identilens.measures.mixing gives any text's numbers, with standard errors."
_EQUAL = "Raw and effective rollout are the same here: in texts so short, nearly all attention is effective."
_OWN = (
    "Contribution is the share of an input token in a hidden state: how strongly the state reacts to small changes of "
    "that token's input vector, over all tokens 1 in sum (Brunner et al. 2020, Eq. 11). Here only the token at the "
    "state's own position (Fig. 3).",
    "Boxes hold the middle half of all tokens, the line in them is the median. Whiskers reach to the furthest token "
    "within 1.5 times the box's height; tokens beyond are not drawn. Where another input token contributes more than "
    "the token itself, reading the hidden state as “this token in context” is least safe.",
)
_CONTEXT = (
    "Everything that is not a token's own contribution is context. Is it near or far, and does that change with depth "
    "(Fig. 4)?",
    "By distance: the mean contribution of left and right neighbours, scaled so that a line sums to 1 over layers. A "
    "line that rises says that this distance matters more in late layers, not that it contributes more than others.",
    "By relative position: the total contribution, over all tokens, of what stands so many positions to the left "
    "(negative) or right, as a share of all context of the layer. Far positions exist in long texts only.",
)
_CLASS = (
    "The first token stands for the whole text and for no word. What its hidden state takes from each position, over "
    "all texts, as a share of its context (Brunner et al. 2020, Fig. 18).",
)
_NO_CLASS = (
    "No text of this analysis opens with a class token such as [CLS], so there is nothing to show here.",
)
_TOKEN = (
    "What one hidden state takes from every input token, layer by layer (Brunner et al. 2020, Fig. 19–25). In the maps "
    "below, rows are layers and columns are input tokens; rollouts stand beside contributions.",
)
_SPEECH = (
    "Own contribution by part of speech (Brunner et al. 2020, Fig. 26–37), in the order of the medians at the last "
    "layer, the same for every layer. A sub-word takes the tag of its word; special tokens are their own tag. In "
    "brackets: how many tokens.",
)
_NO_SPEECH = (
    "This analysis was made without parts of speech. Texts from a CoNLL-U file (--file sentences.conllu) bring them, "
    "and --spacy PIPELINE tags any text.",
)
_ROLLOUT = (
    "Attention rollout multiplies attention maps through the layers (Abnar and Zuidema 2020) and is often read as "
    "“what has been mixed”. It sees attention weights only: neither values, nor norms, nor feed-forward layers. Raw "
    "rollout takes weights as they are, effective rollout only the part that reaches the heads' outputs. If attention "
    "alone told the story, the lines of the first chart would meet and those of the second lie at 1.",
    "Correlations are taken within each text and averaged over texts. The own token is largest in all three, so with "
    "it any two agree; without it the figure says whether attention tells which context is mixed in.",
)
_NO_ROLLOUT = ("This analysis was made without attention rollout.",)
_READING = (
    "Contribution: c_ij = ‖∂e_j/∂x_i‖ / Σ_k ‖∂e_j/∂x_k‖, with e_j the hidden state at position j, x_i the input vector "
    "at position i and Frobenius norms (Brunner et al. 2020, Eq. 11). x is what enters the first layer, unless the "
    "setting “wrt” says otherwise.",
    "Layers: layer l is what the l-th layer gives, from 1.",
    "Kinds: encoders have “encoder”, decoder-only models “decoder” states. Encoder–decoders also have “cross”: decoder "
    "states by encoder input. It has no own token and no neighbours, and so appears only in the maps of single tokens. "
    "In decoders later tokens contribute exactly 0.",
    "Exact and sketch: the setting “method” says whether norms are exact or estimated from random probes, as many a "
    "token as “sketch_probes” says. Each estimate has a standard error in the table. Tokens whose own and another's "
    "contribution are nearly equal may fall on either side of “largest” in a sketch.",
    "What this does not say: a derivative describes small changes, and replacing a word is not small. A large "
    "contribution is sensitivity, not use. Shares get smaller with longer texts, so compare layers, or tokens within a "
    "text, not bare shares of texts of different length.",
    "Sources: G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020. S. Abnar, W. Zuidema. Quantifying Attention Flow in Transformers. ACL 2020 (attention "
    "rollout). How to cite this run stands at the end of the page.",
)
