"""Which heads keep their pattern in every alternative: the study of docs/results/patterns.md. Called again, it resumes.

Usage: python tools/patterns.py train|score|bound|tables [--work FOLDER]

``train`` makes a decoder of two layers that has induction heads; ``score`` computes the plain scores of all heads of
the models on the texts, and names the heads; ``bound`` runs ``identilens patterns`` on those; ``tables`` prints and
draws what was found. The data are in the folder that IDENTILENS_DATA names (default: data).
"""

import argparse
import json
import lzma
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import identilens as idl
from data_folder import DATA
from identilens.charts import save_charts
from identilens.charts.kit import scatter
from identilens.measures.attention import PATTERNS, pattern_keys

ROOT = Path(__file__).parents[1]
SEED = 0
WORDS, LENGTH, PERIODS = 512, 65, (8, 32)
"""Tokens of the made language, of a sequence, and after how many of them it begins again: least and most."""

NAMES: dict[str, Literal["encoder", "decoder"]] = {
    "bundled": "encoder",
    "bundled-decoder": "decoder",
}
SCORED, BOUNDED, SENTENCES = 100, 12, 20
"""Segments that name heads, other segments whose rows are bounded, and sentences whose arcs are."""

CALLED, BETTER, LEAST_ARCS, LONGER = 0.4, 0.1, 100, 33
"""Score from which on a head is called, how far above the baseline one of an arc must be, arcs of a relation at least,
and the tokens that a sentence must have more of so that rows have alternatives at all (d_v + 1)."""

TOLERANCES = "0,model,bfloat16,1%"

STEPS, BATCH, RATE, WARM_UP, TOLD = 1_000, 32, 2e-3, 100, 100


def repeated(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return sequences of random tokens that begin again after a while, and which tokens can be told from before."""
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (BATCH, 1), generator=generator)
    drawn = torch.randint(1, WORDS, (BATCH, PERIODS[1]), generator=generator)
    place = torch.arange(LENGTH - 1).expand(BATCH, -1)
    ids = torch.cat([torch.zeros(BATCH, 1, dtype=torch.int64), drawn.gather(1, place % period)], 1)
    return ids, place >= period


def train(work: Path) -> None:
    """Train the decoder, about 2 minutes on one core, and save it with a tokenizer of the made words."""
    if (work / "induction" / "config.json").exists():
        return
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=256, bos_token_id=0, eos_token_id=None,
        pad_token_id=None, use_cache=False, dtype="float32",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(SEED)
    for step in range(STEPS):
        ids, told = repeated(generator)
        optimizer.param_groups[0]["lr"] = RATE * min(
            1.0, (step + 1) / WARM_UP, 4 - 4 * step / STEPS
        )
        # A token can be told where the one before it stands in the second round, or ends the first.
        logits = model(input_ids=ids).logits[:, :-1][told]
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][told])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % TOLD == 0:
            right = float((logits.argmax(-1) == ids[:, 1:][told]).float().mean())
            print(
                f"step {step + 1} of {STEPS}, loss {float(loss):.3f}, right {right:.3f}", flush=True
            )
    vocabulary = {"<begin>": 0, **{f"w{number}": number for number in range(1, WORDS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<begin>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<begin>")
    model.save_pretrained(work / "induction")
    tokenizer.save_pretrained(work / "induction")


def segments(first: int, count: int) -> list[str]:
    """Return segments of Wikipedia, in an order drawn by the seed."""
    with lzma.open(DATA / "wiki_en" / "segments_1000.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [f"{row['par1']} {row['par2']}" for row in rows]
    random.Random(SEED).shuffle(texts)
    return texts[first : first + count]


def maps_of(name: str, ids: Sequence[int], model: Any) -> np.ndarray:
    """Return all attention maps as transformers itself gives them: layer, head, query, key."""
    with torch.no_grad():
        found = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    return torch.cat(found).numpy()


def score_surface(name: str) -> dict[str, Any]:
    """Return the mean attention of each head to the keys of each pattern, in all rows that have the pattern."""
    model = AutoModel.from_pretrained(idl.bundled_model(NAMES[name]), attn_implementation="eager")
    lens, sums, rows = idl.load(name), {}, dict.fromkeys(PATTERNS, 0)
    for text in segments(0, SCORED):
        [item] = lens.read([text], LENGTH - 1)
        names = item.tokens["encoder"]
        maps = maps_of(name, item.tensors["input_ids"].tolist(), model)
        for query in range(len(names)):
            seen = torch.arange(len(names)) <= query if name == "bundled-decoder" else None
            for pattern in PATTERNS:
                keys = pattern_keys(pattern, names, query, seen)
                if keys is not None:
                    sums[pattern] = sums.get(pattern, 0) + maps[:, :, query] @ keys.numpy()
                    rows[pattern] += 1
    return {one: (own / rows[one]).tolist() for one, own in sums.items()}


def words_of(tokenizer: Any, sentence: Any) -> list[list[int]]:
    """Return the tokens of each word of a sentence: each token belongs to the word it shares most characters with."""
    offsets = tokenizer(str(sentence), return_offsets_mapping=True)["offset_mapping"]
    found: list[list[int]] = [[] for _ in sentence.words]
    for place, (start, end) in enumerate(offsets):
        shared = [min(end, word.end) - max(start, word.start) for word in sentence.words]
        if max(shared) > 0:
            found[shared.index(max(shared))].append(place)
    return found


def by_word(maps: np.ndarray, words: Sequence[Sequence[int]]) -> np.ndarray:
    """Return maps between words: sums over the tokens of the one that is seen, means over those of the other."""
    columns = np.stack([maps[..., own].sum(-1) for own in words], -1)
    return np.stack([columns[..., own, :].mean(-2) for own in words], -2)


def score_arcs(path: Path) -> dict[str, Any]:
    """Return by relation the accuracy of each head in both directions, as Clark et al. 2019 count it, and a baseline.

    The baseline guesses the word at a fixed offset, the best one of each relation.
    """
    source = idl.bundled_model()
    model = AutoModel.from_pretrained(source, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(source)
    right: dict[tuple[str, str], Any] = {}
    offsets: dict[str, Counter[int]] = {}
    for sentence in idl.read_conllu(path):
        ids = tokenizer(str(sentence))["input_ids"]
        words = words_of(tokenizer, sentence)
        if not (len(words) > 1 and all(words) and len(ids) < LENGTH):
            continue
        maps = by_word(maps_of("bundled", ids, model), words)
        place = np.arange(len(words))
        maps[..., place, place] = 0
        guesses = {"to": maps.argmax(-1), "from": maps.argmax(-2)}
        for number, word in enumerate(sentence.words):
            if word.head is not None:
                offsets.setdefault(word.relation, Counter())[word.head - number] += 1
                for direction, guess in guesses.items():
                    one = (word.relation, direction)
                    right[one] = right.get(one, 0) + (guess[..., number] == word.head)
    found = {}
    for (relation, direction), own in right.items():
        arcs = offsets[relation].total()
        if arcs >= LEAST_ARCS:
            [(offset, count)] = offsets[relation].most_common(1)
            layer, head = np.unravel_index(own.argmax(), own.shape)
            found[f"{relation} {direction} head"] = {
                "arcs": arcs, "accuracy": float(own.max() / arcs), "layer": int(layer), "head": int(head),
                "baseline": count / arcs, "offset": offset,
            }  # fmt: skip
    return found


def score(work: Path) -> None:
    """Score all heads without programs, and write down which ones are named."""
    work.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if not (work / f"{name}.json").exists():
            (work / f"{name}.json").write_text(json.dumps(score_surface(name)))
    if not (work / "arcs.json").exists():
        found = score_arcs(DATA / "ud_ewt" / "en_ewt-ud-dev.conllu.xz")
        (work / "arcs.json").write_text(json.dumps(found))


def named(work: Path) -> Iterator[tuple[str, int, int, list[str]]]:
    """Yield each head that is named, with its patterns; the corpus is a model's name, ``arcs`` or ``induction``."""
    for name in NAMES:
        scores = json.loads((work / f"{name}.json").read_text())
        maps = {one: np.array(own) >= CALLED for one, own in scores.items()}
        for layer, head in np.argwhere(np.any(list(maps.values()), axis=0)).tolist():
            yield name, layer, head, [one for one, own in maps.items() if own[layer, head]]
    arcs = json.loads((work / "arcs.json").read_text())
    better = {one: own for one, own in arcs.items() if own["accuracy"] >= own["baseline"] + BETTER}
    heads = sorted({(own["layer"], own["head"]) for own in better.values()})
    for layer, head in heads:
        own = [one for one, at in better.items() if (at["layer"], at["head"]) == (layer, head)]
        yield "arcs", layer, head, own
    for layer, head in product(range(2), range(4)):
        yield "induction", layer, head, ["induction", "previous"]


def bound(work: Path) -> None:
    """Bound the scores of the heads that are named, on other texts, as ``identilens patterns`` does."""
    sentences = idl.read_conllu(DATA / "ud_ewt" / "en_ewt-ud-test.conllu.xz")
    random.Random(SEED).shuffle(sentences)
    lenses = {name: idl.load(name) for name in NAMES} | {"induction": idl.load(work / "induction")}
    lenses["arcs"] = lenses["bundled"]
    count = [len(lenses["arcs"].tokenizer(str(one))["input_ids"]) for one in sentences]
    long = [one for one, n in zip(sentences, count, strict=True) if LONGER < n < LENGTH]
    texts = dict.fromkeys(NAMES, segments(SCORED, BOUNDED))
    texts |= {"arcs": long[:SENTENCES], "induction": ["w1 w2"]}
    there = {word.relation for one in long[:SENTENCES] for word in one.words}
    for corpus, layer, head, patterns in named(work):
        if corpus == "arcs" and not there & {one.split()[0] for one in patterns}:
            continue
        out = work / f"{corpus}-{layer}-{head}"
        options: dict[str, Any] = {"rows": 2} if corpus == "arcs" else {"rows": 4}
        if corpus == "induction":
            options = {"rows": 8, "repeated": 32, "sequences": 8}
        elif corpus != "arcs":
            options["max_length"] = LENGTH - 1
        if not (out / "table.parquet").exists():
            started = time.process_time()
            idl.patterns(
                lenses[corpus], texts[corpus], pattern=patterns, layers=layer, heads=head, tolerance=TOLERANCES,
                out=out, resume=out.exists(), **options,
            )  # fmt: skip
            print(
                f"{out.name}: {', '.join(patterns)}, {time.process_time() - started:.0f} s",
                flush=True,
            )


def found(work: Path) -> pl.DataFrame:
    """Return the bounded scores of all named heads, a row for each pattern and tolerance."""
    frames = []
    for corpus, layer, head, _ in named(work):
        run = work / f"{corpus}-{layer}-{head}"
        if not (run / "table.parquet").exists():
            continue
        result: Any = idl.load_result(run)
        own = (
            result.by_head().filter(pl.col("corpus") == "repeated")
            if corpus == "induction"
            else result.by_head()
        )
        frames.append(own.with_columns(corpus=pl.lit(corpus)))
    return pl.concat(frames)


def tables(work: Path, out: Path) -> None:
    """Print the tables of the page, and write and draw them."""
    pl.Config(tbl_rows=80, tbl_cols=20, float_precision=3)
    out.mkdir(parents=True, exist_ok=True)
    numbers = pl.col("score", "lo", "hi", "largest", "certified").round(4)
    every = found(work).drop("texts", "low", "high", "kind", "state").with_columns(numbers)
    scores = {name: json.loads((work / f"{name}.json").read_text()) for name in NAMES}
    named_by = json.loads((work / "arcs.json").read_text())
    (out / "arcs_named.csv").write_text(
        pl.DataFrame([{"pattern": one, **own} for one, own in named_by.items()]).write_csv()
    )
    surface = every.filter(pl.col("corpus").is_in(list(NAMES))).with_columns(
        named=pl.struct("corpus", "pattern", "layer", "head").map_elements(
            lambda at: round(scores[at["corpus"]][at["pattern"]][at["layer"]][at["head"]], 4),
            return_dtype=pl.Float64,
        ),
        identified=pl.col("lo") >= CALLED,
    )
    arcs = every.filter(corpus="arcs").with_columns(
        pl.col("pattern")
        .replace_strict({one: own[name] for one, own in named_by.items()})
        .round(4)
        .alias(name)
        for name in ("baseline", "accuracy")
    )
    arcs = arcs.with_columns(
        named=pl.col("largest") >= pl.col("baseline") + BETTER,
        identified=pl.col("certified") >= pl.col("baseline") + BETTER,
    )
    induction = every.filter(corpus="induction").with_columns(identified=pl.col("lo") >= CALLED)
    for name, frame in (("surface", surface), ("arcs", arcs), ("induction", induction)):
        frame.write_csv(out / f"{name}.csv")
        print(name, frame.filter(tolerance="1%").drop("tolerance"))
        again = pl.col("score") >= CALLED if name != "arcs" else pl.col("named")
        width, right = pl.col("hi") - pl.col("lo"), pl.col("largest") * pl.col("rows")
        kinds = (
            ["corpus", "tolerance"] if name != "induction" else ["corpus", "pattern", "tolerance"]
        )
        print(
            frame.filter(again).group_by(kinds, maintain_order=True).agg(
                pl.len().alias("called"), pl.col("identified").sum(), width.mean().alias("width"),
                (pl.col("certified") * pl.col("rows")).sum().alias("certified"), right.sum().alias("right"),
            )
        )  # fmt: skip
    chart = scatter(
        surface.filter(tolerance="1%"), "score", "lo", "pattern", also=("layer", "head"),
        x_domain=(0, 1), y_domain=(0, 1), x_title="Score",
        y_title="Lower end, outputs the same up to 1 %", color_title="Pattern", title="Named heads",
    )  # fmt: skip
    print(surface.filter(corpus="bundled", tolerance="1%").group_by("pattern").agg(
        (pl.col("hi") - pl.col("lo")).mean().alias("width"), pl.len()
    ))  # fmt: skip
    save_charts({"surface": chart}, out, ("png",))


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Which heads keep their pattern.")
    steps = {
        "train": train,
        "score": score,
        "bound": bound,
        "tables": lambda work: tables(work, ROOT / "docs" / "results" / "patterns"),
    }
    parser.add_argument("what", choices=steps)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "patterns")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    steps[asked.what](asked.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
