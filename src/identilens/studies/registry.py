"""The studies by name, each imported when it is used. Imports nothing heavy itself."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from identilens.errors import InputError


@dataclass(frozen=True)
class Entry:
    """A study, as its command and the help have it.

    Attributes:
        study: Module and class of the study, separated by a colon.
        help: One line that says what the study answers.
        settings: Module and class of its settings, which import nothing heavy.
        takes: Names of its inputs.
        research: Whether the help of the program has only its name.
    """

    study: str
    help: str
    settings: str
    takes: tuple[str, ...] = ("lens", "texts")
    research: bool = False


STUDIES = {
    "audit": Entry(
        "identilens.studies.audit.study:AuditStudy",
        "How much of each map is certain, influential, or neither.",
        "identilens.studies.audit.settings:AuditSettings",
    ),
    "certify": Entry(
        "identilens.studies.certify.study:CertifyStudy",
        "The proven interval of each weight, claim and source.",
        "identilens.studies.certify.settings:CertifySettings",
    ),
    "answer": Entry(
        "identilens.studies.answer.study:AnswerStudy",
        "Where an answer attends in its conversation, how surely.",
        "identilens.studies.answer.settings:AnswerSettings",
        takes=("lens", "chats"),
    ),
    "influence": Entry(
        "identilens.studies.influence.study:InfluenceStudy",
        "What the model's answer loses without a head or a key.",
        "identilens.studies.influence.settings:InfluenceSettings",
    ),
    "patterns": Entry(
        "identilens.studies.patterns.study:PatternStudy",
        "Heads with a published pattern, in every alternative.",
        "identilens.studies.patterns.settings:PatternSettings",
    ),
    "alternatives": Entry(
        "identilens.studies.alternatives.study:AlternativeStudy",
        "Other weights with the same output, put back.",
        "identilens.studies.alternatives.settings:AlternativeSettings",
    ),
    "tokens": Entry(
        "identilens.studies.tokens.study:TokenStudy",
        "Can the input token be read from its hidden state.",
        "identilens.studies.tokens.settings:TokenSettings",
        research=True,
    ),
    "inversion": Entry(
        "identilens.studies.inversion.study:InversionStudy",
        "Is the text in its states or cache, exactly.",
        "identilens.studies.inversion.settings:InversionSettings",
        research=True,
    ),
    "mixing": Entry(
        "identilens.studies.mixing.study:MixingStudy",
        "How much each input token contributes to each state.",
        "identilens.studies.mixing.settings:MixingSettings",
        research=True,
    ),
    "rollout": Entry(
        "identilens.studies.rollout.study:RolloutStudy",
        "The range of attention rollout with all heads' outputs kept.",
        "identilens.studies.rollout.settings:RolloutSettings",
        research=True,
    ),
    "structure": Entry(
        "identilens.studies.structure.study:StructureStudy",
        "What the attention of many texts has in common.",
        "identilens.studies.structure.settings:StructureSettings",
        research=True,
    ),
    "faithfulness": Entry(
        "identilens.studies.faithfulness.study:FaithfulnessStudy",
        "Do explanations follow the model; what a decision needs.",
        "identilens.studies.faithfulness.settings:FaithfulnessSettings",
        research=True,
    ),
    "lab dyck train": Entry(
        "identilens.lab.dyck.train.study:DyckTrainStudy",
        "Train Dyck models from several seeds.",
        "identilens.lab.dyck.settings:DyckTrainSettings",
        takes=(),
    ),
    "lab encoder train": Entry(
        "identilens.lab.encoder.train.study:TrainStudy",
        "Train an identifiable encoder on a task.",
        "identilens.lab.encoder.settings:EncoderSettings",
        takes=(),
    ),
    "lab encoder sweep": Entry(
        "identilens.lab.encoder.sweep.study:SweepStudy",
        "Train encoders over tasks, heads, d_k and seeds.",
        "identilens.lab.encoder.settings:SweepSettings",
        takes=(),
    ),
    "lab reversal": Entry(
        "identilens.lab.reversal.study:ReversalStudy",
        "Attention of models that reverse sequences.",
        "identilens.lab.reversal.settings:ReversalSettings",
        takes=(),
    ),
}
"""Each study by its name. The name is also its command and its name in the provenance."""


def study_named(name: str) -> Any:
    """Return the `Study` class of a name.

    Raises:
        InputError: If there is none, listing the names.
    """
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose from {', '.join(STUDIES)}.")
    return resolve_name(STUDIES[name].study)
