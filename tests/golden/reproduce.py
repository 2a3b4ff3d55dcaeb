"""Reproductions in small."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import identilens as idl
from golden.stored import AFTER_TRAINING, Case, single
from helpers.dycks import MEASURING
from identilens.reproduce import wen2023
from identilens.reproduce.options import WenSettings
from identilens.reproduce.registry import figure_named


def wen(name, *shared):
    """Return the tables of a reproduction whose study is run with everything but its size."""

    def shrunk(settings, **options):
        smaller = [replace(one, training=replace(one.training, tokens=700)) for one in settings]
        return idl.lab.train_dyck(smaller, **{**options, **MEASURING})

    with TemporaryDirectory() as folder, patch.object(wen2023, "train_dyck", shrunk):
        found = figure_named(f"wen2023-{name}").make(WenSettings(seeds=2, epochs=1), Path(folder))
    own = set(found.tables) - {"means", "variation", "heads", "misleading"}
    return {name: found.tables[name] for name in sorted(own | set(shared))}


CASES: dict[str, Case] = {
    "wen_table1": single(lambda: wen("table1", "variation"), False, AFTER_TRAINING)  # 2.5 s
}
