"""Which file holds which case; a file is imported when one of its cases is asked for."""

from importlib import import_module

FILES = {
    "texts": ["audit_bundled", "audit_encoder", "audit_grouped", "audit_cross", "tokens_same_layer",
        "tokens_neighbours", "inversion_causal", "inversion_encoder"],
    "heads": ["answer_causal", "certify_causal", "certify_cross", "alternatives_encoder",
        "alternatives_causal", "logit_ranks_encoder", "faithfulness_encoder", "patterns_causal",
        "certify_source"],
    "mixing": ["mixing_exact", "mixing_causal_sketch", "mixing_cross", "mixing_aggregates",
        "rollout_causal"],
    "structure": ["structure_encoder", "reversal"],
    "lab": ["dyck", "dyck_construction", "encoder", "wen_table1"],
}  # fmt: skip

NAMES = [name for names in FILES.values() for name in names]


def case_named(name):
    """Return a case."""
    file = next(file for file, names in FILES.items() if name in names)
    return import_module(f"golden.{file}").CASES[name]
