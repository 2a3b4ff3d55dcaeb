"""Perturbed weights put back into the model: which norm follows what its output does (structure2025, III)."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.norm import matrix_norms, positive_structure, structure_norm
from identilens.measures.structure.perturbation import perturbation_directions, perturbed
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.map_runs import MapRuns
from identilens.models.substitution import Rows
from identilens.runs.tables import Row

SHARES = (0.25, 0.5, 1.0)
"""Sizes of perturbations, as shares of the largest Frobenius norm that every kind can reach."""
DRAWS = 2


def perturbation_rows(
    lens: Lens,
    item: Item,
    text: int,
    structures: Mapping[
        str, tuple[Float[Tensor, "head query key"], Float[Tensor, "head query key"]]
    ],
    seed: int = 0,
) -> list[Row]:
    """Return, for each perturbation of each head on one text, its norms and what it does to the model.

    The three kinds of a head have one Frobenius norm at each size, so that norms differ by where weights change
    and not by how much; and each is taken as a whole too (share null), which "breaking" makes the largest where the
    structure contains most of the mass. Each perturbed map is put into the running model by itself: ``output`` is the
    relative change of the head's own output, ``hidden`` that of the final hidden states, both in Frobenius norm.
    ``structures`` has W from raw attention, which perturbations keep or break, and from effective attention by
    ``<kind>.layer<l>``; layers that are missing are left alone.

    Raises:
        InputError: For structures that do not fit the heads.
    """
    [captured] = lens.capture(item, weights=True)
    rows = []
    for layer in captured.layers:
        # Hidden keys must keep weight 0, which random moves do not heed.
        key = f"{layer.site.kind}.layer{layer.site.layer}"
        if key not in structures or layer.visible is not None:
            continue
        for head, raw, effective in zip(layer.heads, *structures[key], strict=True):
            before = head.attention
            structure, other = map(positive_structure, (raw, effective))
            drawn = [
                (name, draw, direction, float(torch.linalg.matrix_norm(direction)))
                for draw in range(DRAWS)
                for name, direction in perturbation_directions(
                    before, raw, 1000 * seed + draw
                ).items()
            ]
            reach = min(size for *_, size in drawn)
            moves = [
                (name, draw, share, perturbed(before, direction, share * reach if share else size))
                for name, draw, direction, size in drawn
                for share in (*SHARES, None)
            ]
            changes = [Rows(range(len(before)), after) for *_, after in moves]
            # Few at once: a forward pass holds the maps of them all.
            hidden = MapRuns(lens, item, head, batch=8).effects(changes)["hidden"]
            for (name, draw, share, after), moved in zip(moves, hidden.tolist(), strict=True):
                change = after - before
                norms = matrix_norms(change, structure)
                rows.append(
                    {
                        "text": text,
                        "kind": head.kind,
                        "layer": head.layer,
                        "head": head.head,
                        "perturbation": name,
                        "draw": draw,
                        "share": share,
                        "structure": norms.structure,
                        "one": norms.column_sum,
                        "infinity": norms.infinity,
                        "frobenius": norms.frobenius,
                        "structure_effective": float(structure_norm(change, other)),
                        "output": head.output_error(after),
                        "hidden": moved,
                    }
                )
    return rows
