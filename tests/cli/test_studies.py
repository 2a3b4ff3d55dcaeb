"""``identilens certify``, ``alternatives`` and ``logit-ranks`` as a person uses them."""

import json

import polars as pl
import pytest
from transformers import BertConfig, BertModel

from helpers.command import failing, identilens
from identilens.runs.result import Finding
from identilens.studies.certify.result import Certainty

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the mill would stand in the water."
)


@pytest.fixture(scope="module")
def audited(bundled_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "run"
    identilens("audit", "--model", bundled_path, "--text", TEXT, "--out", out, code=0)
    return out


def test_studies_join_the_audits_report(bundled_path, audited):
    options = [
        "--model",
        bundled_path,
        "--text",
        TEXT,
        "--layers",
        2,
        "--heads",
        5,
        "--out",
        audited,
    ]
    before = (audited / "table.parquet").read_bytes()
    identilens("alternatives", *options, "--realisable", "--distance", 0.03, code=0)
    identilens("certify", *options, "--queries", "village", code=0)
    page = (audited / "report.html").read_text(encoding="utf-8")
    assert 'id="alternatives-alternatives"' in page
    assert 'id="certify-intervals"' in page
    assert (audited / "table.parquet").read_bytes() == before
    table = pl.read_parquet(next(audited.glob("alternatives-*")) / "table.parquet")
    assert set(table["alternative"]) == {
        "sampled",
        "far",
        "maximum_entropy",
        "realisable",
        "parameters",
    }
    assert table["hidden_change"].max() < 1e-4


def test_bad_input(bundled_path, tmp_path):
    model = ["--model", bundled_path]
    assert "layer 0 has heads 0 to 11; got 12" in failing(
        "alternatives",
        *model,
        "--text",
        TEXT,
        "--layers",
        0,
        "--heads",
        12,
        "--out",
        tmp_path / "new",
    )
    assert not (tmp_path / "new").exists()
    assert "no token or position 'zebra'" in failing(
        "certify", *model, "--text", TEXT, "--queries", "zebra", "--out", tmp_path / "new"
    )
    assert "expected --pin-tolerance below 1" in failing(
        "certify", *model, "--text", TEXT, "--pin-tolerance", 2, "--out", tmp_path / "new"
    )
    assert "give exactly one of --text" in failing("certify", *model, "--out", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("dear")
    assert "contains no run of identilens" in failing(
        "certify", *model, "--text", TEXT, "--layers", 0, "--heads", 0, "--out", tmp_path / "full"
    )
    assert (tmp_path / "full" / "thesis.tex").read_text() == "dear"


def test_an_audit_of_another_model_is_left_alone(audited, bundled, tmp_path):
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    BertModel(BertConfig(vocab_size=len(bundled.tokenizer), **sizes)).save_pretrained(
        tmp_path / "tiny"
    )
    bundled.tokenizer.save_pretrained(tmp_path / "tiny")
    message = failing("certify", "--model", tmp_path / "tiny", "--text", TEXT, "--out", audited)
    assert "contains an audit of" in message
    assert "Choose another folder, or the model of the audit" in message


SMALL = ("--text", "The ferry left before dawn.", "--layers", 0, "--heads", 0, "--queries", "last")


@pytest.mark.parametrize("option", ["--json", "--quiet", None])
def test_what_is_printed(bundled_path, tmp_path, option, monkeypatch):
    numbers = {"none": None, "infinite": float("inf"), "share": 0.5, "count": 3}
    monkeypatch.setattr(Certainty, "summary", lambda _: Finding("One line.\nAnother.", numbers))
    given = ("certify", "--model", bundled_path, *SMALL, "--out", tmp_path / "run")
    done = identilens(*given, *([option] if option else []), code=0)
    if option == "--json":
        assert json.loads(done.output)["numbers"] == {**numbers, "infinite": None}
        assert json.loads(done.output)["finding"] == "One line.\nAnother."
    elif option == "--quiet":
        assert (done.output, done.error) == ("", "")
    else:
        assert done.output.startswith("One line. Another.")
        assert "report: " in done.output
