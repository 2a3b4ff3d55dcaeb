"""The checks of a model on its own texts: what passes, by which figures, and what is noticed."""

import pytest
import torch

from helpers.zoo import build, ids
from identilens.models.lens import Lens
from identilens.studies.audit import selfcheck as checks
from identilens.studies.audit.selfcheck import selfcheck

NAMES = ["outputs unchanged in blocks of rows", "changing the weights changes the output"]
TEXTS = [ids(8), ids(5, 1)]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_faithful_model_passes_every_check(family):
    found = selfcheck(Lens(build(family)), TEXTS)
    assert all(check.passed for check in found)
    assert [check.name for check in found][-2:] == NAMES
    assert len({check.name for check in found}) == len(found) > 5
    assert {check.limit for check in found[-2:]} == {5e-4}
    assert found[-2].remark == "relative"
    change = float(found[-1].remark.rpartition(" ")[2])
    assert found[-1].remark.startswith("relative to the block, against what its heads predict; ")
    assert 0.01 < change < 10


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_uniform_weights_are_the_mean_of_the_visible_values(family):
    lens = Lens(build(family))
    seen = []

    def answer(call):
        seen.append((call.value, call.visible(), checks._uniform(call)))
        return call.attend()[0]

    lens.run(lens.read([TEXTS[0]]), answer)
    for values, visible, output in seen:
        groups = 4 // values.shape[1]
        for head in range(4):
            for query in range(8):
                last = query + 1 if family == "llama" else 8
                mean = values[0, head // groups, :last].mean(0)
                torch.testing.assert_close(output[0, query, head], mean, atol=1e-6, rtol=1e-5)
        assert (visible is None) == (family == "bert")


def test_the_change_is_that_of_the_models_own_output():
    lens = Lens(build("bert"))
    items = lens.read(TEXTS[:1])
    whole = lens.run(items, lambda call: call.attend()[0])
    uniform = lens.run(items, checks._uniform, changes=True)
    deviating, final = checks._changed(lens, items, whole)
    apart = [
        float((after - before).abs().max() / before.abs().max())
        for before, after in zip(whole.to_tuple(), uniform.to_tuple(), strict=True)
    ]
    assert final == pytest.approx(max(apart))
    assert deviating < 1e-5


def test_blocks_of_rows_are_the_rows():
    lens = Lens(build("llama"))
    pairs = []

    def answer(call):
        whole = call.attend()[0]
        pairs.append((checks._in_blocks(call), whole))
        return whole

    lens.run(lens.read([TEXTS[0]]), answer)
    assert len(pairs) == 2
    for blocks, whole in pairs:
        torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=1e-5)


def test_heads_that_do_not_explain_the_block_are_noticed(monkeypatch):
    class Half(checks.HeadsSum):
        def __call__(self, *given):
            return 0.5 * super().__call__(*given)

    monkeypatch.setattr(checks, "HeadsSum", Half)
    found = selfcheck(Lens(build("bert")), TEXTS)
    last = found[-1]
    assert (last.name, last.passed) == (NAMES[1], False)
    assert last.figure == pytest.approx(0.5, abs=0.3)
    assert all(check.passed for check in found[:-1])


def test_blocks_that_differ_are_noticed_and_further_checks_need_the_proof(monkeypatch):
    lens = Lens(build("bert"))
    monkeypatch.setattr(checks, "_in_blocks", lambda call: 2 * call.attend()[0])
    found = selfcheck(lens, TEXTS)
    assert [check.name for check in found if not check.passed] == NAMES[:1]
    failing = checks.Check("outputs unchanged by capture", 1.0, 1e-3, "")
    monkeypatch.setattr(lens, "prove", lambda items: [failing])
    assert selfcheck(lens, TEXTS) == [failing]


def test_texts_that_run_alone_are_checked_alone_and_the_worst_counts(monkeypatch):
    lens, sizes = Lens(build("bert")), []

    def checked(lens, items):
        sizes.append(len(items))
        if len(items) > 1:
            raise checks.JoinedTextsError("one text at a time")
        figure = 1.0 / items[0].length
        return [checks.Check("one", figure, 1.0, ""), checks.Check("two", -figure, 1.0, "")]

    monkeypatch.setattr(checks, "_checks", checked)
    found = selfcheck(lens, [ids(8), ids(5), ids(6)])
    assert sizes == [3, 1, 1, 1]
    assert [(check.name, check.figure) for check in found] == [("one", 0.2), ("two", -0.125)]
    assert selfcheck(lens, [ids(8)], max_length=4)[0].figure == 0.25


def test_a_figure_that_is_not_a_number_is_the_worst(monkeypatch):
    figures = iter([0.5, float("nan"), 0.25])

    def checked(lens, items):
        if len(items) > 1:
            raise checks.JoinedTextsError("one text at a time")
        return [checks.Check("one", next(figures), 1.0, "")]

    monkeypatch.setattr(checks, "_checks", checked)
    (found,) = selfcheck(Lens(build("bert")), [ids(8), ids(5), ids(6)])
    assert not found.passed
