"""The reviews and the encoder of Figures 2, 5 and 6 of Bhardwaj et al. 2021."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from cyclopts import Parameter

from identilens.errors import InputError
from identilens.lab.encoder.readers import read_hub, read_local
from identilens.lab.encoder.settings import EncoderSettings, HeadsName, TrainingSettings
from identilens.lab.encoder.tasks import TASKS
from identilens.lab.encoder.train.study import train
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.runs.settings import NOT_RECORDED


@dataclass(frozen=True, kw_only=True)
class ReviewSettings(TrainingSettings):
    """The encoder of the figure, or the settings of its training on IMDB.

    Attributes:
        model: Folder of a trained encoder. Default: train one on IMDB.
        seed: Seed of training and of the choice of reviews.
    """

    model: Annotated[Path | None, NOT_RECORDED, Parameter(alias="-m")] = None
    seed: Annotated[int, Ge(0)] = 0


def trained_encoder(settings: ReviewSettings, heads: HeadsName, out: Path, **run: Any) -> Lens:
    """Return an encoder trained on IMDB: the given one, or one that is trained now, in ``out/encoder``.

    Raises:
        InputError: If the given model is not an identifiable encoder with these heads.
    """
    model = settings.model
    if model is None:
        chosen = EncoderSettings(**settings.values_of(TrainingSettings), task="imdb", heads=heads, seed=settings.seed)
        model = train(settings=chosen, out=out / "encoder", **run).model_path
    lens = load(model)
    if getattr(lens.model.config, "heads", None) != heads:
        raise InputError(
            f"{model} is not an encoder with heads={heads!r}. Train one with identilens lab encoder train --task imdb "
            f"--heads {heads}, or leave --model out."
        )
    return lens


def encoder_facts(lens: Lens) -> dict[str, Any]:
    """Return an encoder's sizes and digest, for the record."""
    sizes = {name: getattr(lens.model.config, name) for name in ("heads", "d_k", "d_v", "hidden_size")}
    return {"encoder": sizes, "parameters (sha256)": lens.digest}


def reviews(data: Path | None) -> list[str]:
    """Return the reviews of IMDB's test part."""
    examples = read_hub(TASKS["imdb"], "test") if data is None else read_local(TASKS["imdb"], data, "test")
    return [text for text in examples.texts if isinstance(text, str)]
