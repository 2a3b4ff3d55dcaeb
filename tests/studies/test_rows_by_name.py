"""Rows that some texts lack: these texts are left out, by every study that looks at chosen rows."""

import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import SettingError


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("gpt2").double())


_OPTIONS = {
    "audit": {"effects": "none"},
    "influence": {"layers": 1},
    "mixing": {"layers": 1},
    "rollout": {},
}


@pytest.mark.parametrize(
    "name", ["alternatives", "audit", "certify", "influence", "mixing", "rollout"]
)
def test_a_text_without_the_row_that_is_asked_for_is_left_out(lens, name):
    texts, study = [ids(12), ids(9, 1)], getattr(idl, name)
    options = {"queries": 10} | _OPTIONS.get(name, {"layers": 1, "heads": 0})
    with pytest.warns(UserWarning, match="of 1 of 2 texts no row is looked at, for lack of 10"):
        found = study(lens, texts, **options)
    table = "hidden_keys" if name == "influence" else "table"
    alone = getattr(study(lens, texts[:1], **options), table)
    assert_frame_equal(getattr(found, table), alone, abs_tol=1e-9)
    assert found.summary().text


def test_a_word_of_the_source_names_no_row_of_a_decoder():
    batch = {"input_ids": torch.tensor([ids(7)]), "decoder_input_ids": torch.tensor([ids(3)])}
    options = {"queries": 5, "layers": 0, "heads": 0}
    lens = idl.Lens(build("t5"))
    assert set(idl.certify(lens, batch, **options).table["kind"]) == {"encoder"}
    with pytest.raises(SettingError, match="queries"):
        idl.certify(lens, batch, kind="cross", **options)
