import base64
import json
import re

import numpy as np
import polars as pl
import pytest

from helpers.mixings import mixing_of, random_mixing
from identilens.errors import InputError, OutputFolderError
from identilens.measures.mixing import boxes_by_tag
from identilens.report import save_figures, write_mixing_report, write_report
from identilens.report.mixing_series import finding, locate, mixing_series, telling_tokens
from identilens.report.mixing_texts import shown_texts
from identilens.results import Mixing

SCRIPT = "<script>alert(1)</script>"


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL).group(1))


def numbers_of(path, index, shape):
    text = re.search(rf'id="mixing-text-{index}">(.*?)</script>', path.read_text(encoding="utf-8")).group(1)
    return np.frombuffer(base64.b64decode(text), "<u2").reshape(shape) / 65535


def test_the_page_holds_the_numbers_of_the_measures(tagged_mixing, tmp_path):
    path = tagged_mixing.to_html(tmp_path / "report.html")
    data = data_of(path)
    own = data["own"]["encoder"]
    layers = tagged_mixing.by_layer()
    assert own["median"] == pytest.approx(layers["median_own"].to_list(), rel=1e-4)
    assert own["not_largest"] == pytest.approx(layers["not_largest"].to_list(), rel=1e-4)
    speech = data["speech"]["encoder"]
    boxes = boxes_by_tag(tagged_mixing.own(), tagged_mixing.tags)
    assert speech["tag"] == boxes["tag"].to_list()
    assert speech["median"] == pytest.approx(boxes["median"].to_list(), rel=1e-4)
    assert [view["centre"] for view in data["class_context"]] == ["[CLS]", "[SEP]"]
    first = data["class_context"][0]["rows"]
    assert sum(share for share, layer in zip(first["share"], first["layer"], strict=True) if layer == 1) == (
        pytest.approx(1, rel=1e-3)
    )
    shown = numbers_of(path, 1, (3, 3, 24, 24))
    np.testing.assert_allclose(shown[0], tagged_mixing.array(1), atol=1e-5)
    np.testing.assert_allclose(shown[2], tagged_mixing.array(1, measure="effective_rollout"), atol=1e-5)


def test_hostile_names_are_text(mixing_result, tmp_path):
    path = write_mixing_report(mixing_result, tmp_path / "report.html")
    page = path.read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert "alert(1)" in page
    data = data_of(path)
    assert SCRIPT in data["texts"][0]["inputs"]
    assert [one["kind"] for one in data["texts"]] == ["encoder", "decoder", "cross"] * 2
    assert set(data["own"]) == {"encoder", "decoder"}


def test_the_page_opens_on_the_tracked_token(mixing_result, tmp_path):
    path = mixing_result.to_html(tmp_path / "report.html", track="ferry")
    assert data_of(path)["opening"] == {"text": 0, "position": mixing_result.names(0, "encoder").index("ferry")}
    assert locate(mixing_result, "word6") == (1, 7)
    with pytest.raises(InputError, match=r"no text holds the token 'boat'; tokens such as '\[CLS\]'"):
        mixing_result.to_html(tmp_path / "none.html", track="boat")
    assert not (tmp_path / "none.html").exists()


def test_single_texts_stay_within_their_budget():
    _, result = random_mixing([["a"] * 30, ["b"] * 4, ["c"] * 30, *([["d"] * 3] * 30)])
    small = 3 * 16 * 3 * 8 // 3
    assert [one.text for one in shown_texts(result, small)] == [1]
    chosen = [one.text for one in shown_texts(result, 10**9, first=5)]
    assert chosen == [5, *range(5), *range(6, 20)]
    used = sum(len(one.encoded) for one in shown_texts(result, 50_000))
    assert 0 < used <= 50_000
    assert shown_texts(result, 10) == []


def test_a_page_without_room_for_texts_says_so(tagged_mixing, tmp_path):
    page = write_mixing_report(tagged_mixing, tmp_path / "report.html", text_budget=10).read_text(encoding="utf-8")
    assert "No text of this analysis is short enough" in page
    half = write_mixing_report(tagged_mixing, tmp_path / "half.html", text_budget=3 * 81 * 3 * 3)
    assert "every number of 1 of 2 texts, to keep the file small" in half.read_text(encoding="utf-8")


def test_no_rollouts_no_tags_no_class_token(tmp_path):
    arrays, _ = random_mixing([["one", "two", "three"]])
    result = mixing_of(arrays, [["one", "two", "three"]])
    bare = Mixing(
        result.table.with_columns(
            pl.lit(None, pl.Float32).alias(name) for name in ("raw_rollout", "effective_rollout")
        ),
        result.tokens,
        result.provenance,
    )
    page = write_mixing_report(bare, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "made without attention rollout" in page
    assert "made without parts of speech" in page
    assert "No text of this analysis opens with a class token" in page
    assert data_of(tmp_path / "report.html")["texts"][0]["measures"] == ["contribution"]
    assert len(finding(bare, mixing_series(bare))) == 3


def test_the_finding_says_what_was_found():
    near = np.array([[[0.6, 0.4, 0, 0], [0.2, 0.6, 0.2, 0], [0, 0.2, 0.6, 0.2], [0, 0, 0.4, 0.6]]])
    far = np.array([[[0.2, 0, 0, 0.8], [0.4, 0.2, 0, 0.4], [0.8, 0, 0.2, 0], [0.8, 0, 0, 0.2]]])
    result = mixing_of([np.concatenate([near, far])], [["a", "b", "c", "d"]])
    sentences = finding(result, mixing_series(result))
    assert "60.0 % at layer 1 and 20.0 % at layer 2" in sentences[0]
    assert "100.0 % of the tokens are not the largest" in sentences[0]
    assert sentences[2].startswith("Of the context in an encoder hidden state, 100 % comes from the tokens next to it")
    assert "12 % at layer 2" in sentences[2]
    # The made-up effective rollout is 1 less the contribution, so it cannot agree; the raw one is its square.
    assert "would have said something else about which context is mixed into encoder hidden states" in sentences[3]
    assert "(raw) and -1.00 (effective) at layer 1 and " in sentences[3]


def test_words_worth_drawing(mixing_result):
    positions = telling_tokens(mixing_result, 1)
    last = mixing_result.array(1, "encoder")[-1].diagonal()
    names = mixing_result.names(1, "encoder")
    inner = range(1, len(names) - 1)
    assert positions == [0, min(inner, key=lambda at: last[at]), max(inner, key=lambda at: last[at])]
    assert telling_tokens(random_mixing([["x"]])[1], 0) == [0]


def test_from_the_folder_with_tags(tagged_mixing, tmp_path):
    tagged_mixing.save(tmp_path / "run")
    assert Mixing.load(tmp_path / "run").tags.equals(tagged_mixing.tags)
    report = write_report(tmp_path / "run")
    assert report == tmp_path / "run" / "report.html"
    assert data_of(report)["speech"] is not None
    paths = save_figures(tmp_path / "run", formats=("svg",))
    assert {path.parent for path in paths} == {tmp_path / "run" / "figures"}
    with pytest.raises(OutputFolderError, match=r"could not write"):
        write_mixing_report(tagged_mixing, tmp_path / "run" / "report.html" / "below.html")
