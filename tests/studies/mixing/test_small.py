"""What a run of mixing is given and leaves: tags, layers, a tracked token; on the tiniest of models."""

import polars as pl
import pytest

from helpers.treebanks import SENTENCES
from helpers.written import mixed
from helpers.zoo import ids, tiny_encoder
from identilens.errors import InputError, SettingError
from identilens.runs.conllu import TaggedText, Word, read_conllu
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.settings import MixingSettings
from identilens.studies.mixing.study import MixingStudy, mixing
from identilens.studies.mixing.tagging import NO_WORD, tag_tokens


@pytest.fixture(scope="module")
def lens():
    return tiny_encoder(2)


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "small.conllu"
    path.write_text(SENTENCES, encoding="utf-8")
    return read_conllu(path)


def tags_of(lens, texts, **settings):
    return MixingStudy(lens, texts, MixingSettings(**settings)).tags


def test_a_treebanks_tags_are_those_of_the_run(bundled, sentences):
    study = MixingStudy(bundled, sentences, MixingSettings())
    assert study.tags.equals(tag_tokens(sentences, bundled.tokenizer))
    assert study.identity().settings["tags"] == "xpos"
    universal = tags_of(bundled, sentences, tags="upos")
    assert universal.equals(tag_tokens(sentences, bundled.tokenizer, tags="upos"))
    assert not universal.equals(study.tags)
    tables = {"table": pl.DataFrame({"a": [1]})}
    assert study.finish(tables).tables["tags"] is study.tags
    assert tags_of(bundled, ["plain"]) is None
    pair = tags_of(bundled, (sentences[1], sentences[1]))
    assert pair["tag"].to_list() == ["[CLS]", "RB", "[SEP]", "RB", "[SEP]"]


def test_tags_that_cannot_be_are_refused(lens, bundled, sentences):
    assert tags_of(lens, [ids(5)]) is None
    assert tags_of(bundled, sentences, queries=(1,)) is None
    with pytest.raises(SettingError, match="max_length"):
        tags_of(bundled, sentences, max_length=4)
    with pytest.raises(InputError, match="treebank"):
        tags_of(bundled, [*sentences, "plain"])


def test_layers_are_chosen_and_recorded(lens):
    whole = mixing(lens, [ids(4)], method="exact", rollouts=True)
    one = mixing(lens, [ids(4)], method="exact", rollouts=True, layers=(2,))
    assert whole.table["layer"].unique().to_list() == [1, 2]
    assert one.table.equals(whole.table.filter(layer=2))
    assert one.provenance["settings"]["layers"] == [2]
    assert whole.provenance["settings"].get("layers") is None
    shares = whole.table.group_by("layer", "hidden").agg(pl.col("contribution").sum())
    assert shares["contribution"].to_list() == pytest.approx([1.0] * 8)
    assert whole.table["raw_rollout"].null_count() == 0
    for layers in ((0,), (3,)):
        with pytest.raises(SettingError, match="embeddings"):
            mixing(lens, [ids(4)], layers=layers)


def test_a_tracked_token_is_kept_with_the_run(lens, tmp_path):
    text = [5, 6, 7, 8]
    found = mixing(lens, [text], method="exact", rollouts=False, track="7", out=tmp_path / "run")
    assert found.tracked.rows() == [(0, 2)]
    assert Mixing.load(tmp_path / "run").tracked.rows() == [(0, 2)]
    with pytest.raises(InputError, match="99"):
        MixingStudy(lens, [text], MixingSettings(track="99"))


def test_arrays_are_of_one_kind():
    found = mixed(1)
    for kind in (None, "encoder"):
        assert found.array(0, kind)[0, 0].tolist() == pytest.approx(
            [0.75, 0.0556, 0.0833, 0.1111], abs=1e-4
        )
    with pytest.raises(InputError, match="kinds encoder; got 'cross'"):
        found.array(0, "cross")
    with pytest.raises(InputError, match="texts"):
        found.array(2)


def test_sub_words_take_the_tag_of_their_word(bundled, sentences):
    names = bundled.tokenizer.convert_ids_to_tokens(bundled.tokenizer(sentences[0])["input_ids"])
    tags = tag_tokens(sentences[:1], bundled.tokenizer)["tag"].to_list()
    assert names[:3] == ["[CLS]", "we", "cannot"]
    # One token over two words takes the tag of the one it shares more with, the first when equal.
    assert tags[:3] == ["[CLS]", "PRP", "MD"]
    pieces = [
        tag
        for name, tag in zip(names, tags, strict=True)
        if name in ("un", "##bel", "##ie", "##va", "##bly")
    ]
    assert len(pieces) >= 3
    assert set(pieces) == {"RB"}
    assert tags[-2:] == [".", "[SEP]"]


def test_pairs_and_tokens_outside_of_words(bundled):
    pair = (
        TaggedText("red sky", [Word(0, 3, "JJ", "ADJ")]),
        TaggedText("sky", [Word(0, 3, "NN", "NOUN")]),
    )
    found = tag_tokens([pair], bundled.tokenizer, tags="upos")
    assert found["tag"].to_list() == ["[CLS]", "ADJ", NO_WORD, "[SEP]", "NOUN", "[SEP]"]
