"""The ten text classification tasks of Bhardwaj et al. 2021, section 5: labels, columns, and sources of the data."""

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
        hub: Id of the data set on the hub.
        hub_text: Columns of the text on the hub, if they have other names there.
        hub_label: Column of the label on the hub.
        hub_classes: Class of each hub label, in order; empty if the hub's numbers are the classes.
        revision: Branch of the hub data set.
    """

    name: str
    labels: tuple[str, ...]
    text: tuple[str, ...]
    label: str = "label"
    pair: bool = False
    validation: bool = False
    hub: str = ""
    hub_text: tuple[str, ...] = ()
    hub_label: str = "label"
    hub_classes: tuple[int, ...] = ()
    revision: str | None = None


def _counted(classes: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(1, classes + 1))


_CONVERTED = "refs/convert/parquet"

TASKS = {
    task.name: task
    for task in (
        Task("imdb", ("0", "1"), ("text",), hub="stanfordnlp/imdb"),
        Task(
            "trec",
            ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
            ("question",),
            "coarse",
            hub="CogComp/trec",
            hub_text=("text",),
            hub_label="coarse_label",
            revision=_CONVERTED,
        ),
        Task(
            "sst",
            ("0", "1", "2"),
            ("sentence",),
            "label3",
            validation=True,
            hub="SetFit/sst5",
            hub_text=("text",),
            hub_classes=(0, 0, 1, 2, 2),
        ),
        Task(
            "snli",
            ("entailment", "neutral", "contradiction"),
            ("premise", "hypothesis"),
            pair=True,
            validation=True,
            hub="stanfordnlp/snli",
        ),
        Task("yelp", _counted(2), ("text",), hub="fancyzhx/yelp_polarity"),
        Task(
            "dbpedia",
            _counted(14),
            ("title", "text"),
            hub="fancyzhx/dbpedia_14",
            hub_text=("title", "content"),
        ),
        Task(
            "sogou",
            _counted(5),
            ("title", "text"),
            hub="community-datasets/sogou_news",
            hub_text=("title", "content"),
            revision=_CONVERTED,
        ),
        Task("ag_news", _counted(4), ("text",), hub="fancyzhx/ag_news"),
        Task(
            "yahoo",
            _counted(10),
            ("question_title", "question_content", "best_answer"),
            hub="community-datasets/yahoo_answers_topics",
            hub_label="topic",
        ),
        Task(
            "amazon",
            _counted(2),
            ("title", "text"),
            hub="fancyzhx/amazon_polarity",
            hub_text=("title", "content"),
        ),
    )
}
