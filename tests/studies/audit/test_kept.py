"""Verdicts from an audit's folder: those that the model itself gives."""

import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.zoo import build, ids
from identilens.models import Lens


def test_a_kept_map_gives_the_verdicts_that_the_model_gives(bundled, tmp_path):
    text = "The ferry left the harbour before dawn, and nobody on the quay could say who had paid for the ferry again."
    idl.audit(bundled, [text], layers=[3], certain_rows=0, out=tmp_path / "run")
    kept = idl.load_result(tmp_path / "run").certify(0, 3, 5, "ferry")
    asked = idl.certify(bundled, [text], layers=[3], heads=[5], queries=["ferry"], tolerance=0)
    assert kept.table["query"].n_unique() == 2, "the token stands twice"
    assert_frame_equal(kept.table.drop("verdict"), asked.table.drop("verdict"), abs_tol=1e-4)
    assert (kept.table["verdict"] != asked.table["verdict"]).sum() <= 1
    kept.save(tmp_path / "trust")
    assert_frame_equal(idl.load_result(tmp_path / "trust").table, kept.table)


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_masked_maps_keep_what_each_query_sees(family):
    lens = Lens(build(family))
    audit = idl.audit(lens, [ids(14)], certain_rows=0)
    for query in (0, 5, 11):
        kept = audit.certify(0, 1, 1, query).table
        asked = idl.certify(
            lens, [ids(14)], layers=[1], heads=[1], queries=[query], tolerance=0
        ).table
        assert_frame_equal(kept.drop("verdict"), asked.drop("verdict"), abs_tol=1e-4)
