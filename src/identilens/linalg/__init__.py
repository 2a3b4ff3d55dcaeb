"""Rank, subspaces and small programs on plain tensors."""

from identilens.linalg.compact import OutputFactor as OutputFactor
from identilens.linalg.projected import HeadValues as HeadValues
from identilens.linalg.projected import ProjectedValues as ProjectedValues
from identilens.linalg.projected import Visible as Visible
from identilens.linalg.projected import head_values as head_values
from identilens.linalg.projected import projected as projected
from identilens.linalg.simplex import SimplexSpace as SimplexSpace
from identilens.linalg.tolerance import FLOAT32_EPS as FLOAT32_EPS
from identilens.linalg.tolerance import HALF as HALF
from identilens.linalg.tolerance import relative_tolerance as relative_tolerance
