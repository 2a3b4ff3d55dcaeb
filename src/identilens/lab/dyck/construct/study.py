"""The constructed models, tested: uniform and balanced attention at every length, and off balance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from identilens.errors import SettingError
from identilens.lab.dyck.balance import SecondLayer, measure_balance, second_layer
from identilens.lab.dyck.construct.result import Constructions
from identilens.lab.dyck.constructions import off_balance, score_construction
from identilens.lab.dyck.language import Dyck
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.uniform import uniform_second_layer, uniform_transformer
from identilens.models.saving import save_model
from identilens.runs.files import write_folder
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.settings import LIST, Settings
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import table_of


@dataclass(frozen=True, kw_only=True)
class ConstructSettings(Settings):
    """What is built, and how it is tested.

    Attributes:
        types: Number of bracket types, k; at least 2, since with one there is nothing to balance.
        depth: Largest number of open brackets, D; at least 2, since with one there is nothing to balance.
        open_probability: Probability of an opening bracket where a closing one is also possible, q.
        lengths: Numbers of brackets in the test prefixes.
        count: Number of prefixes of each length.
        off_balance: Sizes, in logits, of the perturbations that move the balanced layer's attention off Eq. 11.
        spread: Size of the balanced layer's attention logits.
        seed: Seed of embeddings, logits, perturbations and prefixes.
    """

    types: Annotated[int, Ge(2)] = 2
    depth: Annotated[int, Ge(2)] = 4
    open_probability: Annotated[float, Gt(0), Lt(1)] = 0.5
    lengths: Annotated[tuple[Annotated[int, Ge(2)], ...], LIST] = (28, 100, 500, 2000)
    count: Annotated[int, Ge(1)] = 50
    off_balance: Annotated[tuple[Annotated[float, Ge(0)], ...], LIST] = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
    spread: Annotated[float, Ge(0)] = 1.0
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Check that there is a length to test on."""
        if not self.lengths:
            raise SettingError("lengths", "with at least one value", self.lengths)


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
        self.language = Dyck(settings.types, settings.depth, settings.open_probability)
        built = [("uniform", 0.0), *(("balanced", size) for size in settings.off_balance)]
        self.cases = [(name, size, length) for name, size in built for length in settings.lengths]

    def identity(self) -> Identity:
        """Return what is built and tested."""
        cases = [f"{name} {size} {length}" for name, size, length in self.cases]
        return Identity({"name": "constructed Dyck transformers"}, cases)

    def sizes(self) -> Sequence[int]:
        """Return one case for each part."""
        return [1] * len(self.cases)

    def begin(self, folder: RunFolder | None) -> None:
        """Save the model with uniform attention."""
        super().begin(folder)
        if self.folder is not None:
            made = uniform_transformer(self.language), bracket_tokenizer(self.language)
            write_folder(self.folder / "model", partial(save_model, *made))

    def run(self, part: int) -> Output:
        """Return the row of one construction at one length."""
        name, size, length = self.cases[part]
        model, layer = self._built(name, size)
        balance = measure_balance(self.language, layer)
        scores = score_construction(self.language, model, length, self.settings.count, self.settings.seed)
        row = {
            "construction": name, "off_balance": size, "length": length, **asdict(scores),
            "violation": balance.violation, "largest_violation": balance.largest, "condition": balance.condition,
        }  # fmt: skip
        return Output({"table": table_of(Constructions.schema["table"], [row])})

    def _built(self, name: str, size: float) -> tuple[DyckForCausalLM, SecondLayer]:
        if name == "uniform":
            model = uniform_transformer(self.language)
            return model, uniform_second_layer(self.language, model)
        model, embeddings = off_balance(self.language, size, spread=self.settings.spread, seed=self.settings.seed)
        return model, second_layer(embeddings, *attention_weights(model, 0))


construct_dyck = study_function(DyckConstructStudy, "construct_dyck")
