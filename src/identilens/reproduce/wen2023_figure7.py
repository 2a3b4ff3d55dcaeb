"""Figures 7 to 9 of Wen et al. 2023: attention of models trained on Dyck prefixes."""

from pathlib import Path

from identilens.dyck.settings import DyckSetting
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import (
    LOST,
    Run,
    behind,
    deep,
    gpt,
    misleading,
    recipe,
    reproduction,
    run_settings,
    shallow,
    variations,
)

SETTINGS = [
    DyckSetting("no positions", gpt(), deep(data="prefixes")),
    DyckSetting("linear positions", gpt(positions="linear"), deep(data="prefixes")),
    DyckSetting("Eq. 19 (one-hot)", behind("one-hot"), shallow(data="prefixes")),
    DyckSetting("Eq. 21 (angle)", behind("angle"), shallow(data="prefixes", epochs=40)),
]


def figure7(out: Path, run: Run) -> Reproduction:
    """Return galleries of attention and its variation, for training on prefixes (D.2)."""
    found = run_settings(out, SETTINGS, run)
    findings = (
        f"{variations(found)}\n\n{LOST} It says that variation is low behind a minimal first layer and surprisingly "
        f"high in standard models, with and without positions.\n\n{misleading(found)}"
    )
    return reproduction("wen2023-figure7", "Wen et al. 2023, Figures 7 to 9", found, SETTINGS, run, findings)


RECIPE = recipe(figure7)
