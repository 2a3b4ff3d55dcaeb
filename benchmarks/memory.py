"""Peak memory of a streamed audit against the SDPA forward pass alone, for growing texts of a small decoder.

Each figure is the peak resident memory of a fresh process, less what the process holds once the model is loaded
(the interpreter, the libraries and the weights are the same on both sides and would hide the difference).
"""

import json
import os
import subprocess
import sys

from common import QUICK, report

# Freed tensors go back to the system at once, on both sides: the peak is what is held, not how the heap frayed.
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LENGTHS = (512, 1024, 2048) if QUICK else (1024, 2048, 4096, 8192)


def measure(mode: str, n: int) -> None:
    """Run one side in this process and print its peak above the loaded model, in MiB."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    import identilens as idl

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=max(LENGTHS),
    )  # fmt: skip
    model = LlamaModel(config).eval()
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    ids = torch.randint(0, 1000, (n,)).tolist()
    idl.audit(lens, [ids[:300]], stream="always")  # both sides start with every library loaded
    lens.run(lens.read([ids[:300]]))
    start = resident("VmRSS")
    clear_peak()
    if mode == "plain":
        lens.run(lens.read([ids]))
    else:
        idl.audit(lens, [ids], stream="always")
    print(json.dumps((resident("VmHWM") - start) / 1024))


def resident(field: str) -> int:
    """Return a figure of this process's memory in KiB."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 a kernel interface, not a file
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def clear_peak() -> None:
    """Let the peak count from now on."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as control:  # noqa: PTH123 a kernel interface
        control.write("5")


def main() -> int:
    peaks: dict[str, list[float]] = {"plain": [], "audit": []}
    met = True
    for n in LENGTHS:
        for mode, found in peaks.items():
            command = [sys.executable, __file__, mode, str(n)]
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env={**os.environ, **EXACT}
            )
            found.append(float(done.stdout))
        plain, audit = (found[-1] for found in peaks.values())
        print(f"n={n}: SDPA forward pass {plain:.0f} MiB, streamed audit {audit:.0f} MiB")
        met &= report(
            f"peak memory, audit / forward pass, n={n}", audit / plain, 1.5, at_least=False
        )
    growth = (peaks["audit"][-1] - peaks["audit"][-2]) / (peaks["audit"][-2] - peaks["audit"][-3])
    met &= report(
        "growth of the last doubling over that before it (linear: 2, quadratic: 4)",
        growth,
        2.5,
        at_least=False,
    )
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
