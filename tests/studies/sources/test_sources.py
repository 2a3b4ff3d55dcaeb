"""Sources of a logit: the sum, the ends by plain linear programs, alternatives put back, and refusals."""

import polars as pl
import pytest
import torch
from scipy.optimize import linprog
from transformers import GemmaConfig, GemmaForCausalLM

import identilens as idl
from helpers.programs import kept_basis
from helpers.zoo import build, ids
from identilens.errors import SettingError
from identilens.models.lens import Lens
from identilens.models.stream import read_stream

GEMMA = GemmaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)  # fmt: skip
TEXT = "The old man and the boy went down to the boat, and the old man carried the mast on his shoulder up the"


@pytest.fixture(scope="module")
def decoder():
    return idl.load("bundled-decoder")


@pytest.fixture(scope="module")
def found(decoder):
    return idl.sources(decoder, TEXT, tolerance="0,1%")


def test_the_parts_are_the_logit(decoder, found):
    logit = found.logits.row(0, named=True)
    with torch.no_grad():
        ids_ = decoder.tokenizer(TEXT, return_tensors="pt")
        own = decoder.model(**ids_).logits[0, -1]
    assert logit["logit"] == pytest.approx(float(own.max()), abs=1e-5)
    assert abs(logit["error"]) < 1e-5
    rows = found.rows.filter(tolerance="0")
    assert rows["contribution"].sum() == pytest.approx(logit["heads"], abs=1e-6)
    by_head = (
        found.table.filter(tolerance="0")
        .group_by("layer", "head")
        .agg(pl.col("contribution").sum())
    )
    joined = rows.join(by_head, on=["layer", "head"], suffix="_sum")
    assert joined["contribution_sum"].to_list() == pytest.approx(joined["contribution"].to_list())


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "gpt_neox", "opt", "gemma"])
def test_families_add_up(family):
    lens = Lens(GemmaForCausalLM(GEMMA) if family == "gemma" else build(family))
    found = idl.sources(lens, [ids(12)], target=("5", "9"), queries=(3, -1), heads=0, layers=0)
    logits = lens.run(lens.read([ids(12)]), whole=True).logits[0].double()
    for row in found.logits.iter_rows(named=True):
        own = logits[row["query"], 5] - logits[row["query"], 9]
        assert row["logit"] == pytest.approx(float(own), abs=1e-5)
        assert abs(row["error"]) < 1e-5
        parts = ("embedding", "final_bias", "heads", "output_bias", "feed_forward")
        assert sum(row[name] for name in parts) - row["logit"] == pytest.approx(row["error"])


def test_ends_are_those_of_linear_programs(decoder, found):
    item = decoder.read([TEXT])[0]
    stream = read_stream(decoder, item, item.length - 1)
    token = int(stream.logits.argmax())
    u, _ = stream.direction(token)
    for layer, number in ((0, 1), (3, 2)):
        head = stream.layers[layer].head(number)
        T = head.values.double() @ head.output_projection.double()
        # Tokens that are the same have the same values in the first layer, so that the rank is not full.
        left, sigma, _ = torch.linalg.svd(T - T.mean(0), full_matrices=False)
        ones = torch.ones(len(T), 1).double()
        kept = torch.cat([ones, left[:, sigma > 1e-6 * sigma[0]]], 1)
        row = head.attention[-1]
        table = found.table.filter(tolerance="0", layer=layer, head=number)
        torch.testing.assert_close(table["coefficient"].to_torch(), T @ u, atol=1e-9, rtol=1e-7)
        for key in (0, 3, len(row) - 1):
            own = table.row(key, named=True)
            cost = torch.zeros(len(row)).double()
            cost[key] = own["coefficient"]
            ends = [
                sign
                * linprog(sign * cost.numpy(), A_eq=kept.T.numpy(), b_eq=(kept.T @ row).numpy()).fun
                for sign in (1, -1)
            ]
            assert [own["lo"], own["hi"]] == pytest.approx(ends, abs=1e-7)
    assert (found.table["lo"] <= found.table["contribution"] + 1e-12).all()
    assert (found.table["contribution"] <= found.table["hi"] + 1e-12).all()


def test_alternatives_put_back_leave_the_logits(found):
    exact, near = (found.rows.filter(tolerance=one) for one in ("0", "1%"))
    assert exact["moved"].max() < 5e-5
    assert found.logits["ends_moved"].item() < 5e-5
    assert near["farthest"].mean() > exact["farthest"].mean()
    assert near["certified"].sum() <= exact["certified"].sum()


def test_both_ends_of_every_source_are_put_back(decoder, monkeypatch):
    put = []
    substitute = Lens.substitute

    def noted(lens, replacements, text, **options):
        put.append({head[:2]: rows.weights[0] for head, rows in replacements.items()})
        return substitute(lens, replacements, text, **options)

    monkeypatch.setattr(Lens, "substitute", noted)
    text = " ".join([TEXT, TEXT])
    found = idl.sources(decoder, text, layers=2, heads=(1, 5))
    assert found.logits["ends_moved"].item() < 5e-5
    open_ = 0
    for head in (1, 5):
        rows = torch.stack([one[2, head] for one in put if (2, head) in one])
        table = found.table.filter(head=head)
        c = table["coefficient"].to_torch()
        reached = torch.stack([c * rows.amin(0), c * rows.amax(0)])
        for name, end in (("lo", reached.amin(0)), ("hi", reached.amax(0))):
            torch.testing.assert_close(end, table[name].to_torch(), atol=1e-7, rtol=0)
        open_ += int((table["hi"] - table["lo"] > 1e-3).sum())
    assert open_ > 10
    near = idl.sources(decoder, TEXT, layers=2, heads=1, tolerance="1%")
    assert near.logits["ends_moved"].item() is None


def test_a_certain_source_is_the_largest_by_linear_programs():
    lens = Lens(build("gpt2").double())
    text = ids(20)
    found = idl.sources(lens, [text], target="7")
    stream = read_stream(lens, lens.read([text])[0], 19)
    u, _ = stream.direction(7)
    for row in found.rows.iter_rows(named=True):
        head = stream.layers[row["layer"]].head(row["head"])
        size = (head.values.double() @ (head.output_projection.double() @ u)).abs()
        kept, own = kept_basis(head.values), head.attention[-1]
        least = min(
            linprog(
                (size[row["largest"]] * torch.eye(20)[row["largest"]] - size[key] * torch.eye(20)[key]).numpy(),
                A_eq=kept.T.numpy(), b_eq=(kept.T @ own).numpy(),
            ).fun / float(size.max())
            for key in range(20) if key != row["largest"]
        )  # fmt: skip
        assert row["certified"] == (least > 1e-9)
    assert {True, False} == set(found.rows["certified"])


def test_a_direction_is_a_target(decoder):
    u = torch.randn(256, generator=torch.Generator().manual_seed(0))
    found = idl.sources(decoder, TEXT, target=u, layers=0, heads=0)
    assert abs(found.logits["error"].item()) < 1e-4
    assert "The last hidden state along the direction after 'the'" in found.summary().text
    with pytest.raises(SettingError, match="direction"):
        idl.sources(decoder, TEXT, target=u[1:], layers=0, heads=0)
    with pytest.raises(SettingError, match="direction"):
        idl.sources(decoder, TEXT, target=("a", "b", "c"))
