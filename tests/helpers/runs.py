"""A small run of every study, which the contract of all studies is tested with."""

import identilens as idl
from helpers import dycks, zoo
from helpers.chats import answering
from helpers.made_tasks import write_trec
from identilens.lab.dyck.settings import DyckSetting

TEXTS = [[number, 7, 8, 9, 10, 11][: 4 + number % 3] for number in range(5, 15)]
MANY = [[5 + (3 * number + place) % 40 for place in range(6)] for number in range(200)]
WORDS = [[5 + (3 * number + place) % 40 for place in range(8)] for number in range(30)]
TASK = {"max_length": 16, "d_model": 16, "attention_heads": 2, "feed_forward": 24, "batch_size": 8}
DYCK = [DyckSetting("tiny", dycks.MINIMAL, dycks.QUICK)]
PROBES = {
    "probes": "naive,linear", "distances": "cosine", "folds": 2, "learning_rates": (0.01, 0.003),
    "max_epochs": 2,
}  # fmt: skip


def model():
    return idl.Lens(zoo.build("bert"))


CASES = {
    "audit": lambda at, **run: idl.audit(model(), MANY, certain_rows=0, examples=1, **run),
    "certify": lambda at, **run: idl.certify(
        model(), TEXTS[:2], layers=0, heads=0, claim=idl.claims.weight(1), certificates=True, **run
    ),
    "answer": lambda at, **run: idl.answer(
        answering("llama"),
        ["snow fell.", "nobody came.", "a ferry"],
        max_new_tokens=3,
        bounded=1,
        **run,
    ),
    "influence": lambda at, **run: idl.influence(
        model(), TEXTS[:2], outcome="states", layers=0, directions=2, **run
    ),
    "inversion": lambda at, **run: idl.inversion(
        idl.Lens(zoo.build("gpt2")), TEXTS[:2], noise="int8", bits=4, **run
    ),
    "alternatives": lambda at, **run: idl.alternatives(
        model(), TEXTS[:2], layers=0, heads=0, starts=1, **run
    ),
    "mixing": lambda at, **run: idl.mixing(
        model(), TEXTS[:3], method="exact", rollouts=False, **run
    ),
    "rollout": lambda at, **run: idl.rollout(model(), TEXTS[:3], queries="last", **run),
    "patterns": lambda at, **run: idl.patterns(model(), TEXTS[:3], heads=0, rows=2, **run),
    "tokens": lambda at, **run: idl.token_identifiability(model(), WORDS, **PROBES, **run),
    "structure": lambda at, **run: idl.structure(
        model(), WORDS[:10], length=8, clusters=2, compared_pairs=0, perturbed=1, **run
    ),
    "faithfulness": lambda at, **run: idl.faithfulness(
        model(), WORDS[:3], rows=1, groups=(1, 2), searched=3, alternatives=1, **run
    ),
    "lab reversal": lambda at, **run: idl.lab.train_reversal(
        model="lstm", length=5, epochs=2, train=64, held_out=32, hidden=16, inputs=8, **run
    ),
    "lab encoder train": lambda at, **run: idl.lab.train(
        task="trec", data=at / "trec", d_k=4, epochs=2, **TASK, **run
    ),
    "lab encoder sweep": lambda at, **run: idl.lab.sweep(
        tasks="trec", heads="concat", d_k=(1, 3), data=at / "trec", epochs=1, **TASK, **run
    ),
    "lab dyck train": lambda at, **run: idl.lab.train_dyck(
        DYCK, seeds=[0, 1, 2], at_once=1, **dycks.MEASURING, **run
    ),
}
"""A small run of every study by its name; ``at`` holds what it reads."""


def prepare(name, at):
    """Write what a study reads."""
    if name.startswith("lab encoder"):
        write_trec(at / "trec" / "trec")
