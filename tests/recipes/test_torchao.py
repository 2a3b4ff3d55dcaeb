"""A model with weights quantised by torchao; run by `make test-recipes` in an environment with it."""

import polars as pl
import pytest
from transformers import AutoModelForCausalLM, TorchAoConfig

import identilens as idl
from helpers.zoo import build, ids

quantization = pytest.importorskip(
    "torchao.quantization", reason="make test-recipes installs torchao in an environment of its own"
)
TorchAOBaseTensor = pytest.importorskip("torchao.utils").TorchAOBaseTensor


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_the_audit_is_that_of_the_weights_as_they_were_rounded(tmp_path):
    build("llama").save_pretrained(tmp_path)
    lens = idl.load(
        tmp_path, quantization=TorchAoConfig(quantization.Int8WeightOnlyConfig()), device="cpu"
    )
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, one in lens.model.named_modules():
        if isinstance(getattr(one, "weight", None), TorchAOBaseTensor):
            rounded.get_submodule(name).weight.data = one.weight.dequantize()
    found, expected = (
        idl.audit(one, [ids(24)], examples=1).table for one in (lens, idl.Lens(rounded))
    )
    assert found["rank"].equals(expected["rank"])
    for column in ("null_share", "certain_mass"):
        assert found.select((pl.col(column) - expected[column]).abs().max()).item() < 1e-4
