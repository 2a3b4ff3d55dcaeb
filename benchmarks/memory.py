"""Peak memory of a streamed audit against the SDPA forward pass alone, for growing texts of a small decoder.

Beside it, memory and time of the last row alone: of all heads in an audit, of one head certified, and of one head's
alternatives with the same prediction; and memory of an audit of 32 heads of 128. Each figure is the peak resident
memory of a fresh process, less what the process holds once the model is loaded (the interpreter, the libraries and the
weights are the same on both sides and would hide the difference).
"""

import json
import os
import subprocess
import sys
from time import process_time
from typing import Any

from common import QUICK, report

# Freed tensors go back to the system at once, on both sides: the peak is what is held, not how the heap frayed.
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LENGTHS = (1024, 2048, 4096) if QUICK else (1024, 2048, 4096, 8192)
ROWS = (1000,) if QUICK else (2000, 4000, 8000)
ROW_MEMORY = {"audit": 1.6, "certify": 6.0, "alternatives": 64.0}
"""Peak memory of one row over that of the forward pass, at most."""
ONCE = "alternatives"
"""Takes minutes for 2,000 tokens; ``python memory.py "row of alternatives" 4000`` measures longer texts."""


def measure(mode: str, n: int) -> None:
    """Run one side in this process and print its peak above the loaded model, in MiB, and its processor time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import identilens as idl

    torch.manual_seed(0)
    heads, width = (32, 128) if mode.startswith("large") else (8, 32)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=heads * width, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=max(LENGTHS + ROWS),
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    ids = torch.randint(0, 1000, (n,)).tolist()
    alone: Any = {"effects": "none", "certain_rows": 0, "examples": 0}
    idl.audit(lens, [ids[:300]], **alone)  # both sides start with every library loaded
    lens.run(lens.read([ids[:300]]))
    head = {"layers": 2, "heads": 3, "queries": "last"}
    sides = {
        "plain": lambda: lens.run(lens.read([ids])),
        "audit alone": lambda: idl.audit(lens, [ids], **alone),
        # Effects of heads on the answer come from a derivative of the whole model, in texts of at most 2,048 tokens.
        "audit": lambda: idl.audit(lens, [ids], effects="none"),
        "row of audit": lambda: idl.audit(lens, [ids], queries="last", effects="none"),
        "row of certify": lambda: idl.certify(lens, [ids], **head),
        "row of alternatives": lambda: idl.alternatives(lens, [ids], outcome="prediction", **head),
    }
    start, began = resident("VmRSS"), process_time()
    clear_peak()
    sides[mode.removeprefix("large ")]()
    print(json.dumps([(resident("VmHWM") - start) / 1024, process_time() - began]))


def in_a_process(mode: str, n: int) -> tuple[float, float]:
    """Return the peak in MiB and the seconds of one side, run in a process of its own."""
    command = [sys.executable, __file__, mode, str(n)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **EXACT}
    )
    memory, seconds = json.loads(done.stdout)
    return memory, seconds


def resident(field: str) -> int:
    """Return a figure of this process's memory in KiB."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 a kernel interface, not a file
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def clear_peak() -> None:
    """Let the peak count from now on."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as control:  # noqa: PTH123 a kernel interface
        control.write("5")


def main() -> int:
    audits, met = [], True
    for n in LENGTHS:
        plain, audit = (in_a_process(mode, n)[0] for mode in ("plain", "audit"))
        audits.append(audit)
        met &= report(
            f"peak memory, audit / forward pass, n={n}", audit / plain, 1.5, at_least=False
        )
    first, second, last = audits[-3:]
    growth = (last - second) / (second - first)
    met &= report(
        "growth of the last doubling over that before it (linear: 2, quadratic: 4)",
        growth,
        2.5,
        at_least=False,
    )
    plain, audit = (
        in_a_process(f"large {mode}", LENGTHS[-1])[0] for mode in ("plain", "audit alone")
    )
    claim = "peak memory of an audit above the pass, 32 heads of 128, the longest text, in GiB"
    met &= report(claim, (audit - plain) / 1024, 1.0, at_least=False)
    for n in ROWS:
        plain, seconds = in_a_process("plain", n)
        print(f"n={n}, forward pass: {plain:.0f} MiB and {seconds:.1f} s")
        for study, most in ROW_MEMORY.items():
            if study == ONCE and (QUICK or n > ROWS[0]):
                continue
            memory, seconds = in_a_process(f"row of {study}", n)
            print(f"n={n}, the last row, {study}: {memory:.0f} MiB and {seconds:.1f} s")
            claim = f"peak memory of one row, {study} / forward pass, n={n}"
            met &= report(claim, memory / plain, most, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
