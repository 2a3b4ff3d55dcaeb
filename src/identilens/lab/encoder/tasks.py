"""The ten text classification tasks of Bhardwaj et al. 2021, section 5: labels and columns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: Name on the command line.
        labels: Label of each class in the data, in order.
        text: Columns of the text, joined with a space; or of the two sentences of a pair.
        label: Column of the label.
        pair: Whether ``text`` names two sentences.
        validation: Whether the data have a validation part. Otherwise 30 % of the training part is used.
    """

    name: str
    labels: tuple[str, ...]
    text: tuple[str, ...]
    label: str = "label"
    pair: bool = False
    validation: bool = False


def _counted(classes: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(1, classes + 1))


_SNLI = ("entailment", "neutral", "contradiction")
_TREC = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
_YAHOO = ("question_title", "question_content", "best_answer")
TASKS = {
    task.name: task
    for task in (
        Task("imdb", ("0", "1"), ("text",)),
        Task("trec", _TREC, ("question",), "coarse"),
        Task("sst", ("0", "1", "2"), ("sentence",), "label3", validation=True),
        Task("snli", _SNLI, ("premise", "hypothesis"), pair=True, validation=True),
        Task("yelp", _counted(2), ("text",)),
        Task("dbpedia", _counted(14), ("title", "text")),
        Task("sogou", _counted(5), ("title", "text")),
        Task("ag_news", _counted(4), ("text",)),
        Task("yahoo", _counted(10), _YAHOO),
        Task("amazon", _counted(2), ("title", "text")),
    )
}
