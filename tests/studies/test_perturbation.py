import polars as pl
import pytest
import torch

from helpers.zoo import tiny_encoder
from identilens.studies.perturbation import _moves, perturbation_rows
from identilens.studies.perturbation_views import PERTURBATIONS, by_perturbation, norm_correlations


def perturbations():
    """Two heads; ‖·‖_S is the change itself, the 1-norm its reverse, and Frobenius is the size alone."""
    rows = []
    for head, scale in ((0, 1.0), (1, 100.0)):
        for share in (0.5, 1.0):
            for place, kind in enumerate(("aware", "breaking", "random")):
                hidden = scale * share * (1 + place)
                norms = (
                    hidden, hidden**3, -hidden, hidden, share * (1 + 1e-13 * place), 2 * hidden,
                )  # fmt: skip
                rows.append((0, "encoder", 0, head, kind, 0, share, *norms, hidden))
    return pl.DataFrame(rows, schema=pl.Schema(PERTURBATIONS), orient="row")


def test_whole_moves_stand_apart():
    rows = perturbations()
    whole = rows.filter(share=1.0).with_columns(
        share=pl.lit(None, pl.Float64), structure=-pl.col("hidden"), frobenius=pl.col("hidden") ** 2
    )
    found = {
        row["norm"]: row
        for row in norm_correlations(pl.concat([rows, whole])).iter_rows(named=True)
    }
    assert found["structure"]["whole_spearman"] == pytest.approx(-1)
    assert found["frobenius"]["whole_spearman"] == pytest.approx(1)
    assert found["structure"]["within_spearman"] == pytest.approx(1)
    assert by_perturbation(pl.concat([rows, whole]))["share"].to_list()[-3:] == [None] * 3


def test_means_by_kind():
    found = by_perturbation(perturbations())
    row = found.filter(share=1.0, perturbation="random").row(0, named=True)
    assert row["hidden"] == pytest.approx((3 + 300) / 2)
    assert row["count"] == 2
    assert found["perturbation"].to_list()[:3] == ["aware", "breaking", "random"]


def test_the_change_is_that_of_the_final_states():
    lens = tiny_encoder()
    [item] = lens.read([list(range(3, 9))])
    heads = list(next(lens.capture([list(range(3, 9))], weights=True)).heads)
    raw = torch.stack([one.attention for one in heads])
    rows = perturbation_rows(lens, item, 0, {"encoder.layer0": (raw, raw)})
    plain = lens.substitute({}, item).hidden_states["encoder"][-1]
    for row in rows:
        moves = {
            move[:3]: move[3] for move in _moves(heads[row["head"]].attention, raw[row["head"]], 0)
        }
        after = moves[row["perturbation"], row["draw"], row["share"]]
        given = lens.substitute({(0, row["head"], "encoder"): after}, item)
        change = given.hidden_states["encoder"][-1] - plain
        assert row["hidden"] == pytest.approx(float(change.norm() / plain.norm()), rel=1e-6)
        assert row["hidden"] > 0
