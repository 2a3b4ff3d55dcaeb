"""Which file holds which case; a file is imported when one of its cases is asked for."""

from importlib import import_module

from golden.stored import Case

FILES = {
    "audit": [
        "audit_bundled",
        "audit_bundled_streamed",
        "audit_bundled_pairs",
        "audit_encoder",
        "audit_value_bias",
        "audit_causal",
        "audit_long_causal",
        "audit_grouped",
        "audit_window",
        "audit_cross",
        "audit_streamed",
    ],
    "heads": [
        "answer_causal",
        "certify_bundled",
        "certify_encoder",
        "certify_causal",
        "certify_cross",
        "verdicts_bundled",
        "verdicts_causal",
        "alternatives_bundled",
        "alternatives_encoder",
        "alternatives_heads",
        "alternatives_causal",
        "alternatives_cross",
        "logit_ranks_bundled",
        "logit_ranks_encoder",
        "faithfulness_encoder",
        "faithfulness_causal",
        "patterns_causal",
        "patterns_bundled",
        "sources_causal",
    ],
    "mixing": [
        "mixing_exact",
        "mixing_sketch",
        "mixing_sum",
        "mixing_causal",
        "mixing_causal_sketch",
        "mixing_grouped",
        "mixing_cross",
        "mixing_bundled",
        "mixing_aggregates",
        "rollout_causal",
        "rollout_bundled",
    ],
    "tokens": [
        "tokens_same_layer",
        "tokens_every_fold",
        "tokens_across_layers",
        "tokens_layer_to_layer",
        "tokens_neighbours",
        "tokens_data_share",
        "tokens_bundled",
        "inversion_causal",
        "inversion_cache",
        "inversion_encoder",
    ],
    "structure": [
        "structure_encoder",
        "structure_causal",
        "structure_bundled",
        "reversal",
        "reversal_figures",
    ],
    "dyck": [
        "dyck",
        "dyck_options",
        "dyck_saved",
        "dyck_construction",
        "dyck_pruning",
    ],
    "encoder": [
        "encoder",
        "encoder_sweep",
        "encoder_rank_lengths",
    ],
    "reproduce": [
        "bhardwaj_ranks",
        "bhardwaj_figure5",
        "bhardwaj_table1",
        "wen_figure1",
        "wen_figure2",
        "wen_figure3",
        "wen_figure4",
        "wen_figure7",
        "wen_figure10",
        "wen_corollary2",
        "wen_table1",
    ],
}

NAMES = [name for names in FILES.values() for name in names]


def case_named(name: str) -> Case:
    """Return a case."""
    file = next(file for file, names in FILES.items() if name in names)
    return import_module(f"golden.{file}").CASES[name]
