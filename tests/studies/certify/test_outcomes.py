"""What must stay the same, and how nearly: tolerances, the layer's output, the model's states and its prediction."""

import re

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from helpers.heads import doubles, normals, seeded
from helpers.programs import by_clarabel
from identilens.errors import InputError, SettingError
from identilens.linalg import ProjectedValues, head_values
from identilens.measures.attention import attention_intervals, norm_share, removal_effect
from identilens.models import outcome
from identilens.models.outcome import Answer
from identilens.studies.certify.rows import (
    EVEN,
    FLOOR,
    ROW,
    SCHEMA,
    VERDICTS,
    WITHIN,
    certified_rows,
)
from identilens.studies.outcomes import (
    changed,
    of_answer,
    of_layer,
    of_outputs,
    of_rows,
    row_programs,
)
from identilens.studies.settings import tolerances

IDS = {"input_ids": torch.arange(5, 21)[None]}
TEXT = "The ferry did not sail, because the storm had broken the mast of the ship in the harbour."


@pytest.fixture(scope="module")
def decoder():
    """A decoder in double precision, with sharp attention, whose heads share keys and values."""
    lens = idl.Lens(zoo.build("llama"))
    lens.model.double()
    with torch.no_grad():
        for name, weight in lens.model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight *= 4
    return lens


@pytest.mark.parametrize("outcome", ["prediction", "states"])
def test_certificates_of_the_answer(decoder, outcome):
    """At a share of the head's effect: wider with the share, and the farthest alternative does as predicted."""
    found = idl.certify(
        decoder, IDS, layers=1, heads=2, queries="last", outcome=outcome, tolerance="0,1%,20%"
    )
    rows = found.rows
    assert rows["tolerance"].to_list() == ["0", "1%", "20%"]
    assert rows["effect"].n_unique() == 1
    assert rows["allowed"].to_list() == pytest.approx(
        [share * rows["effect"][0] for share in (0, 0.01, 0.2)]
    )
    assert rows["farthest"].is_sorted()
    mass = found.by_query()["certain_mass"].to_list()
    assert mass == sorted(mass, reverse=True)
    for row in rows.filter(rows["allowed"] > 0).iter_rows(named=True):
        assert row["predicted"] <= row["allowed"] * (1 + 1e-6)
        assert row["measured"] == pytest.approx(row["predicted"], rel=0.3)
    where = {
        "states": "the model's final hidden states at all 16 positions",
        "prediction": "the model's prediction from '20' (position 15)",
    }[outcome]
    assert rows["answer"].unique().to_list() == [where]
    # An alternative at the first order has that change: bounds and the model agree on which weights are free.
    table = found.table.filter(tolerance="20%")
    assert ((table["lo"] <= table["value"]) & (table["value"] <= table["hi"])).all()


def test_classes_are_a_prediction_and_a_body_has_none(bundled):
    lens = zoo.classifier("bert")
    found = idl.certify(lens, IDS, layers=0, heads=0, queries=3, outcome="prediction")
    assert found.rows["effect"].item() > 0
    with pytest.raises(InputError, match=r"no logits.*outcome=\"states\""):
        idl.certify(bundled, TEXT, layers=0, heads=0, queries=3, outcome="prediction")


def test_a_derivative_that_does_not_fit_is_refused(decoder, monkeypatch):
    monkeypatch.setattr(outcome, "LARGEST", 2**13)
    with pytest.raises(InputError, match="Name fewer positions"):
        idl.certify(decoder, IDS, layers=0, heads=0, queries=3, outcome="states")
    found = idl.certify(decoder, IDS, layers=0, heads=0, queries=3, outcome="states", answer=(15,))
    assert found.rows["effect"].item() > 0


def ends_of(kept, allowed):
    return row_programs([kept], [allowed]).ends()


def test_the_layer_equals_one_plain_program_over_all_heads(decoder):
    item = decoder.read(IDS)[0]
    heads = list(decoder.layer(item, 0).heads)
    query, head = 13, 2
    kept = of_layer(heads, head, query)
    seen = 14
    values = torch.cat([one.values[:seen] @ one.output_projection for one in heads])
    row = torch.cat([one.attention[query, :seen] for one in heads])
    blocks = torch.arange(len(heads)).repeat_interleave(seen)
    allowed = 0.02 * float(torch.linalg.norm(row @ values))
    ends = ends_of(kept, 0.02)
    for place in range(head * seen, (head + 1) * seen, 3):
        unit = torch.eye(len(row)).double()[place]
        least, most = (
            sign * by_clarabel(sign * unit, row, values, allowed, blocks) for sign in (1, -1)
        )
        assert float(ends.lo[0, place]) == pytest.approx(least, abs=1e-6)
        assert float(ends.hi[0, place]) == pytest.approx(most, abs=1e-6)
    # Without a tolerance the sets are the heads' own: the stacked output projections have full rank.
    exact = idl.certify(decoder, IDS, layers=0, heads=head, queries=query, tolerance=0).table
    nearly = ends_of(kept, 1e-9)
    for name in ("lo", "hi"):
        own = getattr(nearly, name)[0, head * seen : (head + 1) * seen].tolist()
        assert own == pytest.approx(exact[name].to_list(), abs=1e-5)
    with pytest.raises(SettingError, match="output"):
        idl.certify(decoder, IDS, layers=0, heads=0, queries=2, outcome="layer", tolerance=0)
    settings = {"layers": 0, "heads": head, "queries": query, "outcome": "layer", "tolerance": 0.02}
    found = idl.certify(decoder, IDS, **settings)
    own = ends.hi[0, head * seen : (head + 1) * seen].tolist()
    assert found.table["hi"].to_list() == pytest.approx(own)
    assert found.rows["gap"].item() <= 1e-4


@pytest.mark.parametrize(("of", "allowed"), [("head", 0.0), ("head", 0.02), ("layer", 0.02)])
def test_rows_together_equal_rows_alone(decoder, of, allowed):
    """Rows of several heads that see 1 to 14 keys, of full and of lower rank."""
    heads = list(decoder.layer(decoder.read(IDS)[0], 0).heads)
    places = [(head, query) for head in (0, 3) for query in (0, 4, 13)]
    rows = (
        of_rows([(heads[head], query) for head, query in places])
        if of == "head"
        else [of_layer(heads, head, query) for head, query in places]
    )
    # Of a row's first key only in the second of them, of two keys in later ones.
    units = {idl.claims.weight(key): torch.eye(16)[key] for key in (0, 1)}
    claims = [dict([*units.items()][: min(number, 2)]) for number in range(len(places))]
    changes = [[allowed * (1 + number), allowed] for number in range(len(rows))]
    together = certified_rows(rows, "a" * 16, changes, claims, certificates=True)
    for number, found in enumerate(together[::2]):
        given = [rows[number]], "a" * 16, [changes[number]], [claims[number]]
        alone, _ = certified_rows(*given, certificates=True)
        for one, other in zip(
            [*found["table"], *found["rows"]], [*alone["table"], *alone["rows"]], strict=True
        ):
            assert one.keys() == other.keys()
            for name in one.keys() - {"gap", "certificate"}:
                tolerances = {"rel": 0.05, "abs": 1e-6} if isinstance(one[name], float) else {}
                assert one[name] == (
                    pytest.approx(other[name], **tolerances) if tolerances else other[name]
                ), name
        made = [one["certificate"] for one in found["table"] if "certificate" in one]
        assert len(made) == len(claims[number])
        assert all(certificate.holds for certificate in made)


@pytest.mark.parametrize(
    ("given", "outcome", "names"),
    [
        (None, "head", ["bfloat16", "0"]),
        (None, "layer", ["bfloat16", "1%"]),
        (["model"], "head", ["float32"]),
        (["1%", 0.01, "0.01"], "head", ["1%"]),
        ([0, "float16", "1e-3"], "head", ["0", "float16", "0.1%"]),
        (["0.001nats", "0.5 %"], "prediction", ["0.001nats", "0.5%"]),
        (["0.01change"], "states", ["0.01change"]),
    ],
)
def test_tolerances_are_read_as_they_are_written(given, outcome, names):
    assert [one.name for one in tolerances(given, outcome, "float32")] == names


def test_of_answer_needs_no_effect_where_the_row_comes_later(decoder):
    """A row after the answer's position cannot change it: all of its attention is free."""
    item = decoder.read(IDS)[0]
    answer = Answer(decoder, item, "prediction", [3])
    head = decoder.layer(item, 0).head(0)
    kept = of_answer(answer, head, 9)
    assert kept.effect == pytest.approx(0, abs=1e-12)
    ends = ends_of(kept, 0.0)
    assert ends.lo[0].tolist() == pytest.approx([0.0] * 10, abs=1e-9)
    assert ends.hi[0].tolist() == pytest.approx([1.0] * 10, abs=1e-9)


@pytest.mark.parametrize(
    ("outcome", "effect", "numbers"),
    [
        ("prediction", 0.02, ["0.02", "10"]),  # sqrt(KL / 2)
        ("prediction", 4.0, ["4", "99.1"]),  # sqrt(1 - exp(-KL))
        ("prediction", -1e-9, ["1e-09", "0"]),
        ("states", 0.01234, ["1.23"]),
    ],
)
def test_a_change_in_words_bounds_the_probability_that_moves(outcome, effect, numbers):
    assert re.findall(r"\d[\d.e-]*", changed(outcome, effect)) == numbers


BOTH, DETERMINED, INFLUENTIAL, NEITHER, NEGLIGIBLE = VERDICTS


def row_of(seed=0, n=12, d_v=7):
    generator = seeded(seed)
    values = normals(generator, n, d_v)
    logits = normals(generator, n)
    return (2 * logits).softmax(-1), values @ normals(generator, d_v, 9)


def columns(weights, T, visible=None):
    """The columns of the weights of a row."""
    seen = weights >= 0 if visible is None else visible
    kept = of_outputs([(weights, head_values(T), seen)])
    return pl.DataFrame(certified_rows(kept, "abcdefghijklmn", [[0.0]])[0]["table"]).to_dict(
        as_series=False
    )


def verdicts(weights, T):
    weights, T = (doubles(numbers) for numbers in (weights, T))
    return columns(weights, T)["verdict"]


def test_a_short_row_is_determined_key_by_key():
    T = [[0.0, 0.1], [3.0, 0.0], [0.0, 3.0]]
    # Three keys, three equations: nothing can move. The first key draws most attention and adds nearly nothing.
    assert verdicts([0.8, 0.1, 0.1], T) == [DETERMINED, BOTH, BOTH]
    assert verdicts([0.9, 0.0, 0.1], T) == [DETERMINED, NEGLIGIBLE, BOTH]


def test_keys_of_equal_values_are_free_and_their_sum_is_not():
    # The first two add the same: any split of their 0.6 gives the same output.
    T = [[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert verdicts([0.3, 0.3, 0.3, 0.1], T) == [INFLUENTIAL, INFLUENTIAL, DETERMINED, NEGLIGIBLE]
    # A small weight that an alternative may raise to 0.6 is not negligible.
    assert verdicts([0.59, 0.01, 0.3, 0.1], T)[1] == NEITHER


def test_a_key_alone_and_even_attention_on_equal_parts_are_influential():
    assert verdicts([1.0], [[1.0, 2.0]]) == [BOTH]
    angles = torch.arange(3).double() * 2 * torch.pi / 3
    T = torch.stack([angles.cos(), angles.sin()], 1)
    even = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert columns(even, T)["verdict"] == [BOTH] * 3
    assert columns(torch.ones(1).double(), T[:1])["removal"] == [None]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masked", [False, True])
def test_columns_are_those_of_the_measures_and_verdicts_follow_from_them(seed, masked):
    weights, T = row_of(seed)
    visible = torch.arange(len(weights)) < 9 if masked else None
    if masked:
        weights = weights.masked_fill(~visible, 0)
        weights = weights / weights.sum()
    found = columns(weights, T, visible)
    assert {*found, "outcome", "certificate"} >= set(SCHEMA["table"]) - set(ROW)
    keys = len(found["key"])
    assert found["key"] == list(range(9 if masked else 12))
    bounds = attention_intervals(weights, T, visible=visible)
    assert found["value"] == pytest.approx(weights[:keys].tolist(), abs=1e-15)
    for name, expected in (
        ("lo", bounds.lo), ("hi", bounds.hi), ("norm_share", norm_share(weights[None], T)[0]),
        ("removal", removal_effect(weights[None], T, relative=True)[0]),
    ):  # fmt: skip
        assert found[name] == pytest.approx(expected[:keys].tolist(), rel=1e-9, abs=1e-12)
    assert sum(found["contribution"]) == pytest.approx(1)
    words = []
    for a, lo, hi, share in zip(
        *(found[name] for name in ("value", "lo", "hi", "norm_share")), strict=True
    ):
        held, influential = lo >= a * (1 - WITHIN) and hi <= a * (1 + WITHIN), share >= EVEN / keys
        small = not influential and hi < FLOOR / keys
        words.append(NEGLIGIBLE if small else VERDICTS[2 * (not held) + (not influential)])
    assert found["verdict"] == words
    assert len(set(words)) > 1


def test_determined_rests_on_the_interval_not_on_directions():
    """Where T is next to zero at a key, its effective weight vanishes; positive weights that sum to 1 still fix it."""
    T = torch.cat([torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])]).double()
    weights = doubles([0.94, 0.03, 0.02, 0.01])
    found = columns(weights, T)
    assert float(ProjectedValues.of(T).effective(weights[None])[0, 0]) == pytest.approx(
        0, abs=1e-12
    )
    assert found["verdict"][0] == DETERMINED
    assert (found["lo"][0], found["hi"][0]) == pytest.approx((0.93, 0.96))
