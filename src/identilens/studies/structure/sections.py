"""The report of a structure analysis: what each part shows, and how to read it."""

from collections.abc import Sequence

import polars as pl

from identilens.charts.page import Section
from identilens.charts.thumbnails import CELLS
from identilens.charts.viewer import TokenMap
from identilens.runs.tables import Tables, percent
from identilens.studies.structure.views import (
    classes,
    pairs_by_head,
    representatives,
    subspace,
    texts_by_head,
)

_HEAD_COLUMNS = (
    "kind",
    "layer",
    "head",
    "dim_r",
    "dim_half",
    "dim_95",
    "pattern",
    "score",
    "place",
    "effective_pattern",
    "effective_score",
    "raw_to_effective",
    "empty_rows",
    "effective_empty_rows",
)

_START = pl.col("tokens").str.replace_all(" ##", "").str.head(200)
_OPENING = _START.alias("its first 200 characters")


def report_sections(frames: Tables, maps: Sequence[TokenMap]) -> list[Section]:
    """Return the parts of the report, from every table with those made of them, and maps of mean weights and W."""
    each = subspace(frames, each=True)
    kept = each.pop("kept")
    kinds = frames["table"]["kind"].unique(maintain_order=True)
    galleries = [f"structures_{kind}_{name}" for kind in kinds for name in ("raw", "effective")]
    texts = texts_by_head(frames["texts"])
    ignored, outside, half = (
        percent(texts[name].mean()) for name in ("ignored", "outside", "outside_half")
    )
    return [
        Section(
            "maps", "W of every head", [_W.format(**_counts(frames))], [*galleries, kept], maps=maps
        ),
        Section(
            "patterns",
            "Patterns",
            [_PATTERNS],
            ["pattern_scores", "patterns"],
            frames["table"].select(_HEAD_COLUMNS),
            note=_PLACES,
        ),
        Section(
            "subspace",
            "The subspace R",
            [
                _R,
                _GROWTH,
                _POSITIONS,
                (
                    f"Each text against R: on average T has rank {texts['rank'].mean():.3g} of "
                    f"{_counts(frames)['length']}. "
                    f"{ignored} of a text's attention (squared) lies in directions of R that "
                    f"this text's values send to zero. "
                    f"{outside} of its ker(T′)⊥ lies outside R, and {half} outside the "
                    f"directions visible in half of the texts."
                ),
            ],
            list(each.values()),
            texts_by_head(frames["texts"]),
        ),
        *_classes(frames),
        Section(
            "stability",
            "Representatives",
            [_STABILITY],
            list(representatives(frames)),
            frames["representatives"].select(
                "text",
                pl.col("size").alias("texts in its cluster"),
                _OPENING,
            ),
        ),
        *_norms(frames),
        Section(
            "reading",
            "How to read this report",
            [line.format(**_counts(frames)) for line in _READING],
        ),
    ]


def _counts(frames: Tables) -> dict[str, int]:
    return frames["table"].select("representatives", "texts", "length").row(0, named=True)


def _classes(frames: Tables) -> list[Section]:
    pairs, signs = pairs_by_head(frames["pairs"]), frames["texts"].drop_nulls("negative")
    drawn = list(classes(frames))
    if not drawn:
        return []
    said = [_CLASSES]
    if len(pairs):
        said.append(
            f"Over {pairs['pairs'].mean():.3g} pairs of texts: where weights can be moved at all, they are equivalent "
            f"under the first and not under the second in {percent(pairs['disagree'].mean())} of the cases; the second "
            f"text's output moves by {percent(pairs['change_second'].mean())} on average."
        )
    note = _PROJECTION if len(signs) else ""
    return [Section("classes", "Equivalent weights", said, drawn, note=note)]


def _norms(frames: Tables) -> list[Section]:
    if not len(frames["perturbations"]):
        return []
    return [
        Section(
            "norms",
            "Norms and the model's output",
            [_PERTURBED],
            ["norms", "perturbations"],
            frames["correlations"],
            note=_OUTPUT,
        ),
        Section("kinds", "Kinds of perturbation", [_WHOLE], frame=frames["by_perturbation"]),
    ]


_W = (
    "W = Norm(Cut_l(Ã)): the weights of {representatives} representative texts are averaged, entries below l are set "
    "aside, and rows are scaled to sum 1 (structure2025, Eq. 7 and 8). Rows are queries, columns keys, from the first "
    "position at the top left. A row with nothing left stays empty. Small maps of more than "
    f"{CELLS} tokens are drawn by the largest weight of each block of cells."
)
_PATTERNS = (
    "A score says how much more weight a structure's rows have on a pattern than uniform rows have there, as a share "
    "of the most that is possible: 1 is the pattern itself, 0 is chance. A head is named after the pattern with the "
    "best score. It is “mixed” if that score is below 0.25, and “empty” where l leaves nothing in most rows."
)
_PLACES = "An offset's place is the distance of key from query, negative looks back; a vertical's place is its column."
_R = (
    "R is the span of the column spaces of T over all texts (Eq. 6): every direction of weights that is visible in "
    "the head's output in at least one text. With more texts R soon is the whole space and carries no information. "
    "The eigenvalues stay informative: an eigenvalue is the share of the texts in which its direction is visible."
)
_GROWTH = (
    "Growth shows dim R; directions visible in at least half of the texts so far; directions that hold 95 % of the "
    "spectrum, and of the values' energy (T T′, scaled to one per text). In the spectrum the largest come first; for "
    "directions that have nothing to do with position, all eigenvalues would be equal to the mean rank of T over n."
)
_POSITIONS = (
    "How visible a position is: the mean share (squared) of a weight at this position alone that the head's output can "
    "tell. Near 0, the output hardly depends on attention to this position."
)
_CLASSES = (
    "Two sets of weights are equivalent under a text when the head's output is the same (II.B). That depends on the "
    "text's values: for pairs of texts, the weights of the first are moved along a random direction which its own "
    "output does not see, and put before the values of the second. Shared null space is the mean share of a move "
    "invisible under one text that is invisible under the other too, beside what null spaces of these dimensions share "
    "by chance."
)
_PROJECTION = (
    "Naim & Asher's projection on Ker([T, 1])⊥ keeps outputs and row sums; where its entries are negative its rows are "
    "no probability distributions."
)
_STABILITY = (
    "Representatives are the real texts nearest to the centroids of k-means on mean token embeddings. W is sufficient "
    "when more clusters no longer change it: ‖W_k − W‖_F / ‖W‖_F, means over heads, W that of all texts or of the next "
    "number of clusters; and the same of mean weights before the cut, beside what as many texts drawn at random would "
    "give. With a silhouette near 0, texts have no clusters to speak of, and the choice of their number hardly matters."
)
_PERTURBED = (
    "Representatives' weights are perturbed and put back into the running model, one head at a time: “aware” moves "
    "keep what W contains and reshuffle the rest, “breaking” ones take away what W contains, “random” ones reshuffle "
    "everything. At one size all three have the same Frobenius norm. The question is which norm of the change says "
    "best how far the final hidden state moves."
)
_OUTPUT = (
    "The last row is no norm of weights: it knows the values, and shows what weights alone leave out. “Same size” "
    "compares perturbations of one Frobenius norm only; whole moves are each as large as they can be, and stand apart "
    "from the other columns."
)
_WHOLE = "Means by kind and size of the perturbation; a move taken as a whole has no size."
_READING = (
    "W is an average of positions. Texts are compared position by position. A head that looks at commas wherever they "
    "stand has no structure in this sense; one that looks at the token before has.",
    "l is on the mean. The draft cuts the sum over n texts; cutting the mean at l is the same as cutting the sum at "
    "n·l. Uniform attention has 1/{length} everywhere.",
    "Effective attention has signs. It is shown by its sizes, averaged over texts. Its rows need not sum to 1 before "
    "they are normalised.",
    "A full R says only that texts differ. Two texts whose values span different directions are enough to fill much of "
    "it. Read the spectrum instead.",
    "‖·‖_S needs a positive W. Cut weights are zero in places, where the draft's norm is only a seminorm. Here zeros "
    "are lifted to a thousandth of the largest entry.",
)
