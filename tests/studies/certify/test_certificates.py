"""Certificates: recomputed by plain numpy, checked from the command line, and refused where they were changed."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import identilens as idl
from helpers.command import failing
from helpers.heads import seeded
from identilens.errors import InputError
from identilens.studies.certify.certificates import CertificateFile

TEXT = (
    "The old ferry left before dawn, and the storm on the river tore the rope from the pier before anybody on the "
    "ferry had seen it, though the harbour master had warned them."
)
PLACE = {"layers": 3, "heads": 9, "queries": 10}
CLAIMS = ("storm > ferry", "the storm")


def by_numpy(held):
    """Both ends that a file's numbers prove, written down again."""
    a, F, c = held["row"], held["factor"], held["functional"]
    ends = []
    for sign, y in zip((1, -1), held["multipliers"], strict=True):
        left = sign * c - F @ y
        rows = [held["blocks"] == block for block in np.unique(held["blocks"])]
        least = sum(a[row].sum() * left[row].min() for row in rows)
        ends.append(sign * (y @ (a @ F) - held["tolerance"] * np.linalg.norm(y) + least))
    return ends


@pytest.fixture(scope="module")
def written(bundled, tmp_path_factory):
    out = {}
    for outcome in ("head", "layer", "states"):
        folder = tmp_path_factory.mktemp("certified") / outcome
        out[outcome] = idl.certify(
            bundled, TEXT, claim=CLAIMS, pattern="previous", certificates=True, outcome=outcome,
            out=folder, tolerance="1%,10%" if outcome == "layer" else None, **PLACE,
        )  # fmt: skip
    return out


@pytest.mark.parametrize("outcome", ["head", "layer", "states"])
def test_numpy_recomputes_what_is_stated(written, outcome):
    found = written[outcome]
    rows = found.claims.rows(named=True)
    assert len(rows) == 3 * found.claims["tolerance"].n_unique()
    for row in rows:
        file = found.folder / row["certificate"]
        held = load_file(file)
        assert by_numpy(held) == pytest.approx([row["lo"], row["hi"]], abs=1e-9)
        assert list(held["ends"]) == [row["lo"], row["hi"]]
        assert held["functional"] @ held["row"] == pytest.approx(row["value"], abs=1e-12)
        certificate = CertificateFile.read(file).certificate
        assert certificate.holds
        # The rows are alternatives that come to the ends: by numpy, not by the certificate's own test.
        for row_there, end in zip(held["witnesses"], held["ends"], strict=True):
            moved = row_there - held["row"]
            sums = [moved[held["blocks"] == block].sum() for block in np.unique(held["blocks"])]
            assert max(map(abs, sums)) < 1e-7
            assert row_there.min() > -1e-7
            longest = np.linalg.norm(held["factor"], axis=1).max()
            assert np.linalg.norm(moved @ held["factor"]) <= held["tolerance"] + 1e-7 * longest
            assert row_there @ held["functional"] == pytest.approx(end, abs=1e-5)
        assert certificate.met.tolist() == pytest.approx(list(held["ends"]), abs=1e-5)
        assert ("to first order" in CertificateFile.read(file).sentences()) == (outcome == "states")
    if outcome == "layer":
        assert set(held["blocks"]) == set(range(12))


def test_the_factor_is_what_the_head_mixes(written, bundled):
    found = written["head"]
    held = load_file(found.folder / found.claims["certificate"][0])
    [captured] = bundled.capture(TEXT, weights=True)
    head = captured.layers[3].head(9)
    T = (head.values.double() @ head.output_projection.double()).numpy()
    T = T - T.mean(0)
    np.testing.assert_allclose(
        held["factor"] @ held["factor"].T, T @ T.T, atol=1e-6 * (T @ T.T).max()
    )
    np.testing.assert_allclose(held["row"], head.attention[10].numpy(), atol=1e-15)


def changed(file, **new):
    with safe_open(file, framework="np") as stored:
        said = stored.metadata()
    held = load_file(file)
    for name, change in new.items():
        held[name] = change(held[name])
    other = file.with_name("changed.safetensors")
    save_file({name: np.array(one, order="C") for name, one in held.items()}, other, said)
    return other


CHANGES = {
    "higher lo": {"ends": lambda ends: ends + np.array([1e-6, 0])},
    "lower hi": {"ends": lambda ends: ends - np.array([0, 1e-6])},
    "other row": {"row": lambda row: row[::-1]},
    "other multipliers": {"multipliers": lambda y: 1.01 * y},
    "huge multipliers": {"multipliers": lambda y: 1e25 * np.sign(y)},
    "larger tolerance": {"tolerance": lambda one: one + 0.01},
    "other values": {"factor": lambda F: 1.01 * F},
    "other claim": {"functional": lambda c: c + 1e-3 * (np.arange(len(c)) == 5)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_number_is_found(written, name):
    found = written["head"]
    row = found.claims.filter(tolerance="0", functional="storm > ferry").row(0, named=True)
    file = found.folder / row["certificate"]
    assert not CertificateFile.read(changed(file, **CHANGES[name])).certificate.holds


def test_hostile_files_are_refused(written, tmp_path):
    found = written["head"]
    file = found.folder / found.claims["certificate"][0]
    for new in (
        {"tolerance": lambda one: one - 1}, {"row": lambda row: row - 1},
        {"row": lambda row: row * np.nan}, {"factor": lambda F: F.astype(np.float32)},
        {"factor": lambda F: F[1:]}, {"multipliers": lambda y: y[:1]}, {"ends": lambda ends: ends[:1]},
        {"witnesses": lambda rows: rows[:, 1:]},
    ):  # fmt: skip
        with pytest.raises(InputError, match="certificates=True"):
            CertificateFile.read(changed(file, **new))
    other = tmp_path / "a.safetensors"
    for content in (b"", b"\xff" * 100, pickle.dumps({"row": 1}), (2**40).to_bytes(8, "little")):
        other.write_bytes(content)
        with pytest.raises(InputError, match="is no certificate"):
            CertificateFile.read(other)
    held = load_file(file)
    for said in ({}, {"identilens": "[" * 10_000}, {"identilens": json.dumps({"words": 1})}):
        save_file(held, other, said)
        assert "is no certificate" in failing("check", other)
    with pytest.raises(InputError, match="file"):
        CertificateFile.read(tmp_path)
    with other.open("wb") as stream:
        stream.truncate(2**27)
    with pytest.raises(InputError, match="bytes"):
        CertificateFile.read(other)


def test_claims_made_in_python_are_proven(bundled):
    direction = torch.randn(384, generator=seeded())
    claims = (
        idl.claims.weight(3).above(0.5),
        idl.claims.order(0, 3),
        idl.claims.weight("the storm").below(0.9),
        idl.claims.source(direction, "storm", name="u"),
        idl.claims.source(direction),
    )
    found = idl.certify(bundled, TEXT, claim=claims, tolerance="0,10%", **PLACE)
    own = {
        row["functional"]: row for row in found.claims.filter(tolerance="0").iter_rows(named=True)
    }
    assert set(own) == {
        "key 3 > 0.5", "key 0 > key 3", "the storm < 0.9", "storm → u", "all keys → the direction"
    }  # fmt: skip
    weight = found.table.filter(tolerance="0", key=3).row(0, named=True)
    assert [own["key 3 > 0.5"][name] for name in ("value", "lo", "hi")] == pytest.approx(
        [weight[name] for name in ("value", "lo", "hi")], abs=1e-6
    )
    assert own["key 3 > 0.5"]["verdict"] == "false in every alternative"
    # What the whole head adds is a function of its output, and fixed.
    whole = own["all keys → the direction"]
    [captured] = bundled.capture(TEXT, weights=True)
    head = captured.layers[3].head(9)
    added = (
        head.attention[10]
        @ head.values.double()
        @ head.output_projection.double()
        @ direction.double()
    )
    assert [whole[name] for name in ("value", "lo", "hi")] == pytest.approx(
        [float(added)] * 3, abs=1e-5
    )
    assert own["storm → u"]["lo"] < own["storm → u"]["hi"]


def test_a_radius_is_the_largest_tolerance_of_a_verdict(bundled):
    claim = idl.claims.order("storm", "ferry")
    found = idl.certify(bundled, TEXT, claim=claim, tolerance=0, **PLACE)
    radius = found.claims["radius"].item()
    near, far = (
        idl.certify(bundled, TEXT, claim=claim, tolerance=float(f"{share * radius:.6f}"), **PLACE)
        for share in (0.98, 1.05)
    )
    assert near.claims["verdict"].item() == "true in every alternative"
    assert far.claims["verdict"].item() == "neither proven nor refuted"
    assert far.claims["radius"].item() is None
    sure = idl.certify(bundled, TEXT, claim="storm < 1.5", tolerance=0, **PLACE).claims
    assert sure["radius"].item() == float("inf")
