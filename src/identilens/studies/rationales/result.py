"""What the decisions of a model need, and which explanations put the needed tokens first."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

import polars as pl

from identilens.charts.kit import Charts, intervals
from identilens.charts.labels import lower, shortened, upper, word_pieces
from identilens.charts.page import Section
from identilens.charts.token_lines import Mark, MarkedToken, TokenLine
from identilens.models.token_names import unmarked
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Row, Tables, integers
from identilens.studies.faithfulness.result import differences, in_words, means
from identilens.studies.outcomes import exactness

Measure = Literal["comprehensiveness", "sufficiency"]

SHOWN = 3
"""Texts whose tokens are shown, and needed tokens of a text that are named."""

TOLERANCE = "bfloat16"
"""Change of a head's output up to which other weights count as alternatives, as a rounding."""

ENOUGH = 10
"""Texts from which on explanations are ranked.

Over fewer texts, 95 % intervals of skewed values contain the mean less often (docs/faithfulness.md), and the best of
several explanations is too easily one that was lucky.
"""


@dataclass(frozen=True, kw_only=True)
class Rationales(Result):
    """What each decision needs, and comprehensiveness and sufficiency of the tokens that explanations put first.

    Attributes:
        table: One row for each text and explanation: comprehensiveness (large if the tokens are needed) and sufficiency
            (small if they are enough), for the model's answer to the whole text: a class, the next token, or the one
            that was named.
        needed: One row for each token that can be removed: the answer, the model's own one (another only if an answer
            was named), its probability, its change without the token, and whether the token is one of those that are
            enough. Of tokens that matter to the next token of a language model, how much the last token attends to
            them, a mean over all heads, and between which values it must lie in all alternatives: other weights that
            give each head the same output, up to a rounding to bfloat16.

    Examples:
        >>> import identilens as idl
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> lens = idl.Lens(idl.lab.IdentifiableEncoderForSequenceClassification(config))
        >>> found = idl.rationales(lens, [[3, 4, 5, 6, 7], [8, 9, 10]], draws=2)
        >>> found.measured("sufficiency").columns, found.against("random")["texts"].to_list()
        (['explanation', 'mean', 'low', 'high', 'texts'], [2, 2, 2, 2, 2])
        >>> [len(line.tokens) for line in found.token_lines()], found.needed["token"].to_list()[:5]
        ([5, 3], ['3', '4', '5', '6', '7'])
    """

    analysis: ClassVar = "rationales"
    title: ClassVar = "Which tokens does a decision need, and do explanations find them?"
    schema: ClassVar = {
        "table": {
            **integers("text", "tokens", "predicted"),
            "probability": pl.Float64,
            "explanation": pl.String,
            "comprehensiveness": pl.Float64,
            "sufficiency": pl.Float64,
        },
        "needed": {
            "text": pl.Int64,
            "answer": pl.String,
            "own_answer": pl.String,
            "probability": pl.Float64,
            "position": pl.Int64,
            "token": pl.String,
            "change": pl.Float64,
            "enough": pl.Boolean,
            "attention": pl.Float64,
            "lo": pl.Float64,
            "hi": pl.Float64,
        },
    }

    needed: pl.DataFrame

    def measured(self, measure: Measure = "comprehensiveness") -> pl.DataFrame:
        """Return the mean of a measure by explanation, with its 95 % bootstrap interval over texts."""
        return means(self.table, ["explanation"], measure)

    def against(
        self, reference: str = "random", measure: Measure = "comprehensiveness"
    ) -> pl.DataFrame:
        """Return the mean difference of each explanation to a reference on the same texts, with its interval."""
        return differences(self.table, [], measure, reference)

    def summary(self) -> Finding:
        """Return the finding: what decisions need, and of enough texts which explanations find it best."""
        texts = self.table["text"].n_unique()
        if not texts:
            return Finding(
                "No text was tested: none has two tokens that can be removed.", {"texts": 0}
            )
        few = f"Too few texts ({texts}) to say which explanation finds needed tokens best: it takes {ENOUGH}."
        found = [self._best(*question) for question in self._questions] or [Finding(few)]
        if len(self.needed):
            found.insert(0, self._decided(texts))
        numbers = {name: number for one in found for name, number in one.numbers.items()}
        headline = [value for one in found for value in one.headline]
        return Finding("\n".join(one.text for one in found), {"texts": texts, **numbers}, headline)

    def _decided(self, texts: int) -> Finding:
        """Return how many decisions hinge on one token, and what the first needs, and what is enough for it."""
        many = self.needed.filter(_SHARE <= -0.5)["text"].n_unique()
        first = self.needed.filter(text=self.needed["text"][0])
        words = f"Text {first['text'][0]}: {_answer(first)}. {decided(first)}\n"
        if texts > 1:
            who, headline = f"{many} of {texts}", "decisions hinge on one token"
            words += f"{who} {headline}: without it half of the probability or less is left."
            return Finding(words, headline=[(who, headline)])
        words += (
            "The decision hinges on a token: without it alone, half of the probability or less is left."
            if many
            else "The decision hinges on no single token: without any one, more than half of the probability is left."
        )
        least = first.sort("change").row(0, named=True)
        now, before = least["probability"] + least["change"], least["probability"]
        name = _names(first)[first["position"].to_list().index(least["position"])]
        of = f"probability of {unmarked(least['answer'])!r} without {name}, where it is least"
        change = f"{before:.2g} → {now:.2g}"
        return Finding(f"{words} {change}: {of}.", headline=[(change, of)])

    def _best(self, measure: Measure, label: str, words: str, descending: bool) -> Finding:
        """Return the best explanation by a measure, and whether it is better than random tokens."""
        control = self.against("random", measure).sort("mean", descending=descending)
        best = control.row(0, named=True)
        name = best["explanation"]
        mean = self.measured(measure).filter(explanation=name)["mean"].item()
        difference = in_words(best["mean"], best["low"], best["high"], "+.3f")
        sure = best["low"] > 0 if descending else best["high"] < 0
        lead = name if sure else f"none is surely better than chance; {name} comes nearest"
        return Finding(
            f"{words}: {lead}. {label} that it puts first: {mean:.3f} on average, which is {difference} against "
            f"as many random tokens ({best['texts']} texts; the best of {len(control)} explanations).",
            {measure: mean, f"{measure}_over_random": best["mean"]},
            [(f"{best['mean']:+.3f}", f"{label}: {name}")] * sure,
        )

    def token_lines(self, most: int = SHOWN) -> list[TokenLine]:
        """Return the first texts as lines of tokens, each marked by what the decision loses without it."""
        texts = self.needed.partition_by("text", maintain_order=True)
        return [decision_line(one, f"Text {one['text'][0]}: ") for one in texts[:most]]

    @property
    def _questions(self) -> Sequence[tuple[Measure, str, str, bool]]:
        """What is asked of explanations; nothing of too few texts, whose numbers are in ``table``."""
        return _QUESTIONS if self.table["text"].n_unique() >= ENOUGH else ()

    def overview(self) -> Tables:
        """Return both measures, and their differences to random tokens; nothing of too few texts."""
        found = {measure.capitalize(): self.measured(measure) for measure, *_ in self._questions}
        return found | {
            f"{measure.capitalize()} against random tokens": self.against("random", measure)
            for measure, *_ in self._questions
        }

    def charts(self) -> Charts:
        """Return ``comprehensiveness`` and ``sufficiency`` by explanation; nothing of too few texts."""
        return {
            measure: intervals(
                self.measured(measure).drop("texts"),
                "explanation",
                "low",
                "high",
                "mean",
                x_title=label,
                title=label,
            )
            for measure, label, *_ in self._questions
        }

    def sections(self) -> list[Section]:
        """Return the marked texts, then each measure with its numbers, and the differences to random tokens."""
        about = _LINES if self._questions else _LINES[:-1]
        found = [Section("decisions", "Decisions, token by token", about, lines=self.token_lines())]
        for measure, label, *_ in self._questions:
            control = self.against("random", measure)
            found += [
                Section(measure, label, [_WORDS[measure]], [measure], self.measured(measure)),
                Section(
                    f"{measure}-random",
                    f"{label}, against random tokens",
                    [_CONTROL],
                    frame=control,
                ),
            ]
        return found


_MARKS = (
    (-0.5, Mark("half of the probability or more is lost without it", "●", 0, True)),
    (-0.1, Mark("a tenth or more is lost", "○", 0)),
    (0.1, Mark("less changes", "·", None)),
    (inf, Mark("a tenth or more is gained", "△", 1)),
)
"""Marks of tokens, each up to a change of the probability, as a share of it."""

_STAYS = Mark("enough with all others taken out", "✓", 2, True)
_LEGEND = [*((mark, "") for _, mark in _MARKS), (_STAYS, "")]
_LISTED = 120
"""Characters of a list of tokens in a sentence."""


_OF = "Of the tokens that can be taken out (special tokens and a language model's last token stay)"
_LITTLE = f"{_OF} none alone takes a tenth of the probability or more with it. "
_ALL_OUT = "With all of them taken out at once, at least nine tenths of it are left."
_SHARE = pl.col("change") / pl.col("probability")
_CERTAIN = (
    "These are means over all heads; what it may be, in every alternative with the same output of each head, "
    f"{exactness(TOLERANCE)}. "
    "What the answer loses without a token is measured in the model, and rests on no attention weight."
)


def decision_line(tokens: pl.DataFrame, name: str = "") -> TokenLine:
    """Return a text as a line of tokens, each marked by what the decision loses without it; a part of ``needed``."""
    marked = []
    for row in tokens.iter_rows(named=True):
        change, stays = row["change"], row["enough"]
        mark = next(mark for share, mark in _MARKS if change <= share * row["probability"])
        value = f"{change / row['probability']:+.0%}{' ✓' * stays}"
        if mark.series is None:
            mark, value = _STAYS if stays else mark, ""
        note = "" if row["lo"] is None else f"attention of the last token: {_attended(row)}"
        marked.append(MarkedToken(row["token"], mark, value, note))
    return TokenLine(name + _answer(tokens), marked, _LEGEND)


def decided(tokens: pl.DataFrame) -> str:
    """Return in words what the decision on a text needs, and what is enough for it; a part of ``needed``."""
    tokens = tokens.with_columns(token=pl.Series(_names(tokens)))
    most = tokens.filter(_SHARE <= -0.1).sort("change", maintain_order=True).head(SHOWN)
    lost = [
        f"{row['token']} ({row['probability']:.2g} → {row['probability'] + row['change']:.2g})"
        for row in most.to_dicts()
    ]
    enough = shortened(", ".join(tokens.filter("enough")["token"]), _LISTED)
    words = f"{_OF} the probability falls most without {' or '.join(lost)}. " if lost else _LITTLE
    words += f"Nine tenths of it are left with nothing but {enough}." if enough else _ALL_OUT
    attended = tokens.drop_nulls("lo").sort("change", maintain_order=True).head(SHOWN)
    if len(attended):
        each = [f"{row['token']} has {_attended(row)}" for row in attended.to_dicts()]
        words += f"\nOf the attention of the last token of the text, {'; '.join(each)}. {_CERTAIN}"
    return words


def _names(tokens: pl.DataFrame) -> list[str]:
    """Return what sentences call tokens: "…" for the word that one continues, a position where there are several."""
    names = ["…" * inside + name for name, inside in word_pieces(tokens["token"].to_list())]
    return [
        repr(name) + f" (token {position})" * (names.count(name) > 1)
        for name, position in zip(names, tokens["position"], strict=True)
    ]


def _attended(row: Row) -> str:
    """Return the attention to a token with its interval, in words."""
    low, high = lower(row["lo"], ".3f"), upper(row["hi"], ".3f")
    return f"{row['attention']:.3f} (between {low} and {high})"


def _answer(tokens: pl.DataFrame) -> str:
    row = tokens.row(0, named=True)
    answer, own = unmarked(row["answer"]), unmarked(row["own_answer"])
    asked = f" that was asked for; the model's own answer is {own!r}" * (answer != own)
    return f"{answer!r} has probability {row['probability']:.3g} as the answer{asked}"


_QUESTIONS: tuple[tuple[Measure, str, str, bool], ...] = (
    (
        "comprehensiveness",
        "Probability lost without the tokens",
        "Best at finding needed tokens",
        True,
    ),
    (
        "sufficiency",
        "Probability lost with the tokens alone",
        "Best at finding tokens that are enough",
        False,
    ),
)

_LINES = (
    "A decision is the class, or the next token, that the model answers with, or the answer that was named, of one "
    "token or several. Every token of the text is taken out alone, and the model is run again: the number beside it is "
    "the change of the probability of the same answer, as a share of it. "
    "Special tokens such as [CLS] stay, and for a language model the last token; they are not shown.",
    "Tokens with ✓ are enough: with all others taken out, the answer has at least nine tenths of its probability. They "
    "were found by adding tokens in the order of what is lost without each; a smaller set may exist.",
    "These are measured effects on this model's answers to these texts, and rest on no attention weight. Point at a "
    "token that matters to a next token: how much the last token attends to it, a mean over all heads, and between "
    "which values that must lie as long as each head's output stays, up to a rounding to bfloat16.",
    "Below, rollout_raw and rollout_norm (attention rollout) and alti are made of attention weights that the model's "
    "outputs may not determine; identilens certify proves which are. hta is Hidden Token Attribution.",
)
_WORDS = {
    "comprehensiveness": "The first 1, 5, 10, 20 and 50 % of the tokens in each explanation's order are taken out of "
    "the text. Mean loss of the probability of the decision: large if the tokens are needed.",
    "sufficiency": "All other tokens are taken out. The same loss: small, or negative, if the tokens are enough.",
}
_CONTROL = (
    "Mean difference to as many tokens chosen at random, on the same texts. An interval without 0 is a difference; "
    "intervals are not widened for the number of explanations compared."
)
