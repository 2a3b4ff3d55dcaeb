"""The numbers of a structure analysis of few texts, small enough for every run of the tests."""

import polars as pl
import pytest

from helpers.structures import by_hand, structure_of
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.models.lens import Lens
from identilens.studies.structure.settings import StructureSettings
from identilens.studies.structure.study import (
    StructureStudy,
    special_positions,
    structure,
    texts_of_length,
)


@pytest.mark.parametrize("given", [None, 3])
def test_w_is_made_of_as_many_texts_as_given_or_as_the_largest_silhouette_says(given):
    found = structure_of(count=6, clusters=given)
    best = found.clusters.sort("silhouette")["clusters"][-1]
    assert best == 2
    assert found.clusters.filter("chosen")["clusters"].to_list() == [given or best]
    assert len(found.representatives) == (given or best)


N = 12


def tiny(family="bert"):
    return Lens(build(family), name="tiny")


def corpus(count=9, length=N + 3):
    return [ids(length, seed) for seed in range(count)]


def test_stability_ends_at_all_texts():
    one = structure(tiny(), corpus(6), length=N, clusters=6, compared_pairs=0, perturbed=0)
    assert one.stability.filter(pl.col("clusters") == 6)["to_all"].max() < 1e-6
    assert one.stability.filter(pl.col("clusters") == 6)["to_next"].null_count() == 8
    assert len(one.pairs) == len(one.perturbations) == 0
    assert one.correlations().is_empty()
    assert one.clusters.filter(pl.col("chosen"))["clusters"].to_list() == [6]


def test_a_decoder_keeps_its_mask():
    found = structure(tiny("gpt2"), corpus(4), length=N, compared_pairs=4, perturbed=1)
    assert found.table["kind"].unique().to_list() == ["decoder"]
    for name in ("raw", "effective", "all_effective"):
        assert float(found.matrices[f"decoder.layer0.{name}"][0].triu(1).abs().max()) == 0
    assert found.texts["negative"].null_count() == len(found.texts)
    assert len(found.pairs) == len(found.perturbations) == 0


def test_memory_does_not_grow_with_the_number_of_texts():
    def state_bytes(count):
        settings = StructureSettings(length=N, clusters=2, pool=4, compared_pairs=2, perturbed=0)
        study = StructureStudy(tiny(), corpus(count), settings)
        for part in range(len(study.sizes())):
            study.run(part)
        return sum(tensor.nbytes for tensor in study.sums.values())

    assert state_bytes(6) == state_bytes(40)


LONG = "The ferry left before dawn, and nobody on the quay could say who had paid for it."


def test_clipped_texts_have_one_length(bundled):
    items = texts_of_length(bundled, [LONG, f"{LONG} {LONG}"], 12)
    assert [item.length for item in items] == [12, 12]
    assert items[0].tokens["encoder"][0] == "[CLS]"
    assert items[0].tokens["encoder"][-1] == "[SEP]"
    assert special_positions(bundled, items) == [0, 11]


def test_short_texts_are_left_out(bundled):
    texts = [LONG, "Short.", LONG, "Also short."]
    assert len(texts_of_length(bundled, texts, 12)) == 2


def test_one_text_is_not_enough(bundled):
    with pytest.raises(InputError, match="texts"):
        texts_of_length(bundled, [LONG], 12)
    with pytest.raises(InputError, match="texts"):
        texts_of_length(bundled, ["a", "b"], 20)


@pytest.fixture(scope="module")
def written():
    return by_hand()


def sample(frame, *columns, **where):
    return frame.filter(**where).select(columns).rows()


def test_norms_and_moves_are_summed_up(written):
    follows = {row["norm"]: row for row in written.correlations().iter_rows(named=True)}
    assert list(follows) == [
        "structure", "structure_effective", "one", "infinity", "frobenius", "output",
    ]  # fmt: skip
    # Within a head the changes are 1, 4, 4, 9 sixteenths; Frobenius is 1, 1, 2, 2 and the same within a size.
    assert follows["frobenius"]["within_spearman"] == pytest.approx(0.5**0.5)
    assert follows["frobenius"]["within_pearson"] == pytest.approx(8 / (4 * 33) ** 0.5)
    assert follows["frobenius"]["same_size_spearman"] is None
    assert follows["structure"]["within_pearson"] == pytest.approx(8 / (2 * 33) ** 0.5)
    for name, sign in (("structure", 1), ("structure_effective", -1), ("output", 1)):
        row = follows[name]
        assert row["whole_spearman"] == row["same_size_spearman"] == pytest.approx(sign)
        assert row["pooled_spearman"] == pytest.approx(sign)
        assert row["pooled_pearson"] == pytest.approx(sign * 8 / (2 * 33) ** 0.5)
    columns = ("share", "structure", "frobenius", "output", "hidden", "count")
    assert sample(written.by_perturbation(), *columns) == [
        (0.25, 1.5, 1.0, 3.0, 5 / 32, 4), (0.5, 2.5, 2.0, 5.0, 13 / 32, 4), (None, 3.5, 3.0, 7.0, 25 / 32, 4),
    ]  # fmt: skip
