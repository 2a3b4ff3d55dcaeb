"""Likeness of an attention pattern to a stack: the weight on the last unmatched bracket."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from identilens.lab.dyck.language import Dyck
from identilens.lab.dyck.parsing import parse


@dataclass(frozen=True)
class StackLikeness:
    """Attention of a head to the top of the stack, at closing brackets that leave a bracket open.

    Attributes:
        weight: Mean weight on the last unmatched open bracket, in [0, 1]; NaN if there is no such position.
        first: Share of the positions where that bracket has the largest weight.
        even: Mean weight of uniform attention on it: the chance level.
        places: Number of positions.
    """

    weight: float
    first: float
    even: float
    places: int


def stack_likeness(
    language: Dyck, weights: Float[Tensor, "count n n"], tokens: Int[Tensor, "count n"]
) -> StackLikeness:
    """Return how stack-like attention is (the pattern of Ebrahimi et al. 2020 and Yao et al. 2021).

    The queries are closing brackets after which the stack is not empty. There the next closing bracket depends on the
    last unmatched bracket, which is never the query itself.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck, stack_likeness
        >>> words = torch.tensor([[3, 4, 6, 5]])
        >>> stack_likeness(Dyck(types=2, max_depth=3), torch.full((1, 4, 4), 0.25), words)
        StackLikeness(weight=0.25, first=1.0, even=0.3333333432674408, places=1)
    """
    parsed = parse(language, tokens)
    chosen = language.is_close(tokens) & (parsed.depth > 0)
    sequence, query = chosen.nonzero(as_tuple=True)
    rows = weights[sequence, query].double()
    top = parsed.top_place[chosen]
    measures = (
        rows.gather(1, top[:, None])[:, 0],
        (rows.argmax(1) == top).double(),
        1 / (query + 1.0),
    )
    weight, first, even = (float(measure.mean()) for measure in measures)
    return StackLikeness(weight, first, even, len(rows))
