"""The constructions run and checked: uniform and balanced attention at every length, and what breaks them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.dyck.balance import measure_balance, second_layer
from identilens.dyck.embeddings import close_symbol, open_symbol, symbols
from identilens.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.dyck.language import Dyck, with_start
from identilens.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.dyck.stacked import stack_parameters
from identilens.dyck.sufficiency import balanced_scores, sufficient_model
from identilens.dyck.tokenizer import bracket_tokenizer
from identilens.dyck.uniform import uniform_second_layer, uniform_transformer
from identilens.errors import InputError
from identilens.models.saving import save_model
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance

CONSTRUCTION_COLUMNS: dict[str, Any] = {
    "construction": pl.String,
    "off_balance": pl.Float64,
    "length": pl.Int64,
    "support": pl.Float64,
    "argmax": pl.Float64,
    "threshold": pl.Float64,
    "violation": pl.Float64,
    "largest_violation": pl.Float64,
    "condition": pl.Float64,
}
"""Columns: one row a construction, size of the perturbation in logits, and length."""


@dataclass(frozen=True)
class Construction:
    """What is built and how it is tested.

    Attributes:
        types: k.
        max_depth: D.
        open_probability: q.
        lengths: Brackets in the test prefixes.
        count: Prefixes of each length.
        off_balance: Sizes, in logits, by which the balanced layer's attention is moved off Eq. 11.
        spread: Size of the balanced layer's attention logits.
        seed: Of embeddings, logits, perturbations and prefixes.
    """

    types: int = 2
    max_depth: int = 4
    open_probability: float = 0.5
    lengths: tuple[int, ...] = (28, 100, 500, 2000)
    count: int = 50
    off_balance: tuple[float, ...] = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
    spread: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 2 or self.count < 1 or self.spread < 0:
            raise InputError(f"expected lengths of at least 2, a positive count and a spread of at least 0; got {self}")
        if not self.off_balance or min(self.off_balance) < 0:
            raise InputError(f"expected perturbations of at least 0, got {self.off_balance}")
        if self.types < 2 or self.max_depth < 2:
            raise InputError(
                f"expected at least 2 types and depth 2, got {self.types} and {self.max_depth}; otherwise there is "
                "nothing to balance"
            )

    @property
    def language(self) -> Dyck:
        """The language."""
        return Dyck(self.types, self.max_depth, self.open_probability)


def check_constructions(
    construction: Construction | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Return how the constructions of Corollary 1 and Theorem 1 do on prefixes of several lengths.

    ``uniform``: Corollary 1's two layers of uniform attention, in float32. ``balanced``: Theorem 1's layer behind
    random linearly independent embeddings, its random attention logits balanced, or moved off the balance condition
    by a stated size. For every length, shares over all prefixes (``support``) or those of at least nine tenths of the
    length.

    Args:
        construction: What is built; the paper's main language when not given.
        out: Folder to fill row by row; the uniform model is saved in ``model/`` there.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (rows done, rows in all).

    Raises:
        InputError: For a construction that cannot be built.
        OutputFolderError: If the folder holds something else or cannot be written.
    """
    chosen = construction or Construction()
    language = chosen.language
    cases = [("uniform", 0.0), *(("balanced", size) for size in chosen.off_balance)]
    parts = [(name, size, length) for name, size in cases for length in chosen.lengths]
    record = provenance(
        "dyck-construction",
        model={"name": "constructed Dyck transformers"},
        texts=[f"{name} {size} {length}" for name, size, length in parts],
        settings=asdict(chosen),
        seed=chosen.seed,
    )

    def run(part: int) -> dict[str, pl.DataFrame]:
        name, size, length = parts[part]
        if name == "uniform":
            model = uniform_transformer(language)
            layer = uniform_second_layer(language, model)
            if out is not None and part == 0:
                save_model(model, bracket_tokenizer(language), Path(out) / "model")
        else:
            model, embeddings = off_balance(language, size, spread=chosen.spread, seed=chosen.seed)
            layer = second_layer(embeddings, *attention_weights(model, 0))
        found = measure_balance(language, layer)
        scores = score_construction(language, model, length, chosen.count, chosen.seed)
        row = (name, size, length, *scores, found.violation, found.largest, found.condition)
        return {"table": pl.DataFrame([row], schema=CONSTRUCTION_COLUMNS, orient="row")}

    tables = run_parts(
        record,
        [1] * len(parts),
        run,
        {"table": whole},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    return tables["table"]


def off_balance(
    language: Dyck, size: float, *, spread: float = 1.0, seed: int = 0
) -> tuple[DyckForCausalLM, Float[Tensor, "symbol d"]]:
    """Return Theorem 1's layer for random embeddings with its attention moved off balance, and the embeddings.

    Everything but W_K stays as it was built for the balanced logits; to the logit of every bracket of a matching pair,
    seen from every closing bracket, a number even in ±size/2 is added.

    Args:
        language: Dyck_{k,D}.
        size: Largest change of a pair's difference, in logits; 0 for the balanced layer itself.
        spread: Size of the logits.
        seed: Of embeddings, logits and perturbation.
    """
    generator = torch.Generator().manual_seed(seed)
    count = symbols(language)
    embeddings = torch.randn(count, count + 8, dtype=torch.float64, generator=generator)
    scores = balanced_scores(language, spread, generator)
    model = sufficient_model(language, embeddings, scores, seed=seed)
    if size > 0:
        k, D = language.types, language.max_depth
        queries = [close_symbol(language, j, d) for j in range(k) for d in range(D)]
        keys = [open_symbol(language, i, d) for i in range(k) for d in range(1, D + 1)]
        keys += [close_symbol(language, i, d) for i in range(k) for d in range(D)]
        moved = torch.zeros_like(scores)
        drawn = torch.rand(len(queries), len(keys), dtype=torch.float64, generator=generator) - 0.5
        moved[torch.tensor(queries)[:, None], torch.tensor(keys)] = size * drawn
        inverse = torch.linalg.pinv(embeddings)
        with torch.no_grad():
            key = model.get_parameter("dyck.layers.0.attention.k_proj.weight")
            key += embeddings.shape[1] ** 0.5 * (inverse @ moved @ inverse.T)
    return model, embeddings


def score_construction(language: Dyck, model: DyckForCausalLM, length: int, count: int, seed: int) -> Sequence[float]:
    """Return support, argmax and threshold accuracy of a model on prefixes of one length."""
    tokens = with_start(language.sample_prefixes(count, length, torch.Generator().manual_seed(seed + length)))
    parameters = stack_parameters([model])
    found = closing_accuracy(model.config, parameters, tokens, shortest=max(2, (9 * length) // 10))[0]
    return support_accuracy(model.config, parameters, tokens), found.argmax, found.threshold
