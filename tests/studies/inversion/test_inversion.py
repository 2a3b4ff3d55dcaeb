"""Margins of continuations beside a plain loop over all of them, and what follows from them."""

import polars as pl
import pytest
import torch

import identilens as idl
from helpers.heads import seeded
from helpers.zoo import build, example, ids
from identilens.errors import InputError, NumericalError
from identilens.measures.tokens.margins import Noise
from identilens.models.candidates import Candidates

TEXT = ids(7)


def made(family, dtype=torch.float64):
    return idl.Lens(build(family).to(dtype))


@pytest.fixture(scope="module")
def lens():
    """A decoder of 50 tokens."""
    model = build("gpt2")
    model.resize_token_embeddings(50)
    return idl.Lens(model.double())


@torch.no_grad()
def states_of(lens, texts):
    """Hidden states of texts of one length, [layer, text, token, d], by transformers alone."""
    output = lens.body(input_ids=torch.tensor(texts), output_hidden_states=True, use_cache=False)
    return torch.stack(output.hidden_states)


def test_margins_are_those_of_every_pair(lens):
    text = [token % 50 for token in TEXT]
    found = idl.inversion(lens, [text], noise="int4", bits=3)
    for position, token in enumerate(text):
        others = states_of(lens, [[*text[:position], other] for other in range(50)])[:, :, -1]
        for layer, states in enumerate(others):
            distances = (states - states[token]).norm(dim=1)
            distances[token] = torch.inf
            row = found.table.row(
                by_predicate=(pl.col("layer") == layer) & (pl.col("position") == position),
                named=True,
            )
            assert row["margin"] == pytest.approx(float(distances.min()) / 2, rel=1e-9)
            assert row["rival"] == str(int(distances.argmin()))
            assert row["norm"] == pytest.approx(float(states[token].norm()))
            assert row["relative_margin"] == pytest.approx(row["margin"] / row["norm"])
            assert row["forward_noise"] < 1e-12 * row["norm"]


def test_noise_inside_the_margin_never_spoils_decoding(lens):
    """10,000 draws just inside the margin, and one just outside towards the rival."""
    text = [token % 50 for token in TEXT]
    found = idl.inversion(lens, [text], layers=2, noise="int8", bits=8)
    generator = seeded()
    for position, row in enumerate(found.table.iter_rows(named=True)):
        states = states_of(lens, [[*text[:position], other] for other in range(50)])[2, :, -1]
        own, draws = (
            states[text[position]],
            torch.randn(10_000 // len(text) + 1, 8 * 4, generator=generator),
        )
        moved = own + 0.999 * row["margin"] * draws / draws.norm(dim=1, keepdim=True)
        assert (torch.cdist(moved, states).argmin(1) == text[position]).all()
        rival = states[int(row["rival"])]
        outside = own + 0.501 * (rival - own)
        assert int((states - outside).norm(dim=1).argmin()) == int(row["rival"])


def test_padding_and_other_texts_change_nothing(lens):
    texts = [ids(5, 1), ids(3, 2)]
    texts = [[token % 50 for token in text] for text in texts]
    batch = {
        "input_ids": torch.tensor([texts[0], [*texts[1], 0, 0]]),
        "attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2]),
    }
    both = idl.inversion(lens, batch, bits=4)
    for number, text in enumerate(texts):
        alone = idl.inversion(lens, [text], noise="int4", bits=4)
        of = both.table.filter(text=number)
        assert of["margin"].to_list() == alone.table["margin"].to_list()
        assert of["rival"].to_list() == alone.table["rival"].to_list()


def test_no_certificate_where_a_rival_lies_inside_the_noise(lens):
    embeddings = lens.body.get_input_embeddings().weight
    with torch.no_grad():
        kept = embeddings[9].clone()
        embeddings[9] = embeddings[8] + 1e-6
    found = idl.inversion(lens, [[4, 8, 4]], noise=("float32", "int8"), bits=8, layers=(0, 2))
    with torch.no_grad():
        embeddings[9] = kept
    twin = found.table.filter(position=1)
    assert twin["rival"].to_list() == ["9", "9"]
    assert not found.noises.filter(pl.col("position") >= 1, noise="int8")["certified"].any()
    assert found.noises.filter(position=0)["certified"].all()


def test_forward_noise_is_taken_off(lens, monkeypatch):
    """States that move between two runs by more than the margin are not certified."""
    read = Candidates.read

    def shaken(self, ids, cache=None):
        return [states + 100.0 * (cache is None) for states in read(self, ids, cache)]

    monkeypatch.setattr(Candidates, "read", shaken)
    found = idl.inversion(lens, [[4, 8]], noise="float32", bits=8)
    assert found.table["forward_noise"].min() > 100
    assert not found.noises["below"].any()


def test_the_bundled_decoder_gives_back_its_text():
    lens, text = idl.load("bundled-decoder"), idl.examples()[0]
    found = idl.inversion(lens, text, noise=("bfloat16", "int8", "int4"), bits=4, max_length=6)
    wholes = found.by_text()
    assert wholes.filter(pl.col("noise") != "int4")["certified_to"].unique().to_list() == [6]
    assert (wholes["recovered_to"] >= wholes["certified_to"]).all()
    int4 = wholes.filter(noise="int4")
    assert (int4["certified_to"] < 6).any()
    [captured] = lens.capture(text, hidden_states=True, max_length=6)
    item = lens.read(text, 6)[0]
    for layer, states in enumerate(captured.hidden_states["encoder"]):
        for noise in ("bfloat16", "int8", "int4") if layer in (0, 4) else ():
            read = idl.invert(lens, Noise.read(noise).applied(states), layer=layer)
            row = wholes.row(
                by_predicate=(pl.col("layer") == layer) & (pl.col("noise") == noise), named=True
            )
            known = item.tensors["input_ids"].tolist()
            right = row["recovered_to"]
            assert list(read.ids[:right]) == known[:right]
            assert right == 6 or read.ids[right] != known[right]
            if noise != "int4":
                assert all(read.certified)
                assert read.tokens == item.tokens["encoder"]


def test_what_is_certified_is_decoded(lens):
    texts = [[token % 50 for token in ids(6, seed)] for seed in range(3)]
    found = idl.inversion(lens, texts, noise=("int8-channel", "drop0.02", 0.05), bits=(2, 3, 4, 6))
    assert found.noises["certified"].any()
    assert not found.noises["certified"].all()
    assert found.noises.filter("below")["recovered"].all()
    assert found.noises.filter("certified")["below"].all()
    chain = found.noises.group_by("text", "layer", "noise").agg(
        (pl.col("certified") == pl.col("below").cast(pl.Int8).cum_min().cast(pl.Boolean)).all()
    )
    assert chain["certified"].all()


def test_inverting_a_cache_and_a_known_beginning(lens):
    text = [token % 50 for token in TEXT]
    item = lens.read([text])[0]
    [[states]] = Candidates(lens, item, (1,), stored="cache").read(item.tensors["input_ids"][None])
    found = idl.invert(lens, states, layer=1, stored="cache")
    assert list(found.ids) == text
    assert all(found.certified)
    later = idl.invert(lens, states[3:], layer=1, stored="cache", beginning=text[:3])
    assert list(later.ids) == text[3:]
    assert later.margins == pytest.approx(found.margins[3:])


def test_encoders_have_margins_of_texts_that_differ_in_one_token():
    one = made("bert")
    found = idl.inversion(one, [TEXT], substitutes=95, noise="int4", bits=8, layers=(1, 2))
    own = states_of(one, [TEXT])[:, 0]
    for position, token in enumerate(TEXT):
        texts = [[*TEXT[:position], other, *TEXT[position + 1 :]] for other in range(96)]
        distances = (states_of(one, texts) - own[:, None]).flatten(2).norm(dim=2)
        distances[:, token] = torch.inf
        for layer in (1, 2):
            [row] = found.table.filter(layer=layer, position=position).to_dicts()
            assert row["margin"] == pytest.approx(float(distances[layer].min()) / 2, rel=1e-9)
            assert row["rival"] == str(int(distances[layer].argmin()))
    assert not found.noises["certified"].any()
    assert not found.by_layer().select("recovered", "recovered_texts").drop_nulls().height
    assert found.noises["recovered"].null_count() == len(found.noises)
    assert found.summary().numbers["changes"] == len(found.table) // 2


@pytest.mark.usefixtures("unchecked_shapes")
def test_inputs_that_are_refused(lens):
    with pytest.raises(InputError, match="no cache of keys and values|single texts"):
        idl.inversion(idl.Lens(build("vit")), example("vit"))
    with pytest.raises(InputError, match="empty"):
        idl.inversion(idl.load("bundled-decoder"), [""])
    for states, words in (
        (torch.ones(3), "expected states of one text and one layer"),
        ([[1.0]], "got list"),
        (torch.ones(2, 5), r"\[position, 32\], of a causal model; got \(2, 5\)"),
    ):
        with pytest.raises(InputError, match=words):
            idl.invert(lens, states, layer=1)
    with pytest.raises(NumericalError, match="NaN or infinite"):
        idl.invert(lens, torch.full((2, 32), torch.nan), layer=1)
    with pytest.raises(InputError, match=r"of a causal model; got \(2, 32\) of BertModel"):
        idl.invert(made("bert"), torch.ones(2, 32), layer=1)
