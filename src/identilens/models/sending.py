"""A lens on its way to another process: by the path of its model, or by safetensors where it was made in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.saving import save_model

Writer = Callable[[Path, Callable[[Path], Any]], None]
"""Writes a folder: takes its place, and what fills it."""


@dataclass(frozen=True)
class SentLens:
    """What it takes to make a lens again; its model lies in the folder of what is sent where it has no source."""

    source: str | None
    name: str
    options: dict[str, Any]

    def received(self, folder: Path) -> Lens:
        """Return the lens, loaded where this has arrived."""
        lens = load(self.source or folder, **self.options)
        lens.name = self.name
        return lens


def send_lens(lens: Lens, folder: Path, write: Writer) -> SentLens:
    """Return what makes the lens again in another process; a model that has no path is written into the folder."""
    source = lens.model.name_or_path or None
    if source is None:
        write(folder, partial(_save, lens))
    facts = lens.facts
    options = {
        "dtype": facts["dtype"], "device": facts["device"], "revision": facts["revision"],
        "attn_implementation": lens.model.config._attn_implementation,
        "trust_remote_code": type(lens.model).__module__.startswith("transformers_modules"),
    }  # fmt: skip
    return SentLens(source, lens.name, options)


def _save(lens: Lens, folder: Path) -> None:
    save_model(lens.model, lens.tokenizer, folder)
    for processor in (lens.reader.image_processor, lens.reader.feature_extractor):
        if processor is not None:
            processor.save_pretrained(folder)
