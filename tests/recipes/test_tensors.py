"""docs/recipes.md on tensors of another engine: its lines, on what a model computed, give what certify says."""

import re
from pathlib import Path

import pytest
from torch.testing import assert_close

import identilens as idl
from helpers.command import identilens
from helpers.zoo import build, ids
from identilens.linalg import head_values

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def recipe():
    """Return the lines of the section, but for those that draw tensors."""
    section = PAGE.read_text(encoding="utf-8").split("## What another engine computed")[1]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    lines = "\n".join(blocks).splitlines()
    drawn = [line for line in lines if line.startswith(("Q, K, V = ", "W_O = "))]
    assert len(drawn) == 2
    return "\n".join(line for line in lines if line not in drawn)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tensors_of_a_head_give_what_certify_says(family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lens = idl.Lens(build(family))
    [captured] = lens.capture([ids(12)], weights=True)
    head = captured.layers[1].head(1)
    tensors = {"Q": head.queries, "K": head.keys, "V": head.values, "W_O": head.output_projection}
    exec(recipe(), tensors)
    assert_close(tensors["A"], head.attention.double(), atol=1e-6, rtol=0)
    own = head_values(head.projected).effective(tensors["A"], head.visible)
    assert_close(tensors["effective"], own, atol=1e-6, rtol=0)
    options = {"layers": 1, "heads": 1, "queries": "last", "tolerance": 0}
    found = idl.certify(lens, [ids(12)], **options)
    for name in ("lo", "hi"):
        ends = getattr(tensors["last"], name).tolist()
        assert ends == pytest.approx(found.table[name].to_list(), abs=1e-5)
    certain = found.by_query()["certain_mass"].item()
    assert float(tensors["certain"][-1]) == pytest.approx(certain, abs=1e-4)
    said = identilens("check", "weight.safetensors", code=0).output
    assert "1 of 1 certificates hold" in said
    assert tensors["certificate"].ends.tolist() == pytest.approx(
        [float(tensors["last"].lo[0]), float(tensors["last"].hi[0])], abs=1e-6
    )
