"""The figures of Brunner et al. 2020 and of Sun and Marasović 2021, run small on the bundled encoder."""

import json
import lzma
from dataclasses import replace

import polars as pl
import pytest

from identilens.errors import OutputFolderError
from identilens.models.loading import load
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
         "across_layers_linear_cosine", "trained on 1, tested on 6"),
        ("figure3", MIXING, "neighbours", "own contribution, layer 6 (last)"),
        ("figure6", {}, "maps", "null attention of head"),
        ("figure12", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure13", {**TUNING, "folds": 2}, "rate_by_layer", "l2, layer 6, before and after"),
        ("figure14", {**TOKENS, "offsets": "-1,1"}, "neighbours_ridge_l2", "offset -1"),
        ("figure38", TOKENS, "rate_by_layer", "chance"),
        ("figure40", MIXING, "own_contribution", "not largest, layer 1"),
    ],
)  # fmt: skip
def test_published_numbers_beside_measured_ones(name, options, chart, quantity, data, tmp_path):
    figure = figure_named(f"brunner2020-{name}")
    settings = figure.settings_type.of(None, {"data": data, **options})
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
        figure.settings_type(data=data, layer=1),
        tmp_path,
        resume=False,
        overwrite=False,
        progress=None,
    )
    shares = found.tables["places"].group_by("head", "attention").agg(total="share")
    assert [sum(one) for one in shares["total"]] == pytest.approx([1.0] * len(shares))


def test_token_types_before_and_after_fine_tuning(data, tmp_path):
    figure = figure_named("sun2021")
    settings = figure.settings_type(data=data, tasks=("mrpc", "cola"), limit=2, **TUNING)
    table = figure.make(settings, tmp_path, resume=False, overwrite=False, progress=None).tables[
        "token_types"
    ]
    sums = table.group_by("task", "checkpoint").agg(pl.col("raw", "effective").sum())
    assert len(sums) == 4
    assert sums["raw"].to_list() == pytest.approx([1.0] * 4)
    assert sums["effective"].to_list() == pytest.approx([1.0] * 4)
    tuned = load(tmp_path / "tuned-cola").digest
    again = figure.make(settings, tmp_path, resume=True, overwrite=False, progress=None)
    assert again.settings["parameters, cola, fine-tuned (sha256)"] == tuned
    with pytest.raises(OutputFolderError, match="epochs is 1 there and 2 here"):
        figure.make(
            replace(settings, epochs=2), tmp_path, resume=True, overwrite=False, progress=None
        )


def test_faithfulness_of_fine_tuned_classifiers(data, tmp_path):
    figure = figure_named("deyoung2020")
    options = {
        "tasks": ("cola", "mrpc"),
        "limit": 2,
        "repeats": 2,
        "draws": 2,
        "attribution": False,
        **TUNING,
    }
    settings = figure.settings_type(data=data, **options)
    found = figure.make(settings, tmp_path, resume=False, overwrite=False, progress=None)
    assert found.tables["accuracy"].select("task", "seed").rows() == [
        ("cola", 0), ("cola", 1), ("mrpc", 0), ("mrpc", 1)
    ]  # fmt: skip
    table = found.tables["rationales"].filter(task="cola", explanation="hta")
    mean = found.tables["sufficiency"].filter(task="cola", explanation="hta")["mean"].item()
    assert mean == pytest.approx(table["sufficiency"].mean())
    tuned = next(tmp_path.glob("seed1/tuned-cola/*.safetensors"))
    written = tuned.stat().st_mtime_ns
    again = figure.make(settings, tmp_path, resume=True, overwrite=False, progress=None)
    assert again.tables["rationales"].equals(found.tables["rationales"])
    assert tuned.stat().st_mtime_ns == written
    assert "Sufficiency, difference to random tokens" in found.findings
    write_reproduction("name", figure.source, found, tmp_path, ("svg",))
