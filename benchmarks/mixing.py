"""Hidden Token Attribution: exact forward mode against reverse mode, and the sketch against the exact norms.

All on the bundled encoder (6 layers, d = 384) and one real text of about 43 tokens (one of our own where the data
is absent), in one process.

- Reverse mode as published: one pass for each coordinate of each hidden token of each layer. A sample of passes,
  the same number from every layer, is timed and scaled up to all of them; so many full runs would take most of an hour.
- Exact forward mode: all of it, timed whole; its rate of useful arithmetic (12 d² multiply-adds a token and layer)
  stands beside the machine's own rate for a product of the size that the model's widest layer makes.
- Sketch: timed whole; relative errors of all contributions against the exact ones.
"""

import csv
import lzma
import random
import sys
import time
from collections.abc import Iterator

import torch
from common import DATA, machine, report, turns

import identilens as idl
from identilens.measures.mixing import contributions
from identilens.measures.mixing.contributions import Contributions
from identilens.models import bundled_model
from identilens.models.derivative.jacobian import Method, SquaredNorms, jacobian_norms
from identilens.models.linearise import HiddenMap

Norms = tuple[SquaredNorms, ...]
PROBES = 32
OWN = (
    "The keeper wrote that the light had failed twice since the spring, and that nobody on the mainland noticed.",
    "Twice since spring the light went out, the keeper wrote, unnoticed on the mainland.",
)


def text_of_length(lens: idl.Lens, length: int) -> HiddenMap:
    texts = [OWN]
    path = DATA / "mrpc" / "dev.tsv.xz"
    if path.is_file():
        with lzma.open(path, "rt", encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            texts = [(row["#1 String"], row["#2 String"]) for row in rows][:100]
    return HiddenMap(lens, min(lens.read(texts), key=lambda item: abs(item.length - length)))


def reverse_seconds(hidden: HiddenMap, sample: int) -> float:
    """Seconds that all reverse passes would take, from ``sample`` of each layer."""
    inputs = hidden.inputs.clone().requires_grad_()
    states = hidden(inputs)
    n, width = states[0].shape
    picker = random.Random(0)
    total = 0.0
    for state in states:
        for counted in (False, True):
            start = time.perf_counter()
            for _ in range(sample if counted else 2):
                scalar = state[picker.randrange(n), picker.randrange(width)]
                torch.autograd.grad(scalar, inputs, retain_graph=True)[0].square().sum(-1)
            if counted:
                total += (time.perf_counter() - start) / sample * n * width
    return total


def timed(hidden: HiddenMap, method: Method) -> tuple[float, Norms]:
    """Seconds of a whole job, and its norms."""
    start = time.perf_counter()
    norms = jacobian_norms(
        hidden, hidden.inputs, method=method, probes=PROBES, at_once=hidden.at_once
    )
    return time.perf_counter() - start, norms


def compared(sketch: Norms, exact: Norms) -> Iterator[tuple[Contributions, Contributions]]:
    """Contributions by the sketch and the exact ones, of every layer."""
    for norms, truth in zip(sketch, exact, strict=True):
        yield (
            contributions(norms.squares, norms.variances, norms.freedom),
            contributions(truth.squares, truth.variances),
        )


def coverage(hidden: HiddenMap, exact: Norms) -> bool:
    """How often the sketch's 95 % intervals hold the exact contribution, over three seeds."""
    met = True
    for probes in (8, 16, 32):
        held = [
            ((one.shares - other.shares).abs() <= one.margins).flatten()
            for seed in range(3)
            for one, other in compared(
                jacobian_norms(hidden, hidden.inputs, probes=probes, seed=seed), exact
            )
        ]
        share = float(torch.cat(held).double().mean())
        print(
            f"{probes} probes, n = {len(hidden.inputs)}: {share:.1%} of the sketch's 95 % intervals hold the exact one"
        )
        claim = f"sketch of {probes} probes, coverage of 95 % intervals, distance from 0.95"
        met &= report(claim, abs(share - 0.95), 0.02, at_least=False)
    return met


def main() -> int:
    print(machine())
    lens = idl.load(bundled_model())
    lens.model.requires_grad_(False)
    hidden = text_of_length(lens, 43)
    n, width = hidden.inputs.shape
    layers = len(hidden.outputs)
    print(f"bundled encoder: {layers} layers, d = {width}, n = {n}")

    left, right = torch.randn(16 * n, width), torch.randn(width, 4 * width)
    product = 2 * left.numel() * right.shape[1] / min(turns([lambda: left @ right], repeats=20)[0])
    reverse = reverse_seconds(hidden, sample=40)
    print(
        f"reverse mode, {n * width * layers} passes, extrapolated from {40 * layers}: {reverse:.0f} s"
    )

    forward, exact = timed(hidden, "exact")
    rate = n * width * layers * n * 2 * 12 * width**2 / forward
    print(f"exact forward mode, {n * width} tangents: {forward:.1f} s")
    print(
        f"  {rate / 1e9:.1f} of {product / 1e9:.1f} GFLOP/s of a matrix product ({rate / product:.0%})"
    )

    sketched, sketch = timed(hidden, "sketch")
    error = torch.cat(
        [(one.shares / other.shares - 1).abs().flatten() for one, other in compared(sketch, exact)]
    )
    print(f"sketch, {PROBES} probes a token: {sketched:.1f} s; relative error of contributions: median "
          f"{error.median():.2%}, mean {error.mean():.2%}, 95 % below {error.quantile(0.95):.2%}")  # fmt: skip

    met = report("exact forward mode over reverse mode", reverse / forward, 4)
    short = text_of_length(lens, 22)
    _, short_exact = timed(short, "exact")
    met &= report("sketch over exact forward mode", forward / sketched, 8)
    met &= report(
        "sketch, median relative error of contributions",
        float(error.median()),
        0.03,
        at_least=False,
    )
    met &= coverage(short, short_exact)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
