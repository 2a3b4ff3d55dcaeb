"""The studies by name: where each stands, imported when it is used. Imports nothing heavy itself."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from identilens.errors import InputError


@dataclass(frozen=True)
class Entry:
    """Where a study stands (module and class, with a colon between), and what it answers, in a line."""

    place: str
    help: str


STUDIES: dict[str, Entry] = {
    "audit": Entry(
        "identilens.studies.audit.study:AuditStudy", "How much of each map is determined, influential, without effect."
    ),
    "intervals": Entry("identilens.studies.intervals.study:IntervalStudy", "What is certain of each weight."),
    "trust": Entry("identilens.studies.trust.study:TrustStudy", "Which weights are determined, which influential."),
    "alternatives": Entry(
        "identilens.studies.alternatives.study:AlternativeStudy", "Other attention with the same output, put back."
    ),
    "logit-ranks": Entry(
        "identilens.studies.logit_ranks.study:LogitRankStudy", "Whether queries and keys could give alternatives."
    ),
    "mixing": Entry("identilens.studies.mixing.study:MixingStudy", "How much of each input token is in each state."),
    "tokens": Entry("identilens.studies.tokens.study:TokenStudy", "Whether tokens can be read off hidden states."),
    "structure": Entry("identilens.studies.structure.study:StructureStudy", "What the attention of texts shares."),
    "reversal": Entry("identilens.studies.reversal.study:ReversalStudy", "What models that reverse sequences look at."),
    "train": Entry("identilens.studies.train.study:TrainStudy", "Train an identifiable encoder on a task."),
    "sweep": Entry("identilens.studies.sweep.study:SweepStudy", "Train encoders over tasks, heads, d_k and seeds."),
    "dyck train": Entry("identilens.studies.dyck_train.study:DyckTrainStudy", "Train Dyck models, seed by seed."),
    "dyck analyse": Entry("identilens.studies.dyck_analyse.study:DyckAnalyseStudy", "Look into saved Dyck models."),
    "dyck construct": Entry(
        "identilens.studies.dyck_construct.study:DyckConstructStudy", "Uniform and balanced attention as weights."
    ),
    "dyck prune": Entry("identilens.studies.dyck_prune.study:DyckPruneStudy", "Prune random transformers to a target."),
}
"""Each by its name, which is also its command and what provenance calls it; a study's help is its first line."""


def study_named(name: str) -> Any:
    """Return the `Study` class of a name.

    Raises:
        InputError: If there is none, listing the names.
    """
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose from {', '.join(STUDIES)}.")
    module, _, member = STUDIES[name].place.partition(":")
    return getattr(import_module(module), member)
