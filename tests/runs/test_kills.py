"""Real studies killed at random moments and resumed: the files of an undisturbed run."""

import random

import pytest

import identilens as idl
from helpers import zoo
from helpers.killing import contents, killed_at

TEXTS = [[number, 7, 8, 9, 10, 11][: 4 + number % 3] for number in range(5, 15)]
WORDS = [[5 + (3 * number + place) % 40 for place in range(8)] for number in range(30)]
CASES = {
    "audit": lambda lens, out: idl.audit(lens, TEXTS, certain_rows=0, examples=1, **out),
    "intervals": lambda lens, out: idl.intervals(lens, TEXTS[:2], heads=0, queries=[2, 3], **out),
    "alternatives": lambda lens, out: idl.alternatives(lens, TEXTS[:2], layers=0, heads=0, starts=1, **out),
    "mixing": lambda lens, out: idl.mixing(lens, TEXTS[:2], method="exact", rollouts=False, **out),
    "structure": lambda lens, out: idl.structure(
        lens, WORDS[:10], length=8, clusters=2, compared_pairs=0, perturbed=1, **out
    ),
    "tokens": lambda lens, out: idl.token_identifiability(
        lens,
        WORDS,
        probes="naive,linear",
        distances="cosine",
        folds=2,
        learning_rates=(0.01, 0.003),
        max_epochs=2,
        **out,
    ),
    "dyck construct": lambda lens, out: idl.construct_dyck(
        depth=2, lengths=(10, 20), count=3, off_balance=(0.0, 1.0), **out
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_killed_study_is_resumed_to_the_same_files(name, tmp_path, monkeypatch):
    lens, run = idl.Lens(zoo.build("bert")), CASES[name]
    with killed_at(10_000, monkeypatch) as left:
        run(lens, {"out": tmp_path / "whole"})
    changes, expected = 10_000 - left[0], contents(tmp_path / "whole")
    drawn = random.Random(name)
    for point in sorted(drawn.sample(range(changes), 5)):
        folder = tmp_path / f"run{point}"
        with killed_at(point, monkeypatch):
            run(lens, {"out": folder})
        run(lens, {"out": folder, "resume": True})
        assert contents(folder) == expected, (point, changes)
