"""Trains the bundled decoder, a Llama of four million parameters, on English Wikipedia; called again, it resumes.

Usage: python tools/decoder.py [--tokens N] [--seed N] [--work FOLDER] [--out FOLDER]

The text is wiki_en/train_100mb.txt.xz and wiki_en/valid.txt.xz in the folder that IDENTILENS_DATA names (default:
data).
"""

import argparse
import hashlib
import json
import lzma
import math
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
DATA: Path = run_path(str(ROOT / "tests" / "helpers" / "data_folder.py"))["DATA"]
WIKI = DATA / "wiki_en"
TEXTS = (WIKI / "train_100mb.txt.xz", WIKI / "valid.txt.xz")
BEGIN, END = "<|begin|>", "<|end|>"
VOCABULARY, CONTEXT, BATCH = 4096, 256, 8
RATE, WARM_UP, DECAY, CLIP = 2e-3, 200, 0.1, 1.0
SAVED_EVERY, TOLD_EVERY, TRIED_EVERY, TRIED = 200, 50, 500, 48
TOKENIZER_PAGES = 5000


def pages(file: Path) -> Iterator[str]:
    """Yield each page: its title and its paragraphs, one a line."""
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        for page in lines.read().split("\n\n"):
            head, _, text = page.partition("\n")
            if text.strip():
                yield f"{head.partition(chr(9))[2]}\n{text.strip()}\n"


def tokenizer(work: Path) -> Tokenizer:
    """Return the byte-pair tokenizer, trained on the first pages; a beginning-of-text token stands first in a text."""
    file = work / "tokenizer.json"
    if not file.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[BEGIN, END],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        first = (
            page
            for _, page in zip(
                range(TOKENIZER_PAGES), pages(WIKI / "train_100mb.txt.xz"), strict=False
            )
        )
        made.train_from_iterator(first, trainer)
        made.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)]
        )
        made.save(str(file))
    return Tokenizer.from_file(str(file))


def windows(name: str, work: Path) -> Tensor:
    """Return all text of a file as rows of 256 token ids: a beginning-of-text token, then the pages end to end."""
    file = work / f"{name}.npy"
    if not file.exists():
        coder, end = tokenizer(work), np.array([1], dtype=np.uint16)
        parts = [
            part
            for page in pages(WIKI / f"{name}.txt.xz")
            for part in (
                np.array(coder.encode(page, add_special_tokens=False).ids, dtype=np.uint16),
                end,
            )
        ]
        ids = np.concatenate(parts)
        ids = ids[: len(ids) // (CONTEXT - 1) * (CONTEXT - 1)].reshape(-1, CONTEXT - 1)
        np.save(file, np.concatenate([np.zeros_like(ids[:, :1]), ids], axis=1))
    return torch.from_numpy(np.load(file).astype(np.int64))


def network(seed: int) -> LlamaForCausalLM:
    """Return the model with random weights: 8 query heads that share 4 of keys and values, d_v = 32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=1, pad_token_id=None, use_cache=False, dtype="float32",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def learning_rate(step: int, steps: int) -> float:
    """Return the rate of a step: a warm-up, then a cosine down to zero."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


@torch.no_grad()
def loss_on(model: LlamaForCausalLM, rows: Tensor) -> float:
    """Return the mean cross-entropy per token, in nats, over whole windows."""
    losses = [
        float(model(input_ids=part, labels=part).loss) * len(part) for part in rows.split(BATCH)
    ]
    return sum(losses) / len(rows)


class Training:
    """One training run: its state on disk, so that it can be stopped at any time."""

    def __init__(self, work: Path, tokens: int, seed: int) -> None:
        self.work, self.seed, self.steps = work, seed, tokens // (BATCH * CONTEXT)
        self.model = network(seed)
        matrices = [one for one in self.model.parameters() if one.ndim > 1]
        others = [one for one in self.model.parameters() if one.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
            lr=RATE, betas=(0.9, 0.95), fused=True,
        )  # fmt: skip
        self.log: dict[str, Any] = {
            "step": 0,
            "seconds": 0.0,
            "sittings": [],
            "train": [],
            "valid": [],
        }
        if (work / "log.json").exists():
            self.log = json.loads((work / "log.json").read_text())
            state = torch.load(work / "state.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def run(self) -> None:
        """Train from where the run stands to its end."""
        data, held_out = windows("train_100mb", self.work), windows("valid", self.work)[:TRIED]
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.seed))
        if self.steps * BATCH > len(data):
            sys.exit(
                f"expected at most {len(data) * CONTEXT} tokens, all that the file holds; give a smaller --tokens."
            )
        start, before, recent = time.monotonic(), self.log["seconds"], []
        if self.log["step"] < self.steps:
            self.log["sittings"].append(
                {"from_step": self.log["step"], "planned_steps": self.steps}
            )
        for step in range(self.log["step"], self.steps):
            recent.append(self._step(step, data[order[step * BATCH : (step + 1) * BATCH]]))
            self.log |= {"step": step + 1, "seconds": before + time.monotonic() - start}
            if (step + 1) % TOLD_EVERY == 0:
                self._tell("train", sum(recent) / len(recent))
                recent = []
            if (step + 1) % TRIED_EVERY == 0:
                self._tell("valid", loss_on(self.model, held_out))
            if (step + 1) % SAVED_EVERY == 0 or step + 1 == self.steps:
                self._save()

    def _step(self, step: int, batch: Tensor) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.steps)
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _tell(self, what: str, loss: float) -> None:
        self.log[what].append([self.log["step"], round(loss, 4)])
        print(
            f"{self.log['step']}/{self.steps} {what} {loss:.4f}, {self.log['seconds'] / 60:.1f} min",
            flush=True,
        )

    def _save(self) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.work / "state.tmp")
        (self.work / "state.tmp").replace(self.work / "state.pt")
        (self.work / "log.json").write_text(json.dumps(self.log))


def publish(run: Training, out: Path) -> None:
    """Write the weights in bfloat16, the tokenizer, and how they came about."""
    out.mkdir(parents=True, exist_ok=True)
    coder = PreTrainedTokenizerFast(
        tokenizer_file=str(run.work / "tokenizer.json"),
        bos_token=BEGIN,
        eos_token=END,
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )
    coder.save_pretrained(out)
    # Stored in half the bytes; the configuration says float32, so that it is computed with in float32.
    run.model.config.architectures = [type(run.model).__name__]
    run.model.config.save_pretrained(out)
    stored = {
        name: one.to(torch.bfloat16).contiguous() for name, one in run.model.state_dict().items()
    }
    del stored["lm_head.weight"]
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    run.model.load_state_dict(
        {name: one.float() for name, one in load_file(out / "model.safetensors").items()},
        strict=False,
    )
    held_out = windows("valid", run.work)
    loss, (bytes_, count) = loss_on(run.model, held_out), text_size(run.work)
    tokens = run.log["step"] * BATCH * CONTEXT
    record = {
        "command": f"python {shlex.join(sys.argv)}", "seed": run.seed, "threads": torch.get_num_threads(),
        "minutes": round(run.log["seconds"] / 60, 1), "sittings": run.log["sittings"], "tokens_seen": tokens,
        "tokens_in_training_file": windows("train_100mb", run.work).numel(), "steps": run.log["step"],
        "batch": BATCH, "context": CONTEXT, "optimizer": "AdamW, betas 0.9 and 0.95", "learning_rate": RATE,
        "warm_up_steps": WARM_UP, "schedule": "cosine to 0", "weight_decay": DECAY, "gradient_clip": CLIP,
        "parameters": run.model.num_parameters(), "computed_in": "float32", "stored_in": "bfloat16",
        "validation_loss": round(loss, 4), "validation_perplexity": round(math.exp(loss), 2),
        "validation_bits_per_byte": round(loss / math.log(2) * count / bytes_, 4),
        "train_loss": run.log["train"], "validation_loss_on_48_windows": run.log["valid"],
        "torch": torch.__version__, "transformers": transformers.__version__, "processor": platform.machine(),
        "sha256": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (*TEXTS, out / "model.safetensors")
        },
    }  # fmt: skip
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()
    )
    (out / "training.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"validation loss {loss:.4f}, perplexity {math.exp(loss):.2f}: {out}")


def text_size(work: Path) -> tuple[int, int]:
    """Return the bytes and the tokens of the validation text."""
    coder, texts = tokenizer(work), list(pages(WIKI / "valid.txt.xz"))
    counts = [len(coder.encode(text, add_special_tokens=False).ids) for text in texts]
    return sum(len(text.encode()) for text in texts), sum(counts)


def main() -> None:
    """Train, or go on with the run that the work folder holds, and publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--tokens", type=int, default=7_000_000, help="tokens to train on, each seen once"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "decoder", help="where a stopped run is kept"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "src" / "identilens" / "demo" / "decoder"
    )
    given = parser.parse_args()
    if missing := [str(file) for file in TEXTS if not file.is_file()]:
        sys.exit(
            f"missing: {', '.join(missing)}; put them there, or name the folder of wiki_en by IDENTILENS_DATA."
        )
    given.work.mkdir(parents=True, exist_ok=True)
    run = Training(given.work, given.tokens, given.seed)
    run.run()
    publish(run, given.out)


if __name__ == "__main__":
    main()
