"""Whether Dyck models of equal accuracy read the top of the stack: the study of docs/results/stack.md.

Usage: python tools/stack_sources.py train|bound|tables [--work FOLDER]

``train`` trains the models; ``bound`` splits the logits of those that are accurate, seed by seed, and resumes;
``tables`` prints and draws what was found.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import polars as pl
import torch

import identilens as idl
from identilens.charts import save_charts
from identilens.charts.kit import scatter
from identilens.lab.dyck import Dyck, parse
from identilens.lab.dyck.language import with_start

ROOT = Path(__file__).parents[1]
TRAINED, SEEDS, ACCURATE = 45, 30, 0.97
"""Models trained, models looked at, and the accuracy that these must have."""
LENGTH, HIDDEN, FIRST, SEQUENCES = 40, 16, 20, 8
"""Brackets of a word, dimension of the one head's values, first query, and words of the measurement."""
TOLERANCES = "0,1%"
MEASURES = ("weight", "source", "certified")


def train(work: Path) -> None:
    """Train all seeds, about 6 minutes on one core."""
    idl.lab.train_dyck(
        seeds=tuple(range(TRAINED)), length=LENGTH, hidden=HIDDEN, tokens=60_000, learning_rate=5e-3, epochs=40,
        lengths=(60, 80), long_sequences=20, head_sequences=20, draws=1, at_once=15,
        out=work / "models", resume=(work / "models").exists(),
    )  # fmt: skip


def accurate(work: Path) -> pl.DataFrame:
    """Return the first models whose accuracy suffices."""
    table = idl.load_result(work / "models").table
    return table.filter(pl.col("argmax") >= ACCURATE).sort("seed").head(SEEDS)


def bound(work: Path) -> None:
    """Split the logits of each model at each query: closing brackets that leave another bracket open."""
    for seed in accurate(work)["seed"]:
        file = work / f"seed{seed:03d}.parquet"
        if not file.exists():
            [folder] = (work / "models" / "models").rglob(f"seed{seed:03d}")
            of_model(folder).with_columns(seed=pl.lit(seed)).write_parquet(file)
            print(f"seed {seed}", flush=True)


def of_model(folder: Path) -> pl.DataFrame:
    """Return for each layer, tolerance and query what is largest there, and where the top of the stack is."""
    lens: Any = idl.load(folder)
    language: Dyck = lens.model.config.language
    words = with_start(
        language.sample_complete(SEQUENCES, LENGTH, torch.Generator().manual_seed(1))
    )
    parsed, rows = parse(language, words), []
    for word, (ids, depth, closes) in enumerate(
        zip(words, parsed.depth, language.is_close(words), strict=True)
    ):
        for query in range(FIRST, LENGTH):
            if not (closes[query] and depth[query] > 0):
                continue
            kind = int(parsed.top_type[word, query])
            right, wrong = ((")", "]")[one] for one in (kind, 1 - kind))
            found = idl.sources(
                lens, [ids[:-1].tolist()], queries=(query,), target=(right, wrong), tolerance=TOLERANCES,
                progress=False,
            )  # fmt: skip
            heaviest = found.table.sort("weight", descending=True, maintain_order=True)
            weights = heaviest.group_by("tolerance", "layer").first()
            joined = found.rows.join(
                weights.select("tolerance", "layer", heaviest="key"), on=["tolerance", "layer"]
            )
            top = int(parsed.top_place[word, query])
            logit = found.logits.select("logit", "ends_moved").row(0, named=True)
            places = {"word": word, "query": query, "top": top, **logit}
            rows.append(
                joined.with_columns(pl.lit(one).alias(name) for name, one in places.items())
            )
    is_top = pl.col("largest") == pl.col("top")
    return pl.concat(rows).with_columns(
        weight=pl.col("heaviest") == pl.col("top"),
        source=is_top,
        certified_top=is_top & pl.col("certified"),
    )


def tables(work: Path, out: Path) -> None:
    """Print the tables of the page, and write and draw them."""
    pl.Config(tbl_rows=80, tbl_cols=20, float_precision=3)
    out.mkdir(parents=True, exist_ok=True)
    models = accurate(work).select("seed", accuracy="argmax")
    every = pl.concat(pl.read_parquet(file) for file in sorted(work.glob("seed*.parquet")))
    shares = every.group_by("seed", "layer", "tolerance").agg(
        pl.len().alias("queries"),
        pl.col("weight", "source").mean(),
        certified=pl.col("certified_top").mean(),
        any_certified=pl.col("certified").mean(),
        right=(pl.col("logit") > 0).mean(),
        ends_moved=pl.col("ends_moved").max(),
    )
    shares = models.join(shares, on="seed").sort("tolerance", "layer", "seed")
    shares.with_columns(pl.selectors.float().round(6)).write_csv(out / "seeds.csv")
    numbers = [*MEASURES, "any_certified", "accuracy", "right"]
    spread = [pl.col(name).std().alias(f"{name}_sd") for name in MEASURES]
    ends = [pl.col("ends_moved").max(), pl.len().alias("seeds"), pl.col("queries").first()]
    by_layer = shares.group_by("tolerance", "layer", maintain_order=True)
    print(by_layer.agg(pl.col(numbers).mean(), *spread, *ends))
    exact = shares.filter(tolerance="0", layer=1)
    print(exact.select("accuracy", *MEASURES).describe())
    print(exact.select("accuracy", *MEASURES).corr())
    chart = scatter(
        exact.select("source", "certified", "seed", "accuracy"),
        "source",
        "certified",
        x_title="Share of queries whose largest source is the top of the stack",
        y_title="Share where it is so in every alternative",
        also=("seed", "accuracy"),
        x_domain=(0, 0.5),
        y_domain=(0, 0.5),
        title="Top of the stack as largest source, last layer: 30 models",
    )
    save_charts({"stack": chart}, out, ("png",))


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Whether Dyck models read the top of the stack.")
    steps = {
        "train": train,
        "bound": bound,
        "tables": lambda work: tables(work, ROOT / "docs" / "results" / "stack"),
    }
    parser.add_argument("what", choices=steps)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "stack")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    steps[asked.what](asked.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
