"""A small study of Dyck transformers that several tests look at."""

from dataclasses import replace

from identilens.lab.dyck.settings import DyckSetting, DyckTraining
from identilens.lab.dyck.train.study import train_dyck

MINIMAL = {"block": "minimal", "first_layer": "one-hot", "num_hidden_layers": 1, "hidden_size": 20}
QUICK = DyckTraining(length=12, tokens=2400, epochs=3, learning_rate=1e-2)
MEASURING = {
    "sequences": 40, "long_sequences": 4, "lengths": (20, 30), "head_sequences": 15, "draws": 2,
}  # fmt: skip
SETTINGS = [
    DyckSetting("behind <b>one-hot</b>", MINIMAL, QUICK),
    DyckSetting(
        "2 layers, 2 heads",
        {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2},
        QUICK,
    ),
]


def shrunk(settings, **options):
    """Everything of a study but its size."""
    smaller = [replace(one, training=replace(one.training, tokens=700)) for one in settings]
    return train_dyck(smaller, **{**options, **MEASURING})
