"""Figures 7 to 9 of Wen et al. 2023: attention of models trained on Dyck prefixes."""

from pathlib import Path

from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce import wen2023 as wen
from identilens.reproduce.record import Reproduction

SETTINGS = [
    DyckSetting("no positions", wen.gpt(), wen.deep(data="prefixes")),
    DyckSetting("linear positions", wen.gpt(positions="linear"), wen.deep(data="prefixes")),
    DyckSetting("Eq. 19 (one-hot)", wen.behind("one-hot"), wen.shallow(data="prefixes")),
    DyckSetting("Eq. 21 (angle)", wen.behind("angle"), wen.shallow(data="prefixes", epochs=40)),
]


def figure7(out: Path, run: wen.Run) -> Reproduction:
    """Return galleries of attention, and its variation, for models trained on prefixes (D.2)."""
    result = wen.run_settings(out, SETTINGS, run)
    findings = (
        f"{wen.variations(result)}\n\n{wen.LOST} It says that variation is low after a minimal first layer and "
        f"surprisingly high in standard models, with and without positions.\n\n{wen.misleading(result)}"
    )
    return wen.reproduction("wen2023-figure7", "Wen et al. 2023, Figures 7 to 9", result, SETTINGS, run, findings)


RECIPE = wen.recipe(figure7)
