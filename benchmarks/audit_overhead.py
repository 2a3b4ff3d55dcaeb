"""What a scalar audit costs on top of a plain forward pass: BERT-base and GPT-2 size, random weights, SDPA attention.

Both run the same batch in this process; the audit's time holds its own forward pass, so the cost on top is the
difference, as a share of the plain pass. A whole run also reads all weights once, for the digest in its provenance and
for the ranks of the output projections: with eight texts that is most of its cost on top, with thousands none; it is
printed beside the cost of measuring.
"""

import sys
from functools import partial
from typing import Any

import torch
from common import QUICK, machine, not_measured, ratios, report, turns
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import identilens as idl
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.study import AuditStudy

TEXTS = 8
TARGETS = {
    ("encoder", 128): 0.6,
    ("encoder", 512): 0.6,
    ("decoder", 128): 1.2,
    ("decoder", 512): 1.2,
}
WHOLE = 0.8
"""What the whole run of an encoder may cost on top at n = 128."""


def main() -> int:
    torch.manual_seed(0)
    print(machine())
    met = True
    for name, n in TARGETS:
        if not QUICK or n == 128:
            met &= compare(name, n, "cpu")
    if not torch.cuda.is_available():
        not_measured("on a GPU: audit on top of the forward pass", "no CUDA device")
        return 0 if met else 1
    for name, n in TARGETS:
        met &= compare(name, n, "cuda")
    return 0 if met else 1


def compare(name: str, n: int, device: str) -> bool:
    """Measure what an audit takes on top of the plain pass."""
    model = (
        BertModel(BertConfig(), add_pooling_layer=False)
        if name == "encoder"
        else GPT2Model(GPT2Config())
    )
    model.eval().to(device)  # pyright: ignore[reportArgumentType] transformers decorates the method
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    texts = [torch.randint(1000, 30000, (n,)).tolist() for _ in range(TEXTS)]
    items = lens.read(texts)
    scalars: dict[str, Any] = {"batch_size": TEXTS, "certain_rows": 0, "examples": 0}
    study = AuditStudy(lens, texts, AuditSettings(**scalars))
    whole = partial(idl.audit, lens, texts, progress=False, **scalars)
    # Turns differ by far more than the cost on top of short texts.
    repeats = 3 if QUICK else 15 if n < 512 else 5
    plain, audited, complete = turns(
        [partial(lens.run, items), partial(measured, study), whole], repeats
    )
    where = f"{name}, n = {n}" + ("" if device == "cpu" else ", on a GPU")
    target = TARGETS[name, n] if device == "cpu" else 0.5
    met = report(
        f"{where}: audit on top of the forward pass",
        on_top_of(plain, audited),
        target,
        at_least=False,
    )
    if (name, n, device) == ("encoder", 128, "cpu"):
        whole_run = on_top_of(plain, complete)
        met &= report(
            f"{where}: whole run on top of the forward pass", whole_run, WHOLE, at_least=False
        )
    return met


def on_top_of(plain: list[float], other: list[float]) -> list[float]:
    """Return the cost on top of the plain pass, as a share of it."""
    return [ratio - 1 for ratio in ratios(other, plain)]


def measured(study: AuditStudy) -> None:
    """Measure the only part of a run."""
    with torch.no_grad():
        study.run(0)


if __name__ == "__main__":
    sys.exit(main())
