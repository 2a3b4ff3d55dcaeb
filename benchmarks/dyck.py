"""Many Dyck transformers trained as one batched computation against one after another.

    python benchmarks/dyck.py                ten seeds of the 2-layer model, a few epochs

Both sides start from the same weights and take the same batches in the same order; the loop is the Hugging Face model
with torch's autograd and fused AdamW. Exit code 1 when a claim does not hold.
"""

import argparse
import sys
import time
from math import cos, pi

import torch
from common import machine, report
from torch.nn import functional

from identilens.dyck.configuration import DyckConfig
from identilens.dyck.evaluation import closing_accuracy
from identilens.dyck.language import SPECIAL
from identilens.dyck.modeling import DyckForCausalLM
from identilens.dyck.settings import DyckTraining
from identilens.dyck.stacked import stack_parameters
from identilens.dyck.training import new_model, train_models


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=56_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    held = True
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for positions in ("none", "linear"):
            config = DyckConfig(num_hidden_layers=options.layers, positions=positions)
            training = DyckTraining(epochs=options.epochs, tokens=options.tokens)
            held &= compare(config, training, list(range(options.seeds)), device, options.repeats)
    return 0 if held else 1


def compare(config: DyckConfig, training: DyckTraining, seeds: list[int], device: str, repeats: int) -> bool:
    """Compare both ways of training and say how far their weights end apart."""
    together = apart = float("inf")
    stacked, alone = None, []
    # In turns, and the best of each side: what else runs on the machine then slows both alike.
    for _ in range(repeats):
        start = time.perf_counter()
        stacked = train_models(config, seeds, training, device=device)
        middle = time.perf_counter()
        alone = [train_alone(config, seed, training, device) for seed in seeds]
        together, apart = min(together, middle - start), min(apart, time.perf_counter() - middle)
    if stacked is None:
        raise ValueError("expected at least one repeat")
    test = training.sample(config.language, 200, 5)
    scores = [closing_accuracy(config, stack_parameters(models), test) for models in (stacked.models, alone)]
    gap = max(abs(one.argmax - other.argmax) for one, other in zip(*scores, strict=True))
    print(
        f"{device:4} {config.num_hidden_layers} layers, positions {config.positions}, {len(seeds)} seeds, "
        f"{training.epochs} epochs: one stack {together:.2f} s, one after another {apart:.2f} s; largest difference of "
        f"an accuracy {100 * gap:.2f} points",
        flush=True,
    )
    return report(f"{device}, positions {config.positions}: one after another / one stack", apart / together, 2.0)


def train_alone(config: DyckConfig, seed: int, training: DyckTraining, device: str) -> DyckForCausalLM:
    """Train one model the plain way."""
    data = training.sample(config.language, training.sequences, training.data_seed).to(device)
    model = new_model(config, seed)
    model.to(device)  # pyright: ignore[reportArgumentType] transformers decorates the method
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(training.epochs):
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (1 + cos(pi * epoch / training.epochs)) / 2
        for batch in torch.randperm(len(data), generator=generator).to(device).split(training.batch_size):
            optimiser.zero_grad()
            tokens = data[batch]
            labels = tokens[:, 1:]
            counted = labels >= SPECIAL + config.bracket_types
            logits = model(tokens[:, :-1]).logits
            functional.cross_entropy(logits[counted], labels[counted]).backward()
            optimiser.step()
    model.to("cpu")  # pyright: ignore[reportArgumentType] transformers decorates the method
    return model.eval()


if __name__ == "__main__":
    sys.exit(main())
