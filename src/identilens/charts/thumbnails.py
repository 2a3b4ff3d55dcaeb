"""Many maps at once, each as a small picture, such as one for every layer and head."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from identilens.charts.viewer import TokenMap

_INK = (0x2B, 0x83, 0xBE)
"""Seen on light and on dark pages, through which the page shines."""
_LEAST = 15
"""Opacity, of 255, of weight 0: enough to see where a map ends."""
_SIDE = 44
"""Pixels from one row of pictures to the next."""
CELLS = 128
"""Rows and columns of a picture at most: larger maps are drawn by the largest weight of each block of cells."""


def contact_sheet(maps: Sequence[TokenMap]) -> str:
    """Return the first matrix of each map with a layer and a head, layer by layer, as the address of one picture."""
    side, gap = _SIDE - 4, 4
    layers, heads = (
        sorted({one.choices.get(name, 0) for one in maps}) for name in ("layer", "head")
    )
    sheet = torch.zeros(len(layers) * (side + gap), len(heads) * (side + gap))
    for one in maps:
        down, across = (
            held.index(one.choices.get(name, 0)) * (side + gap)
            for name, held in (("layer", layers), ("head", heads))
        )
        matrix = next(iter(one.layers.values())).float().nan_to_num()
        small = adaptive_max_pool2d(matrix[None], (side, side))[0]
        sheet[down : down + side, across : across + side] = small / small.max().clamp_min(1e-9)
    return _data_url(sheet)


def _data_url(matrix: Float[Tensor, "query key"]) -> str:
    root = matrix.detach().double().clamp(0, 1).sqrt().cpu().numpy()
    shade = np.round(_LEAST + (255 - _LEAST) * root).astype(np.uint8)
    pixels = np.empty((*shade.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = _INK, shade
    return _png(pixels)


def _png(pixels: np.ndarray) -> str:
    height, width, _ = pixels.shape
    # Each line begins with the number of its filter: none.
    lines = np.insert(pixels.reshape(height, -1), 0, 0, axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")):
        size, check = len(content), zlib.crc32(name + content)
        image += struct.pack(">I", size) + name + content + struct.pack(">I", check)
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
