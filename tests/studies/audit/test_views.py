"""What an audit's charts and report show: the numbers of its tables, and tokens as they are."""

import json
import re
from dataclasses import replace
from html import unescape

import polars as pl
import pytest
import torch

import identilens as idl
from helpers.audits import SCRIPT, TRICKY, Plan, made_audit, mixed_audit, words
from helpers.browsing import Visit
from identilens.charts.kit import lines
from identilens.charts.labels import visible_text
from identilens.errors import InputError
from identilens.runs.tables import print_table
from identilens.studies.audit import views
from identilens.studies.audit.heads import heads_in_words
from identilens.studies.audit.maps import fitting_maps, kept_maps
from identilens.studies.head_views import choose_kind


@pytest.fixture(scope="module")
def mixed():
    return mixed_audit()


@pytest.fixture(scope="module")
def small():
    return made_audit([[Plan(words(n), words(n))] for n in (3, 7, 12)], keep=[0, 2])


@pytest.fixture(scope="module")
def report(mixed, tmp_path_factory):
    return mixed.to_html(tmp_path_factory.mktemp("report") / "new" / "report.html")


@pytest.mark.parametrize(
    "kinds", [["encoder"], ["cross", "decoder"], ["cross", "encoder", "decoder"]]
)
def test_kinds_are_to_be_chosen_where_there_are_several(mixed, kinds):
    frame = mixed.by_head().filter(pl.col("kind").is_in(kinds))
    chart = choose_kind(lines(frame, "layer", "null_share"), frame)
    offered = [one["bind"]["options"] for one in chart.to_dict().get("params", ())]
    ordered = [kind for kind in ("encoder", "decoder", "cross") if kind in kinds]
    assert offered == ([ordered] if len(kinds) > 1 else [])


def rows(chart):
    """Return the rows of every data set of a chart."""
    return [row for held in chart.to_dict()["datasets"].values() for row in held]


def leaves(spec):
    """Return the views within a chart."""
    inner = [
        leaf for part in ("layer", "concat") for one in spec.get(part, ()) for leaf in leaves(one)
    ]
    return inner or [spec]


def page_data(path):
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>',
        path.read_text("utf-8"),
        re.DOTALL,
    )
    return json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} in the data"))


def test_charts_by_name(small, mixed):
    telling = small.table.filter(text=2).sort("null_share").row(-1, named=True)
    names = [
        "certain_and_influential", "certain_mass_map", "null_share_map", "correlation_map", "correlation_by_length",
        "token_types_raw", "token_types_effective", "attention_to_type",
    ]  # fmt: skip
    assert list(small.charts())[:8] == names
    assert list(small.charts())[9] == f"maps_text2_layer{telling['layer']}_head{telling['head']}"
    assert {name.rsplit("_", 1)[1] for name in list(mixed.charts())[8:]} == {
        "encoder",
        "decoder",
        "cross",
    }


def test_maps_by_head_show_the_means(mixed):
    charts = mixed.charts()
    for name, measure in (("null_share_map", "null_share"), ("correlation_map", "pearson")):
        drawn = {
            (row["kind"], row["layer"], row["head"]): row[measure] for row in rows(charts[name])
        }
        for row in mixed.by_head().iter_rows(named=True):
            assert drawn[row["kind"], row["layer"], row["head"]] == pytest.approx(
                row[measure], rel=1e-5
            )
        kinds = next(
            param for param in charts[name].to_dict()["params"] if param["name"] == "choose_kind"
        )
        assert kinds["bind"]["options"] == ["encoder", "decoder", "cross"]
    assert "choose_kind" not in json.dumps(
        made_audit([[Plan(words(3), words(3))]]).charts()["null_share_map"].to_dict()
    )


def test_points_by_length_stand_beside_the_size_of_a_value(small):
    spec = small.charts()["correlation_by_length"].to_dict()
    drawn = rows(small.charts()["correlation_by_length"])
    points = [row for row in drawn if "pearson" in row]
    assert sorted(row["pearson"] for row in points) == pytest.approx(
        sorted(small.table["pearson"]), rel=1e-5
    )
    assert {row["length"] for row in points} == {3, 7, 12}
    assert [row["label"] for row in drawn if "label" in row] == ["d_v = 4"]
    assert {
        leaf["encoding"]["x"]["datum"] for leaf in leaves(spec) if "datum" in leaf["encoding"]["x"]
    } == {4}


def test_a_size_of_values_far_above_every_length_is_said_and_not_drawn(small):
    far = small.table.with_columns(d_v=pl.lit(64, pl.Int64))
    assert "d_v" not in json.dumps(views.correlation_by_length(far).to_dict())
    assert "d_v = 64 lies far to the right" in views.length_note(far)


@pytest.mark.parametrize(
    ("undefined", "said"),
    [
        (0, ""),
        (1, " 1 map without a correlation is left out."),
        (2, " 2 maps without a correlation are left out."),
    ],
)
def test_maps_without_a_correlation_are_counted(small, undefined, said):
    pearson = [float("nan")] * undefined + small.table["pearson"].to_list()[undefined:]
    note = views.length_note(small.table.with_columns(pearson=pl.Series(pearson)))
    counted = f"(one text, layer and head); {len(pearson) - undefined} in all."
    assert f"{counted}{said} Layers count from 0." in note


def test_many_maps_become_means_that_weigh_every_map():
    table = made_audit([[Plan(words(n), words(n))] for n in range(2, 12)]).table
    every, width = views.correlation_points(table)
    assert (len(every), width) == (60, 0)
    for most, expected in ((20, 1), (12, 2)):
        points, width = views.correlation_points(table, most)
        assert (width, points["maps"].sum()) == (expected, 60)
        assert (points["pearson"] * points["maps"]).sum() / 60 == pytest.approx(
            table["pearson"].mean()
        )
    pair = table.filter(pl.col("n_key").is_in([4, 5]), layer=1)["pearson"].mean()
    assert points.filter(layer=1, length=4.5)["pearson"].to_list() == pytest.approx([pair])


def test_token_types_have_one_scale_and_the_numbers_of_the_table(mixed):
    charts = mixed.charts()
    scales = set()
    for weights in ("raw", "effective"):
        spec = charts[f"token_types_{weights}"].to_dict()
        scales |= {tuple(leaf["encoding"]["y"]["scale"]["domain"]) for leaf in leaves(spec)}
        heads = [row[weights] for row in rows(charts[f"token_types_{weights}"]) if "head" in row]
        assert heads == pytest.approx(mixed.received()[weights].to_list(), rel=1e-5, abs=1e-9)
    assert len(scales) == 1
    drawn = rows(charts["attention_to_type"])
    pairs = mixed.token_types.filter(kind="cross", layer=1, query_type=SCRIPT, key_type="[CLS]")
    for weights in ("raw", "effective"):
        place = {
            "kind": "cross",
            "layer": 1,
            "query_type": SCRIPT,
            "key_type": "[CLS]",
            "Weights": weights,
        }
        (row,) = (row for row in drawn if place.items() <= row.items())
        low, mean, high = (getattr(pairs[weights], name)() for name in ("min", "mean", "max"))
        assert [row["Lowest_20_head"], row["attention"], row["Highest_20_head"]] == pytest.approx(
            [low, mean, high], 1e-5
        )


def test_printed_maps_are_raw_effective_and_their_difference(small):
    name, chart = list(small.charts().items())[-1]
    layer, head = map(int, re.findall(r"\d+", name)[1:])
    raw, effective = (
        small.matrices[f"text2.layer{layer}.head{head}.encoder.{part}"]
        for part in ("raw", "effective")
    )
    spec = chart.to_dict()
    for part, expected in zip(spec["concat"], (raw, effective, raw - effective), strict=True):
        drawn = [row["value"] for row in spec["datasets"][part["data"]["name"]]]
        assert drawn == pytest.approx(expected.flatten().tolist(), rel=1e-3, abs=1e-6)


def test_figures_are_written_even_with_tricky_tokens(mixed, tmp_path):
    stems = {path.stem for path in mixed.save_figures(tmp_path, ["svg"])}
    assert {
        "null_share_map_encoder",
        "token_types_raw_cross",
        "attention_to_type_CLS_decoder",
    } <= stems
    (drawn,) = tmp_path.glob("maps_text0_*_encoder.svg")
    assert "&lt;scrip" in drawn.read_text("utf-8")
    with pytest.raises(InputError, match="formats must be a list"):
        mixed.save_figures(tmp_path, ["gif"])


def test_the_report_has_the_finding_its_sections_and_the_run(mixed, report):
    text = unescape(re.sub(r"<[^>]+>", " ", report.read_text("utf-8")))
    finding = mixed.summary()
    for line in [
        *finding.text.splitlines(),
        "ab" * 32,
        "f0" * 32,
        "max(n, d_model) * eps",
        f"models/{SCRIPT}",
    ]:
        assert line in text
    assert {value for value, _ in finding.headline} <= set(
        re.findall(r"<dd>(.*?)</dd>", report.read_text("utf-8"))
    )
    assert [section.anchor for section in mixed.sections()] == [
        "groups", "maps", "heads", "length", "types", "numbers", "reading"
    ]  # fmt: skip
    assert "has no effect on the output" in text
    said = " ".join(re.findall(r"<p>(.*?)</p>", report.read_text("utf-8"), re.DOTALL))
    sentences = re.split(r"(?<=[.:;?])\s", unescape(said))
    certain = [one for one in sentences if re.search("determined|certain", one.lower())]
    assert certain
    assert not [one for one in certain if re.search("null (share|space)|effective", one)]


def test_the_report_asks_for_nothing_and_runs_no_token(report):
    page = report.read_text("utf-8")
    assert SCRIPT not in page
    written = re.sub(r"<script[^>]*>.*?</script>", "<script>", page, flags=re.DOTALL)
    assert written.count("<script") == 4
    assert not re.search(r'(?:src|href|action)="(?!#|data:)', written)


def test_the_viewer_holds_raw_and_effective_of_every_kept_map(mixed, report):
    viewer = page_data(report)["viewers"]["maps-maps"]
    assert len(viewer["maps"]) == len(mixed.matrices) / 2
    assert all(set(one["layers"]) == {"raw", "effective"} for one in viewer["maps"])
    assert all(one["differences"] == {"null": ["raw", "effective"]} for one in viewer["maps"])
    cross = next(one for one in viewer["maps"] if one["choices"]["kind"] == "cross")
    assert viewer["tokens"][cross["queries"]] == words(6)
    assert viewer["tokens"][cross["keys"]] == [
        visible_text(token) for token in (*TRICKY, *words(5))
    ]
    telling = mixed.table.filter(pl.col("text") < 2, pl.col("pearson").is_not_null())
    telling = telling.sort(pl.col("certain_mass") * (1 - pl.col("pearson"))).row(-1, named=True)
    assert viewer["maps"][viewer["first"]]["choices"]["head"] == telling["head"]
    assert f"Null share {telling['null_share']:.3f}" in viewer["maps"][viewer["first"]]["note"]


def test_what_does_not_fit_leaves_out_whole_layers_and_is_said_beside_the_maps(monkeypatch):
    audit = made_audit([[Plan(words(20), words(20))], [Plan(words(6), words(6))]], keep=[0, 1])
    kept = kept_maps(audit.table, audit.matrices)
    budget = int((10 * (6 * 36 + 3 * 400) + 12 * 4 * (6 * 6 + 3 * 20)) / 6) + 1
    shown = fitting_maps(kept, budget)
    assert len(shown.filter(text=1)) == 6
    assert shown.filter(text=0).select("layer", "head").rows() == [(0, 0), (0, 1), (0, 2)]
    assert fitting_maps(kept, 10).is_empty()
    assert fitting_maps(kept).equals(kept)
    monkeypatch.setattr(
        "identilens.studies.audit.result.fitting_maps", lambda held: fitting_maps(held, budget)
    )
    section = audit.sections()[1]
    assert len(section.maps) == 9
    assert "saved 12 maps. To keep this file small, it shows 9" in section.note
    said = "it shows 1 of 2 layers of this text: encoder 0."
    assert [said in one.note for one in section.maps] == [
        one.choices["text"].startswith("0") for one in section.maps
    ]


def test_a_head_that_parks_has_a_range_with_as_many_digits_as_tell_its_ends_apart():
    rows = {
        "layer": 0,
        "kind": "encoder",
        "sink_mass": 0.9,
        "sink_norm_share": 0.01,
        "sink_token": "[CLS]",
        "relative_output": 1.0,
    }
    for lo, hi, expected in (
        (0.6, 0.7, "60 % to 70 %"), (0.651, 0.654, "65.1 % to 65.4 %"), (0.65, 0.65, "65 %, no more and no less"),
    ):  # fmt: skip
        heads = pl.DataFrame([rows | {
            "head": 0, "group": "mostly certain and idle", "outcome": "states", "sink_weight": lo, "sink_lo": lo,
            "sink_hi": hi,
        }])  # fmt: skip
        assert (
            f"alternatives with exactly the same output give it {expected} (means)"
            in heads_in_words(heads)
        )


def test_missing_numbers_are_not_called_none(capsys):
    print_table("One", pl.DataFrame({"error": [None, 0.5], "texts": [1, None]}))
    printed = capsys.readouterr().out
    assert "None" not in printed
    assert printed.count("–") == 2


def test_without_matrices_the_report_says_how_to_get_them():
    section = made_audit([[Plan(["a", "b"], ["a", "b"])]]).sections()[1]
    assert "--examples 3" in section.note
    assert "--matrices" in section.note


def test_nan_is_shown_as_missing(small, tmp_path):
    broken = replace(small, table=small.table.with_columns(pearson=pl.lit(float("nan"))))
    assert "No map has a correlation" in views.length_note(broken.table)
    page_data(broken.to_html(tmp_path / "report.html"))


def test_one_token_is_drawn_with_its_correlation_undefined(browser, tmp_path):
    audit = made_audit([[Plan(["x"], ["x"], layers=1, heads=1)]], keep=[0])
    assert audit.summary().numbers["pearson"] is None
    assert (
        "undefined",
        "mean correlation of raw and effective attention",
    ) in audit.summary().headline
    assert "1 map without a correlation is left out" in views.length_note(audit.table)
    Visit(browser, audit.to_html(tmp_path / "report.html")).close()


def test_a_click_on_a_head_in_a_chart_opens_its_map(browser, report):
    visit = Visit(browser, report)
    cell = visit.page.locator("#groups-1 .mark-rect path").nth(4)
    layer, head = (
        re.search(rf"{name}: (\d+)", cell.get_attribute("aria-label"))[1]
        for name in ("Layer", "Head")
    )
    cell.click(force=True)
    opened = visit.page.locator(f"#maps .viewer-title:text-is('Layer {layer}, head {head}')")
    opened.wait_for()
    assert opened.is_visible()
    visit.close()


def test_a_token_is_read_as_it_is(browser, report, mixed):
    visit = Visit(browser, report)
    visit.choose("Kind", "encoder")
    visit.choose("Layer", "0")
    visit.choose("Head", "1")
    visit.page.get_by_role("button", name="Side by side").click()
    visit.layer("null").focus()
    visit.page.keyboard.press("ArrowDown")
    raw, effective = (
        mixed.matrices[f"text0.layer0.head1.encoder.{part}"][0, 0] for part in ("raw", "effective")
    )
    shown = visit.read()
    assert shown.startswith(f"{SCRIPT} (query 0) → {SCRIPT} (key 0): ")
    numbers = [
        float(number.replace("−", "-"))
        for number in re.findall(r"(?:raw|effective|null) (\S+?)(?:,|$)", shown)
    ]
    assert numbers == pytest.approx(
        [float(raw), float(effective), float(raw - effective)], abs=3e-3
    )
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_report_of_a_real_model_opens(browser, bundled, tmp_path, width, scheme):
    text = f"The old bridge was closed in winter, and nobody crossed the river {SCRIPT} until spring came."
    result = idl.audit(bundled, [text], layers=(1,))
    assert len(result.matrices) == 36, "raw, effective and values of each head"
    torch.testing.assert_close(
        result.matrices["text0.layer1.head0.encoder.raw"].sum(-1),
        torch.ones(result.table["n_query"][0]),
    )
    visit = Visit(browser, result.to_html(tmp_path / "report.html"), width, scheme)
    visit.page.wait_for_selector("#maps .viewer-heads[data-drawn]")
    assert visit.page.locator("#maps .viewer-heads canvas").count() == 12
    for chart in visit.page.locator(".chart").all():
        assert chart.locator("svg").bounding_box()["width"] <= chart.bounding_box()["width"] + 1
    visit.close()
