"""Made-up numbers of heads, and token maps with tokens that a page must cope with."""

import base64
import zlib
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from helpers.heads import seeded
from identilens.charts.viewer import TokenMap
from identilens.runs.result import Finding

SCRIPT = "<script>alert(1)</script>"
TOKENS = [
    "[CLS]", SCRIPT, "</script>", "<!--", "\u2028", "&amp;", "水", "", "\n", "\u202egnp", "harbour", "[SEP]",
]  # fmt: skip


@dataclass
class Reported:
    """What a page asks of a result."""

    title: str
    words: str
    finding: Finding
    provenance: dict
    parts: list

    def subject(self):
        return self.words

    def summary(self):
        return self.finding

    def sections(self):
        return self.parts


def heads(kinds=("encoder", "decoder"), layers=3, count=4):
    """Return a made-up number for every head."""
    rows = [
        (kind, layer, head) for kind in kinds for layer in range(layers) for head in range(count)
    ]
    values = [(7 * place % 11) / 11 for place in range(len(rows))]
    frame = pl.DataFrame(rows, schema=["kind", "layer", "head"], orient="row")
    return frame.with_columns(pl.Series("share", values), signed=0.5 - pl.Series("share", values))


def token_map(text, layer, head, tokens):
    generator = seeded(100 * text + 10 * layer + head)
    raw = torch.softmax(2 * torch.randn(len(tokens), len(tokens), generator=generator), -1)
    effective = raw + 0.05 * torch.randn(raw.shape, generator=generator)
    choices = {"text": text, "layer": layer, "head": head}
    layers = {"raw": raw, "effective": effective}
    return TokenMap(choices, layers, tokens, tokens, differences={"null": ("raw", "effective")})


def unpacked(packed, shape):
    """Return a packed matrix, from the description of the format."""
    raw, size = zlib.decompress(base64.b64decode(packed["data"]), -15), shape[0] * shape[1]
    planes = np.frombuffer(raw, np.uint8).astype(int)
    codes = planes[:size] + 256 * planes[size:]
    top = 511 if packed["signed"] else 1022
    root = (codes - top * packed["signed"]) / top
    return np.where(codes == 1023, np.nan, packed["max"] * np.sign(root) * root**2).reshape(shape)
