"""``identilens reproduce wen2023-…``: Table 1 and Figures 1 to 10 of Wen et al. 2023."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import DeviceOption, OverwriteOption, ResumeOption, progress, quiet_transformers, with_note
from identilens.cli.reproduce import ReproductionOut, finish
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import Run
from identilens.reproduce.wen2023_figure1 import figure1
from identilens.reproduce.wen2023_figure2 import figure2
from identilens.reproduce.wen2023_figure3 import figure3, figure10
from identilens.reproduce.wen2023_figure4 import figure4
from identilens.reproduce.wen2023_figure7 import figure7
from identilens.reproduce.wen2023_table1 import table1

EpochsOption = Annotated[int | None, typer.Option(min=1, help="Epochs of every setting; the paper's when not given.")]
AtOnceOption = Annotated[
    int | None, typer.Option(min=1, help="Seeds in one batched computation, and in one step that is resumed.")
]


def _command(make: Callable[[Path, Run], Reproduction], seeds: int, help_text: str) -> Callable[..., None]:
    def command(
        out: ReproductionOut,
        seeds: Annotated[int, typer.Option(min=2, help="Seeds of each setting.")] = seeds,
        epochs: EpochsOption = None,
        at_once: AtOnceOption = None,
        device: DeviceOption = None,
        resume: ResumeOption = False,
        overwrite: OverwriteOption = False,
    ) -> None:
        quiet_transformers()
        with progress("seeds") as update:
            advance, watch = with_note(update)
            run = Run(seeds, epochs, at_once, device or "cpu", resume, overwrite, advance, watch)
            found = make(out, run)
        finish(found, out)

    command.__doc__ = help_text
    return command


COMMANDS = {
    "wen2023-figure1": _command(figure1, 30, "Attention of standard 2-layer transformers by seed."),
    "wen2023-figure2": _command(figure2, 30, "Attention behind minimal first layers by seed."),
    "wen2023-figure3": _command(figure3, 40, "Balance violation and length generalisation."),
    "wen2023-table1": _command(table1, 10, "Attention variation by types, depth and layers."),
    "wen2023-figure4": _command(figure4, 10, "Heads that look like a stack and are not used."),
    "wen2023-figure7": _command(figure7, 30, "Attention of models trained on prefixes."),
    "wen2023-figure10": _command(figure10, 40, "Balance violation and length generalisation, trained on prefixes."),
}
"""By name on the command line."""
