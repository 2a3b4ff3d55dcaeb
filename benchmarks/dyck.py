"""Many Dyck transformers trained as one batched computation against torch.func's, and against one after another.

    python benchmarks/dyck.py                ten seeds of the 2-layer model and of a minimal one, a few epochs

All sides start from the same weights and take the same batches in the same order. The mapped stack trains with
`torch.func.vmap` of the Hugging Face model over the stacked parameters; the loop trains that model seed by seed, with
torch's autograd and fused AdamW. Exit code 1 when a claim does not hold.
"""

import argparse
import sys
from functools import partial
from math import cos, pi
from statistics import median
from unittest.mock import patch

import torch
from common import QUICK, machine, ratios, report, turns
from torch.nn import functional

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.evaluation import closing_accuracy
from identilens.lab.dyck.language import SPECIAL
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.settings import DyckTraining
from identilens.lab.dyck.stacked import mapped_logits, stack_parameters
from identilens.lab.dyck.training import new_model, train_models


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=56_000)
    parser.add_argument("--repeats", type=int, default=1 if QUICK else 3)
    options = parser.parse_args()
    print(machine())
    held = True
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for name, config in configurations(options.layers).items():
            training = DyckTraining(epochs=options.epochs, tokens=options.tokens)
            held &= compare(
                name, config, training, list(range(options.seeds)), device, options.repeats
            )
    return 0 if held else 1


def configurations(layers: int) -> dict[str, DyckConfig]:
    """Return what is trained."""
    return {
        "no positions": DyckConfig(num_hidden_layers=layers),
        "linear positions": DyckConfig(num_hidden_layers=layers, positions="linear"),
        "minimal": DyckConfig(block="minimal", first_layer="one-hot", num_hidden_layers=1),
    }


def compare(
    name: str,
    config: DyckConfig,
    training: DyckTraining,
    seeds: list[int],
    device: str,
    repeats: int,
) -> bool:
    """Compare the ways of training and say how far their weights end apart."""

    def mapped() -> list[DyckForCausalLM]:
        with patch("identilens.lab.dyck.training.stacked_logits", mapped_logits):
            return train_models(config, seeds, training, device=device).models

    ways = {
        "one stack": lambda: train_models(config, seeds, training, device=device).models,
        "mapped stack": mapped,
        "one after another": lambda: [
            train_alone(config, seed, training, device) for seed in seeds
        ],
    }
    models: dict[str, list[DyckForCausalLM]] = {}

    def train(way: str) -> None:
        models[way] = ways[way]()

    taken = dict(zip(ways, turns([partial(train, way) for way in ways], repeats), strict=True))
    test = training.sample(config.language, 200, 5)
    own, *others = (
        torch.tensor(
            [one.argmax for one in closing_accuracy(config, stack_parameters(found), test)]
        )
        for found in models.values()
    )
    gap = max(float((own - other).abs().max()) for other in others)
    times = ", ".join(f"{way} {median(seconds):.2f} s" for way, seconds in taken.items())
    print(
        f"{device:4} {name}, {len(seeds)} seeds, {training.epochs} epochs: {times}; largest difference of an accuracy "
        f"{100 * gap:.2f} points",
        flush=True,
    )
    held = True
    for way in ("mapped stack", "one after another"):
        held &= report(
            f"{device}, {name}: {way} / one stack", ratios(taken[way], taken["one stack"]), 1.5
        )
    return held


def train_alone(
    config: DyckConfig, seed: int, training: DyckTraining, device: str
) -> DyckForCausalLM:
    """Train one model the plain way."""
    data = training.sample(config.language, training.training_sequences, training.data_seed).to(
        device
    )
    model = new_model(config, seed)
    model.to(device)  # pyright: ignore[reportArgumentType] transformers decorates the method
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(training.epochs):
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (1 + cos(pi * epoch / training.epochs)) / 2
        for batch in (
            torch.randperm(len(data), generator=generator).to(device).split(training.batch_size)
        ):
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
