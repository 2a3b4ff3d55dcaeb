"""How an audit is cut into parts, and which texts of a batch are measured at once."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from polars.testing import assert_frame_equal
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import identilens as idl
from helpers.heads import random_weights
from helpers.zoo import build, ids
from identilens.linalg import memory
from identilens.linalg.rows import FullRows
from identilens.linalg.simplex import row_space
from identilens.measures.attention.row_programs import RowPrograms
from identilens.studies.audit import study


def test_saved_matrices_make_parts_smaller(monkeypatch):
    lens, texts = idl.Lens(build("bert")), [ids(n, n) for n in (9, 9, 12, 5)]
    heads = sum(site.heads for site in lens.sites(lens.read(texts)[0]))
    settings = study.AuditSettings(matrices=True)
    assert study.AuditStudy(lens, texts, settings).sizes() == [4]
    monkeypatch.setattr(study, "_MATRICES", heads * 8 * 2 * 9**2)
    assert study.AuditStudy(lens, texts, settings).sizes() == [2, 2]
    assert study.AuditStudy(lens, texts, study.AuditSettings()).sizes() == [4]


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "t5"])
def test_texts_measured_at_once_give_what_each_gives_alone(family, monkeypatch):
    lens = idl.Lens(build(family).double())
    texts = [ids(n, seed) for seed, n in enumerate((40, 40, 9, 40, 9))]
    together = idl.audit(lens, texts, examples=0, certain_rows=0).table
    alone = idl.audit(lens, texts, examples=0, batch_size=1, certain_rows=0).table
    monkeypatch.setattr(memory, "PROCESSOR_BYTES", 1)
    monkeypatch.setattr("identilens.models.layer_batch.LARGE", 1)  # a group of heads at a time
    fewer = idl.audit(lens, texts, examples=0, certain_rows=0).table
    for other in (alone, fewer):
        assert_frame_equal(
            together.drop("reconstruction_error"), other.drop("reconstruction_error"), rel_tol=1e-8
        )


def layer_operations(lens, texts):
    """Operations of an audit of one layer, the proof left out, and those that a second layer adds."""
    taken = []
    for layers in ((0,), (0, 1)):
        options = {"examples": 0, "layers": layers, "progress": False, "certain_rows": 0}
        options["effects"] = "none"
        idl.audit(lens, texts, **options)
        with _counted() as operations:
            idl.audit(lens, texts, **options)
        taken.append(len(operations))
    return taken[0], taken[1] - taken[0]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_as_many_operations_for_many_texts_as_for_two(family):
    model = build(family)
    model.set_attn_implementation("sdpa")
    lens = idl.Lens(model)
    few, many = (layer_operations(lens, [ids(40)] * count) for count in (2, 6))
    assert few[1] == many[1]
    assert many[0] - few[0] <= 4 * 8, "of the types of a text's tokens"


@pytest.mark.parametrize(
    ("dtype", "most", "more"), [(torch.float32, 620, 28), (torch.bfloat16, 675, 34)]
)
def test_an_audit_takes_as_many_operations_whatever_its_heads(dtype, most, more):
    counts = []
    for heads in (4, 16):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=16,
        )  # fmt: skip
        lens = idl.Lens(LlamaForCausalLM(config).to(dtype).eval())
        counts.append(layer_operations(lens, [ids(96)]))
    assert counts[0] == counts[1]
    assert counts[0][0] <= most
    assert counts[0][1] <= more, "layers of one shape are measured together"


def test_programs_of_more_rows_and_heads_are_no_more_operations():
    rows, T = random_weights(0, 24, 4)
    rows = rows.tril() / rows.tril().sum(1, keepdim=True)
    costs, seen = torch.eye(24).double()[None, :3], torch.ones(24, 24, dtype=torch.bool).tril()
    counts = []
    for count in (2, 12):
        own, allowed = slice(12, 12 + count), torch.full((count,), 0.01).double()
        with _counted() as operations:
            space = row_space(T.double().expand(count, -1, -1), seen[own], 1e-7)
            programs = RowPrograms.of(rows[own], space, allowed)
            programs.between(costs.expand(count, -1, -1)[..., programs.keys])
        counts.append(len(operations))
    # As many steps as the program with the most of them needs.
    assert 0 < counts[1] < 2 * counts[0]


@contextmanager
def _counted():
    """The operations that compute something: what only looks at a tensor in another shape is free."""
    operations = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            aliases = [one.alias_info for one in function._schema.returns]
            looks = any(one is not None and not one.is_write for one in aliases)
            if not looks and function is not torch.ops.aten._unsafe_view.default:
                operations.append(str(function))
            return function(*args, **(kwargs or {}))

    with Count():
        yield operations


ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "identilens"


def test_the_page_names_every_frame_from_the_call_to_the_projector(bundled, monkeypatch):
    texts, frames, mixer = idl.examples()[:2], [], FullRows.mixer

    def noted(*args, **options):
        frame = sys._getframe(1)
        while frame and frames[-1:] != ["studies/audit/study.py audit"]:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(SOURCE):
                name = frame.f_code.co_qualname.replace("study_function.<locals>.run", "audit")
                place = (
                    "studies/audit/study.py"
                    if name == "audit"
                    else file.relative_to(SOURCE).as_posix()
                )
                frames.append(f"{place} {name}")
            frame = frame.f_back
        return mixer(*args, **options)

    bundled.prove_once(bundled.read(texts))  # the first batch of a kind also passes the proof
    monkeypatch.setattr(FullRows, "mixer", noted)
    idl.audit(bundled, texts, certain_rows=0, examples=0, progress=False)
    walk = [*reversed(frames), "linalg/rows.py FullRows.mixer"]
    assert len(walk) <= 8
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\d+\. `(\S+)` `([\w.<>]+)`", page, re.MULTILINE) == [
        tuple(one.split()) for one in walk
    ]
