"""What a scalar audit costs on top of a plain forward pass: BERT-base size, random weights, SDPA attention.

Both run the same batch in this process; the audit's time holds its own forward pass, so the cost on top is the
difference, as a share of the plain pass.
"""

import sys
from functools import partial

import torch
from common import best_times, machine, report
from transformers import BertConfig, BertModel

import identilens as idl

TEXTS = 8


def main() -> int:
    torch.manual_seed(0)
    print(machine())
    model = BertModel(BertConfig(), add_pooling_layer=False).eval()
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    met = True
    for n in (128, 512):
        texts = [torch.randint(1000, 30000, (n,)).tolist() for _ in range(TEXTS)]
        items = lens.read(texts)
        idl.audit(lens, texts, batch_size=TEXTS)  # finds the layout and the model's digest once
        plain, audited = best_times([partial(lens.run, items), partial(idl.audit, lens, texts, batch_size=TEXTS)], 5)
        print(f"n={n}, {TEXTS} texts: plain SDPA forward pass {plain * 1e3:.0f} ms, audit {audited * 1e3:.0f} ms")
        met &= report(f"cost on top of the forward pass, n={n}", audited / plain - 1, 0.5, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
