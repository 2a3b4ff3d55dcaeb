"""What each study costs, in forward passes of the same model and text: a random Llama of one billion parameters.

Without a GPU, one of 98 million on the processor. The model computes in bfloat16, as most do; numbers of seconds are
never claimed. Ends within six minutes: a study that takes longer than its share is given up, and said so.
"""

import signal
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NoReturn

import torch
from common import machine, not_measured, report, seconds
from transformers import LlamaConfig, LlamaForCausalLM

import identilens as idl
from identilens.errors import IdentilensError

CUDA = torch.cuda.is_available()
TOKENS = 512 if CUDA else 256
SIZES: dict[str, Any] = (
    {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    if CUDA
    else {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
)  # fmt: skip
PLAIN: dict[str, Any] = {
    "examples": 0, "certain_rows": 0, "effects": "none", "progress": False,
}  # fmt: skip
ROW: dict[str, Any] = {
    "layers": [5], "heads": [3], "queries": "last", "progress": False,
}  # fmt: skip
STUDIES: dict[str, tuple[Callable[..., Any], dict[str, Any], float]] = {
    "audit without programs": (idl.audit, PLAIN, 3.0 if CUDA else 2.0),
    "certify, last row of one head": (idl.certify, ROW, 30.0),
    "certify, the prediction kept": (idl.certify, {**ROW, "outcome": "prediction"}, 30.0),
    "influence of all heads": (idl.influence, {"progress": False}, 200.0),
}
"""Studies, their options, and the most forward passes that they are to cost."""
LIMIT = 60
"""Seconds after which a study is given up."""


def main() -> int:
    torch.manual_seed(0)
    device = "cuda" if CUDA else "cpu"
    print(machine(), torch.cuda.get_device_name() if CUDA else "no GPU")
    config = LlamaConfig(
        vocab_size=32_000, num_key_value_heads=SIZES["num_attention_heads"], **SIZES
    )
    model = LlamaForCausalLM(config).bfloat16().eval().to(device)  # pyright: ignore[reportArgumentType]
    lens, texts = idl.Lens(model), [torch.randint(5, 8000, (TOKENS,)).tolist()]
    inputs = torch.tensor(texts, device=device)
    with torch.no_grad():
        plain = median(seconds(partial(forward, model, inputs)) for _ in range(7))
    first = seconds(partial(idl.audit, lens, texts, **PLAIN))
    met = report("first audit, with the proof", first / plain, 6.0, at_least=False)
    for name, (study, options, most) in STUDIES.items():
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        taken = within(partial(study, lens, texts, **options))
        if isinstance(taken, str):
            not_measured(name, taken)
            met &= taken != "not ended"
            continue
        met &= report(name, taken / plain, most, at_least=False)
        if CUDA:
            print(f"     peak memory {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB")
    return 0 if met else 1


def forward(model: LlamaForCausalLM, inputs: torch.Tensor) -> None:
    """Run the model once, until the device is done."""
    model(inputs)
    if CUDA:
        torch.cuda.synchronize()


def within(function: Callable[[], Any]) -> float | str:
    """Return the seconds that a call takes, or why it has none."""
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT)
    try:
        return seconds(function)
    except IdentilensError as error:
        return str(error).partition(".")[0]
    except TimeoutError:
        return "not ended"
    finally:
        signal.alarm(0)


def give_up(*_: object) -> NoReturn:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
