"""Both passes over the texts, beside plain linear algebra: a layer of two heads, and six texts of seven tokens."""

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch.testing import assert_close

from helpers.zoo import ids, tiny_encoder
from identilens.errors import InputError, OutputFolderError
from identilens.measures.structure import circularity, structure_weights
from identilens.measures.structure.perturbation import perturbation_directions
from identilens.studies.structure import study as passes
from identilens.studies.structure.perturbation import perturbation_rows
from identilens.studies.structure.study import structure

N = 7
TEXTS = [ids(N, seed) for seed in range(6)]
SETTINGS = {"length": N, "clusters": 2, "compared_pairs": 2, "perturbed": 3, "seed": 3}


@pytest.fixture(scope="module")
def lens():
    return tiny_encoder()


@pytest.fixture(scope="module")
def found(lens):
    return structure(lens, TEXTS, **SETTINGS)


@pytest.fixture(scope="module")
def heads(lens):
    """The second head of each text, with the projector on col(T)."""
    ones = [list(next(iter(lens.capture([text], weights=True))).heads)[1] for text in TEXTS]
    T = [one.values.double() @ one.output_projection.double() for one in ones]
    return [one.weights.double() for one in ones], [one @ torch.linalg.pinv(one) for one in T], T


def test_each_text_against_r_by_plain_projectors(found, heads):
    weights, column, T = heads
    mean = torch.stack(column).mean(0)
    values, vectors = torch.linalg.eigh(mean)
    inside, half = (
        vectors @ torch.diag((values > least).double()) @ vectors.mT for least in (1e-9, 0.5)
    )
    assert 0 < half.trace() < inside.trace() == pytest.approx(N)
    rows = found.texts.filter(head=1)
    assert rows["text"].to_list() == list(range(6))
    for row, A, P, one in zip(rows.iter_rows(named=True), weights, column, T, strict=True):
        joined = torch.cat([one, torch.ones(N, 1).double()], 1)
        efficient = A @ joined @ torch.linalg.pinv(joined)
        ignored = ((A - A @ P) @ inside).square().sum() / A.square().sum()
        expected = {
            "rank": 4,
            "ignored_dimension": N - 4,
            "ignored": float(ignored),
            "outside": 0.0,
            "outside_half": 1 - float((P * half).sum()) / 4,
            "negative": float((efficient < 0).double().mean()),
            "least": float(efficient.min()),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert row["row_sum_error"] < 1e-9
    shares = values.flip(0).cumsum(0) / values.sum()
    [row] = found.table.filter(head=1).to_dicts()
    assert row["dim_half"] == int((values > 0.5).sum())
    assert row["dim_95"] == 1 + int((shares < 0.95).sum())
    assert found.growth.filter(head=1)["texts"].to_list() == [1, 2, 3, 4, 5, 6]


def test_pairs_by_plain_null_spaces(found, heads):
    weights, _, T = heads
    rows = found.pairs.filter(head=1)
    assert rows.select("first_text", "second_text").rows() == [(0, 1), (2, 3)]
    eye, ones = torch.eye(N).double(), torch.ones(N, 1).double()
    for row in rows.iter_rows(named=True):
        first, second = row["first_text"], row["second_text"]
        joined = [torch.cat([T[text], ones], 1) for text in (first, second)]
        null = [eye - one @ torch.linalg.pinv(one) for one in joined]
        circle = circularity(weights[first][None], T[first][None], T[second][None], seed=3 + first)
        expected = {
            "freedom": 2, "overlap": float((null[0] * null[1]).sum()) / 2, "chance": 2 / 6, "change_first": 0.0,
            "disagree": True,
        }  # fmt: skip
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert row["moved"] > 0.001
        assert row["change_second"] > 0.001
        assert circle.freedom.tolist() == [2]


def test_representatives_are_perturbed_one_after_the_other(found, lens):
    members = found.representatives["text"].to_list()
    assert found.perturbations["text"].unique(maintain_order=True).to_list() == members
    W = tuple(
        structure_weights(found.matrices[f"encoder.layer0.{name}"].double(), 2 / N)
        for name in ("raw", "effective")
    )
    text = members[1]
    rows = perturbation_rows(lens, lens.read([TEXTS[text]])[0], text, {"encoder.layer0": W}, 3)
    expected = pl.DataFrame(rows, schema=found.schema["perturbations"])
    # Means were stored in float32.
    assert_frame_equal(found.perturbations.filter(text=text), expected, rel_tol=1e-3, abs_tol=1e-3)
    whole = expected.filter(pl.col("share").is_null(), draw=0)
    plain = lens.substitute({}, TEXTS[text]).hidden_states["encoder"][-1]
    for head in next(iter(lens.capture([TEXTS[text]], weights=True))).heads:
        moves = perturbation_directions(head.attention, W[0][head.head], seed=3000)
        for name, move in moves.items():
            other = {head.address: (head.attention + move).clamp_min(0.0)}
            after = lens.substitute(other, TEXTS[text]).hidden_states["encoder"][-1]
            moved = float((after - plain).norm() / plain.norm())
            row = whole.filter(head=head.head, perturbation=name)
            assert row["hidden"].item() == pytest.approx(moved, rel=1e-4)


def test_w_is_of_the_representatives_of_the_pool(lens):
    seeded = {"compared_pairs": 0, "perturbed": 0, "seed": 5}
    found = structure(lens, TEXTS, length=N, clusters=2, pool=3, **seeded)
    pool = sorted(np.random.default_rng(5).permutation(6)[:3].tolist())
    members = found.representatives["text"].to_list()
    assert set(members) < set(pool)
    ones = [list(next(iter(lens.capture([text], weights=True))).heads) for text in TEXTS]
    mean = torch.stack([ones[text][1].weights for text in members]).mean(0)
    assert_close(found.matrices["encoder.layer0.raw"][1].double(), mean, atol=1e-6, rtol=0)
    effective = torch.stack([ones[text][1].effective.abs() for text in members])
    assert_close(
        found.matrices["encoder.layer0.effective"][1].double(), effective.mean(0), atol=1e-6, rtol=0
    )
    W, whole = (
        structure_weights(one, 2 / N)
        for one in (mean, torch.stack([one[1].weights for one in ones]).mean(0))
    )
    apart = float(torch.linalg.norm(W - whole) / torch.linalg.norm(whole))
    row = found.stability.filter(head=1, clusters=2).row(0, named=True)
    assert row["to_all"] == pytest.approx(apart, abs=1e-6)


def test_a_resumed_run_goes_on_with_the_sums(lens, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "PART", 2)
    settings = {**SETTINGS, "perturbed": 0}
    whole = structure(lens, TEXTS, **settings)
    told = []

    def break_off(done, total, note):
        told.append((done, total, note))
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        structure(lens, TEXTS, **settings, out=tmp_path / "run", progress=break_off)
    with pytest.raises(OutputFolderError, match="interrupted"):
        structure(lens, TEXTS, **settings, out=tmp_path / "run")
    states = [path.name for path in (tmp_path / "run" / "parts").glob("state-*")]
    resumed = structure(lens, TEXTS, **settings, out=tmp_path / "run", resume=True)
    for name in whole.schema:
        assert_frame_equal(getattr(resumed, name), getattr(whole, name))
    for name, matrix in whole.matrices.items():
        assert torch.equal(resumed.matrices[name], matrix)
    assert len(states) <= 2
    assert not (tmp_path / "run" / "parts").exists()


def test_more_representatives_than_texts_and_a_threshold_above_all_weights(lens):
    with pytest.raises(InputError, match="threshold"):
        structure(lens, TEXTS, length=N, threshold=1.5)
    with pytest.raises(InputError, match="clusters"):
        structure(lens, TEXTS, length=N, clusters=7)
