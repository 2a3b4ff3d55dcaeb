"""Inversion with margins: time of a token of the bundled decoder, and memory, which does not grow with texts."""

import resource
import sys
from functools import partial

import torch
from common import QUICK, machine, report, turns

import identilens as idl

TOKENS = 16 if QUICK else 64


def main() -> int:
    print(machine())
    torch.set_num_threads(1)
    lens = idl.load("bundled-decoder")
    text = max(idl.examples(), key=len)
    run = partial(idl.inversion, lens, max_length=TOKENS, progress=False)
    [taken] = turns([lambda: run(text)], 1 if QUICK else 3)
    met = report(
        f"seconds for a token, all layers, vocabulary of 4,096, {TOKENS} tokens",
        [one / TOKENS for one in taken],
        1.0,
        at_least=False,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run([text] * 3)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    met &= report("memory that three texts take beyond one, MB", grown, 50, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
