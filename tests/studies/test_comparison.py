import re
from dataclasses import replace

import polars as pl
import pytest

from helpers.written import audited
from identilens.errors import InputError
from identilens.studies.comparison import Comparison, compare


@pytest.fixture(scope="module")
def audit():
    record = {"fingerprint": "f0" * 32, "texts": {"count": 3, "sha256": ["00"] * 3}}
    made = audited(3)
    return replace(made, provenance={**made.provenance, **record})


def shifted(audit, fingerprint="e1" * 32, **changes):
    record = {**audit.provenance, "fingerprint": fingerprint, **changes}
    moved = audit.table.with_columns(pl.col("null_share") + 0.1 * pl.col("text"))
    return replace(audit, table=moved, provenance=record)


def row(found, measure):
    return found.table.filter(measure=measure).row(1, named=True)


def test_differences_of_the_same_texts_are_paired(audit):
    found = compare(audit, shifted(audit))
    shares = row(found, "null_share")
    assert shares["difference"] == pytest.approx(0.1)
    assert shares["error"] == pytest.approx(0.1 / 3**0.5), (
        "the differences of the texts are 0, 0.1 and 0.2"
    )
    assert shares["places"] == 4
    assert row(found, "certain_mass")["difference"] == 0
    said = found.summary().text
    assert re.search(r" most in null_share, .*, a change of \+0.1 ± 0.058 over texts\.$", said)
    assert list(found.charts()) == ["depth"]


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
    found = compare(audit, other)
    assert row(found, "null_share")["difference"] is None
    assert found.summary().text.startswith("2 results have no layer and head in common")
    same = compare(audit, audit).summary()
    assert same.text == "No measure differs between 2 results by more than rounding."
    for given in ([audit], [audit, compare(audit, audit)]):
        with pytest.raises(InputError, match="results"):
            compare(*given)


def test_layers_of_any_number_of_models_stand_at_their_relative_depth(audit):
    table = audit.table.with_columns(layer=2 * pl.col("layer"))
    deeper = replace(audit, table=pl.concat([table, table.with_columns(pl.col("layer") + 2)]))
    effects = audit.effects.with_columns(layer=2 * pl.col("layer"))
    deeper = replace(deeper, effects=effects)
    found = compare(audit, deeper, audit)
    shares = found.layers.filter(measure="null_share")
    assert shares["run"].n_unique() == 3
    assert shares["depth"].to_list() == [0, 1, 0, 0.5, 1, 0, 1]
    first = audit.table.filter(layer=0)["null_share"].mean()
    assert shares["value"][0] == pytest.approx(first)
    heads = audit.effects.filter(layer=0)["effect"].mean()
    assert found.layers.filter(measure="effect")["value"][0] == pytest.approx(heads)


def test_rounding_is_no_finding(audit):
    tiny = replace(
        audit,
        table=audit.table.with_columns(pl.col("null_share") - 6.75e-19 * (1 + pl.col("text"))),
    )
    zero = replace(audit, table=audit.table.with_columns(null_share=pl.lit(0.0)))
    shifted_zero = replace(
        zero, table=zero.table.with_columns(null_share=-6.75e-19 * (1 + pl.col("text")))
    )
    for found in (compare(audit, tiny), compare(zero, shifted_zero)):
        assert "null_share" not in found.summary().text


def test_a_comparison_is_a_result(audit, tmp_path):
    found = compare(audit, shifted(audit))
    found.save(tmp_path / "saved")
    assert Comparison.load(tmp_path / "saved").table.equals(found.table)
    assert "a change of +0.1 ± " in found.to_html(tmp_path / "page.html").read_text("utf-8")
    found.show()
    assert [path.name for path in found.to_csv(tmp_path / "csv")] == ["table.csv", "layers.csv"]
