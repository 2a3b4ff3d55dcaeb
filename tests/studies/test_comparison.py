from dataclasses import replace

import polars as pl
import pytest

from helpers.written import audited, certainty, influenced
from identilens.errors import InputError
from identilens.studies.compare.comparison import compare


@pytest.fixture(scope="module")
def audit():
    record = {"fingerprint": "f0" * 32, "texts": {"count": 3, "sha256": ["00"] * 3}}
    made = audited(3)
    return replace(made, provenance={**made.provenance, **record})


def shifted(audit, **changes):
    moved = audit.table.with_columns(pl.col("null_share") + 0.1 * pl.col("text"))
    return replace(audit, table=moved, provenance={**audit.provenance, **changes})


def row(found, measure):
    return found.filter(measure=measure).row(1, named=True)


def test_differences_of_the_same_texts_are_paired(audit):
    found = compare(audit, shifted(audit))
    shares = row(found, "null_share")
    assert shares["difference"] == pytest.approx(0.1)
    assert shares["error"] == pytest.approx(0.1 / 3**0.5), (
        "the differences of the texts are 0, 0.1 and 0.2"
    )
    assert shares["places"] == 4
    assert row(found, "certain_mass")["difference"] == 0


def test_other_texts_are_compared_by_their_means(audit):
    other = shifted(audit, texts={"count": 3, "sha256": ["11", "22", "33"]})
    found = compare(audit, other)
    by_text = [
        one.table.group_by("text").agg(pl.col("null_share").mean())["null_share"]
        for one in (audit, other)
    ]
    expected = sum(values.std() ** 2 / 3 for values in by_text) ** 0.5
    assert row(found, "null_share")["error"] == pytest.approx(expected)
    assert row(found, "null_share")["difference"] == pytest.approx(0.1)


def test_only_places_in_common_have_differences(audit):
    fewer = replace(audit, table=audit.table.filter(layer=1))
    assert row(compare(audit, fewer), "null_share")["places"] == 2
    other = replace(audit, table=audit.table.with_columns(layer=pl.lit(9, pl.Int64)))
    assert row(compare(audit, other), "null_share")["difference"] is None
    # Of other texts, errors are of the same places.
    texts = {"count": 3, "sha256": ["11", "22", "33"]}
    all_layers, one_layer = (
        row(compare(one, shifted(fewer, texts=texts)), "null_share") for one in (audit, fewer)
    )
    assert all_layers["error"] == pytest.approx(one_layer["error"])
    # What only the second has is of no place in common.
    more = certainty()
    other = more.table.head(1).with_columns(functional=pl.lit("other"), value=9.0)
    found = compare(certainty(), replace(more, table=pl.concat([more.table, other])))
    assert found["difference"].abs().max() == 0
    for given in ([audit], [audit, influenced()]):
        with pytest.raises(InputError, match="results"):
            compare(*given)
