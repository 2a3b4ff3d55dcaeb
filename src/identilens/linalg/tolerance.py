"""The one place that decides when a singular value counts as zero."""

FLOAT32_EPS = 1.1920929e-07
"""Machine epsilon of float32: the precision in which models compute the vectors that are ranked."""


def relative_tolerance(n: int, d_model: int) -> float:
    """Return the share of the largest singular value below which a singular value counts as zero.

    ``max(n, d_model) * eps`` with eps that of float32 (Bhardwaj et al. 2021, footnote 4). The values
    come out of a float32 forward pass, so directions weaker than this are rounding, whatever the
    precision of the arithmetic that ranks them. The ranked matrix has n rows (tokens) and d_model columns.
    """
    return max(n, d_model) * FLOAT32_EPS
