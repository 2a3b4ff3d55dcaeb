"""Published beside measured for Brunner et al. 2020: each word and number beside the quantity that it is about."""

from unittest.mock import Mock

import polars as pl

from identilens.reproduce import brunner2020
from identilens.studies.audit.result import Audit
from identilens.studies.tokens.result import TokenIdentifiability


def test_each_measure_has_its_own_peak_and_only_the_separator_the_papers_words():
    received = pl.DataFrame({
        "layer": [0, 0, 0, 0, 1, 1, 1, 1], "head": [0, 0, 1, 1] * 2, "key_type": ["[CLS]", "[SEP]"] * 4,
        "raw": [0.1, 0.2, 0.1, 0.2, 0.3, 0.5, 0.5, 0.7], "effective": [0.04, 0.03, 0.02, 0.01, 0.01, 0.0, 0.01, 0.0],
    })  # fmt: skip
    rows = brunner2020.peaks(Mock(spec=Audit, received=lambda: received))
    assert [(figure, quantity.rpartition(" ")[2], measured) for figure, quantity, _, measured in rows] == [
        ("1b", "[CLS]", "0.4000 (layer 2, from 1)"), ("1c", "[CLS]", "0.0300 (layer 1, from 1)"),
        ("1b", "[SEP]", "0.6000 (layer 2, from 1)"), ("1c", "[SEP]", "0.0200 (layer 1, from 1)"),
    ]  # fmt: skip
    published = [row[2] for row in rows]
    assert published[:2] == ["curve only"] * 2
    assert "middle layers" in published[2]
    assert "disappeared" in published[3]


def test_rates_by_share_are_published_for_l2_alone():
    means = pl.DataFrame({
        "probe": ["mlp"] * 4, "distance": ["cosine", "cosine", "l2", "l2"], "share": [0.5, 1.0, 0.5, 0.7],
        "layer_tested": [5] * 4, "rate": [0.6, 0.7, 0.8, 0.9],
    })  # fmt: skip
    rows = brunner2020.data_share(Mock(spec=TokenIdentifiability, means=lambda: means))
    assert [row[2] for row in rows] == ["not given", "not given", "74 % (layer 11)", "not given"]
