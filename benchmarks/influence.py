"""Effects of heads on the model's answer: the estimate to first order against removal, its order and its time."""

import sys
from functools import partial

import torch
from common import QUICK, machine, ratios, report, turns
from scipy.stats import spearmanr

import identilens as idl
from identilens.models.outcome import Answer
from identilens.studies.outcomes import head_effects, head_estimates


def of_model(name: str, outcome: str) -> bool:
    """Compare both for every head of a model, on the longest examples."""
    lens, met = idl.load(name), True
    texts = sorted(idl.examples(), key=len)[-1 if QUICK else -3 :]
    for number, item in enumerate(lens.read(texts, 128)):
        answer = Answer(lens, item, "prediction" if outcome == "prediction" else "states")
        heads = [(site, head) for site in lens.sites(item) for head in range(site.heads)]
        removal, estimate = (partial(of, answer, heads) for of in (head_effects, head_estimates))
        order = float(spearmanr(removal(), estimate())[0])  # pyright: ignore[reportArgumentType]
        where = f"{name}, {outcome}, text {number}, {item.length} tokens, {len(heads)} heads"
        met &= report(f"rank correlation of estimate and removal: {where}", order, 0.8)
        reference, taken = turns([removal, estimate], 1 if QUICK else 3)
        # Removal costs a run a head: the estimate is for models of many.
        least = 0.4 if len(heads) < 64 else 1
        met &= report(f"removal / estimate, time: {where}", ratios(reference, taken), least)
    return met


def main() -> int:
    print(machine())
    torch.set_num_threads(2)
    met = [of_model("bundled-decoder", "prediction"), of_model("bundled", "states")]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
