"""Wen et al. 2023: the settings in which models are trained."""

from typing import Any

from identilens.lab.dyck.embeddings import Minimal
from identilens.lab.dyck.settings import Data, DyckSetting, DyckTraining

CONTRAST = 0.3
"""λ of the contrastive term."""
DECAYS = (1.0, 0.1, 0.01)
"""Decoupled weight decays of AdamW; the first setting has 0. Corollary 2 has another loss and regularisation."""
ACCURATE = 0.97
"""Accuracy in distribution that counts as learned; the paper's own (section 4.1) is missing in the available text."""
LENGTHS = (16, 28, 56, 112)
"""Numbers of brackets of the prefixes of Figure 8."""

LOST = "The paper's numbers of this table or figure are missing in the available text; only our measurements are given."
RANDOM = (
    "Random patterns are treated as the models' are: causal, over all tokens with the start token, whose row and "
    "column are then left out without scaling the rest."
)
"""The comparison of random patterns with the models', where the start token is left out."""


def standard(
    name: str,
    layers: int = 2,
    *,
    rate: float = 3e-3,
    data: Data = "complete",
    hidden: int = 50,
    uniform: bool = False,
    **config: Any,
) -> DyckSetting:
    """Return a setting of standard transformers with 2 or 3 layers (D.1)."""
    kinds = {
        "bracket_types": 2,
        "max_depth": 4,
        "num_hidden_layers": layers,
        "positions": "none",
        "hidden_size": hidden,
        "intermediate_size": hidden,
        **config,
    }
    training = DyckTraining(
        learning_rate=rate,
        data=data,
        epochs=40,
        attention="uniform" if uniform else "learned",
    )
    return DyckSetting(name, kinds, training)


def minimal(
    name: str,
    first_layer: Minimal = "one-hot",
    *,
    rate: float = 1e-2,
    epochs: int = 10,
    **changed: Any,
) -> DyckSetting:
    """Return a setting of models after a minimal first layer (D.1); Eq. 20 and 21 need over 10 epochs."""
    config = {"block": "minimal", "first_layer": first_layer, "num_hidden_layers": 1}
    return DyckSetting(name, config, DyckTraining(learning_rate=rate, epochs=epochs, **changed))


def regularised(data: Data) -> list[DyckSetting]:
    """Return the settings of Figures 3 and 10: with and without the contrastive term, and with weight decay."""
    return [
        minimal("no regularisation", data=data),
        minimal(f"λ = {CONTRAST}", data=data, contrast=CONTRAST),
        *(minimal(f"weight decay {decay:g}", data=data, weight_decay=decay) for decay in DECAYS),
    ]


POSITIONS = {"none": "no positions", "linear": "linear positions"}
EMBEDDINGS: dict[Minimal, str] = {"one-hot": "Eq. 19", "type-depth": "Eq. 20", "angle": "Eq. 21"}
SETTINGS = {
    "table1": [
        standard(
            f"{types} types, depth {depth}, {layers} layers",
            layers,
            bracket_types=types,
            max_depth=depth,
        )
        for types in (2, 3)
        for depth in (4, 8)
        for layers in (2, 3)
    ],
    "figure1": [
        standard(f"{label}, rate {rate:g}", rate=rate, positions=positions)
        for positions, label in POSITIONS.items()
        for rate in (3e-3, 3e-4)
    ],
    "figure2": [
        minimal(
            f"{label} ({kind}), rate {rate:g}",
            kind,
            rate=rate,
            epochs=10 if kind == "one-hot" else 40,
        )
        for kind, label in EMBEDDINGS.items()
        for rate in (1e-2, 3e-3)
    ],
    "figure3": regularised("complete"),
    "figure4": [
        standard(
            f"{layers} layers, {heads} {'head' if heads == 1 else 'heads'}",
            layers,
            hidden=48,
            num_attention_heads=heads,
        )
        for layers in (2, 3)
        for heads in (1, 2, 4)
    ],
    "figure7": [
        *(
            standard(label, positions=positions, data="prefixes")
            for positions, label in POSITIONS.items()
        ),
        minimal("Eq. 19 (one-hot)", data="prefixes"),
        minimal("Eq. 21 (angle)", "angle", data="prefixes", epochs=40),
    ],
    "figure10": regularised("prefixes"),
    "footnote4": [
        *(
            standard(f"2 layers, {label}", positions=positions, uniform=True)
            for positions, label in POSITIONS.items()
        ),
        minimal("Eq. 19 (one-hot)", attention="uniform"),
    ],
    "c7": [
        standard(f"Eq. 6, {label}, rate {rate:g}", rate=rate, positions=positions, block="paper")
        for positions, label in POSITIONS.items()
        for rate in (3e-3, 3e-4)
    ],
}
"""Settings of each figure's models."""
