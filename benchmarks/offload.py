"""A large random Llama in bfloat16: audits in memory and from disk beside the plain forward pass, time and peak memory.

Usage: python benchmarks/offload.py [BILLIONS]

Each figure is of a fresh process. The checkpoint is written layer by layer, so that it may be larger than memory.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, report, seconds
from memory import resident

TOKENS = 256


def write(folder: Path, billions: float) -> int:
    """Write a random checkpoint of about so many parameters, and return its size in bytes."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 4096 if billions > 3 else 2048 if billions > 0.5 else 1024
    layers = max(2, round(billions * 1e9 / (11 * width**2)))
    config = LlamaConfig(
        vocab_size=32000, hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 256, dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    config.save_pretrained(folder)
    torch.manual_seed(0)
    places, shards = {}, {}
    for name, one in model.named_parameters():
        shards.setdefault(name.partition("layers.")[2].partition(".")[0] or "rest", {})[name] = one
    for part, tensors in shards.items():
        file = f"model-{part}.safetensors"
        drawn = {
            name: torch.full(one.shape, 1.0).bfloat16() if "norm" in name
            else (torch.randn(one.shape) * 0.02).bfloat16()
            for name, one in tensors.items()
        }  # fmt: skip
        save_file(drawn, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measure(folder: str, way: str, what: str) -> None:
    """Print the seconds of one side in this process, and its peak memory in bytes."""
    import torch

    import identilens as idl

    lens = idl.load(folder, device_map="disk") if way == "disk" else idl.load(folder, device="cpu")
    ids = torch.randint(5, 30000, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    runs = {
        "forward": lambda: lens.run(lens.read([ids])),
        "audit": lambda: idl.audit(lens, [ids], certain_rows=0, examples=0),
    }
    taken = seconds(runs[what])
    print(json.dumps([taken, resident("VmHWM") * 1024]))


def main() -> int:
    print(machine())
    billions = float(sys.argv[1]) if len(sys.argv) > 1 else 1.1
    with tempfile.TemporaryDirectory() as place:
        size = write(Path(place), billions)
        found = {}
        # What does not fit into memory is measured from disk alone.
        for way in ("memory", "disk") if billions < 6 else ("disk",):
            for what in ("forward", "audit"):
                command = [sys.executable, __file__, place, way, what]
                ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[way, what] = json.loads(ran.stdout.splitlines()[-1])
                time, peak = found[way, what]
                print(f"     {way}, {what}: {time:.1f} s, {peak / 2**30:.2f} GiB", flush=True)
    print(f"     checkpoint: {size / 2**30:.2f} GiB, {TOKENS} tokens")
    shape = f"Llama of {billions:g} billion parameters, bfloat16"
    met = report(
        f"{shape}: peak memory of an audit from disk / the checkpoint",
        found["disk", "audit"][1] / size, 0.75, at_least=False,
    )  # fmt: skip
    if ("memory", "audit") in found:
        met &= report(
            f"{shape}: peak memory of an audit / of the forward pass, both in memory",
            found["memory", "audit"][1] / found["memory", "forward"][1], 1.25, at_least=False,
        )  # fmt: skip
        met &= report(
            f"{shape}: seconds of an audit from disk / in memory",
            found["disk", "audit"][0] / found["memory", "audit"][0], 2, at_least=False,
        )  # fmt: skip
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) > 3:
        measure(*sys.argv[1:])
    else:
        sys.exit(main())
