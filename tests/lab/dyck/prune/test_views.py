"""What chart, finding and tables of prunings show: the numbers of the table."""

import polars as pl
import pytest

import identilens as idl
from helpers.charts import marks


@pytest.fixture(scope="module")
def found():
    return idl.lab.prune_dyck(
        size=2, width=2, candidates=(8, 3), seeds=2, inputs=50, starts=2, steps=20
    )


def test_mean_and_largest_error_by_width(found):
    drawn = pl.DataFrame(marks(found.charts()["error_by_width"])["line"][0])
    for (width,), rows in found.table.group_by("width"):
        seen = dict(drawn.filter(pl.col("width") == width).select("over", "error").iter_rows())
        assert seen["largest by ascent"] == pytest.approx(rows["error"].max(), rel=1e-5)
        assert seen["mean by ascent"] == pytest.approx(rows["error"].mean(), rel=1e-5)
        assert seen["largest over random inputs"] == pytest.approx(
            rows["sampled_error"].max(), rel=1e-5
        )


def test_the_finding_compares_the_widest_with_the_narrowest(found):
    widest = found.table.filter(pl.col("candidates") == 8)
    narrowest = found.table.filter(pl.col("candidates") == 3)
    first, second, third = found.summary().text.splitlines()
    assert first.startswith(f"With 8 random products for each weight (width {widest['width'][0]})")
    assert (
        f"at most {widest['sampled_error'].max():.2g} from its target on 50 random inputs, over 2 random"
        in first
    )
    assert first.endswith(f"{narrowest['sampled_error'].max():.2g}.")
    assert (
        f"finds inputs where it is {widest['error'].max():.2g} away, and {narrowest['error'].max():.2g}."
        in second
    )
    assert second.endswith("The largest error over all inputs is at least that.")
    assert third.startswith(
        "In 4 of 4 pairs the prunings for two targets agree on every weight of layer 0"
    )
    assert found.summary().numbers["apart"] == found.table["apart"].min()
