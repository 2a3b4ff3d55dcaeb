"""Token identifiability as charts, finding and report: what is drawn, what is said, nothing of a name is run."""

import pytest

from helpers import ratetables


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
