"""Audits made from random attention, with everything a report must cope with."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import polars as pl
import pytest
import torch
from torch import Tensor

from helpers.mixings import random_mixing
from helpers.structures import structure_of
from helpers.visit import Visit
from identilens.results import Mixing, Structure
from identilens.results.audit import COLUMNS, TOKEN_TYPE_COLUMNS, Audit

SCRIPT = "<script>alert(1)</script>"
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TRICKY = (SCRIPT, "</script>", "<!--", "\u2028", "$x$", "_$", "&amp;", "<b>bold</b>", "水", "", "\n", "\u202egnp")


@dataclass(frozen=True)
class Plan:
    """One kind of attention to make up: tokens of the queries and of the keys, and how many layers and heads."""

    queries: Sequence[str]
    keys: Sequence[str]
    kind: str = "encoder"
    layers: int = 2
    heads: int = 3
    d_v: int = 4
    types: Sequence[str] = field(default=("[CLS]", "other"))


def _maps(plan: Plan, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
    values = torch.randn(len(plan.keys), plan.d_v, generator=generator, dtype=torch.float64)
    weights = torch.softmax(2 * torch.randn(len(plan.queries), len(plan.keys), generator=generator).double(), -1)
    effective = weights @ values @ torch.linalg.pinv(values)
    return weights, effective, min(values.shape)


def _types(plan: Plan, layer: int, head: int, raw: Tensor, effective: Tensor) -> list[tuple]:
    rows = []
    for place, query_type in enumerate(plan.types):
        for key_place, key_type in enumerate(plan.types):
            count = len(plan.types)
            pair = [matrix[place::count, key_place::count] for matrix in (raw, effective)]
            queries = max(1, len(pair[0]))
            sums = [float(matrix.sum()) / queries for matrix in pair]
            rows.append((plan.kind, layer, head, query_type, key_type, queries, *sums))
    return rows


def _record(texts: int) -> dict:
    return {
        "analysis": "audit",
        "fingerprint": "f0" * 32,
        "model": {"name": f"models/{SCRIPT}", "sha256": "ab" * 32, "dtype": "float32", "device": "cpu"},
        "settings": {"layers": None, "batch_size": 8, "rank_tolerance": "max(n, d_model) * eps"},
        "seed": None,
        "libraries": {"identilens": "0.1.0"},
        "python": "3.11",
        "platform": "somewhere",
        "command": ["identilens", "audit", "--text", f"{SCRIPT} \udcff"],
        "texts": {"count": texts, "sha256": ["00"] * texts},
    }


def build(texts: Sequence[Sequence[Plan]], keep: Sequence[int] = ()) -> Audit:
    """Return an audit of made-up attention, one sequence of plans for each text."""
    generator = torch.Generator().manual_seed(0)
    rows, types, matrices, tokens = [], [], {}, {}
    for text, plans in enumerate(texts):
        for plan in plans:
            for layer in range(plan.layers):
                for head in range(plan.heads):
                    raw, effective, rank = _maps(plan, generator)
                    null = raw - effective
                    pair = torch.stack([raw.flatten(), effective.flatten()])
                    pearson = float(torch.corrcoef(pair)[0, 1]) if raw.numel() > 1 else None
                    n = len(plan.keys)
                    share = float(null.square().sum() / raw.square().sum())
                    sizes = (len(plan.queries), n, 4, plan.d_v, rank, n - rank, max(0, n - rank - 1))
                    rows.append((text, layer, head, plan.kind, *sizes, share, pearson, 1e-7))
                    types += _types(plan, layer, head, raw, effective)
                    if text in keep:
                        key = f"text{text}.layer{layer}.head{head}.{plan.kind}"
                        found = {"raw": raw, "effective": effective, "null": null}
                        matrices |= {f"{key}.{name}": matrix.float() for name, matrix in found.items()}
            if text in keep:
                own = "decoder" if plan.kind in ("decoder", "cross") else "encoder"
                tokens.setdefault(text, {})[own] = list(plan.queries)
                tokens[text]["encoder" if plan.kind == "cross" else own] = list(plan.keys)
    table = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    return Audit(
        table, pl.DataFrame(types, schema=TOKEN_TYPE_COLUMNS, orient="row"), _record(len(texts)), matrices, tokens
    )


def words(count: int) -> list[str]:
    """Return distinct tokens, special ones at both ends."""
    return ["[CLS]", *(f"word{index}" for index in range(count - 2)), "[SEP]"][:count]


@pytest.fixture(scope="session")
def make_audit() -> Callable[..., Audit]:
    return build


@pytest.fixture(scope="session")
def plan() -> type[Plan]:
    return Plan


@pytest.fixture(scope="session")
def tokens() -> Callable[[int], list[str]]:
    return words


@pytest.fixture(scope="session")
def mixed_audit() -> Audit:
    """An encoder-decoder with tricky tokens, two kept texts and a text of one token."""
    source, target = [*TRICKY, *words(5)], words(6)
    odd = ("[CLS]", "_odd", SCRIPT, ". ,")
    return build(
        [
            [
                Plan(source, source, types=odd),
                Plan(target, target, "decoder", types=odd),
                Plan(target, source, "cross", types=odd),
            ],
            [
                Plan(words(8), words(8), types=odd),
                Plan(words(3), words(3), "decoder", types=odd),
                Plan(words(3), words(8), "cross", types=odd),
            ],
            [Plan(["one"], ["one"], types=odd)],
        ],
        keep=(0, 1),
    )


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="install identilens[dev] for playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("install chromium (Debian: apt-get install chromium) for the browser tests")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def mixing_result() -> Mixing:
    """An encoder-decoder's mixing with tricky tokens and parts of speech."""
    source = [["[CLS]", *TRICKY, "harbour", "[SEP]", "ferry", "[SEP]"], words(9)]
    target = [words(6), ["[CLS]", "quay", SCRIPT]]
    parts = [
        random_mixing(source)[1],
        random_mixing(target, kind="decoder")[1],
        random_mixing(target, kind="cross", inputs=source)[1],
    ]
    table, tokens = (pl.concat([getattr(part, name) for part in parts]) for name in ("table", "tokens"))
    return Mixing(table, tokens, parts[0].provenance)


@pytest.fixture(scope="session")
def tagged_mixing() -> Mixing:
    """An encoder's mixing with a tag, one of them hostile, for every token."""
    tokens = [words(9), words(24)]
    rows = [
        (text, position, (SCRIPT, "NN", "DT")[position % 3])
        for text, names in enumerate(tokens)
        for position in range(len(names))
    ]
    schema = {"text": pl.Int32, "position": pl.Int32, "tag": pl.String}
    return random_mixing(tokens)[1].with_tags(pl.DataFrame(rows, schema=schema, orient="row"))


@pytest.fixture(scope="session")
def structure_result() -> Structure:
    """The structure of a tiny encoder's attention, with a hostile model name."""
    return structure_of()


@pytest.fixture(scope="module")
def opened(browser, report):
    opened = Visit(browser, report)
    yield opened
    opened.page.close()


@pytest.fixture
def page(opened, report):
    """The open page, as the tests before left it; each chooses all that it needs."""
    yield opened.page
    assert opened.requests == [report.as_uri()]
    assert opened.complaints == []
    assert opened.page.locator("#failure").is_hidden()
