"""The figures of Brunner et al. 2020 and of Sun and Marasović 2021, run small on the bundled encoder."""

import json
import lzma
from functools import cache

import pytest

from identilens.errors import InputError
from identilens.models.loading import load
from identilens.reproduce import inputs
from identilens.reproduce.inputs import tuned_model
from identilens.reproduce.options import OPTIONS, TunedFigure
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import figure_named

SENTENCES = [
    "The ferry left the harbour before dawn .",
    "Nobody could say who had paid .",
    "Snow fell on the hill .",
] * 4
TOKENS = {
    "probes": "naive,linear",
    "learning_rates": 0.01,
    "max_epochs": 1,
    "folds": 2,
    "layers": "1,6",
}
MIXING = {"limit": 1, "sketch_probes": 4}
TUNING = {"epochs": 1, "rows": 4, "longest": 16}


def write(path, header, rows):
    text = "\n".join(["\t".join(row) for row in ([header] if header else []) + rows]) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    pairs = [(str(index % 2), first, SENTENCES[index - 1]) for index, first in enumerate(SENTENCES)]
    for part in ("train", "dev"):
        write(
            folder / f"mrpc/{part}.tsv.xz",
            ["Quality", "#1 String", "#2 String"],
            [list(row) for row in pairs],
        )
    cola = [["gj04", label, "", text] for label, text, _ in pairs]
    write(folder / "cola/dev.tsv", None, cola)
    write(folder / "cola/train.tsv.xz", None, cola)
    write(
        folder / "mnli/dev_matched.tsv.xz",
        ["premise", "hypothesis"],
        [list(row[1:]) for row in pairs],
    )
    lines = [json.dumps({"par1": first, "par2": second}) for _, first, second in pairs]
    (folder / "wiki_en").mkdir()
    (folder / "wiki_en/segments_1000.jsonl.xz").write_bytes(
        lzma.compress("\n".join(lines).encode())
    )
    return folder


@pytest.mark.parametrize(
    ("name", "options", "chart", "quantity"),
    [
        ("figure1", {"certain_rows": 0}, "correlation_by_length", "whose nullity is max"),
        ("figure2", TOKENS, "lines", "trained on 1, tested on 6"),
        ("figure3", MIXING, "neighbours", "own contribution, layer 6 (last)"),
        ("figure6", {}, "maps", "null attention of head"),
        ("figure12", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure13", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure14", {**TOKENS, "offsets": "-1,1"}, "lines", "offset -1"),
        ("figure38", TOKENS, "rate_by_layer", "chance"),
        ("figure40", MIXING, "own_contribution", "not largest, layer 1"),
        ("b2", {**TOKENS, "probes": "mlp"}, "rate_by_share", "80 % of the sentences"),
    ],
)  # fmt: skip
def test_published_numbers_beside_measured_ones(name, options, chart, quantity, data, tmp_path):
    name = f"brunner2020-{name}"
    settings = OPTIONS[name].of(None, {"data": data, **options})
    found = figure_named(name)(settings, tmp_path)
    write_reproduction(name, found, tmp_path)
    assert chart in found.charts
    comparison = found.tables["comparison"]
    assert any(quantity in one for one in comparison["quantity"])
    assert comparison["measured"].str.len_chars().min() > 0
    assert "published (BERT-base)" in (tmp_path / "README.md").read_text(encoding="utf-8")


HOW = {"epochs": 1, "rows": 4}
ROWS = b"Quality\t#1 String\t#2 String\n1\tSnow fell.\tIt snowed.\n"
cached = cache(load)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Data, and a training that only counts: the list grows by the seed of each."""
    (tmp_path / "data/mrpc").mkdir(parents=True)
    (tmp_path / "data/mrpc/train.tsv.xz").write_bytes(lzma.compress(ROWS))
    seeds = []

    def fine_tune(how, texts, labels, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer_config.json").write_text(f"{how.seed}")
        seeds.append(how.seed)

    monkeypatch.setattr(inputs, "fine_tune", fine_tune)
    monkeypatch.setattr(inputs, "load", cached)
    return seeds


def made(folder, **options):
    settings = TunedFigure(data=folder / "data", **HOW, **options)
    return tuned_model("mrpc", settings, folder / "out")


@pytest.mark.parametrize(
    "changes",
    [{"seed": 3}, {"model": "bundled-decoder"}, {}],
)
def test_a_checkpoint_is_used_again_unless_made_otherwise(changes, trained, tmp_path):
    first = made(tmp_path)
    assert made(tmp_path) == first
    if not changes:
        (tmp_path / "data/mrpc/train.tsv.xz").write_bytes(
            lzma.compress(ROWS.replace(b"Snow", b"Rain"))
        )
    assert made(tmp_path, **changes) != first
    assert len(trained) == 2


def test_a_task_without_data_is_told(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        tuned_model("cola", TunedFigure(data=tmp_path), tmp_path)
