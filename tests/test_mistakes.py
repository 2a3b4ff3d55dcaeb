"""Mistakes that people make, in Python and on the command line: each ends in a message with the remedy."""

import re

import pytest
import torch

import identilens as idl
from helpers.command import failing
from helpers.heads import seeded
from helpers.zoo import build
from identilens.errors import IdentilensError

TEXT = "The ferry left the harbour before dawn."
A, T = torch.rand(3, 4, generator=seeded()).softmax(-1), torch.eye(4)[:, :2]
pytestmark = pytest.mark.usefixtures("unchecked_shapes")

IN_PYTHON = {
    "a path where a lens is due": (
        lambda lens: idl.audit("bert-base-uncased", [TEXT]),
        "got str. Make one with identilens.load",
    ),
    "arguments swapped": (lambda lens: idl.audit([TEXT], lens), "expected a Lens first; got list"),
    "a model to load": (lambda lens: idl.load(lens.model), "For a model in memory: identilens.Lens"),
    "a name to open": (lambda lens: idl.Lens("bert-base-uncased"), "Load one with identilens.load"),
    "a precision that is none": (lambda lens: idl.load("x", dtype="half"), "auto or float32 or float16"),
    "text without a tokenizer": (lambda lens: idl.audit(idl.Lens(lens.model), [TEXT]), "pass a tokenizer to Lens"),
    "an image without a processor": (lambda lens: idl.audit(lens, [torch.zeros(3, 8, 8)]), "needs an image_processor"),
    "a word for trust": (lambda _: idl.load("x", trust_remote_code="no"), "trust_remote_code to be True or False"),
    "a number for an image": (lambda _: idl.read_image(5), "5 cannot be read as an image"),
    "nothing": (lambda lens: idl.audit(lens, None), "Pass a string, a list of strings"),
    "an empty text": (lambda lens: idl.audit(lens, [""]), "text 0 is empty"),
    "a number as text": (lambda lens: idl.audit(lens, [3.5]), "text 0 has type float; expected a string"),
    "ids of another tokenizer": (lambda lens: idl.audit(lens, [[5, 10**7]]), "Use the model's own tokenizer"),
    "half a layer": (lambda lens: idl.audit(lens, [TEXT], layers=1.5), "layers as a whole number; got 1.5"),
    "no layers": (lambda lens: idl.audit(lens, [TEXT], layers=[]), "at least one value, or left out"),
    "a layer from 1": (lambda lens: idl.audit(lens, [TEXT], layers=6), "Layers count from 0"),
    "an unknown option": (lambda lens: idl.audit(lens, [TEXT], layer=3), "one of the options layers, queries"),
    "an option left out": (lambda lens: idl.structure(lens, [TEXT]), "expected length to be given"),
    "settings as a dictionary": (lambda lens: idl.audit(lens, [TEXT], settings={"seed": 1}), "AuditSettings(...)"),
    "attention of another kind": (
        lambda lens: idl.certify(lens, TEXT, kind="decoder"),
        "the model has encoder attention",
    ),
    "an image of a long name": (lambda lens: idl.read_image("a" * 5000), "File name too long"),
    "ids without an axis of texts": (
        lambda lens: idl.audit(lens, {"input_ids": torch.tensor([5, 6])}),
        "got {'input_ids': (2,)}. For one text: ids[None]",
    ),
    "a batch of no texts": (lambda lens: lens.read({"input_ids": torch.ones(0, 3).long()}), "got {'input_ids': (0, "),
}  # fmt: skip


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_in_python(mistake, bundled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    action, words = IN_PYTHON[mistake]
    with pytest.raises(IdentilensError, match=re.escape(words)):
        action(bundled)
    assert not list(tmp_path.iterdir())


AUDIT = ("audit", "-m", "MODEL", "-t", TEXT, "-o", "o")
TRAIN = ("lab", "encoder", "train")
ONE = ("-m", "MODEL", "-t", TEXT, "-o", "o")
ON_THE_COMMAND_LINE = {
    "a command misspelled": (("audti",), "audti"),
    "an option misspelled": ((*AUDIT, "--layer", "1"), "--layer"),
    "no model": (("audit", "-t", TEXT, "-o", "o"), "--model"),
    "no folder to resume": (("audit", "-m", "MODEL", "-t", TEXT, "--resume"), "--out"),
    "no texts": (("audit", "-m", "MODEL", "-o", "o"), "give exactly one of --text"),
    "options without end": ((*AUDIT, "--config", "/dev/zero"), "it is a device"),
    "a branch of a folder": ((*AUDIT, "--revision", "main"), "expected --revision for ids of the hub only"),
    "two places for a model": ((*AUDIT, "--device", "cpu", "--device-map", "auto"), "expected --device to be left out"),
    "an empty text": (("audit", "-m", "MODEL", "-t", "", "-o", "o"), "text 0 is empty"),
    "a text too long": (("audit", "-m", "MODEL", "-t", "word " * 700, "-o", "o"), "--max-length 512"),
    "layers backwards": ((*AUDIT, "--layers", "1-0"), "--layers as numbers and ranges"),
    "layers beyond": ((*AUDIT, "--layers", "4-9"), "Layers count from 0"),
    "a batch in words": ((*AUDIT, "--batch-size", "two"), "--batch-size"),
    "no tokens": ((*AUDIT, "--max-length", "0"), "--max-length of at least 1"),
    "an option without its value": ((*AUDIT, "--layers"), "--layers"),
    "an unknown choice": ((*AUDIT, "--effects", "sometimes"), "sometimes"),
    "choices that clash": ((*AUDIT, "--matrices", "--queries", "1"), "expected --queries to be left out"),
    "a precision that is none": ((*AUDIT, "--dtype", "float8"), "float8"),
    "a device that is not there": ((*AUDIT, "--device", "cuda:7"), "cannot use device 'cuda:7'"),
    "no such file": (("audit", "-m", "MODEL", "-f", "none.txt", "-o", "o"), "none.txt cannot be read"),
    "a folder for a file": (("audit", "-m", "MODEL", "-f", "foreign", "-o", "o"), "foreign"),
    "a file of numbers": (("audit", "-m", "MODEL", "-f", "bin.txt", "-o", "o"), "not utf-8"),
    "an encoding that is none": (("audit", "-m", "MODEL", "-f", "a.txt", "--encoding", "utf-99", "-o", "o"), "utf-99"),
    "a column of plain text": (("audit", "-m", "MODEL", "-f", "a.txt", "-c", "text", "-o", "o"), ".txt file has none"),
    "a column that is not there": (
        ("audit", "-m", "MODEL", "-f", "a.jsonl", "-c", "body", "-o", "o"),
        "there are text",
    ),
    "no column": (("audit", "-m", "MODEL", "-f", "a.jsonl", "-o", "o"), "need --column"),
    "a number for a text": (("audit", "-m", "MODEL", "-f", "a.jsonl", "-c", "text", "-o", "o"), "line 1"),
    "a treebank that is none": (("audit", "-m", "MODEL", "-f", "a.conllu", "-o", "o"), "sentence 1"),
    "an image to read": (("audit", "-m", "MODEL", "--image", "x.png", "-o", "o"), "x.png"),
    "somebody's folder": (("audit", "-m", "MODEL", "-t", TEXT, "-o", "foreign"), "Choose another folder"),
    "a config without weights": (("audit", "-m", "weightless", "-t", TEXT, "-o", "o"), "safetensors"),
    "a type that is a list": (("audit", "-m", "listed", "-t", TEXT, "-o", "o"), "'listed' cannot be loaded"),
    "a name too long": (("audit", "-m", "a" * 5000, "-t", TEXT, "-o", "o"), "no model found under"),
    "a report of nothing": (("export", "foreign"), "Pass the folder given to --out"),
    "figures of no folder": (("export", "none", "--to", "figures"), '"none" does not exist'),
    "a word that is not there": (
        ("certify", *ONE, "--layers", "0", "--heads", "0", "--queries", "zebra"),
        "no token or position 'zebra'",
    ),
    "a layer that is not there": (("certify", *ONE, "--layers", "9", "--heads", "0"), "Layers count from 0"),
    "a head that is not there": (("certify", *ONE, "--layers", "0", "--heads", "12"), "Heads count from 0"),
    "a kind that is none": (("certify", *ONE, "--kind", "sideways"), "sideways"),
    "the embeddings mixed": (("mixing", *ONE, "--layers", "0"), "--layers from 1"),
    "too few sentences": (("tokens", *ONE), "folds"),
    "no length": (("structure", *ONE), "--length"),
    "texts too short": (("structure", *ONE, "--length", "64"), "64"),
    "no task": ((*TRAIN, "-o", "o"), "--task"),
    "a task that is none": ((*TRAIN, "--task", "chess", "--data", ".", "-o", "o"), "chess"),
    "no data": ((*TRAIN, "--task", "trec", "--data", "none", "-o", "o"), "none"),
    "a reproduction that is none": (("reproduce", "wen2099-figure1", "-o", "o"), "wen2099-figure1"),
    "a reproduction into a file": (("reproduce", "wen2023-table1", "-o", "file"), "is no folder"),
    "a check of nothing": (("selfcheck", "-m", "none"), "no model found under 'none'"),
}  # fmt: skip


@pytest.fixture
def mess(tmp_path, monkeypatch):
    """A folder with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "a.txt": "one two three\n", "a.jsonl": '{"text": 3}\n', "a.conllu": "1\tx\n", "file": "x", "foreign/x": "x",
        "empty/x": "x", "broken/config.json": "{", "weightless/config.json": '{"model_type": "bert"}',
        "unknown/config.json": '{"model_type": "nosuch"}', "listed/config.json": '{"model_type": ["bert"]}',
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "bin.txt").write_bytes(b"\x00\x01\xff\xfe")
    return tmp_path


@pytest.mark.parametrize("mistake", ON_THE_COMMAND_LINE)
def test_on_the_command_line(mistake, bundled_path, mess):
    arguments, words = ON_THE_COMMAND_LINE[mistake]
    before = {path: path.read_bytes() for path in mess.rglob("*") if path.is_file()}
    message = failing(*(str(bundled_path) if word == "MODEL" else word for word in arguments))
    assert words in message
    assert "Traceback" not in message
    assert {path: path.read_bytes() for path in mess.rglob("*") if path.is_file()} == before


def test_pydantic_has_no_say_in_what_is_taken():
    pytest.importorskip("pydantic")
    assert "of at least 1; got 0" in failing("lab", "reversal", "--epochs", 0, "-o", "o")


def test_a_model_of_another_precision_is_taken_by_its_torch_name(tmp_path):
    build("bert").save_pretrained(tmp_path)
    assert idl.load(tmp_path, dtype=torch.float64).dtype == torch.float64
