"""Options of certifying rows."""

from dataclasses import dataclass
from typing import Annotated, Any

from identilens.errors import SettingError
from identilens.runs.settings import LIST, WORDED, Positions, Switch, Tolerances
from identilens.studies.settings import Outcome, RowSettings, tolerances


@dataclass(frozen=True, kw_only=True)
class CertifySettings(RowSettings):
    """Which rows of which heads, and what is certified of them.

    Attributes:
        outcome: What must stay the same: the output of the head; that of its layer, all heads of a row together; the
            model's final hidden states; or its prediction. The last two are certified to first order.
        tolerance: How much it may change and count as the same: 0, a share (0.01, 1%) or a rounding (model, bfloat16,
            float16, float32); of states and prediction a share of the row's effect, or a number with its unit
            (0.01change, 0.001nats). Default: bfloat16 and 0 for the head, bfloat16 and 1% for its layer, 1% otherwise.
        answer: Position or token of the predictions, or states, that count; last for the prediction and all states by
            default.
        claim: Words whose attention is certified ("the storm"), or a claim on it ("the storm > 0.3", "storm > ferry"):
            is it true in every alternative? Every run of tokens that spells the words, and that the row sees to its
            end, counts. In Python also what `identilens.claims` makes.
        pattern: Published patterns whose attention is certified as a claim: previous, next, current, first, duplicate,
            induction, separator, punctuation.
        segment: A part of the text whose attention is certified as a claim, as name=words, or as name=start:end by
            characters. Of two or three segments also how much more attention one gets than another.
        source: The token whose logit is split by source: what each key of a row adds to it is certified as a claim. A
            text such as " river", a number, or "most likely"; of two, the difference of their logits.
        certificates: Write a file for each claim, row and tolerance, from which anyone can check the ends.
    """

    outcome: Outcome = "head"
    tolerance: Tolerances | None = None
    answer: Positions | None = None
    claim: Annotated[tuple[Any, ...], WORDED] = ()
    pattern: Annotated[tuple[str, ...], LIST] = ()
    segment: Annotated[tuple[Any, ...], WORDED] = ()
    source: Annotated[tuple[str, ...], WORDED] = ()
    certificates: Switch = False

    def check(self) -> None:
        """Check that tolerances can be read, and belong to the outcome."""
        read = tolerances(self.tolerance, self.outcome, "float32")
        if self.outcome == "layer" and any(tolerance.size == 0 for tolerance in read):
            raise SettingError(
                "tolerance",
                "above 0 for the output of a layer (its exact alternatives are those of the outcome head, if the "
                "stacked output projections have full rank: see stacked_rank of an audit)",
                self.tolerance,
            )
        if self.certificates and not (self.claim or self.pattern or self.segment or self.source):
            words = "with a claim, a pattern, a segment or a source"
            raise SettingError("certificates", words, True)
        if len(self.source) > 2:
            raise SettingError("source", "as one token or two", self.source)
        if self.answer is not None and self.outcome in ("head", "layer"):
            raise SettingError("answer", "with the outcome states or prediction only", self.answer)

    def recorded(self) -> dict[str, Any]:
        """Return the settings that change the numbers; claims that were made in Python in words."""
        made = {
            name: [getattr(claim, "recorded", claim) for claim in getattr(self, name)]
            for name in ("claim", "segment")
        }
        return {**super().recorded(), **made}
