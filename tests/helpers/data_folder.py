"""The folder of the real data sets, for tests, benchmarks and tools."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    ROOT / "data",
    ROOT.parent / "data",
    *(folder / "shared" / "data" for folder in ROOT.parents),
)
DATA = Path(
    os.environ.get("IDENTILENS_DATA")
    or next((place for place in PLACES if place.is_dir()), PLACES[0])
)
"""The folder that the environment variable IDENTILENS_DATA names; by default ``data`` in the checkout or beside it."""
