"""Sending a lens to another process: by the path of its model, or as safetensors if the model has no path."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.saving import save_model

Writer = Callable[[Path, Callable[[Path], Any]], None]
"""Writes a folder; gets its path and a function that writes the files."""


@dataclass(frozen=True)
class SentLens:
    """The data from which a lens is created again; a model without a source is in the folder that is sent."""

    source: str | None
    name: str
    options: dict[str, Any]

    def received(self, folder: Path) -> Lens:
        """Return the lens, loaded on the receiving side."""
        lens = load(self.source or folder, **self.options)
        lens.name = self.name
        return lens


def send_lens(lens: Lens, folder: Path, write: Writer) -> SentLens:
    """Return the data that create the lens in another process; a model without a path is written to the folder."""
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
