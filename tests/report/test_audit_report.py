import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from identilens.errors import OutputFolderError
from identilens.report import write_audit_report
from identilens.report.audit_series import correlation_points, head_map, kinds
from identilens.report.heatmaps import kept_maps, maps_within
from identilens.report.labels import file_names, shortened, visible_text

SCRIPT = "<script>alert(1)</script>"


class Reader(HTMLParser):
    """Reads a page as a browser does: its text, its elements and what its scripts hold."""

    def __init__(self):
        super().__init__()
        self.elements, self.words, self.scripts, self.open = [], [], {}, None

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.open = dict(attrs).get("id", f"{tag}{len(self.elements)}")
            self.scripts[self.open] = ""

    def handle_endtag(self, tag):
        self.open = None if tag in ("script", "style") else self.open

    def handle_data(self, data):
        if self.open:
            self.scripts[self.open] += data
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def data(self):
        return json.loads(self.scripts["data"])


def read(audit, tmp_path, **options):
    path = write_audit_report(audit, tmp_path / "new" / "report.html", **options)
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.fixture(scope="module")
def page(mixed_audit, tmp_path_factory):
    return read(mixed_audit, tmp_path_factory.mktemp("report"))


def matrices(page, one):
    cells = np.frombuffer(base64.b64decode(page.scripts[one["id"]]), "<f2")
    return cells.reshape(3, one["n_query"], one["n_key"])


def test_the_finding_and_the_provenance_are_on_the_page(page, mixed_audit):
    for line in mixed_audit.summary().text.splitlines():
        assert line in page.text
    for fact in ("ab" * 32, "float32", "cpu", "f0" * 32, "max(n, d_model) * eps", "identilens 0.1.0"):
        assert fact in page.text
    assert f"{mixed_audit.summary().pearson:.2f}" in page.text


def test_one_file_asks_for_nothing_outside(page):
    for tag, attributes in page.elements:
        for name in ("src", "href", "data", "action", "srcset"):
            address = attributes.get(name) or "#"
            assert address.startswith(("#", "data:")), (tag, address)
    policy = next(attributes for tag, attributes in page.elements if attributes.get("http-equiv"))
    assert policy["content"].startswith("default-src 'none'")
    assert sum("plotly.js v" in script for script in page.scripts.values()) == 1


def test_text_from_outside_stays_text(page):
    ids = [attributes.get("id") for tag, attributes in page.elements if tag == "script"]
    assert ids.count(None) == 1 + 1 + 5, "plotly, the shell's script and five of the report"
    assert not any(script.strip() == "alert(1)" for script in page.scripts.values())
    assert f"models/{SCRIPT}" in page.text
    raw = page.scripts["data"]
    assert not set(raw) & set("<>&\u2028\u2029")
    assert SCRIPT in page.data["examples"]["tokens"]["0.encoder.key"]
    assert "<!--" in page.data["examples"]["tokens"]["0.encoder.key"]
    assert SCRIPT in page.data["types"]["names"]


def test_embedded_matrices_are_the_kept_ones(page, mixed_audit):
    maps = page.data["examples"]["maps"]
    assert len(maps) == len(mixed_audit.matrices) / 3
    for one in maps:
        key = f"text{one['text']}.layer{one['layer']}.head{one['head']}.{one['kind']}"
        for part, found in zip(("raw", "effective", "null"), matrices(page, one), strict=True):
            expected = mixed_audit.matrices[f"{key}.{part}"].numpy()
            np.testing.assert_allclose(found, expected, rtol=5e-4, atol=1e-6)
        tokens = page.data["examples"]["tokens"]
        assert len(tokens[f"{one['text']}.{one['kind']}.query"]) == one["n_query"]
        assert len(tokens[f"{one['text']}.{one['kind']}.key"]) == one["n_key"]
    cross = page.data["examples"]["tokens"]
    assert cross["1.cross.query"] == cross["1.decoder.key"]
    assert cross["1.cross.key"] == cross["1.encoder.key"]


def test_head_maps_are_means_over_texts(page, mixed_audit):
    for kind in ("encoder", "decoder", "cross"):
        shown = page.data["maps"][kind]
        of_head = mixed_audit.table.filter((pl.col("kind") == kind) & (pl.col("layer") == 1) & (pl.col("head") == 2))
        assert shown["null_share"][1][2] == pytest.approx(of_head["null_share"].mean(), rel=1e-4)
        assert shown["pearson"][1][2] == pytest.approx(of_head["pearson"].drop_nulls().mean(), rel=1e-4)


def test_type_curves_are_those_of_the_tables(page, mixed_audit):
    shown = page.data["types"]["cross"]
    frame = mixed_audit.token_types.filter(pl.col("kind") == "cross")
    assert shown["pairs"]["effective"] == pytest.approx(frame["effective"].to_list(), rel=1e-4)
    received = mixed_audit.received().filter(pl.col("kind") == "cross")
    assert shown["received"]["raw"] == pytest.approx(received["raw"].to_list(), rel=1e-4)
    names = page.data["types"]["names"]
    assert [names[number] for number in shown["received"]["type"]] == received["key_type"].to_list()


def test_one_token_one_head_without_correlation(make_audit, plan, tmp_path):
    page = read(make_audit([[plan(["x"], ["x"], layers=1, heads=1)]], keep=[0]), tmp_path)
    assert page.data["maps"]["encoder"]["pearson"] == [[None]]
    assert page.data["correlation"]["encoder"]["undefined"] == 1
    assert page.data["correlation"]["encoder"]["length"] == []
    assert "undefined" in page.text
    np.testing.assert_allclose(matrices(page, page.data["examples"]["maps"][0])[0], [[1]])


def test_nan_never_reaches_the_page(make_audit, plan, tmp_path):
    audit = make_audit([[plan(["a", "b"], ["a", "b"])]], keep=[0])
    broken = replace(audit, table=audit.table.with_columns(pearson=pl.lit(float("nan"))))
    page = read(broken, tmp_path)
    assert page.data["maps"]["encoder"]["pearson"] == [[None] * 3] * 2
    assert {one["pearson"] for one in page.data["examples"]["maps"]} == {None}


def test_without_matrices_the_page_says_how_to_get_them(make_audit, plan, tmp_path):
    page = read(make_audit([[plan(["a", "b"], ["a", "b"])]]), tmp_path)
    assert "--examples 3" in page.text
    assert "--matrices" in page.text
    assert page.data["examples"]["maps"] == []


def test_a_small_budget_keeps_the_telling_heads_and_says_so(make_audit, plan, tokens, tmp_path):
    audit = make_audit([[plan(tokens(20), tokens(20))], [plan(tokens(6), tokens(6))]], keep=[0, 1])
    kept = kept_maps(audit)
    small = sum(one.characters for one in kept if one.text == 1)
    budget = small + 2 * kept[0].characters
    shown = maps_within(kept, budget)
    assert sum(one.characters for one in shown) <= budget
    assert sum(one.text == 1 for one in shown) == 6
    telling = {
        layer: max((one for one in kept if (one.text, one.layer) == (0, layer)), key=lambda one: one.null_share)
        for layer in (0, 1)
    }
    assert [one for one in shown if one.text == 0] == list(telling.values())
    page = read(audit, tmp_path, matrix_budget=budget)
    assert len(page.data["examples"]["maps"]) == 8
    assert "The audit kept 12 maps" in page.text
    nothing = read(audit, tmp_path, matrix_budget=10)
    assert "none is small enough" in nothing.text


def test_matrices_take_the_room_they_announce(page, mixed_audit):
    for one, kept in zip(page.data["examples"]["maps"], kept_maps(mixed_audit), strict=True):
        assert len(page.scripts[one["id"]]) <= kept.characters


def test_tokens_of_another_length_become_positions(make_audit, plan, tmp_path):
    audit = make_audit([[plan(["a", "b"], ["a", "b"])]], keep=[0])
    page = read(replace(audit, tokens={0: {"encoder": ["only one"]}}), tmp_path)
    assert page.data["examples"]["tokens"]["0.encoder.key"] == ["position 0", "position 1"]


def test_many_maps_become_means_that_weigh_every_map(make_audit, plan, tokens):
    audit = make_audit([[plan(tokens(n), tokens(n))] for n in range(2, 12)])
    every = correlation_points(audit, "encoder")
    assert not every.grouped
    assert len(every.frame) == every.maps == 60
    grouped = correlation_points(audit, "encoder", most=20)
    assert (grouped.grouped, grouped.width, len(grouped.frame)) == (True, 1, 20)
    wider = correlation_points(audit, "encoder", most=12)
    assert (wider.width, wider.frame["maps"].sum()) == (2, 60)
    for points in (grouped, wider):
        weighted = (points.frame["pearson"] * points.frame["maps"]).sum() / 60
        assert weighted == pytest.approx(audit.table["pearson"].mean())
    pair = audit.table.filter((pl.col("layer") == 1) & pl.col("n_key").is_in([4, 5]))["pearson"].mean()
    point = wider.frame.filter((pl.col("layer") == 1) & (pl.col("length") == 4.5))
    assert point["pearson"].to_list() == pytest.approx([pair])


def test_layers_that_were_left_out_leave_no_rows(make_audit, plan):
    audit = make_audit([[plan(["a", "b"], ["a", "b"], layers=4)]])
    some = replace(audit, table=audit.table.filter(pl.col("layer").is_in([1, 3])))
    assert head_map(some, "encoder", "null_share").layers == [1, 3]
    assert kinds(some) == ["encoder"]


def test_a_folder_that_cannot_be_written_is_refused(mixed_audit, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputFolderError, match="could not write"):
        write_audit_report(mixed_audit, tmp_path / "file" / "report.html")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("the", "the"),
        ("", "∅"),
        (" ", "␣"),
        (" the ", "␣the␣"),
        ("patch 0,1", "patch 0,1"),
        ("\n", "\\n"),
        ("\u202eabc", "\\u202eabc"),
        ("水", "水"),
    ],
)
def test_tokens_are_readable(token, shown):
    assert visible_text(token) == shown


def test_long_labels_keep_both_ends():
    assert shortened("abcdefghij", 10) == "abcdefghij"
    short = shortened("abcdefghijklmnop", 10)
    assert len(short) == 10
    assert re.fullmatch(r"abc.*….*nop", short)


def test_file_names_differ_even_without_case():
    names = ["<s>", "</s>", "S", ". ,", "漢", ""]
    found = file_names(names)
    assert list(found) == names
    assert found["<s>"] == "s"
    assert found[". ,"] == "full_stop_comma"
    assert len({name.lower() for name in found.values()}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in found.values())


def test_a_real_audit_makes_a_report(bundled, tmp_path):
    from identilens.studies.audit.study import audit

    text = f"The old bridge was closed in winter, and nobody crossed the river {SCRIPT} until spring."
    result = audit(bundled, [text], examples=1, layers=(1,))
    page = read(result, tmp_path)
    assert result.summary().text.splitlines()[0] in page.text
    assert len(page.data["examples"]["maps"]) == 12
    first = page.data["examples"]["maps"][0]
    assert (first["layer"], first["text"]) == (1, 0)
    raw, effective, null = matrices(page, first).astype(float)
    np.testing.assert_allclose(raw.sum(-1), 1, atol=5e-3)
    np.testing.assert_allclose(raw, effective + null, atol=2e-3)
    assert page.data["examples"]["tokens"]["0.encoder.key"][0] == "[CLS]"
