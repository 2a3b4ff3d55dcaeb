"""Claims in words: how they are read, which keys they count, and what is proven of them."""

from dataclasses import replace
from functools import cache

import polars as pl
import pytest
import torch
from scipy.optimize import linprog

import identilens as idl
from helpers.heads import normals, seeded
from helpers.programs import kept_basis
from helpers.zoo import build, gemma, ids
from identilens.claims import FALSE, OPEN, TRUE, Claim, ClaimRow
from identilens.errors import InputError, SettingError
from identilens.linalg import ProjectedValues
from identilens.models.lens import Lens
from identilens.models.stream import read_stream
from identilens.studies.certify.certificates import CertificateFile
from identilens.studies.certify.rows import certified_rows
from identilens.studies.outcomes import of_outputs

TEXT = (
    "The old ferry left before dawn, and the storm on the river tore the rope from the pier before anybody on the "
    "ferry had seen it, though the harbour master had warned them."
)
PLACE = {"layers": 3, "heads": 9, "queries": 10}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("storm > ferry", ("attention to 'storm' minus attention to 'ferry'", ">", 0.0)),
        (" the storm<0.3 ", ("attention to 'the storm'", "<", 0.3)),
        ("a > 1e-2", ("attention to 'a'", ">", 0.01)),
        ("the  storm", ("attention to 'the  storm'", "", 0.0)),
    ],
)
def test_claims_are_read(words, expected):
    claim = Claim.read(words)
    assert (claim.subject, claim.sign, claim.bound) == expected
    assert claim.words == words


@cache
def any_head():
    [captured] = idl.load("bundled").capture("Nobody came.", weights=True)
    return captured.layers[0].head(0)


def counted(words, *tokens):
    found = Claim.read(words).counting(ClaimRow(any_head(), 0, tokens, 3))
    assert found is not None
    return found.tolist()


def test_the_keys_that_spell_the_words_count():
    pieces = ("[CLS]", "the", "Sto", "##rm", "the", "storm", "a")
    assert counted("storm > a", *pieces) == [0, 0, 1, 1, 0, 1, -1]
    assert counted("a > a b", "a", "b") == [0, -1]
    with pytest.raises(InputError, match="'x', 'x' …"):
        counted("y", *["x"] * 21)


def test_only_runs_that_the_row_sees_to_their_end_count():
    """The row's own token may be the first piece of a word whose rest it cannot see."""
    found = idl.certify(
        idl.load("bundled-decoder"), "Karl saw Karl", layers=2, heads=3, queries=(1, 5, 7), tolerance=0, claim="karl"
    )  # fmt: skip
    keys = {1: [], 5: [1, 2, 3], 7: [1, 2, 3, 5, 6, 7]}
    for row in found.claims.iter_rows(named=True):
        counted = found.table.filter(pl.col("key").is_in(keys[row["query"]]), query=row["query"])
        assert row["value"] == pytest.approx(counted["value"].sum())
    first = replace(found, table=found.table.filter(query=1)).summary().text
    assert first.startswith("Claim “karl” is 0, and 0 in the alternatives, ")
    assert found.summary().text.startswith("Claim “karl” is ")


@pytest.mark.parametrize(
    ("words", "lo", "hi", "verdict"),
    [
        ("a > b", 0.1, 0.2, TRUE), ("a > b", -0.2, -0.1, FALSE), ("a > b", -0.1, 0.1, OPEN),
        ("a < b", 0.1, 0.2, FALSE), ("a < b", -0.2, -0.1, TRUE), ("a > b", 0.0, 0.1, OPEN),
        ("a > 0.3", 0.31, 0.5, TRUE), ("a > 0.3", 0.2, 0.29, FALSE), ("a < 0.3", 0.2, 0.29, TRUE),
        ("a > 0.3", 0.3, 0.5, OPEN), ("a < 0.3", 0.2, 0.3, OPEN), ("a", 0.2, 0.3, None),
    ],
)  # fmt: skip
def test_what_an_interval_says_of_a_claim(words, lo, hi, verdict):
    assert Claim.read(words).verdict(lo, hi) == verdict


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("masked", [False, True])
def test_the_ends_are_those_of_linear_programs(seed, masked):
    generator = seeded(seed)
    T = normals(generator, 12, 5)
    visible = torch.arange(12) < (9 if masked else 12)
    row = (2 * normals(generator, 12)).softmax(-1)
    if masked:
        row = row.masked_fill(~visible, 0.0)
        row = row / row.sum()
    counted = torch.tensor([1.0, 0, 1, -1, 0, 0, -1, 0, 0, 1, 0, 0]).double()
    claims = {Claim.read("a > b"): counted, Claim.read("c"): counted.clamp_min(0)}
    keys = slice(0, 9 if masked else 12)
    kept = kept_basis(T[keys])
    kept_rows = of_outputs([(row, ProjectedValues.of(T), visible)])
    [made] = certified_rows(kept_rows, "abcdefghijkl", [[0.0]], [claims], certificates=True)
    for columns, (claim, coefficients) in zip(made["table"][-2:], claims.items(), strict=True):
        ends = [
            sign
            * linprog(
                sign * coefficients[keys].numpy(),
                A_eq=kept.T.numpy(),
                b_eq=(kept.T @ row[keys]).numpy(),
            ).fun
            for sign in (1, -1)
        ]
        assert [columns["lo"], columns["hi"]] == pytest.approx(ends, abs=1e-7)
        assert columns["value"] == pytest.approx(float(coefficients @ row))
        assert columns["functional"] == claim.words
        assert columns["verdict"] == claim.verdict(columns["lo"], columns["hi"])
        assert columns["certificate"].holds
    assert columns["lo"] >= 0


def test_a_text_that_lacks_what_a_claim_names_is_named(bundled):
    texts = ["A storm came to the ferry.", "Nobody came."]
    for claim, words in (
        ("storm > ferry", "text 1: no run of tokens"),
        (idl.claims.weight(7), "text 1 has keys"),
    ):
        with pytest.raises(InputError, match=words):
            idl.certify(bundled, texts, layers=0, heads=0, queries=1, claim=claim, tolerance=0)


def test_segments_are_named_by_words_characters_or_keys_and_compared(bundled):
    whole = idl.claims.segment("keys", range(5, 8))
    segments = (
        "words=the storm",
        f"characters={TEXT.index('before')}:{TEXT.index(', and')}",
        whole,
    )
    found = idl.certify(bundled, TEXT, segment=segments, tolerance=0, **PLACE)
    weights = dict(found.weights.select("key", "value").rows())
    names = dict(found.weights.select("token", "key").rows())
    words, dawn = (names["storm"] - 1, names["storm"]), (names["dawn"] - 1, names["dawn"])
    sums = {"words": words, "characters": dawn, "keys": (5, 6, 7)}
    sums = {name: sum(weights[key] for key in keys) for name, keys in sums.items()}
    claims = {row["functional"]: row for row in found.claims.rows(named=True)}
    pairs = {f"{one} − {other}": (one, other) for one in sums for other in sums if one != other}
    assert [*claims] == [*sums, *pairs]
    for name, value in sums.items():
        assert claims[name]["value"] == pytest.approx(value)
        assert claims[name]["lo"] <= value <= claims[name]["hi"]
    for name, (one, other) in pairs.items():
        assert claims[name]["value"] == pytest.approx(sums[one] - sums[other])
        assert claims[name]["lo"] >= claims[one]["lo"] - claims[other]["hi"] - 1e-7
    means = found.mean("layer")
    assert means.rows(named=True)[0]["value"] == pytest.approx(sums["words"])
    assert set(means["lo_error"]) == {0.0}
    assert found.provenance["settings"]["segment"][2].startswith("keys, (5, 6, 7)")
    for segment, words in (
        ("a=9000:9001", "characters"),
        ("a=nowhere", "nowhere"),
        ("a", "name=words"),
        (("a=storm", "a=3:9"), "one name"),
        (idl.claims.segment("a", [999]), "has keys 0 to"),
    ):
        with pytest.raises(InputError, match=words):
            idl.certify(bundled, TEXT, segment=segment, **PLACE)


def distances(row):
    """How far each key is from the row: a functional as somebody else writes it."""
    return (torch.arange(len(row.tokens)) - row.query).abs().double()


def test_a_functional_from_outside_gets_ends_verdict_radius_and_certificate(bundled, tmp_path):
    claim = Claim("distance < 30", "mean distance of attention", distances, "<", 30.0)
    found = idl.certify(
        bundled, TEXT, claim=claim, tolerance=0, certificates=True, out=tmp_path / "run", **PLACE
    )
    [row] = found.claims.rows(named=True)
    weights = found.weights
    assert row["value"] == pytest.approx((weights["value"] * (weights["key"] - 10).abs()).sum())
    assert row["lo"] < row["value"] < row["hi"] < 30
    assert (row["functional"], row["verdict"]) == ("distance < 30", TRUE)
    assert row["radius"] > 0
    assert CertificateFile.read(found.folder / row["certificate"]).certificate.holds


OLD_MAN = "The old man and the boy went down to the boat, and the old man carried the mast on his shoulder up the"


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_families_add_up(family):
    lens = Lens(gemma() if family == "gemma" else build(family))
    found = idl.certify(lens, [ids(12)], source=("5", "9"), queries=(3, -1), tolerance=0)
    [captured], [item] = lens.capture([ids(12)]), lens.read([ids(12)])
    for query in (3, 11):
        stream = read_stream(lens, item, query)
        u = stream.direction(5)[0] - stream.direction(9)[0]
        added = sum(
            float(head.head_output[query].double() @ head.output_projection.double() @ u)
            for head in captured.heads
        )
        assert found.claims.filter(query=query)["value"].sum() == pytest.approx(added, abs=1e-5)
    sources = found.claims.filter(query=11, layer=0, head=0)
    assert sources["functional"].to_list()[:2] == ["key 0 → '5' − '9'", "key 1 → '5' − '9'"]


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
    likely = idl.certify(lens, OLD_MAN, source="most likely", **place)
    own = lens.run(lens.read([OLD_MAN]), task_head=True).logits[0, -1].argmax()
    assert f"→ {lens.reader.names([int(own)])[0]!r}" in likely.claims["functional"][0]
    assert len(likely.summary().text.splitlines()) <= 3
    u = torch.randn(256, generator=seeded())
    found = idl.certify(lens, OLD_MAN, claim=[idl.claims.source(u, key) for key in (0, 1)], **place)
    assert " → the direction” is " in found.summary().text
    with pytest.raises(InputError, match="direction"):
        idl.certify(lens, OLD_MAN, claim=idl.claims.source(u[1:]), **place)
    with pytest.raises(SettingError, match="source"):
        idl.certify(lens, OLD_MAN, source=("a", "b", "c"), **place)
