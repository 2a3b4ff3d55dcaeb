"""Figure 1 of Wen et al. 2023: attention of standard 2-layer transformers by seed and position encoding."""

from pathlib import Path

from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce import wen2023 as wen
from identilens.reproduce.record import Reproduction

SETTINGS = [
    DyckSetting(f"{label}, rate {rate:g}", wen.gpt(positions=positions), wen.deep(rate))
    for positions, label in (("none", "no positions"), ("linear", "linear positions"))
    for rate in (3e-3, 3e-4)
]


def figure1(out: Path, run: wen.Run) -> Reproduction:
    """Return galleries of attention, and its variation between seeds (section 4.1)."""
    runs = wen.run_settings(out, SETTINGS, run)
    findings = (
        f"{wen.variations(runs)}\n\n{wen.LOST} Its claim is that patterns of standard training vary nearly as much as "
        "random ones and are mostly not stack-like; an independent reimplementation found 1.02 without positions and "
        "0.54 with linear positions (16 tokens, without the start token, causal; its layer and learning rate are not "
        f"known).\n\n{wen.misleading(runs)}"
    )
    return wen.reproduction("wen2023-figure1", "Wen et al. 2023, Figure 1", runs, SETTINGS, run, findings)


RECIPE = wen.recipe(figure1)
