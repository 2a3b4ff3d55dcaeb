"""Structure-aware identifiability: equivalence classes, norm, subspace R and structure W (structure2025)."""

from identilens.measures.structure.circularity import circularity as circularity
from identilens.measures.structure.efficient import efficient_attention as efficient_attention
from identilens.measures.structure.efficient import equivalent as equivalent
from identilens.measures.structure.norm import matrix_norms as matrix_norms
from identilens.measures.structure.norm import positive_structure as positive_structure
from identilens.measures.structure.norm import structure_norm as structure_norm
from identilens.measures.structure.perturbation import (
    perturbation_directions as perturbation_directions,
)
from identilens.measures.structure.perturbation import perturbed as perturbed
from identilens.measures.structure.subspace import Subspace as Subspace
from identilens.measures.structure.subspace import against_subspace as against_subspace
from identilens.measures.structure.weights import cut as cut
from identilens.measures.structure.weights import structure_weights as structure_weights
