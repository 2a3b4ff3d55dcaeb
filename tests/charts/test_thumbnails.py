import base64
import struct
import zlib

import numpy as np
import polars as pl
import torch

from identilens.charts.thumbnails import thumbnails


def pixels(address):
    """The pixels of a picture."""
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", content[16:24])
    start = content.index(b"IDAT")
    size = struct.unpack(">I", content[start - 4 : start])[0]
    lines = np.frombuffer(zlib.decompress(content[start + 4 : start + 4 + size]), np.uint8)
    lines = lines.reshape(height, 1 + width * 4)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4)


def test_a_picture_has_a_pixel_a_cell_shaded_by_the_root():
    matrix = torch.tensor([[0.0, 0.25, 1.0], [4.0, 0.04, 0.0]])
    frame = pl.DataFrame({"head": [0], "layer": [3], "note": ["a"]})
    chart = thumbnails(frame, "head", "layer", [matrix], also=["note"]).to_dict()
    (row,) = next(iter(chart["datasets"].values()))
    assert (row["head"], row["layer"], row["note"]) == (0, 3, "a")
    opacity = pixels(row["_picture"])[..., 3]
    assert opacity.tolist() == [[15, 135, 255], [255, 63, 15]]
