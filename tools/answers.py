"""What the model's answer fixes of attention: the study of docs/results/answers.md. Called again, it resumes.

Usage: python tools/answers.py train|wikipedia|classifiers|tables [--work FOLDER] [--texts N]

``train`` fine-tunes the bundled encoder on SST, AG News and CoLA; ``wikipedia`` measures certain mass in rows of both
bundled models; ``classifiers`` moves the attention of the fine-tuned ones; ``tables`` prints and draws what was found.
The data are in the folder that IDENTILENS_DATA names (default: data).
"""

import argparse
import csv
import json
import lzma
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import identilens as idl
from data_folder import DATA
from identilens.charts import save_charts
from identilens.charts.kit import lines, scatter
from identilens.models.outcome import Answer
from identilens.models.reading import read_layer
from identilens.models.substitution import Rows
from identilens.studies.outcomes import KeptOutcome, of_answer, of_head, of_layer, tolerances

ROOT = Path(__file__).parents[1]
SEED, TOKENS, EPOCHS, BATCH, RATE = 0, 64, 2, 32, 5e-5
LAYER_TEXTS = 50
"""Texts whose rows are also certified by their layer's output."""

TASKS = {"sst": 2, "ag_news": 4, "cola": 2}
TRAINED, TRIED, ALONE = 3_200, 100, 20
"""Sentences that a classifier is trained on, those whose heads are moved together, and each by itself."""

KEPT = "0.0002nats"
"""KL of 2 · 0.01² nats: by Pinsker's inequality no probability of a class changes by more than 0.01."""

ASKED = {
    "head": ("0", "bfloat16", "1%", "10%"),
    "layer": ("bfloat16", "1%"),
    "states": ("0.1%", "1%", "10%"),
    "prediction": ("0.01%", "0.1%", "1%", "10%"),
}
MODELS = {"bundled": ("head", "layer", "states"), "bundled-decoder": tuple(ASKED)}


def opened(path: Path) -> list[str]:
    """Return the lines of a text file, which may be packed."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def sentences(task: str, part: str) -> list[tuple[str, int]]:
    """Return sentences and their classes, in an order drawn by the seed."""
    folder = DATA / task
    if task == "cola":
        file = folder / ("train.tsv.xz" if part == "train" else "dev.tsv")
        rows = [line.split("\t") for line in opened(file)]
        found = [(row[3], int(row[1])) for row in rows]
    elif task == "sst":
        file = folder / ("train.tsv.xz" if part == "train" else "test.tsv.xz")
        rows = csv.DictReader(opened(file), delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [
            (row["sentence"], int(row["label2"])) for row in rows if row["label2"] in ("0", "1")
        ]
    else:
        file = folder / ("train20k.tsv.xz" if part == "train" else "val2k.tsv.xz")
        rows = csv.DictReader(opened(file), delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [(row["text"], int(row["label"]) - 1) for row in rows]
    random.Random(SEED).shuffle(found)
    return found


def train(work: Path, task: str) -> None:
    """Fine-tune the bundled encoder with a classifier on its first token, and save it."""
    if (work / task / "accuracy.json").exists():
        return
    torch.manual_seed(SEED)
    source = idl.bundled_model()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=TASKS[task])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    texts = sentences(task, "train")[:TRAINED]
    steps = EPOCHS * (len(texts) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    def output(part: list[tuple[str, int]]) -> tuple[Any, Tensor]:
        options = {"truncation": True, "max_length": TOKENS, "padding": True}
        encoded = tokenizer([text for text, _ in part], return_tensors="pt", **options)
        labels = torch.tensor([label for _, label in part])
        return model(**encoded, labels=labels), labels

    model.train()
    for step in range(steps):
        at = step % (len(texts) // BATCH) * BATCH
        loss = output(texts[at : at + BATCH])[0].loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"{task}: step {step} of {steps}, loss {float(loss):.3f}", flush=True)
    model.eval()
    tried, right = sentences(task, "test")[:1000], 0
    with torch.no_grad():
        for at in range(0, len(tried), BATCH):
            found, labels = output(tried[at : at + BATCH])
            right += int((found.logits.argmax(-1) == labels).sum())
    model.save_pretrained(work / task)
    tokenizer.save_pretrained(work / task)
    accuracy = {"accuracy": right / len(tried), "sentences": len(tried)}
    (work / task / "accuracy.json").write_text(json.dumps(accuracy))
    print(f"{task}: accuracy {accuracy['accuracy']:.3f}")


def segments(count: int) -> list[str]:
    """Return segments of Wikipedia, drawn by the seed."""
    rows = [json.loads(line) for line in opened(DATA / "wiki_en" / "segments_1000.jsonl.xz")]
    texts = [f"{row['par1']} {row['par2']}" for row in rows]
    return random.Random(SEED).sample(texts, count)


def resumed(path: Path, count: int, measure: Callable[[int], list[dict[str, Any]]]) -> None:
    """Write what is measured of each text, one line of JSON a text, after those that the file has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    have = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as file:
        for number in range(have, count):
            file.write(json.dumps(measure(number)) + "\n")
            file.flush()
            print(f"{path.stem}: {number + 1} of {count}", flush=True)


def certified(
    kept: KeptOutcome, name: str, precision: str, outcome: Any
) -> Iterator[dict[str, Any]]:
    """Yield the certain mass of a row at each tolerance, and how far what was met changes the model."""
    for tolerance in tolerances(ASKED[name], outcome, precision):
        solver = kept.solver(kept.allowed(tolerance))
        own = kept.own[solver.keys]
        mass = float(solver.lower()[own].sum())
        farthest = solver.farthest()
        row = torch.zeros(kept.values.keys, dtype=torch.float64)
        row[solver.keys[own] % len(row)] = farthest[own]
        yield {
            "tolerance": tolerance.name,
            "certain_mass": mass,
            "effect": kept.effect,
            "farthest": float((solver.inside - farthest)[own].clamp_min(0).sum()),
            "predicted": float(kept.change(solver.length(farthest))),
            "row": row,
        }


def rows_of(lens: Any, model: str, text: str, number: int) -> list[dict[str, Any]]:
    """Return what is certain of one row of one head, drawn by the seed, by each outcome and tolerance."""
    [item] = lens.read([text], TOKENS)
    draw = random.Random(f"{SEED} {model} {number}")
    layer, head = (
        draw.randrange(lens.model.config.num_hidden_layers),
        draw.randrange(lens.model.config.num_attention_heads),
    )
    query = item.length - 1 if model == "bundled-decoder" else draw.randrange(item.length)
    heads, found = list(read_layer(lens, item, layer).heads), []
    one = heads[head]
    at = {"text": number, "layer": layer, "head": head, "query": query, "tokens": item.length}
    for outcome in MODELS[model]:
        answer = None
        if outcome == "head":
            kept = of_head(one.attention[query], one.projected, one.seen(query))
        elif outcome == "layer":
            if number >= LAYER_TEXTS:
                continue
            kept = of_layer(heads, head, query)
        else:
            positions = [query] if outcome == "prediction" else None
            answer = Answer(lens, item, outcome, positions)
            kept = of_answer(answer, one, query)
        for row in certified(kept, outcome, "float32", outcome):
            put = Rows([query], row.pop("row")[None])
            measured = answer and answer.with_rows(one, put)
            found.append({**at, "outcome": outcome, **row, "measured": measured})
    return found


def wikipedia(work: Path, count: int) -> None:
    """Measure rows of both bundled models."""
    for model in MODELS:
        lens, texts = idl.load(model), segments(count)
        resumed(
            work / f"{model}.jsonl",
            count,
            lambda number, lens=lens, model=model, texts=texts: rows_of(
                lens, model, texts[number], number
            ),
        )


def moved(lens: Any, text: str, number: int) -> list[dict[str, Any]]:
    """Return how far the attention of the first token goes, of each head and of all together, with the same answer."""
    options = {"outcome": "prediction", "tolerance": KEPT, "queries": 0, "max_length": TOKENS}
    tables = []
    if number < ALONE:
        tables.append(idl.alternatives(lens, text, **options).table.with_columns(alone=True))
    together = idl.alternatives(lens, text, together=True, **options).table
    tables.append(together.with_columns(alone=False))
    kept = ["layer", "head", "alone", "effect", "predicted", "measured", "same_top"]
    kept += ["mass_before", "mass_after", "mean_total_variation", "n_key"]
    return pl.concat(tables).select(pl.lit(number).alias("text"), *kept).to_dicts()


def classifiers(work: Path, count: int) -> None:
    """Move the attention of the fine-tuned classifiers."""
    for task in TASKS:
        lens, texts = idl.load(str(work / task)), sentences(task, "test")
        resumed(
            work / f"moved-{task}.jsonl",
            min(count, TRIED),
            lambda number, lens=lens, texts=texts: moved(lens, texts[number][0], number),
        )


def read(path: Path) -> pl.DataFrame:
    """Return what was measured, as a table."""
    rows = [row for line in path.read_text().splitlines() for row in json.loads(line)]
    return pl.DataFrame(rows, infer_schema_length=None)


def tables(work: Path, out: Path) -> None:
    """Print the tables of the page, and draw its charts."""
    pl.Config(tbl_rows=60, tbl_cols=14, float_precision=3)
    mass, standard = pl.col("certain_mass"), lambda name: pl.col(name).std() / pl.len().sqrt()
    charts, every = {}, []
    for model in MODELS:
        found = read(work / f"{model}.jsonl")
        kinds = found.group_by("outcome", "tolerance", maintain_order=True)
        ratio = (pl.col("measured") / pl.col("predicted")).filter(pl.col("predicted") > 1e-9)
        print(model)
        print(
            kinds.agg(
                pl.len().alias("rows"),
                mass.mean().alias("mean"),
                standard("certain_mass").alias("standard error"),
                (mass >= 0.9).mean().alias("0.9 or more"),
                (mass < 0.1).mean().alias("below 0.1"),
                pl.col("farthest").mean(),
                ratio.median().alias("measured / predicted"),
                ratio.max().alias("largest"),
                (pl.col("measured") > 2 * pl.col("predicted")).mean().alias("twice too small"),
            )
        )
        wide = found.filter(pl.col("outcome").is_in(["head", "prediction", "states"]))
        exact = wide.filter(outcome="head", tolerance="0").select("text", exact="certain_mass")
        pairs = wide.filter(tolerance="1%").join(exact, on="text")
        for outcome in pairs["outcome"].unique(maintain_order=True):
            one = pairs.filter(outcome=outcome)
            rank = one.select(pl.corr("exact", "certain_mass", method="spearman")).item()
            print(f"rank correlation of exact certain mass with {outcome} at 1 %: {rank:.3f}")
        kind = "prediction" if model == "bundled-decoder" else "states"
        drawn = pairs.filter(outcome=kind).with_columns(pl.col("layer").cast(pl.String))
        charts[f"exact_and_answer_{model}"] = scatter(
            drawn,
            "exact",
            "certain_mass",
            "layer",
            x_title="Certain mass by the head's output, exactly",
            y_title=f"Certain mass by the {kind}, 1 % of the head's effect",
            color_title="Layer",
            title=f"{model}: what the head's output fixes, and what the answer does",
        )
        sizes = {"0": 0.0, "bfloat16": 2**-8, "0.01%": 1e-4, "0.1%": 1e-3, "1%": 1e-2, "10%": 0.1}
        curve = kinds.agg(mass.mean(), standard("certain_mass").alias("error")).with_columns(
            pl.col("tolerance").replace_strict(sizes, return_dtype=pl.Float64).alias("size"),
            pl.lit(model).alias("model"),
        )
        every.append(curve.filter(pl.col("size") > 0).with_columns(pl.col("size").log10()))
    charts["by_tolerance"] = lines(
        pl.concat(every),
        "size",
        "certain_mass",
        "outcome",
        dash="model",
        error="error",
        x_title="Tolerance (log10 of the share)",
        y_title="Mean certain mass of a row",
        color_title="What must stay",
        title="What is certain falls with what may change",
    )
    for task in TASKS:
        found = read(work / f"moved-{task}.jsonl")
        print(task, json.loads((work / task / "accuracy.json").read_text()))
        kinds = found.group_by("text", "alone").agg(
            pl.col("mass_before", "mass_after", "mean_total_variation").mean(),
            pl.col("measured", "predicted", "effect").max(),
            pl.col("same_top").all(),
            (pl.col("mean_total_variation") > 0.5).mean().alias("beyond half"),
        )
        print(
            kinds.group_by("alone").agg(
                pl.len().alias("texts"),
                pl.col("mass_before", "mass_after", "mean_total_variation", "beyond half").mean(),
                pl.col("measured").max(),
                pl.col("same_top").mean(),
                (pl.col("mass_after") < 0.1).mean().alias("below 0.1"),
                standard("mean_total_variation").alias("standard error"),
            )
        )
    save_charts(charts, out, ("png",))


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="What the answer fixes of attention.")
    parser.add_argument("what", choices=("train", "wikipedia", "classifiers", "tables"))
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "answers")
    parser.add_argument("--texts", type=int, default=200)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "train":
        for task in TASKS:
            train(asked.work, task)
    elif asked.what == "tables":
        tables(asked.work, ROOT / "docs" / "results" / "answers")
    else:
        {"wikipedia": wikipedia, "classifiers": classifiers}[asked.what](asked.work, asked.texts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
