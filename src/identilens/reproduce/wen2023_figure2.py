"""Figure 2 of Wen et al. 2023: attention after minimal first layers with three kinds of embeddings."""

from pathlib import Path

from identilens.lab.dyck.embeddings import Minimal
from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import LOST, Run, behind, recipe, reproduction, run_settings, shallow, variations

EMBEDDINGS: tuple[tuple[Minimal, str], ...] = (("one-hot", "Eq. 19"), ("type-depth", "Eq. 20"), ("angle", "Eq. 21"))

SETTINGS = [
    DyckSetting(f"{label} ({kind}), rate {rate:g}", behind(kind), shallow(rate, epochs=10 if kind == "one-hot" else 40))
    for kind, label in EMBEDDINGS
    for rate in (1e-2, 3e-3)
]


def figure2(out: Path, run: Run) -> Reproduction:
    """Return galleries of attention with embeddings (19) to (21), and its variation between seeds."""
    result = run_settings(out, SETTINGS, run)
    findings = (
        f"{variations(result)}\n\n{LOST} It says that variation is smaller after a minimal first layer than in "
        "standard models; an independent reimplementation found 0.13 for Eq. 19 (without the start token)."
    )
    return reproduction("wen2023-figure2", "Wen et al. 2023, Figure 2", result, SETTINGS, run, findings)


RECIPE = recipe(figure2)
