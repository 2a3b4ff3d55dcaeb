"""Fine-tunes the bundled encoder on MRPC: the second checkpoint of the layer-to-layer comparison.

    python docs/results/tokens/fine_tune.py train.tsv.xz FOLDER [--epochs 2] [--seed 0]

The first token's last state goes through the pooler to two classes, as in BERT's own recipe: AdamW at 5e-5 falling
linearly to 0, weight decay 0.01, batches of 32 pairs, at most 128 tokens.
"""

import argparse
import csv
import lzma
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from identilens import bundled_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    with lzma.open(options.train, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    model = AutoModelForSequenceClassification.from_pretrained(bundled_model(), num_labels=2).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    steps = options.epochs * -(-len(rows) // 32)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)
    for epoch in range(options.epochs):
        losses, right = [], 0
        for chosen in torch.randperm(len(rows)).split(32):
            pairs = [rows[index] for index in chosen.tolist()]
            batch = tokenizer(
                [row["#1 String"] for row in pairs],
                [row["#2 String"] for row in pairs],
                padding=True,
                truncation=True,
                max_length=128,
                return_tensors="pt",
            )
            labels = torch.tensor([int(row["Quality"]) for row in pairs])
            output = model(**batch, labels=labels)
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            losses.append(float(output.loss.detach()))
            right += int((output.logits.argmax(-1) == labels).sum())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch + 1}: training loss {mean:.3f}, accuracy {right / len(rows):.3f}", flush=True)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
