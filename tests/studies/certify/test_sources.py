"""Sources of a logit: the sum, the largest source by plain linear programs, directions, refusals and what is said."""

import pytest
import torch
from scipy.optimize import linprog
from transformers import GemmaConfig, GemmaForCausalLM

import identilens as idl
from helpers.heads import seeded
from helpers.programs import kept_basis
from helpers.zoo import build, ids
from identilens.errors import InputError, SettingError
from identilens.models.lens import Lens
from identilens.models.stream import read_stream

GEMMA = GemmaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)  # fmt: skip
TEXT = "The old man and the boy went down to the boat, and the old man carried the mast on his shoulder up the"


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_families_add_up(family):
    lens = Lens(GemmaForCausalLM(GEMMA) if family == "gemma" else build(family))
    found = idl.certify(lens, [ids(12)], source=("5", "9"), queries=(3, -1), tolerance=0)
    logits = lens.run(lens.read([ids(12)]), whole=True).logits[0].double()
    for query in (3, 11):
        parts = found.parts.filter(query=query)
        [logit], [error] = (parts.filter(part=one)["value"] for one in ("logit", "error"))
        assert logit == pytest.approx(float(logits[query, 5] - logits[query, 9]), abs=1e-5)
        assert abs(error) < 1e-5
        heads = parts.filter(part="heads")["value"].sum()
        assert found.claims.filter(query=query)["value"].sum() == pytest.approx(heads, abs=1e-6)
    sources = found.claims.filter(query=11, layer=0, head=0)
    assert sources["functional"].to_list()[:2] == ["key 0 → '5' − '9'", "key 1 → '5' − '9'"]


def test_a_certain_source_is_the_largest_by_linear_programs():
    lens = Lens(build("gpt2").double())
    text = ids(20)
    found = idl.certify(lens, [text], source="7", queries="last", tolerance=0)
    stream = read_stream(lens, lens.read([text])[0], 19)
    u, _ = stream.direction(7)
    for row in found.rows.iter_rows(named=True):
        head = stream.layers[row["layer"]].head(row["head"])
        size = (head.values.double() @ (head.output_projection.double() @ u)).abs()
        kept, own = kept_basis(head.values), head.attention[-1]
        largest = int((size * own).argmax())
        least = min(
            linprog(
                (size[largest] * torch.eye(20)[largest] - size[key] * torch.eye(20)[key]).numpy(),
                A_eq=kept.T.numpy(), b_eq=(kept.T @ own).numpy(),
            ).fun / float(size.max())
            for key in range(20) if key != largest
        )  # fmt: skip
        assert row["certified_source"] == (largest if least > 1e-9 else None)
    assert 0 < found.rows["certified_source"].count() < len(found.rows)


def test_ends_of_sources_are_those_of_claims_with_certificates(tmp_path):
    """A source is a functional like any other: its programs give the scaled ends of the weight."""
    lens = Lens(build("gpt2").double())
    chosen = {"layers": 1, "heads": 2, "queries": "last", "source": "7", "tolerance": "0,1%"}
    found = idl.certify(lens, [ids(20)], **chosen)
    proven = idl.certify(lens, [ids(20)], **chosen, certificates=True, out=tmp_path / "run")
    for name in ("value", "lo", "hi"):
        expected = pytest.approx(proven.claims[name].to_list(), abs=1e-7)
        assert found.claims[name].to_list() == expected
    assert len({*proven.claims["certificate"]}) == len(proven.claims) == 40


def test_the_most_likely_token_is_a_source_and_a_direction_is_a_claim():
    lens = idl.load("bundled-decoder")
    place = {"layers": 0, "heads": 0, "queries": "last", "tolerance": 0}
    likely = idl.certify(lens, TEXT, source="most likely", **place)
    own = lens.run(lens.read([TEXT]), whole=True).logits[0, -1].max()
    logit = likely.parts.filter(part="logit")["value"].item()
    assert logit == pytest.approx(float(own), abs=1e-5)
    assert len(likely.summary().text.splitlines()) <= 3
    u = torch.randn(256, generator=seeded())
    found = idl.certify(lens, TEXT, claim=[idl.claims.source(u, key) for key in (0, 1)], **place)
    assert " → the direction' is " in found.summary().text
    with pytest.raises(InputError, match="direction"):
        idl.certify(lens, TEXT, claim=idl.claims.source(u[1:]), **place)
    with pytest.raises(SettingError, match="source"):
        idl.certify(lens, TEXT, source=("a", "b", "c"), **place)
