"""The finding, the charts, the maps and the report of a structure analysis whose tables are written by hand."""

import pytest

from helpers.charts import drawn
from helpers.structures import by_hand


@pytest.fixture(scope="module")
def found():
    return by_hand()


def sample(frame, *columns, **where):
    return frame.filter(**where).select(columns).rows()


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
    assert drawn(found.charts()["norms"], "norm", "measure", "value")[:2] == [
        ("‖·‖_S", "Within spearman", 1.0),
        ("‖·‖_S, effective", "Within spearman", -1.0),
    ]
