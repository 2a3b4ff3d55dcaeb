"""Patterns: which keys they name, scores against plain attention, ends by linear programs, means and what is said."""

import numpy as np
import pytest
from scipy.optimize import linprog

import identilens as idl
from helpers.heads import seen_of
from helpers.programs import kept_basis
from helpers.zoo import build, ids
from identilens.measures.attention import PATTERNS, pattern_keys
from identilens.models.lens import Lens
from identilens.studies.patterns.result import CALLED, IDENTIFIED, OTHER, POSSIBLE

TEXTS = [ids(20), ids(15), ids(12), [*ids(8), *ids(8)]]
LIMITS = {"bert": 0.1, "llama": 0.1, "mistral": 0.27}


@pytest.fixture(scope="module", params=LIMITS)
def scored(request):
    lens = Lens(build(request.param).double())
    return lens, idl.patterns(lens, TEXTS, rows=100, tolerance=0, least_score=LIMITS[request.param])


def test_scores_and_ends_are_means_over_all_rows_that_have_the_pattern(scored):
    lens, found = scored
    for text in (0, 3):
        [captured] = lens.capture([TEXTS[text]], weights=True)
        names = captured.tokens[next(iter(captured.tokens))]
        head = captured.layers[1].head(2)
        for pattern in PATTERNS:
            rows = [
                (q, pattern_keys(pattern, names, q, head.visible_to(q))) for q in range(len(names))
            ]
            rows = [(q, named.double()) for q, named in rows if named is not None]
            own = found.table.filter(text=text, layer=1, head=2, pattern=pattern)
            assert own["rows"].to_list() == [len(rows)] * bool(rows)
            if not rows:
                continue
            values = [float(head.attention[q] @ named) for q, named in rows]
            assert own["score"].item() == pytest.approx(np.mean(values), abs=1e-9)
            ends = []
            for q, named in rows:
                seen = seen_of(head.visible_to(q), named)
                kept, row = kept_basis(head.values[seen]), head.attention[q][seen]
                ends.append([
                    sign * linprog(sign * named[seen].numpy(), A_eq=kept.T.numpy(), b_eq=(kept.T @ row).numpy()).fun
                    for sign in (1, -1)
                ])  # fmt: skip
            expected = np.mean(ends, axis=0)
            assert [own["lo"].item(), own["hi"].item()] == pytest.approx(list(expected), abs=1e-6)


def test_means_over_texts_and_states(scored):
    _, found = scored
    heads, limit = found.by_head(), found.provenance["settings"]["least_score"]
    for row in heads.iter_rows(named=True):
        place = {
            name: row[name] for name in ("layer", "head", "kind", "pattern", "tolerance", "corpus")
        }
        own = found.table.filter(**place)
        assert row["rows"] == own["rows"].sum()
        for name in ("score", "lo", "hi"):
            assert row[name] == pytest.approx((own[name] * own["rows"]).sum() / own["rows"].sum())
        expected = own["score"].to_numpy()
        if row["texts"] > 1:
            assert row["error"] == pytest.approx(expected.std(ddof=1) / len(expected) ** 0.5)
        else:
            assert row["error"] is None
        assert row["name"] == f"L{row['layer']}H{row['head']}"
        low, score, high = (row[name] >= limit for name in ("lo", "score", "hi"))
        assert row["state"] == (
            IDENTIFIED if low else CALLED if score else POSSIBLE if high else OTHER
        )
    assert heads["state"].n_unique() > 1
    counts = found.counts()
    called = heads["state"].is_in([CALLED, IDENTIFIED])
    assert counts["called"].sum() == called.sum() == found.summary().numbers["called"]
    assert counts["identified"].sum() == (heads["state"] == IDENTIFIED).sum()
    assert heads.equals(found.by_head())


def test_repeated_random_sequences_are_scored_apart():
    lens = idl.load("bundled-decoder")
    found = idl.patterns(
        lens,
        "A cat saw a cat.",
        pattern="induction,duplicate",
        repeated=16,
        tolerance=0,
        rows=20,
        layers=3,
    )
    own = found.by_head().filter(corpus="repeated", pattern="duplicate")
    assert own["texts"].to_list() == [4] * 8
    # Each token of the second half has been seen once before, but for tokens that were drawn twice.
    assert own["rows"][0] >= 4 * 16
    assert set(found.counts()["corpus"]) == {"texts", "repeated"}
    assert found.table.filter(corpus="texts")["text"].unique().to_list() == [0]
