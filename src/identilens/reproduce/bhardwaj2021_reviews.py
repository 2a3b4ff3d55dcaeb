"""The reviews and the encoder that Figures 2, 5 and 6 of Bhardwaj et al. 2021 look into."""

from dataclasses import replace
from pathlib import Path

from identilens.encoder.configuration import Heads
from identilens.encoder.readers import read_hub, read_local
from identilens.encoder.tasks import TASKS
from identilens.encoder.training import Progress, TrainingSettings, train
from identilens.errors import InputError
from identilens.models import Lens, load


def trained_encoder(
    out: Path,
    heads: Heads,
    *,
    model: Path | None = None,
    data: Path | None = None,
    settings: TrainingSettings | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Lens:
    """Return an encoder trained on IMDB: the given one, or one trained into ``out/encoder`` now.

    Raises:
        InputError: If the given model is no identifiable encoder with such heads.
    """
    if model is None:
        chosen = replace(settings or TrainingSettings(), heads=heads)
        run = train(
            "imdb", out / "encoder", data=data, settings=chosen, resume=resume, overwrite=overwrite, progress=progress
        )
        model = run.model_path
    lens = load(model)
    if getattr(lens.model.config, "heads", None) != heads:
        raise InputError(
            f"{model} is no encoder with heads={heads!r}. Train one with identilens train --task imdb "
            f"--heads {heads}, or leave --model out."
        )
    return lens


def reviews(data: Path | None) -> list[str]:
    """Return the reviews of IMDB's test part."""
    examples = read_hub(TASKS["imdb"], "test") if data is None else read_local(TASKS["imdb"], data, "test")
    return [text for text in examples.texts if isinstance(text, str)]
