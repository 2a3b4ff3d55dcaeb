"""Small runs of every study, each by its public entry; `laboratories` has those that train or construct models.

Tiny models run in double precision, so that tables are the same to 1e-12; the bundled encoder in single. Some are
`local` all the same: rotary angles, T5's norms and random probes are computed in single precision, and k-means and ranks
turn on the last digit. The seconds beside a case are those of one core.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import polars as pl
import torch
import transformers as hf
from torch import Tensor

import identilens as idl
from golden.laboratories import LABORATORIES
from golden.stored import Case, Tables, single
from identilens.mixing import (
    box_statistics,
    by_relative_position,
    context_of_token,
    neighbour_groups,
    part_of_speech,
    rollout_correlation,
    track_token,
)
from identilens.reproduce.structure2025_figure1 import structure2025_figure1
from identilens.reproduce.structure2025_figure2 import structure2025_figure2
from identilens.structure import reversal_study
from identilens.structure.reversal_training import ReversalSettings
from zoo import build, ids

SHORT = "Rain."
LONG = (
    "When the last ferry had left the harbour, the keeper of the lighthouse climbed the stairs once more, trimmed the "
    "lamp, and wrote into his book that the wind had turned to the north, that two boats were still out beyond the "
    "reef, and that nobody in the village would sleep before both of them were home again."
)
REPEATED = " ".join(["storm"] * 20)
TEXTS = [SHORT, "The old bridge was closed in winter.", REPEATED, LONG]
PAIR = ("A storm closed the pass.", "Snow shut it.")
TOKENS = [ids(3), ids(9, 1), [7] * 12, ids(24, 2), ids(60, 3)]
SENTENCES = [ids(4 + seed % 7, seed) for seed in range(30)]


def tiny(family: str, seed: int = 0) -> idl.Lens:
    """A lens on a tiny random model in double precision."""
    return idl.Lens(drawn(build(family, seed), seed), name=f"tiny {family}")


@torch.no_grad()
def drawn(model: Any, seed: int) -> Any:
    """The model with weights made of whole numbers: torch's normal numbers depend on the processor."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.double().parameters():
        # Sums of three even draws: near normal, with standard deviation 0.25 for matrices.
        numbers = torch.randint(-64, 65, (3, *parameter.shape), generator=generator).sum(0).double()
        parameter.copy_(numbers / 256 if parameter.ndim > 1 else parameter.round() + numbers / 640)
    return model.eval()


@cache
def real() -> idl.Lens:
    """A lens on the bundled encoder."""
    return idl.load(idl.bundled_model(), device="cpu")


def maps(matrices: Mapping[str, Tensor], *prefixes: str) -> dict[str, pl.DataFrame]:
    """Return kept maps as tables: one for each prefix, a row a query and key, a column a kind of weights."""
    found: dict[str, pl.DataFrame] = {}
    for prefix in prefixes:
        held = {name.removeprefix(f"{prefix}."): matrices[name] for name in matrices if name.startswith(f"{prefix}.")}
        wanted = {name: one for name, one in held.items() if name in ("raw", "effective") or "alternative" in name}
        found[prefix.replace(".", "_")] = pl.DataFrame({name: one.flatten().numpy() for name, one in wanted.items()})
    return found


# Audit ----------------------------------------------------------------------------------------------------------------


def audit(lens: idl.Lens, texts: Any, *kept: str, **options: Any) -> Tables:
    found = idl.audit(lens, texts, matrices=bool(kept), **options)
    return {"table": found.table, "token_types": found.token_types, **maps(found.matrices, *kept)}


def audit_bundled() -> Tables:
    found = idl.audit(real(), TEXTS, matrices=True)
    types = found.token_types.filter(pl.col("head") % 4 == 0)
    means = {
        "by_layer": found.by_layer(),
        "by_length": found.by_length(),
        "received": found.received().filter(pl.col("layer") == 2),
    }
    return {
        "table": found.table, "token_types": types, **means,
        **maps(found.matrices, "text1.layer3.head10.encoder", "text2.layer0.head2.encoder"),
    }  # fmt: skip


def audit_long_causal() -> Tables:
    """Texts long enough for several blocks of rows."""
    torch.manual_seed(0)
    config = hf.GPT2Config(
        vocab_size=96, n_embd=32, n_layer=1, n_head=4, n_positions=320, bos_token_id=1, eos_token_id=1
    )
    lens = idl.Lens(drawn(hf.GPT2LMHeadModel(config), 0))
    return audit(lens, [ids(300, 5), ids(280, 6)], stream="always")


CONDITIONED = 1e-11
"""Relative tolerance where a small null space, or a search, makes more of the last digit."""

AUDITS = {
    "audit_bundled": single(audit_bundled),  # 0.6 s
    "audit_bundled_streamed": single(
        lambda: audit(real(), [" ".join([LONG] * 3)], stream="always", layers=(1, 4))
    ),  # 0.1 s
    "audit_bundled_pairs": single(lambda: audit(real(), [PAIR], layers=(5,))),  # 0.0 s
    "audit_encoder": Case(lambda: audit(tiny("bert"), TOKENS, "text3.layer1.head2.encoder")),  # 0.1 s
    "audit_value_bias": Case(lambda: audit(tiny("bert"), TOKENS, value_bias="out")),  # 0.1 s
    "audit_causal": Case(lambda: audit(tiny("gpt2"), TOKENS, "text1.layer1.head2.decoder"), CONDITIONED),  # 0.1 s
    "audit_long_causal": Case(audit_long_causal),  # 0.1 s
    "audit_grouped": Case(lambda: audit(tiny("llama"), TOKENS), local=True),  # 0.2 s
    "audit_window": Case(lambda: audit(tiny("mistral"), TOKENS), local=True),  # 0.4 s
    "audit_cross": Case(lambda: audit(tiny("t5"), TOKENS, "text1.layer0.head1.cross")),  # 0.3 s
    "audit_streamed": Case(lambda: audit(tiny("t5"), TOKENS, stream="always")),  # 0.2 s
}

# Intervals, alternatives, logit ranks ---------------------------------------------------------------------------------


def intervals(lens: idl.Lens, texts: Any, **options: Any) -> Tables:
    found = idl.intervals(lens, texts, **options)
    return {"table": found.table, "rows": found.rows, "order": found.order, "tokens": found.tokens}


def alternatives(lens: idl.Lens, texts: Any, *kept: str, **options: Any) -> Tables:
    found = idl.alternatives(lens, texts, **options)
    return {"table": found.table, "changes": found.changes, **maps(found.matrices, *kept)}


ALTERNATIVES = {
    "intervals_bundled": single(lambda: intervals(real(), LONG, layers=3, heads=7, queries=["reef", 0])),  # 0.5 s
    "intervals_encoder": Case(
        lambda: intervals(tiny("bert"), [ids(14), [7] * 11], layers=1, heads=3, queries=(0, 4, 10))
    ),  # 0.1 s
    "intervals_causal": Case(
        lambda: intervals(tiny("gpt2"), [ids(20)], layers=0, heads=1, queries=(0, 8, 12, 19))
    ),  # 0.1 s
    "intervals_cross": Case(
        lambda: intervals(tiny("t5"), [ids(16)], layers=0, heads=2, kind="cross", queries=(0, 5)), CONDITIONED
    ),  # 0.1 s
    "alternatives_bundled": single(lambda: alternatives(real(), LONG, layers=2, heads=5)),  # 2.7 s
    "alternatives_encoder": Case(
        lambda: alternatives(tiny("bert"), [ids(12)], "text0.layer0.head1.encoder", layers=0, heads=1, realisable=True)
    ),  # 0.2 s
    "alternatives_heads": Case(
        lambda: alternatives(tiny("bert"), [ids(6), ids(20, 1)], heads=(0, 2), starts=2), CONDITIONED
    ),  # 0.6 s
    "alternatives_causal": Case(lambda: alternatives(tiny("gpt2"), [ids(18)], layers=1, heads=0)),  # 0.2 s
    "alternatives_cross": Case(lambda: alternatives(tiny("t5"), [ids(14)], layers=1, heads=3, kind="cross")),  # 0.2 s
    "logit_ranks_bundled": single(
        lambda: {"table": idl.logit_ranks(real(), [LONG], layers=(0, 3), heads=(1, 7), count=10).table}
    ),  # 0.2 s
    "logit_ranks_encoder": Case(
        lambda: {"table": idl.logit_ranks(tiny("bert"), [ids(16), ids(9, 1), ids(30, 2)], count=20).table}
    ),  # 0.2 s
}

# Mixing ---------------------------------------------------------------------------------------------------------------


def mixing(lens: idl.Lens, texts: Any, **options: Any) -> Tables:
    found = idl.mixing(lens, texts, **options)
    return {"table": found.table, "tokens": found.tokens, "by_layer": found.by_layer()}


def mixing_aggregates() -> Tables:
    """What the figures of a mixing analysis are drawn from."""
    found, texts = idl.mixing(real(), [PAIR, PAIR[::-1]], probes=8), [PAIR, PAIR[::-1]]
    own = found.own()
    return {
        "own": own.filter(pl.col("layer") == 6),
        "boxes": box_statistics(own),
        "neighbours": neighbour_groups(found.table),
        "positions": by_relative_position(found.table),
        "class_token": context_of_token(found.table, found.tokens),
        "separator": context_of_token(found.table, found.tokens, centre="[SEP]"),
        "rollout": rollout_correlation(found.table),
        "tracked": track_token(found.table, found.tokens, "snow"),
        "part_of_speech": part_of_speech(own, texts, real().tokenizer, word_tags),
    }


def word_tags(text: str) -> list[tuple[int, int, str]]:
    """Tag words by their length."""
    words = re.finditer(r"\w+", text)
    return [(word.start(), word.end(), "LONG" if len(word[0]) > 4 else "SHORT") for word in words]


MIXING = {
    "mixing_exact": Case(lambda: mixing(tiny("bert"), [ids(3), ids(7, 1), [7] * 4], method="exact")),  # 0.6 s
    "mixing_sketch": Case(lambda: mixing(tiny("bert"), [ids(3), ids(8, 1)], probes=8, seed=3), local=True),  # 0.4 s
    "mixing_sum": Case(lambda: mixing(tiny("bert"), [ids(5)], method="exact", wrt="embedding_sum")),  # 0.2 s
    "mixing_causal": Case(lambda: mixing(tiny("gpt2"), [ids(3), ids(8, 1)], method="exact")),  # 0.4 s
    "mixing_causal_sketch": Case(lambda: mixing(tiny("gpt2"), [ids(8, 1)], probes=6), local=True),  # 0.3 s
    "mixing_grouped": Case(lambda: mixing(tiny("llama"), [ids(7)], method="exact"), local=True),  # 0.3 s
    "mixing_cross": Case(lambda: mixing(tiny("t5"), [ids(6)], method="exact"), local=True),  # 0.6 s
    "mixing_bundled": single(lambda: mixing(real(), [SHORT, PAIR], probes=6, layers=(1, 6))),  # 2.1 s
    "mixing_aggregates": single(mixing_aggregates),  # 2.4 s
}

# Token identifiability ------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"folds": 2, "learning_rates": (0.01, 0.003), "max_epochs": 4, "hidden_units": 16}


def tokens(experiment: str, lens: idl.Lens, texts: Any, **options: Any) -> Tables:
    found = idl.token_identifiability(lens, texts, experiment=experiment, **{**QUICK, **options})
    kept = {"means": found.means()} if experiment in ("same-layer", "neighbours") else {}
    return {"table": found.table, **kept}


def checkpoints() -> Tables:
    return tokens("layer-to-layer", tiny("bert"), SENTENCES, compare=tiny("bert", 3), probes=("naive", "ridge"))


RECOVERY = {
    "tokens_same_layer": single(
        lambda: tokens("same-layer", tiny("bert"), SENTENCES, probes=("naive", "linear", "ridge", "mlp")), False
    ),  # 0.2 s
    "tokens_every_fold": single(
        lambda: tokens("same-layer", tiny("gpt2"), SENTENCES, probes="linear", search="every fold"), False
    ),  # 0.1 s
    "tokens_across_layers": single(
        lambda: tokens("across-layers", tiny("bert"), SENTENCES, probes=("naive", "linear", "ridge")), False
    ),  # 0.2 s
    "tokens_layer_to_layer": single(checkpoints, False),  # 0.2 s
    "tokens_neighbours": single(
        lambda: tokens("neighbours", tiny("bert"), SENTENCES, probes=("ridge", "mlp"), offsets=(-2, 1)), False
    ),  # 0.2 s
    "tokens_data_share": single(
        lambda: tokens("data-share", tiny("bert"), SENTENCES, probes=("naive", "linear", "ridge")), False
    ),  # 0.2 s
    "tokens_bundled": single(
        lambda: tokens("same-layer", real(), [*TEXTS, *LONG.split(", ")], layers=(1, 6), probes=("naive", "ridge"))
    ),  # 0.4 s
}

# Structure and the reversal task --------------------------------------------------------------------------------------


def structure(lens: idl.Lens, texts: Any, *kept: str, **options: Any) -> Tables:
    found = idl.structure(lens, texts, **options)
    names = (
        "table", "growth", "spectrum", "texts", "pairs", "patterns", "clusters", "representatives", "stability",
        "perturbations",
    )  # fmt: skip
    weights = {name.replace(".", "_"): pl.DataFrame({"value": found.matrices[name].flatten().numpy()}) for name in kept}
    return {
        **{name: getattr(found, name) for name in names}, **weights,
        "correlations": found.correlations(), "by_perturbation": found.by_perturbation(),
    }  # fmt: skip


def structure_encoder() -> Tables:
    kept = ("encoder.layer0.raw", "encoder.layer1.effective", "encoder.layer1.visibility")
    corpus = [ids(14, seed) for seed in range(9)]
    return structure(tiny("bert"), corpus, *kept, length=12, clusters=3, pairs=3, perturbed=1)


def structure_causal() -> Tables:
    corpus = [ids(20, seed) for seed in range(6)]
    return structure(tiny("gpt2"), corpus, length=10, cut="window", pairs=4, threshold=0.3, scale="sum", penalty=0.1)


def structure_bundled() -> Tables:
    places = [f"The {animal} slept under the {place} until the rain had stopped."
              for animal in ("fox", "cat") for place in ("bridge", "table", "tree")]  # fmt: skip
    found = structure(real(), [*places, SHORT], length=10, shorter="skip", clusters=2, pairs=1, perturbed=0)
    return {name: found[name] for name in ("table", "pairs", "representatives")}


REVERSAL = ReversalSettings(length=5, epochs=2, train=64, held_out=32, hidden=16, inputs=8)


def reversal() -> Tables:
    lstm, transformer = (reversal_study(model, REVERSAL) for model in ("lstm", "transformer"))
    return {
        "lstm_course": lstm.course, "lstm_weights": pl.DataFrame({"weight": lstm.weights.flatten().numpy()}),
        "transformer_course": transformer.course,
        "perturbations": transformer.perturbations.filter(pl.col("text") == 0),
        "accuracy": pl.DataFrame({name: [getattr(one, name) for one in (lstm, transformer)]
                                  for name in ("accuracy", "whole", "written")}),
        "nullity": pl.DataFrame({"nullity": torch.cat([lstm.nullity, transformer.nullity]).numpy()}),
    }  # fmt: skip


def reversal_figures() -> Tables:
    first, second = structure2025_figure1(REVERSAL), structure2025_figure2(REVERSAL)
    sweep_ = second.tables["sweep"].filter(pl.col("head") == 0)
    return {
        **{f"one_{name}": first.tables[name] for name in ("match", "attention")},
        **{f"two_{name}": second.tables[name] for name in ("best", "norms", "perturbations")},
        "two_sweep": sweep_, "accuracy": first.tables["accuracy"].drop("seconds"),
    }  # fmt: skip


STRUCTURE = {
    "structure_encoder": Case(structure_encoder, local=True),  # 2.3 s
    "structure_causal": Case(structure_causal),  # 0.3 s
    "structure_bundled": single(structure_bundled),  # 0.5 s
    "reversal": single(reversal, False),  # 2.2 s
    "reversal_figures": single(reversal_figures, False),  # 5.0 s
}

CASES: dict[str, Case] = {**AUDITS, **ALTERNATIVES, **MIXING, **RECOVERY, **STRUCTURE, **LABORATORIES}
