"""The finding, the charts, the maps and the report of a structure analysis whose tables are written by hand."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from helpers.charts import drawn, drop_downs, looks
from helpers.structures import by_hand
from identilens.errors import InputError
from identilens.studies.structure import maps, views

FINDING = """\
4 texts of 3 tokens: R, the directions of weights that the head's output shows in some text, is the whole \
space in 1 of 2 heads, after 3 texts at the latest (usual where texts have fewer \
tokens than a head's values have dimensions). On average, 1.5 directions are \
visible in at least half of the texts, and 2.5 hold 95 % of the visibility (R's spectrum).
Of the maps averaged over 2 representative texts, without weights below l = 0.4, the best patterns are: offset 1, \
empty 1 (number of heads). 2 of 2 heads have another one in effective attention.
With 4 representative texts W, the averaged maps after this cut, differs by 37.5 % from that of all texts (Frobenius \
norm, mean over heads).
Naim & Asher's projection of the weights (same output and row sums) has negative entries in 50.0 % of the heads and \
texts (6.2 % of all entries, the least -0.500); row sums are kept to 3.0e-10.
Weights with the same output in one text have different ones in another in 50.0 % of 2 cases; the other text's output \
moves by 50.0 % on average.
Rank correlation of norms of a change of weights with the change of the final hidden state, within heads: ‖·‖_S 1.00, \
‖·‖_S with W from effective attention -1.00, 1-norm 1.00, ∞-norm -1.00, Frobenius 0.71."""


@pytest.fixture(scope="module")
def found():
    return by_hand()


@pytest.fixture(scope="module")
def frames(found):
    return found._frames()


def sample(frame, *columns, **where):
    return frame.filter(**where).select(columns).rows()


def test_the_finding(found):
    said = found.summary()
    assert sorted(said.text.splitlines()) == sorted(FINDING.splitlines())
    assert said.numbers == {
        "texts": 4, "length": 3, "heads": 2, "full_heads": 1, "texts_to_fill": 3, "dim_half": 1.5, "dim_95": 2.5,
        "threshold": 0.4, "representatives": 2, "patterned_heads": 1, "changed_heads": 2, "to_all": 0.375,
        "negative_maps": 0.5, "negative_entries": 0.0625, "least_entry": -0.5, "row_sum_error": 3e-10,
        "disagree": 0.5, "change_second": 0.5, "spearman_structure": 1.0, "spearman_structure_effective": -1.0,
        "spearman_one": 1.0, "spearman_infinity": -1.0, "spearman_frobenius": pytest.approx(0.5**0.5),
        "spearman_output": 1.0,
    }  # fmt: skip
    assert list(said.headline) == [
        ("1 of 2", "heads whose R is the whole space of 3 dimensions"),
        ("2.5", "directions hold 95 % of R's spectrum (mean over heads)"),
        ("1 of 2", "heads show a simple pattern at l = 0.4"),
        ("1.00", "rank correlation of ‖·‖_S with the change of the final state"),
    ]
    assert found.subject() == "toy on 4 texts of 3 tokens"


def test_nothing_is_said_of_what_was_not_measured():
    found = by_hand(measured=False)
    assert [line.split(":")[0] for line in found.summary().text.splitlines()] == [
        "4 texts of 3 tokens",
        "Of the maps averaged over 2 representative texts, without weights below l = 0.4, the best patterns are",
    ]
    assert len(found.summary().headline) == 3
    assert {"overlap", "negative", "norms"}.isdisjoint(found.charts())
    assert {"norms", "classes", "kinds"}.isdisjoint(one.anchor for one in found.sections())


def test_what_charts_look_like(found, frames):
    each = views.subspace(frames, each=True).items()
    several = by_hand(("encoder", "cross")).charts()
    named = (
        "pattern_scores",
        "overlap",
        "overlap_heads",
        "negative",
        "negative_heads",
        "stability",
    )
    every = found.charts() | {f"{name}, each": chart for name, chart in each}
    every |= {f"{name}, of two kinds": several[name] for name in named}
    assert looks(every) == (Path(__file__).parent / "looks.txt").read_text("utf-8")


def test_means_over_heads_are_drawn_with_a_band(found, frames):
    charts = found.charts()
    assert drawn(charts["growth"], "texts", "measure", "value")[:4] == [
        (1, "dim R", 0.5), (2, "dim R", 1.5), (4, "dim R", 3.5), (1, "visible in half of the texts", 1.0),
    ]  # fmt: skip
    visible = "visible in this share of texts"
    columns = ("direction", "measure", "value", "low", "high")
    assert drawn(charts["spectrum"], *columns)[:2] == [
        (1, visible, 0.95, 0.9, 1.0),
        (2, visible, 0.7, 0.65, 0.75),
    ]
    assert drawn(charts["positions"], "position", "value") == [(0, 0.75), (1, 0.5), (2, 0.625)]
    each = views.subspace(frames, each=True)["positions"]
    assert drawn(each, "heads", "position", "value")[2:5] == [
        ("mean over all 2 heads", 2, 0.625),
        ("encoder layer 0, head 0", 0, 1.0),
        ("encoder layer 0, head 0", 1, 0.5),
    ]


def test_patterns_pairs_and_signs_are_drawn(found):
    charts = found.charts()
    assert drawn(charts["pattern_scores"], "heads", "pattern", "score", "place", "weights")[:3] == [
        ("0.0", "offset", 0.75, -1, "raw"),
        ("0.0", "uniform", -0.5, None, "raw"),
        ("0.0", "offset", 0.5, -1, "effective"),
    ]
    # Head 1 has no freedom: its weights cannot be moved, and it counts for nothing here.
    assert drawn(charts["overlap"], "place", "measure", "value") == [
        (0, "measured", 0.5),
        (0, "by chance", 0.25),
    ]
    assert drawn(charts["overlap_heads"], "head", "measure", "value") == [
        (0, "shared null space", 0.5), (0, "shared by chance", 0.25),
        (0, "not equivalent under the other text", 0.5), (0, "change of the other text’s output", 0.5),
    ]  # fmt: skip
    assert drawn(charts["negative"], "place", "value") == [(0, 0.0625)]
    assert drawn(charts["negative_heads"], "head", "value") == [(0, 0.0), (1, 0.125)]
    assert drawn(charts["stability"], "clusters", "measure", "value") == [
        (2, "W to that of all texts", 0.5), (4, "W to that of all texts", 0.375), (2, "before the cut", 0.1),
        (4, "before the cut", 0.1), (2, "random texts, before the cut", 0.1), (4, "random texts, before the cut", 0.05),
    ]  # fmt: skip
    assert drawn(charts["silhouette"], "clusters", "silhouette") == [(2, 0.5), (4, 0.25)]
    two = by_hand(("encoder", "cross")).charts()
    assert drawn(two["negative"], "place", "value") == [("cross 0", 0.0625), ("encoder 0", 0.0625)]
    assert drawn(two["stability"], "measure")[0] == ("W to that of all texts (cross)",)


def test_norms_and_moves_are_summed_up(found):
    follows = {row["norm"]: row for row in found.correlations().iter_rows(named=True)}
    assert list(follows) == [
        "structure", "structure_effective", "one", "infinity", "frobenius", "output",
    ]  # fmt: skip
    # Within a head the changes are 1, 4, 4, 9 sixteenths; Frobenius is 1, 1, 2, 2 and the same within a size.
    assert follows["frobenius"]["within_spearman"] == pytest.approx(0.5**0.5)
    assert follows["frobenius"]["within_pearson"] == pytest.approx(8 / (4 * 33) ** 0.5)
    assert follows["frobenius"]["same_size_spearman"] is None
    assert follows["structure"]["within_pearson"] == pytest.approx(8 / (2 * 33) ** 0.5)
    for name, sign in (("structure", 1), ("structure_effective", -1), ("output", 1)):
        row = follows[name]
        assert row["whole_spearman"] == row["same_size_spearman"] == pytest.approx(sign)
        assert row["pooled_spearman"] == pytest.approx(sign)
        assert row["pooled_pearson"] == pytest.approx(sign * 8 / (2 * 33) ** 0.5)
    columns = ("share", "structure", "frobenius", "output", "hidden", "count")
    assert sample(found.by_perturbation(), *columns) == [
        (0.25, 1.5, 1.0, 3.0, 5 / 32, 4), (0.5, 2.5, 2.0, 5.0, 13 / 32, 4), (None, 3.5, 3.0, 7.0, 25 / 32, 4),
    ]  # fmt: skip
    charts = found.charts()
    assert drawn(charts["perturbations"], "perturbation", "share", "hidden") == [
        ("aware", 0.25, 0.15625),
        ("aware", 0.5, 0.40625),
    ]
    assert drawn(charts["norms"], "norm", "over", "correlation")[:2] == [
        ("‖·‖_S", "within heads", 1.0),
        ("‖·‖_S, effective", "within heads", -1.0),
    ]


def test_w_and_mean_weights_in_the_viewer(found):
    shown = maps.token_maps(found.table, found.matrices, 0.5, [0])
    assert len(shown) == 2 * 2 * 2
    assert [tuple(one.choices.values()) for one in shown[:4]] == [
        ("encoder", 0, 0, "raw attention", "2 representatives"),
        ("encoder", 0, 0, "raw attention", "all 4 texts"),
        ("encoder", 0, 0, "effective attention (sizes)", "2 representatives"),
        ("encoder", 0, 0, "effective attention (sizes)", "all 4 texts"),
    ]
    assert [list(one.layers) for one in shown[:2]] == [
        ["W at l = 0.4", "W at l = 0.8", "mean weights"],
        ["W at l = 0.4", "mean weights"],
    ]
    # What is below l is halved, and rows are scaled to sum 1.
    assert shown[0].layers["W at l = 0.4"].flatten().tolist() == pytest.approx(
        [0.5, 0.5, 0, 0.1 / 0.75, 0.15 / 0.75, 0.5 / 0.75, 0, 0.05 / 0.95, 0.9 / 0.95]
    )
    assert shown[0].queries == shown[0].keys == ["0 (special)", "1", "2"]
    assert shown[0].note == (
        "At the run's own l = 0.4: raw offset at −1, score 0.75; effective vertical at key 0, a special token, score "
        "0.50. dim R = 3 of 3."
    )
    assert shown[4].note == (
        "At the run's own l = 0.4: raw empty in most rows; effective no simple pattern (best score 0.12). dim R = 2 of "
        "3."
    )
    assert maps.levels(found.table) == [0.4, 0.0, 0.2, 0.8]


def test_what_a_threshold_leaves_by_hand(found):
    kept = maps.kept(found.table, found.matrices)
    assert len(kept) == 2 * 2 * 61
    of_head = kept.filter(head=0, weights="raw")
    assert of_head["threshold"].to_list() == pytest.approx([0.9 * (i / 60) ** 2 for i in range(61)])
    # Entries are 0, 0, 0.1, 0.2, 0.3, 0.5, 0.5, 0.5, 0.9, and the largest of the rows 0.5, 0.5, 0.9.
    for step, left, emptied in ((0, 9, 0), (15, 7, 0), (44, 4, 0), (45, 1, 2), (60, 1, 2)):
        row = of_head.row(step, named=True)
        assert (row["kept"], row["emptied"]) == pytest.approx((left / 9, emptied / 3)), step


def test_the_report_reads_the_tables(found):
    sections = {one.anchor: one for one in found.sections()}
    assert [(one.anchor, len(one.charts), len(one.maps)) for one in sections.values()] == [
        ("maps", 3, 8), ("patterns", 2, 0), ("subspace", 3, 0), ("classes", 4, 0), ("stability", 2, 0), ("norms", 2, 0),
        ("kinds", 0, 0), ("reading", 0, 0),
    ]  # fmt: skip
    heads = ["mean over all 2 heads", "encoder layer 0, head 0", "encoder layer 0, head 1"]
    for chart in (*sections["subspace"].charts, sections["maps"].charts[-1]):
        assert drop_downs(chart) == {"Heads": heads}
    assert "the weights of 2 representative texts are averaged" in sections["maps"].text[0]
    assert sections["maps"].charts[:2] == ["structures_encoder_raw", "structures_encoder_effective"]
    assert sections["subspace"].text[-1] == (
        "Each text against R: on average T has rank 2.5 of 3. 15.0 % of a text's attention (squared) lies in "
        "directions of R that this text's values send to zero. 0.0 % of its ker(T′)⊥ lies outside R, and 50.0 % "
        "outside the directions visible in half of the texts."
    )
    assert sections["classes"].text[1] == (
        "Over 2 pairs of texts: where weights can be moved at all, they are equivalent under the first and not under "
        "the second in 50.0 % of the cases; the second text's output moves by 50.0 % on average."
    )
    assert sections["classes"].note.startswith("Naim & Asher's projection")
    assert sections["subspace"].frame.rows() == [
        ("encoder", 0, 0, 2.5, pytest.approx(0.15), 0.0, 0.25, 0.0, 0.0),
        ("encoder", 0, 1, 2.5, pytest.approx(0.15), 0.0, 0.75, 0.125, -0.5),
    ]
    assert sections["stability"].frame.rows() == [(2, 3, "a b c"), (1, 1, "d e f")]
    columns = ["text", "texts in its cluster", "its first 200 characters"]
    assert sections["stability"].frame.columns == columns
    assert "Uniform attention has 1/3 everywhere." in sections["reading"].text[1]
    heads = found.overview()["Heads"]
    assert heads.rows() == [
        (0, 0, 3, 3, 1, "offset 0.75", "vertical 0.5"),
        (0, 1, 2, 4, 2, "empty -0.25", "mixed 0.12"),
    ]
    assert by_hand(("encoder", "cross")).overview()["Heads"].columns[0] == "kind"


def test_mean_weights_by_name(found):
    assert found.mean_weights(0, 1)[0].tolist() == pytest.approx([0.0, 0.1, 0.9])
    assert found.mean_weights(0, 1, name="all_raw")[0].tolist() == pytest.approx([0.1, 0.9, 0.0])
    assert (found.sites, found.threshold) == ([("encoder", 0)], 0.4)
    assert replace(found, table=found.table.head(1)).threshold == 0.4
    for layer, head in ((1, 0), (0, 2), (0, -1)):
        with pytest.raises(InputError, match="There are encoder layer 0"):
            found.mean_weights(layer, head)
    two = by_hand(("encoder", "cross"))
    with pytest.raises(InputError, match="the kinds encoder, cross"):
        two.mean_weights(0, 0)
    assert two.mean_weights(0, 0, "cross").shape == (3, 3)
    assert isinstance(two.visibility_by_position(), pl.DataFrame)


def test_of_several_texts_the_mean_is_shown_and_the_least_entry(found):
    texts = views.texts_by_head(found.texts)
    heads = found.texts.partition_by("kind", "layer", "head", maintain_order=True)
    assert len(texts) == len(heads)
    for row, rows in zip(texts.iter_rows(named=True), heads, strict=True):
        assert row["least"] == rows["least"].min()
        assert row["negative"] == pytest.approx(rows["negative"].mean())
        assert row["rank"] == pytest.approx(rows["rank"].mean())
    spread = found.texts.with_columns(least=-pl.int_range(pl.len()).cast(pl.Float64))
    assert views.texts_by_head(spread)["least"].min() == 1 - len(spread)
    assert views.texts_by_head(spread.with_columns(outside=9e-10))["outside"].to_list() == [0, 0]
