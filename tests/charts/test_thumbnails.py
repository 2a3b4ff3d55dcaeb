import base64
import struct
import zlib

import numpy as np
import torch

from identilens.charts.thumbnails import contact_sheet
from identilens.charts.viewer import TokenMap


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


def test_maps_stand_by_layer_and_head_shaded_by_the_root_of_their_largest_weights():
    small = (
        torch.tensor([[1.0, 0.0], [0.25, 0.0]]).repeat_interleave(20, 0).repeat_interleave(20, 1)
    )
    large = 3 * small.flip(1).repeat_interleave(2, 0)
    maps = [
        TokenMap({"layer": 3, "head": head}, {"raw": weights}, [], [])
        for head, weights in ((0, small), (2, large))
    ]
    opacity = pixels(contact_sheet(maps))[..., 3]
    assert opacity.shape == (44, 88)
    first, gap, second = opacity[:40, :40], opacity[:, 40:44], opacity[:40, 44:84]
    assert (gap == 15).all()
    assert [first[0, 0], first[0, 39], first[39, 0], first[39, 39]] == [255, 15, 135, 15]
    assert (second == first[:, ::-1]).all()
