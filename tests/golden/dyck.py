"""Small runs of the Dyck laboratory; all in single precision, training compared after few steps, on one thread."""

import identilens as idl
from golden.stored import AFTER_TRAINING, Case, single
from helpers.dycks import MEASURING, SETTINGS


def dyck_tables(found):
    names = ("table", "curves", "heads", "patterns", "variation")
    return {
        **{name: getattr(found, name) for name in names},
        "means": found.means(),
        "misleading": found.misleading(),
    }


def dyck():
    return dyck_tables(idl.lab.train_dyck(SETTINGS, seeds=[0, 1, 2], at_once=2, **MEASURING))


def dyck_construction():
    return {
        "table": idl.lab.construct_dyck(
            depth=3, lengths=(10, 60), count=4, off_balance=(0.0, 0.1, 1.0)
        ).table
    }


CASES: dict[str, Case] = {
    "dyck": single(dyck, False, AFTER_TRAINING),  # 0.8 s
    "dyck_construction": single(dyck_construction, False),  # 0.2 s
}
