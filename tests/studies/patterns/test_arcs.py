"""Arcs of a treebank: words of tokens, accuracy as Clark et al. 2019 count it, ends and order by linear programs."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import identilens as idl
from helpers.chats import answering, tokenizer
from helpers.programs import kept_basis
from helpers.treebanks import SENTENCES
from helpers.zoo import build
from identilens.models.lens import Lens
from identilens.studies.items import word_at

HEADS = {
    "We": 3,
    "can": 3,
    "not": 3,
    "unbelievably": None,
    "go": None,
    ",": 3,
    "can't": 3,
    "we": 3,
    "?": 3,
}
"""The words of the first sentence, each a run of tokens of one character, and the place of the word above it."""

PLAIN = """# text = The cat sat, and dogs slept
1\tThe\t_\tDET\tDT\t_\t2\tdet\t_\t_
2\tcat\t_\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\tsat\t_\tVERB\tVBD\t_\t0\troot\t_\t_
4\t,\t_\tPUNCT\t,\t_\t3\tpunct\t_\t_
5\tand\t_\tCCONJ\tCC\t_\t7\tcc\t_\t_
6\tdogs\t_\tNOUN\tNN\t_\t7\tnsubj\t_\t_
7\tslept\t_\tVERB\tVBD\t_\t3\tconj\t_\t_

"""


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    path = tmp_path_factory.mktemp("arcs") / "small.conllu"
    path.write_text(SENTENCES + chr(10) + PLAIN, encoding="utf-8")
    return path


def places(text, words):
    """Tokens of single characters behind a first one: the positions of each word."""
    found, end = [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        found.append(list(range(start + 1, end + 1)))
    return found


def accuracies(maps, words, heads):
    """Clark's count, in plain loops: for each word, the other word with most attention, to it and from it."""
    n, right = len(words), {"to": {}, "from": {}}
    for child, above in enumerate(heads):
        if above is None:
            continue
        attention = {"to": {}, "from": {}}
        for other in range(n):
            if other == child:
                continue
            attention["to"][other] = np.mean(
                [sum(maps[q, k] for k in words[other]) for q in words[child]]
            )
            attention["from"][other] = np.mean(
                [sum(maps[q, k] for k in words[child]) for q in words[other]]
            )
        for direction, own in attention.items():
            guess = max(own, key=own.get)
            right[direction][child] = (own[above], guess == above)
    return right


def test_scores_are_those_of_plain_loops_over_the_maps_of_transformers(treebank):
    texts = idl.read_conllu(treebank)
    heads = list(HEADS.values())
    model = build("bert").eval()
    model.set_attn_implementation("eager")
    lens = Lens(build("bert"), tokenizer())
    found = idl.patterns(lens, texts[:1], pattern="arcs", rows=100, heads=(0, 3))
    relations = [word.relation for word in texts[0].words]
    words = places(texts[0], HEADS)
    ids = lens.read(texts[:1])[0].tensors["input_ids"]
    with torch.no_grad():
        maps = torch.stack(model(input_ids=ids[None], output_attentions=True).attentions)
    for layer in range(2):
        for head in (0, 3):
            right = accuracies(maps[layer, 0, head].numpy(), words, heads)
            for direction, own in right.items():
                by_relation = defaultdict(list)
                for child, pair in own.items():
                    by_relation[relations[child]].append(pair)
                for relation, pairs in by_relation.items():
                    pattern = f"{relation} {direction} head"
                    [row] = found.table.filter(layer=layer, head=head, pattern=pattern).to_dicts()
                    score, largest = np.mean(pairs, axis=0)
                    assert row["rows"] == len(pairs)
                    assert row["score"] == pytest.approx(score, abs=1e-6)
                    assert row["largest"] == pytest.approx(largest)
    assert 0 < found.table["largest"].mean() < 1


def test_ends_and_order_are_those_of_linear_programs(treebank):
    model = build("bert").double()
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight *= 40
    lens, texts = Lens(model, tokenizer()), idl.read_conllu(treebank)[:1]
    found = idl.patterns(lens, texts, pattern="arcs", rows=100, layers=1, heads=(0, 2))
    words, heads = places(texts[0], HEADS), list(HEADS.values())
    relations = [word.relation for word in texts[0].words]
    [captured] = lens.capture(texts, weights=True)
    certified = 0
    for number in (0, 2):
        head = captured.layers[1].head(number)
        kept = kept_basis(head.values)

        def least(one, kept=kept, head=head):
            """Least value of a sum over rows: each row has a program of its own."""
            total = 0.0
            for query, cost in one.items():
                right = (kept.T @ head.attention[query]).numpy()
                total += linprog(cost, A_eq=kept.T.numpy(), b_eq=right).fun
            return total

        def attention(first, second, sign=1.0, kept=kept):
            cost = np.zeros(len(kept))
            cost[words[second]] = sign / len(words[first])
            return dict.fromkeys(words[first], cost)

        expected = defaultdict(list)
        for child, above in enumerate(heads):
            if above is None:
                continue
            others = [one for one in range(len(words)) if one not in (child, above)]
            for direction in ("to", "from"):
                own = (child, above) if direction == "to" else (above, child)
                rivals = [(child, one) if direction == "to" else (one, child) for one in others]
                apart = []
                for rival in rivals:
                    sums = dict(attention(*own))
                    for query, cost in attention(*rival, -1.0).items():
                        sums[query] = sums.get(query, 0.0) + cost
                    plain = sum(
                        float(head.attention[q] @ torch.from_numpy(c)) for q, c in sums.items()
                    )
                    apart.append(plain > 0 and least(sums) > 1e-9)
                    if not apart[-1]:
                        break
                ends = least(attention(*own)), -least(attention(*own, -1.0))
                expected[f"{relations[child]} {direction} head"].append((*ends, all(apart)))
        for pattern, rows in expected.items():
            [row] = found.table.filter(head=number, pattern=pattern).to_dicts()
            lo, hi, share = np.mean(rows, axis=0)
            assert [row["lo"], row["hi"]] == pytest.approx([lo, hi], abs=1e-6)
            assert row["certified"] == pytest.approx(share)
            assert row["certified"] <= row["largest"]
            certified += share
    assert certified > 0


def test_a_decoder_has_the_arcs_that_a_row_sees(treebank):
    lens = answering("llama")
    found = idl.patterns(
        lens, idl.read_conllu(treebank)[2:], pattern="arcs", rows=9, layers=0, heads=0
    )
    # A row sees what stands before it: words behind their head attend to it, and heads to words before them.
    assert dict(found.table.select("pattern", "rows").rows()) == {
        "det from head": 1, "nsubj from head": 2, "punct to head": 1, "cc from head": 1, "conj to head": 1,
    }  # fmt: skip


def test_a_token_belongs_to_the_word_it_shares_most_with():
    spans = [(0, 2, "ca"), (2, 5, "n't")]
    assert [word_at(spans, place, "none") for place in ((0, 3), (1, 4), (4, 5), (5, 6))] == [
        "ca",
        "n't",
        "n't",
        "none",
    ]
