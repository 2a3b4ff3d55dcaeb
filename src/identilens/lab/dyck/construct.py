"""Constructed Dyck transformers, tested: uniform and balanced attention at every length, and off balance."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.kit import lines
from identilens.charts.views import View
from identilens.lab.dyck.balance import measure_balance, second_layer
from identilens.lab.dyck.embeddings import pair_symbols, symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.settings import ConstructSettings
from identilens.lab.dyck.sufficiency import (
    balanced_scores,
    sufficient_model,
    uniform_second_layer,
    uniform_transformer,
)
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.models.saving import save_model
from identilens.runs.files import write_folder
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import decimals, table_of

_FINDING = """\
Uniform attention (Corollary 1): at every length to {longest:,} at least {uniform_support:.1%} of the places have \
exactly the possible next brackets, and {uniform_argmax:.1%} of the closing brackets are right; balance violation \
{uniform_violation:.2g}.
Balanced attention (Theorem 1): at every length to {longest:,} at least {balanced_support:.1%} of the places have \
exactly the possible next brackets, and {balanced_argmax:.1%} of the closing brackets are right; balance violation \
{balanced_violation:.2g}.
Moved {off_balance:g} logits off balance (violation {violation:.2g}): {argmax:.1%} of the closing brackets right at \
length {longest:,}.
"""
_TILES = """\
{uniform_argmax:.1%} | right closing brackets to length {longest:,}, uniform attention
{balanced_argmax:.1%} | right closing brackets to length {longest:,}, balanced attention
"""


@dataclass(frozen=True, kw_only=True)
class Constructions(Result):
    """Constructed transformers tested (Wen et al. 2023, Theorem 1 and Corollary 1).

    Attributes:
        table: One row a construction, size of the perturbation in logits, and length.

    Examples:
        >>> import identilens as idl
        >>> built = idl.lab.construct_dyck(lengths=(28,), count=5, off_balance=(0.0, 0.3))
        >>> built.table.select("construction", "off_balance", "length", "support")
        shape: (3, 4)
        ┌──────────────┬─────────────┬────────┬─────────┐
        │ construction ┆ off_balance ┆ length ┆ support │
        │ ---          ┆ ---         ┆ ---    ┆ ---     │
        │ str          ┆ f64         ┆ i64    ┆ f64     │
        ╞══════════════╪═════════════╪════════╪═════════╡
        │ uniform      ┆ 0.0         ┆ 28     ┆ 1.0     │
        │ balanced     ┆ 0.0         ┆ 28     ┆ 1.0     │
        │ balanced     ┆ 0.3         ┆ 28     ┆ 1.0     │
        └──────────────┴─────────────┴────────┴─────────┘
    """

    analysis: ClassVar = "lab dyck construct"
    title: ClassVar = "Constructed Dyck transformers"
    schema: ClassVar = {
        "table": {
            "construction": pl.String,
            "off_balance": pl.Float64,
            "length": pl.Int64,
            **decimals(
                "support", "argmax", "threshold", "violation", "largest_violation", "condition"
            ),
        }
    }
    keys: ClassVar = {"table": ("construction", "off_balance", "length")}
    words: ClassVar = {
        "length": "Brackets",
        "argmax": "Argmax: share of closing brackets that are right",
        "support": "Support: share of places with exactly the possible next brackets",
        "built": "Construction",
    }
    views: ClassVar = {
        "argmax": View(
            lines,
            ("length", "argmax", "built"),
            title="Right closing brackets by length",
            table="by_length",
            look={"log_x": True},
            listed=True,
        ),
        "support": View(
            lines,
            ("length", "support", "built"),
            title="Places with exactly the possible next brackets by length",
            text="A place counts if exactly the possible next tokens have a probability above 1e-6.",
            table="by_length",
            look={"log_x": True},
        ),
    }

    def subject(self) -> str:
        """Return the language and the prefixes."""
        settings = self.provenance["settings"]
        return (
            f"Dyck of {settings['types']} types and depth {settings['depth']}, {settings['count']} prefixes of "
            "each length"
        )

    def by_length(self) -> pl.DataFrame:
        """Return the table with constructions in words, ``built``."""
        moved = pl.format("{} logits off balance", "off_balance")
        attention = pl.format("{} attention", "construction")
        return self.table.with_columns(
            built=pl.when(off_balance=0).then(attention).otherwise(moved)
        )

    def summary(self) -> Finding:
        """Return what each construction does at all lengths, and the one furthest off balance at the longest."""
        longest = self.table.filter(length=pl.col("length").max())
        furthest = longest.sort("off_balance").row(-1, named=True)
        moved = furthest if furthest["off_balance"] else {}
        numbers = {name: moved.get(name) for name in ("off_balance", "violation", "argmax")}
        for (name,), rows in self.table.filter(off_balance=0).group_by("construction"):
            numbers |= {
                f"{name}_support": rows["support"].min(),
                f"{name}_argmax": rows["argmax"].min(),
                f"{name}_violation": rows["violation"].max(),
            }
        return Finding.of(_FINDING, _TILES, longest=furthest["length"], **numbers)


def off_balance(
    language: Dyck, size: float, *, seed: int = 0
) -> tuple[DyckForCausalLM, Float[Tensor, "symbol d"]]:
    """Return Theorem 1's layer for random embeddings with its attention moved off balance, and the embeddings.

    All weights except W_K are those for balanced logits uniform in ±1. For every closing bracket as query, a
    random number uniform in ±size/2 is added to the logit of every bracket.
    """
    generator = torch.Generator().manual_seed(seed)
    count = symbols(language)
    embeddings = torch.randn(count, count + 8, dtype=torch.float64, generator=generator)
    scores = balanced_scores(language, 1.0, generator)
    model = sufficient_model(language, embeddings, scores, seed=seed)
    if size > 0:
        queries = pair_symbols(language)[1].flatten()
        moved = torch.zeros_like(scores)
        drawn = torch.rand(len(queries), count - 1, dtype=torch.float64, generator=generator) - 0.5
        moved[queries, 1:] = size * drawn
        inverse = torch.linalg.pinv(embeddings)
        with torch.no_grad():
            key = model.get_parameter("dyck.layers.0.attention.k_proj.weight")
            key += embeddings.shape[1] ** 0.5 * (inverse @ moved @ inverse.T)
    return model, embeddings


class DyckConstructStudy(Study[ConstructSettings, Constructions]):
    """Build uniform and balanced attention that generates Dyck of any length, test it, and break it.

    ``uniform``: the two layers of uniform attention of Corollary 1, in float32. The model is saved as ``model`` in the
    folder, for `identilens.load`. ``balanced``: Theorem 1's layer on random linearly independent embeddings. Its random
    attention logits are balanced, or moved off the balance condition by a stated size. ``support`` is a share of the
    positions of all prefixes; ``argmax`` and ``threshold`` are shares of the positions from nine tenths of the length
    on.

    Raises:
        InputError: For settings that cannot be used.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> built = idl.lab.construct_dyck(lengths=(28,), count=5, off_balance=(0.0,))
        >>> built
        Constructions: Uniform attention (Corollary 1): at every length ...
    """

    name = "lab dyck construct"
    unit = "cases"
    takes = ()
    settings_type = ConstructSettings
    result_type = Constructions

    def __init__(self, settings: ConstructSettings) -> None:
        super().__init__(settings)
        self.language = Dyck(settings.types, settings.depth)
        built = [("uniform", 0.0), *(("balanced", size) for size in settings.off_balance)]
        self.parts = [(name, size, length) for name, size in built for length in settings.lengths]

    def identity(self) -> Identity:
        """Return the constructions and the lengths."""
        cases = [f"{name} {size} {length}" for name, size, length in self.parts]
        return Identity({"name": "constructed Dyck transformers"}, cases)

    def begin(self, folder: RunFolder | None) -> None:
        """Save the model with uniform attention."""
        super().begin(folder)
        if self.folder is not None:
            made = uniform_transformer(self.language), bracket_tokenizer(self.language)
            write_folder(self.folder / "model", partial(save_model, *made))

    def run(self, part: int) -> Output:
        """Return the row of one construction at one length."""
        (name, size, length), settings, language = self.parts[part], self.settings, self.language
        if name == "uniform":
            model = uniform_transformer(language)
            layer = uniform_second_layer(language, model)
        else:
            model, embeddings = off_balance(language, size, seed=settings.seed)
            layer = second_layer(embeddings, *attention_weights(model, 0))
        balance = measure_balance(language, layer)
        generator = torch.Generator().manual_seed(settings.seed + length)
        tokens = with_start(language.sample_prefixes(settings.count, length, generator))
        accuracy = closing_accuracy(model, tokens, shortest=max(2, (9 * length) // 10))
        row = {
            "construction": name,
            "off_balance": size,
            "length": length,
            "support": support_accuracy(model, tokens),
            "argmax": accuracy.argmax,
            "threshold": accuracy.threshold,
            "violation": balance.violation,
            "largest_violation": balance.largest,
            "condition": balance.condition,
        }
        return Output({"table": table_of(Constructions.schema["table"], [row])})


construct_dyck = study_function(DyckConstructStudy, "construct_dyck")
