"""What a scalar audit costs on top of a plain forward pass: BERT-base and GPT-2 size, random weights, SDPA attention.

Both run the same batch in this process; the audit's time holds its own forward pass, so the cost on top is the
difference, as a share of the plain pass.
"""

import sys
from functools import partial

import torch
from common import QUICK, machine, milliseconds, not_measured, ratios, report, turns
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import identilens as idl

TEXTS = 8
TARGETS = {("encoder", 128): 0.25, ("encoder", 512): 0.2, ("decoder", 128): 0.8, ("decoder", 512): 0.5}


def main() -> int:
    torch.manual_seed(0)
    print(machine())
    met = True
    for name, n in TARGETS:
        if not QUICK or n == 128:
            met &= on_top(name, n, "cpu")
    for name, n in TARGETS:
        if torch.cuda.is_available():
            met &= on_top(name, n, "cuda")
        else:
            not_measured(f"{name}, n = {n}, on a GPU: audit on top of the forward pass", "no CUDA device")
    return 0 if met else 1


def on_top(name: str, n: int, device: str) -> bool:
    """Measure what an audit takes on top of the plain pass."""
    model = BertModel(BertConfig(), add_pooling_layer=False) if name == "encoder" else GPT2Model(GPT2Config())
    model.eval().to(device)  # pyright: ignore[reportArgumentType] transformers decorates the method
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    texts = [torch.randint(1000, 30000, (n,)).tolist() for _ in range(TEXTS)]
    items = lens.read(texts)
    audit = partial(
        idl.audit, lens, texts, batch_size=TEXTS, certain_rows=0, examples=0, progress=False
    )  # the scalars alone
    plain, audited = turns([partial(lens.run, items), audit], 3 if QUICK else 5)
    print(f"{name}, n = {n}, {TEXTS} texts: forward pass {milliseconds(plain)}, audit {milliseconds(audited)}")
    shares = [ratio - 1 for ratio in ratios(audited, plain)]
    target = TARGETS[name, n] if device == "cpu" else 0.5
    where = "" if device == "cpu" else ", on a GPU"
    return report(f"{name}, n = {n}{where}: audit on top of the forward pass", shares, target, at_least=False)


if __name__ == "__main__":
    sys.exit(main())
