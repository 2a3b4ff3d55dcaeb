"""Fine-tunes the bundled encoder on MRPC: the second checkpoint of the layer-to-layer comparison.

    python docs/results/tokens/fine_tune.py train.tsv.xz FOLDER [--epochs 2] [--seed 0]

The first token's last state goes through the pooler to two classes, as in BERT's own recipe: AdamW at 5e-5 falling
linearly to 0, weight decay 0.01, batches of 32 pairs, at most 128 tokens.
"""

import argparse
from pathlib import Path

from identilens.reproduce.inputs import FineTuning, fine_tune


def main() -> None:
    """Fine-tune the bundled encoder on the pairs of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    how = FineTuning(epochs=options.epochs, seed=options.seed)
    fine_tune("mrpc", "bundled", options.train, options.folder, how, print)


if __name__ == "__main__":
    main()
