"""Token identifiability as charts, finding and report: what is drawn, what is said, nothing of a name is run."""

from dataclasses import replace

import polars as pl
import pytest

from helpers import ratetables
from helpers.ratetables import SCRIPT
from identilens.studies.tokens.result import means_table

MAKERS = ["same_layer", "across_layers", "neighbours", "shares", "two_checkpoints"]


def layers(spec):
    """The views within a chart."""
    return [leaf for one in spec.get("layer", ()) for leaf in layers(one)] or [spec]


def drawn(chart):
    """What each line of a chart goes through, by colour and dash; and where the guess is."""
    spec = chart.to_dict()
    (line,) = (one for one in layers(spec) if one["mark"]["type"] == "line")
    names = [
        line["encoding"][place]["field"]
        for place in ("color", "strokeDash")
        if place in line["encoding"]
    ]
    held = [one for data in spec["datasets"].values() for one in data]
    lines = {}
    for row in held:
        if set(names) <= set(row):
            x, y = (row[line["encoding"][axis]["field"]] for axis in ("x", "y"))
            lines.setdefault(tuple(row[name] for name in names), []).append((x, y))
    (guess,) = (one["encoding"]["y"]["datum"] for one in layers(spec) if one["mark"]["type"] == "rule" and
                "datum" in one["encoding"]["y"])  # fmt: skip
    return lines, guess


def errors(chart):
    """Standard errors that a chart draws."""
    spec = chart.to_dict()
    return [
        row["standard_20_error"]
        for data in spec["datasets"].values()
        for row in data
        if len(row) > 1
    ]


def close(points):
    return [pytest.approx(point) for point in points]


def test_rates_by_layer():
    charts = ratetables.same_layer().charts()
    assert list(charts) == ["rate_by_layer", "token_rate_by_layer", "train_and_test_cosine"]
    lines, guess = drawn(charts["rate_by_layer"])
    assert list(lines) == [("Naive look-up, cosine",), ("Linear probe, cosine",)]
    # Two folds 0.02 apart: their mean, and a standard error of 0.01.
    assert lines[("Linear probe, cosine",)] == close([(1, 0.91), (2, 0.86), (3, 0.81)])
    assert errors(charts["rate_by_layer"]) == pytest.approx([0.01] * 6)
    assert guess == pytest.approx(0.1)
    lines, guess = drawn(charts["token_rate_by_layer"])
    assert lines[("Naive look-up, cosine",)] == close([(1, 0.9), (2, 0.9), (3, 0.9)])
    assert guess == pytest.approx(0.2)
    lines, _ = drawn(charts["train_and_test_cosine"])
    assert lines[("Linear probe, cosine", "test")] == close([(1, 0.91), (2, 0.86), (3, 0.81)])
    assert lines[("Linear probe, cosine", "training")] == close([(1, 0.97), (2, 0.97), (3, 0.97)])
    assert len(lines) == 2


def test_one_fold_has_no_errors():
    result = ratetables.same_layer()
    one = replace(result, table=result.table.filter(fold=0))
    kinds = [layer["mark"]["type"] for layer in layers(one.charts()["rate_by_layer"].to_dict())]
    assert kinds == ["line", "point", "rule", "text"]
    assert (
        next(layer["mark"]["type"] for layer in layers(result.charts()["rate_by_layer"].to_dict()))
        == "rule"
    )


def test_across_layers_has_a_line_for_each_trained_layer_and_a_map():
    charts = ratetables.across_layers().charts()
    assert list(charts)[2:] == ["across_layers_linear_cosine", "across_layers_map_linear_cosine"]
    lines, _ = drawn(charts["across_layers_linear_cosine"])
    assert lines[(1,)] == close([(1, 0.91), (2, 0.81), (3, 0.71)])
    assert list(lines) == [(1,), (2,), (3,)]
    rates, _ = drawn(charts["rate_by_layer"])
    assert rates[("Linear probe, cosine",)] == close([(1, 0.91), (2, 0.91), (3, 0.91)])
    (cells,) = charts["across_layers_map_linear_cosine"].to_dict()["datasets"].values()
    rate = {(cell["layer_trained"], cell["layer_tested"]): cell["rate"] for cell in cells}
    assert len(rate) == 9
    assert rate[1, 3] == pytest.approx(0.71)


def test_neighbours_to_the_left_and_to_the_right_have_a_colour_each():
    (chart,) = ratetables.neighbours().charts().values()
    lines, _ = drawn(chart)
    assert list(lines) == [
        ("to the left", "1 away"),
        ("to the left", "2 away"),
        ("to the right", "1 away"),
        ("to the right", "2 away"),
    ]
    assert lines["to the right", "1 away"] == close([(1, 0.51), (2, 0.51)])


def test_shares_and_checkpoints():
    ((name, chart),) = ratetables.shares().charts().items()
    assert name == "rate_by_share_layer5"
    assert drawn(chart)[0] == {("Linear probe, cosine",): close([(50, 0.51), (100, 0.61)])}
    lines, _ = drawn(ratetables.two_checkpoints().charts()["rate_by_layer"])
    assert lines["Naive look-up, cosine", "model"] == close([(1, 0.81), (2, 0.71)])
    assert lines["Naive look-up, cosine", "compared"] == close([(1, 0.61), (2, 0.51)])


def test_of_two_checkpoints_one_is_chosen():
    result = ratetables.across_layers()
    other = result.table.with_columns(
        checkpoint=pl.lit("compared").cast(result.table["checkpoint"].dtype)
    )
    both = replace(result, table=pl.concat([result.table, other]))
    for name in ("across_layers_linear_cosine", "across_layers_map_linear_cosine"):
        offered = {
            param["name"]: param["bind"]["options"]
            for param in both.charts()[name].to_dict()["params"]
        }
        assert offered["choose_checkpoint"] == ["model", "compared"]


@pytest.mark.parametrize("make", MAKERS)
def test_every_experiment_is_summed_up_and_reported(make, tmp_path):
    result = getattr(ratetables, make)()
    said = {
        "same_layer": "Linear probe, cosine: 91.0 % of the tokens recovered at layer 1, 81.0 % at layer 3.",
        "across_layers": "trained on 1, tested on 3: 71.0 %; trained on 3, tested on 1: 71.0 %",
        "neighbours": "16.0 % at -2, 41.0 % at -1, 51.0 % at +1, 26.0 % at +2",
        "shares": "recovered at layer 5: 51.0 % with 50 %, 61.0 % with 100 % of the training sentences",
        "two_checkpoints": "Naive look-up, cosine (compared): from each layer to the one below, 51.0 % to 61.0 %",
    }
    finding = result.summary()
    assert said[make] in finding.text
    assert "Chance (guessing a position of the sentence): 10.0 %. 2 folds" in finding.text
    assert finding.numbers["folds"] == 2
    page = result.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert said[make] in page
    shown = [name for section in result.sections() for name in section.charts]
    assert shown == list(result.charts())


def test_every_experiment_is_drawn_alike_each_time(tmp_path):
    for make in MAKERS:
        result = getattr(ratetables, make)()
        files = result.save_figures(tmp_path / make / "a", ["svg"])
        assert {path.stem for path in files} == set(result.charts())
        again = result.save_figures(tmp_path / make / "b", ["svg"])
        assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]


def test_fewer_folds_of_one_probe_are_said():
    result = ratetables.same_layer()
    fewer = replace(
        result, table=result.table.filter((pl.col("probe") == "naive") | (pl.col("fold") == 0))
    )
    assert "Linear probe, cosine (on 1 of 2 folds): 90.0 %" in fewer.summary().text
    assert "Naive look-up, cosine: 71.0 %" in fewer.summary().text


def test_headline_is_the_last_layer():
    finding = ratetables.same_layer().summary()
    assert finding.headline[0] == (
        "81.0 %",
        "recovered at layer 3 by the best probe (Linear probe, cosine)",
    )
    assert finding.numbers["best_layer"] == 3
    assert finding.numbers["best_rate"] == pytest.approx(0.81)
    assert "recovered at layer 2, offset +1, by" in ratetables.neighbours().summary().headline[0][1]


def test_the_table_leaves_out_what_never_differs():
    table = means_table(ratetables.same_layer().means())
    assert table.columns == [
        "Probe", "Layer", "Recovered (%)", "±", "Any position (%)", "On training (%)", "Chance (%)", "Validation loss",
        "Learning rate", "Epochs", "Stopped early (%)", "Folds",
    ]  # fmt: skip
    last = table.row(-1, named=True)
    assert (last["Probe"], last["Layer"], last["Recovered (%)"], last["±"]) == (
        "Linear probe, cosine",
        3,
        81.0,
        1.0,
    )
    assert (last["Learning rate"], last["Stopped early (%)"]) == ("0.001", 100.0)
    assert means_table(ratetables.across_layers().means()).columns[:3] == [
        "Probe",
        "Trained on",
        "Tested on",
    ]
    assert "Checkpoint" in means_table(ratetables.two_checkpoints().means()).columns


def test_figures_stand_in_the_order_of_the_probes():
    pairs = [(probe, distance) for probe in ("linear", "mlp") for distance in ("cosine", "l2")]
    rows = [
        {
            "probe": probe,
            "distance": distance,
            "layer_trained": 1,
            "layer_tested": layer,
            "rate": 0.5,
        }
        for probe, distance in pairs
        for layer in (1, 2)
    ]
    result = ratetables.rates_of("across-layers", rows)
    for _ in range(3):
        names = [name for name in result.charts() if name.startswith("across")]
        assert list(dict.fromkeys(tuple(name.split("_")[-2:]) for name in names)) == pairs


def test_the_table_of_rates_is_in_per_cent_with_a_column_for_each_layer():
    result = ratetables.same_layer()
    result = replace(result, table=result.table.with_columns(rate=pl.lit(0.123456)))
    rates = result.by_layer()
    assert rates.columns == ["probe", "distance", "folds", "1", "2", "3"]
    assert rates["1"].drop_nulls().to_list() == [12.35] * 2
