"""Small mixing analyses, and what their figures are drawn from."""

import re

import polars as pl

import identilens as idl
from golden.common import PAIR, real, tiny
from golden.stored import Case, single
from helpers.zoo import ids
from identilens.measures.mixing import (
    box_statistics,
    boxes_by_tag,
    by_relative_position,
    context_of_token,
    neighbour_groups,
    rollout_correlation,
    track_token,
)
from identilens.runs.conllu import TaggedText, Word
from identilens.studies.mixing.tagging import tag_tokens


def mixing(lens, texts, **options):
    found = idl.mixing(lens, texts, **options)
    return {"table": found.table, "tokens": found.token_names, "by_layer": found.by_layer()}


def rollout(lens, texts, **options):
    found = idl.rollout(lens, texts, **{"tolerance": 0} | options)
    return {"table": found.table, "rows": found.rows}


def mixing_aggregates():
    """What the figures of a mixing analysis are drawn from."""
    found = idl.mixing(real(), [PAIR, PAIR[::-1]], sketch_probes=4)
    texts = [tuple(map(tagged, pair)) for pair in (PAIR, PAIR[::-1])]
    own = found.by_token()
    return {
        "own": own.filter(pl.col("layer") == 6),
        "boxes": box_statistics(own),
        "neighbours": neighbour_groups(found.table),
        "positions": by_relative_position(found.table),
        "class_token": context_of_token(found.table, found.token_names),
        "separator": context_of_token(found.table, found.token_names, centre="[SEP]"),
        "rollout": rollout_correlation(found.table),
        "tracked": track_token(found.table, found.token_names, "snow"),
        "part_of_speech": boxes_by_tag(own, tag_tokens(texts, real().tokenizer)),
    }


def tagged(text):
    """Tag words by their length."""
    tags = [(word, "LONG" if len(word[0]) > 4 else "SHORT") for word in re.finditer(r"\w+", text)]
    return TaggedText(text, [Word(word.start(), word.end(), tag, tag) for word, tag in tags])


CASES: dict[str, Case] = {
    "mixing_exact": Case(
        lambda: mixing(tiny("bert"), [ids(3), ids(7, 1), [7] * 4], method="exact")
    ),  # 0.6 s
    "mixing_causal_sketch": Case(
        lambda: mixing(tiny("gpt2"), [ids(8, 1)], sketch_probes=6), local=True
    ),  # 0.3 s
    "mixing_cross": Case(lambda: mixing(tiny("t5"), [ids(6)], method="exact"), local=True),  # 0.6 s
    "mixing_aggregates": single(mixing_aggregates),  # 2.4 s
    "rollout_causal": Case(
        lambda: rollout(tiny("llama"), [ids(9), ids(5)], tolerance=(0, "1%")),
        relative=1e-6,
        floor=1e-9,
    ),  # 1 s
}
