"""Settings: one place for default, range and help; checked alike from Python and from the command line."""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.toy import ToySettings, toy
from identilens.errors import InputError, SettingError
from identilens.runs.settings import (
    Settings,
    parse_numbers,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Needed(Settings):
    """Settings of which one has no default."""

    file: Path
    shares: tuple[float, ...] | None = None
    seed: int = 1


def test_values_take_the_form_of_their_fields():
    made = ToySettings(layers=[3, 1, 3], words="odd", share=0)
    assert made.layers == (3, 1)
    assert made.words == ("odd",)
    assert isinstance(made.share, float)
    assert ToySettings(layers=5).layers == (5,)
    assert ToySettings(layers="0,3, 5-8").layers == (0, 3, 5, 6, 7, 8)
    assert parse_numbers("-2--1,0,5-5") == (-2, -1, 0, 5)
    assert ToySettings(words="odd,even").words == ("odd", "even")


def test_numbers_of_numpy_become_those_of_python():
    made = ToySettings(
        layers=np.int64(3), share=np.float32(0.25), seed=np.int8(7), fail=np.int64(2)
    )
    assert (made.layers, made.share, made.seed, made.fail) == ((3,), 0.25, 7, 2)
    several = ToySettings(layers=np.array([4, 1]))
    assert several.layers == (4, 1)
    assert json.loads(json.dumps(several.recorded() | made.recorded()))["layers"] == [3]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("layers", "1,x", "layers as numbers and ranges such as 0,3,5-8; got '1,x'"),
        ("words", "odd,other", "words to be odd or even; got 'other'"),
        ("share", 1.0, "share below 1; got 1.0"),
        ("share", -0.5, "share of at least 0; got -0.5"),
        (
            "layers",
            "0-99999999999",
            "layers as numbers and ranges such as 0,3,5-8; got '0-99999999999'",
        ),
        ("share", float("nan"), "share as a finite number; got nan"),
        ("layers", np.float32(1), "layers as a whole number; got"),
        ("seed", np.bool_(True), "seed as a whole number; got"),
        ("layers", (), "layers with at least one value, or left out; got ()"),
        ("layers", "3-2", "layers as numbers and ranges such as 0,3,5-8; got '3-2'"),
        ("share", "0.5", "share as a number; got '0.5'"),
        ("share", True, "share as a number; got True"),
        ("seed", 1.0, "seed as a whole number; got 1.0"),
        ("words", [pd.NA], "words to be odd or even; got <NA>"),
        ("words", [True], "words to be odd or even; got True"),
        ("colour", "red", "colour to be one of the options layers, words"),
    ],
)
def test_what_is_not_taken_is_refused_by_name(option, value, words):
    with pytest.raises(SettingError, match="expected") as caught:
        ToySettings.of(None, {option: value})
    assert words in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_single_options_go_over_settings():
    both = ToySettings.of(ToySettings(share=0.25, seed=3), {"seed": 4})
    assert (both.share, both.seed) == (0.25, 4)
    assert ToySettings.of(both, {}) == both
    assert Needed.of(None, {"file": "a"}) == Needed(file=Path("a"))
    with pytest.raises(SettingError, match="settings"):
        Needed.of({"file": "a"}, {})
    with pytest.raises(SettingError, match="given"):
        Needed.of(None, {"seed": 2})


def test_paths_and_lists_of_decimals():
    made = Needed(file="a/b", shares=[1, 0.5, 1.0])
    assert (made.file, made.shares) == (Path("a/b"), (1.0, 0.5))
    assert made.recorded() == {"file": "a/b", "shares": [1.0, 0.5], "seed": 1}
    assert Needed(file=Path("a")).recorded()["shares"] is None
    assert made.values_of(Needed) == {
        "file": Path("a/b"), "shares": (1.0, 0.5), "seed": 1,
    }  # fmt: skip
    for given, words in (
        ({"file": 3}, "file as a path; got 3"),
        (
            {"file": "a", "shares": 1j},
            "shares as a number; got 1j",
        ),
    ):
        with pytest.raises(SettingError, match=f"expected {words}"):
            Needed(**given)


def test_only_what_changes_the_numbers_is_recorded():
    recorded = ToySettings(memory=2048, layers="1-2").recorded()
    assert set(recorded) == {"layers", "words", "share", "seed"}
    assert recorded["layers"] == [1, 2]


def test_the_function_shows_its_settings():
    parameters = inspect.signature(toy).parameters
    assert list(parameters)[:3] == ["layers", "words", "share"]
    assert parameters["share"].default == 0.5
    assert {"out", "resume", "overwrite", "progress", "settings"} <= set(parameters)
    assert toy.__doc__.startswith("Square some numbers.")
