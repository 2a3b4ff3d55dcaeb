"""Measuring an answer of 64 tokens to a prompt of 2,000 against generating it: peak memory and time.

The model is a random Llama of about 100 million parameters. Memory is the peak of a fresh process above the loaded
model, as in memory.py, and the whole peak. The first conversation of a length class also proves that capture is
faithful, by one more pass and its checks; later ones do not. No rows are bounded: their time is measured by itself.
"""

import json
import os
import subprocess
import sys
from functools import partial
from time import process_time
from typing import Any

import torch
from common import QUICK, machine, milliseconds, ratios, report, seconds
from memory import EXACT, clear_peak, resident
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import identilens as idl

VOCABULARY = 8192
PROMPT, ANSWER = (500, 16) if QUICK else (2000, 64)
BOUNDED = 4


def made() -> tuple[idl.Lens, str, str]:
    """Return the model, a prompt and an answer of random words, each a token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=12, max_position_embeddings=4096, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    words = [f"w{number}" for number in range(VOCABULARY)]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    lens = idl.Lens(
        LlamaForCausalLM(config).eval(), PreTrainedTokenizerFast(tokenizer_object=backend)
    )
    drawn = torch.randint(0, VOCABULARY, (PROMPT + ANSWER,)).tolist()
    text = [words[number] for number in drawn]
    return lens, " ".join(text[:PROMPT]), " ".join(text[PROMPT:])


def generate(lens: idl.Lens, prompt: str, tokens: int) -> None:
    """Let the model generate greedily, with its cache."""
    ids = torch.tensor([lens.tokenizer(prompt)["input_ids"]])
    generating: Any = lens.model.generate
    generating(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)


def measure(mode: str) -> None:
    """Run one side in this process; print its seconds, peaks above the model and in all, and processor's seconds.

    Peaks are in MiB.
    """
    torch.set_num_threads(1)
    lens, prompt, answer = made()
    chat = {"prompt": prompt, "answer": answer}
    run = partial(idl.answer, lens, progress=False)
    few = {"prompt": prompt[:300].rpartition(" ")[0], "answer": "w1 w2"}
    # Both sides start with every library loaded.
    run(few, bounded=0)
    generate(lens, few["prompt"], 2)
    if mode == "later":
        run(chat, bounded=0)
    start = resident("VmRSS")
    clear_peak()
    before = process_time()
    if mode == "generate":
        taken = seconds(partial(generate, lens, prompt, ANSWER))
    else:
        taken = seconds(partial(run, chat, bounded=0))
    peak = resident("VmHWM")
    worked = process_time() - before
    print(json.dumps([taken, (peak - start) / 1024, peak / 1024, worked]))


def main() -> int:
    print(machine())
    found = {}
    for mode in ("generate", "first", "later"):
        runs = []
        for _ in range(1 if QUICK else 3):
            done = subprocess.run(
                [sys.executable, __file__, mode],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, **EXACT},
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        found[mode] = list(zip(*runs, strict=True))
        taken, peak, whole, _ = (max(one) for one in found[mode])
        print(
            f"{mode}: {taken:.1f} s, {peak:.0f} MiB above the loaded model, {whole:.0f} MiB in all"
        )
    size, met = f"{ANSWER} tokens after {PROMPT:,}", True
    names = (
        "seconds",
        "peak memory above the loaded model",
        "peak memory in all",
        "processor's seconds",
    )
    for which in ("first", "later"):
        for at, (name, target) in enumerate(zip(names, (1.5, 1.3, 1.3, 1.5), strict=True)):
            shares = ratios(found[which][at], found["generate"][at])
            claim = f"{name}, measuring / generating, {which} conversation, {size}"
            met &= report(claim, shares, target, at_least=False)
    torch.set_num_threads(1)
    lens, prompt, answer = made()
    chat = {"prompt": prompt, "answer": " ".join(answer.split()[:4])}
    run = partial(idl.answer, lens, chat, progress=False, layers=0)
    run(bounded=0)
    more = seconds(partial(run, bounded=BOUNDED)) - seconds(partial(run, bounded=0))
    rows = 4 * BOUNDED
    print(f"{milliseconds([more / rows])} for a bounded row of {PROMPT:,} keys, two tolerances")
    met &= report(
        f"seconds for a bounded row of {PROMPT:,} keys, two tolerances",
        more / rows,
        1.5,
        at_least=False,
    )
    return 0 if met else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        measure(sys.argv[1])
    else:
        sys.exit(main())
