"""A training step of the Con layer against torch's encoder layer, and what Add costs against Con for each key size.

Forward and backward of one layer (d_model = 512, 8 heads, feed-forward 2048, dropout 0.1) on 16 padded texts of 128
positions, float32. The two sides take turns.
"""

import sys
from collections.abc import Callable
from statistics import median

import torch
from common import QUICK, machine, milliseconds, ratios, report, turns
from torch import Tensor, nn

from identilens.lab.encoder import IdentifiableTransformerLayer
from identilens.lab.encoder.sweep.study import D_K

BATCH, LENGTH, WIDTH = 16, 128, 512


def step(layer: nn.Module, inputs: Tensor, padding: Tensor) -> Callable[[], None]:
    def run() -> None:
        layer.zero_grad(set_to_none=True)
        layer(inputs, src_key_padding_mask=padding)[:, 0].square().sum().backward()

    return run


def main() -> int:
    print(machine())
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, LENGTH, WIDTH)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH,))
    padding = torch.arange(LENGTH) >= lengths[:, None]
    torchs = nn.TransformerEncoderLayer(WIDTH, 8, batch_first=True)
    ours = IdentifiableTransformerLayer(WIDTH, 8, heads="concat")
    ours_taken, reference = turns(
        [step(ours, inputs, padding), step(torchs, inputs, padding)], repeats=20
    )
    print(f"step of {BATCH} texts of {LENGTH}: Con {milliseconds(ours_taken)}, torch.nn.TransformerEncoderLayer "
          f"{milliseconds(reference)}")  # fmt: skip
    for d_k in () if QUICK else D_K:
        layers = [
            IdentifiableTransformerLayer(WIDTH, 8, heads=heads, d_k=d_k)
            for heads in ("concat", "add")
        ]
        con, add = turns([step(layer, inputs, padding) for layer in layers], repeats=5)
        print(f"d_k = {d_k:3}: Con {milliseconds(con)}, Add {milliseconds(add)}, "
              f"Add / Con {median(ratios(add, con)):.2f}")  # fmt: skip
    return (
        0
        if report("Con over torch's layer", ratios(ours_taken, reference), 1.05, at_least=False)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
