"""Sending a lens to another process: by the path of its model, or as safetensors if the model has no path."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.saving import save_model


@dataclass(frozen=True)
class LensReference:
    """The data from which a lens is created again; a model without a source is in the shared folder."""

    source: str | None
    name: str
    options: dict[str, Any]

    def restored(self, folder: Path) -> Lens:
        """Return the lens."""
        lens = load(self.source or folder, **self.options)
        lens.name = self.name
        return lens


def lens_reference(lens: Lens, folder: Path) -> LensReference:
    """Return the data that create the lens in another process; a model without a path is saved to the folder."""
    source = lens.model.name_or_path or None
    if source is None:
        save_model(lens.model, lens.tokenizer, folder)
        for processor in (lens.reader.image_processor, lens.reader.feature_extractor):
            if processor is not None:
                processor.save_pretrained(folder)
    facts = lens.facts
    options = {
        "dtype": facts["dtype"],
        "device": facts["device"],
        "revision": facts["revision"],
        "attn_implementation": lens.model.config._attn_implementation,
        "trust_remote_code": type(lens.model).__module__.startswith("transformers_modules"),
    }
    return LensReference(source, lens.name, options)
