"""The figures of Brunner et al. 2020 and of Sun and Marasović 2021, run small on the bundled encoder."""

import json
import lzma

import pytest

from identilens.reproduce.options import OPTIONS
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import figure_named

SENTENCES = [
    "The ferry left the harbour before dawn .",
    "Nobody could say who had paid .",
    "Snow fell on the hill .",
] * 4
TOKENS = {"probes": "naive,ridge", "folds": 2, "layers": "1,6"}
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
        ("figure2", {**TOKENS, "probes": "naive,linear", "learning_rates": 0.01, "max_epochs": 1},
         "lines", "trained on 1, tested on 6"),
        ("figure3", MIXING, "neighbours", "own contribution, layer 6 (last)"),
        ("figure6", {}, "maps", "null attention of head"),
        ("figure12", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure13", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure14", {**TOKENS, "offsets": "-1,1"}, "lines", "offset -1"),
        ("figure38", TOKENS, "rate_by_layer", "chance"),
        ("figure40", MIXING, "own_contribution", "not largest, layer 1"),
    ],
)  # fmt: skip
def test_published_numbers_beside_measured_ones(name, options, chart, quantity, data, tmp_path):
    figure = figure_named(f"brunner2020-{name}")
    settings = OPTIONS[f"brunner2020-{name}"].of(None, {"data": data, **options})
    found = figure.make(settings, tmp_path, resume=False, overwrite=False, progress=None)
    write_reproduction("name", figure.source, found, tmp_path, ("svg",))
    assert chart in found.charts
    comparison = found.tables["comparison"]
    assert any(quantity in one for one in comparison["quantity"])
    assert comparison["measured"].str.len_chars().min() > 0
    assert "published (BERT-base)" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_maps_of_figure_6_add_up(data, tmp_path):
    figure = figure_named("brunner2020-figure6")
    found = figure.make(
        OPTIONS["brunner2020-figure6"](data=data, layer=1),
        tmp_path,
        resume=False,
        overwrite=False,
        progress=None,
    )
    shares = found.tables["places"].select("structural", "near", "elsewhere")
    assert shares.sum_horizontal().to_list() == pytest.approx([1.0] * len(shares))
