"""Section C.7 of Wen et al. 2023: models of the paper's own layer (Eq. 6), trained."""

from pathlib import Path

from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import (
    FewSeeds,
    Run,
    deep,
    gpt,
    misleading,
    recipe,
    reproduction,
    run_settings,
    variations,
)

SETTINGS = [
    DyckSetting(f"Eq. 6, {label}, rate {rate:g}", {**gpt(positions=positions), "block": "paper"}, deep(rate))
    for positions, label in (("none", "no positions"), ("linear", "linear positions"))
    for rate in (3e-3, 3e-4)
]


def c7(out: Path, run: Run) -> Reproduction:
    """Return accuracy, attention variation and use of heads of trained 2-layer models of Eq. 6."""
    result = run_settings(out, SETTINGS, run)
    findings = (
        f"{variations(result)}\n\nThe paper says that models of Eq. 6 learn bounded Dyck languages (its accuracy is "
        "missing in the available text), and that their attention is as little interpretable as that of standard "
        f"models.\n\n{misleading(result)}"
    )
    return reproduction("wen2023-c7", "Wen et al. 2023, section C.7", result, SETTINGS, run, findings)


RECIPE = recipe(c7, FewSeeds)
