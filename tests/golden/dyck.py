"""Small runs of the Dyck laboratory; all in single precision, training compared after few steps, on one thread."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import identilens as idl
from golden.stored import AFTER_TRAINING, Case, Tables, single
from helpers.dycks import MEASURING, MINIMAL, QUICK, SETTINGS
from identilens.lab.dyck.settings import DyckSetting


def dyck_tables(found: idl.lab.DyckRuns) -> Tables:
    names = ("table", "curves", "heads", "patterns", "variation")
    return {
        **{name: getattr(found, name) for name in names},
        "means": found.means(),
        "misleading": found.misleading(),
    }


def dyck() -> Tables:
    return dyck_tables(idl.lab.train_dyck(SETTINGS, seeds=[0, 1, 2], at_once=2, **MEASURING))


def dyck_options() -> Tables:
    """Other embeddings, data, losses and regularisers."""
    kinds = {
        "by depth": ({**MINIMAL, "first_layer": "type-depth"}, {"weight_decay": 0.1}),
        "by angle": ({**MINIMAL, "first_layer": "angle"}, {"contrast": 0.3}),
        "prefixes": (
            SETTINGS[1].config | {"positions": "linear"},
            {"data": "prefixes", "loss": "all"},
        ),
    }
    quick = replace(QUICK, tokens=1200, epochs=2)
    settings = [
        DyckSetting(name, config, replace(quick, **own)) for name, (config, own) in kinds.items()
    ]
    found = idl.lab.train_dyck(settings, seeds=[0, 1], **MEASURING)
    return {name: getattr(found, name) for name in ("table", "heads", "variation")}


def dyck_saved() -> Tables:
    with TemporaryDirectory() as folder:
        idl.lab.train_dyck(SETTINGS[:1], seeds=[0, 1], **MEASURING, out=folder)
        models = sorted(Path(folder).glob("models/*/seed*"))
        found = idl.lab.analyse_dyck(models=models, length=QUICK.length, **MEASURING)
    return {name: getattr(found, name) for name in ("table", "heads")}


def dyck_construction() -> Tables:
    return {
        "table": idl.lab.construct_dyck(
            depth=3, lengths=(10, 60), count=4, off_balance=(0.0, 0.1, 1.0)
        ).table
    }


def dyck_pruning() -> Tables:
    small = {"size": 2, "key_size": 4, "width": 2, "candidates": (3, 8), "seeds": 2, "inputs": 200}
    return {"table": idl.lab.prune_dyck(**small, starts=4, steps=20).table}


CASES: dict[str, Case] = {
    "dyck": single(dyck, False, AFTER_TRAINING),  # 0.8 s
    "dyck_construction": single(dyck_construction, False),  # 0.2 s
}
