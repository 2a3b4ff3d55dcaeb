"""Whether the input token can be recovered from its hidden state (Brunner et al. 2020, section 4)."""

from array import array
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from identilens.errors import InputError
from identilens.measures.tokens.splits import split_sentences
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables
from identilens.studies.items import read_items
from identilens.studies.tokens.cells import cells, check_corpus
from identilens.studies.tokens.extraction import HiddenStates, check_tokens, extract, read_states
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.runner import Part, Rates, remember, run_part
from identilens.studies.tokens.settings import TokenSettings


class TokenStudy(Study[TokenSettings, TokenIdentifiability]):
    """Measure for every layer how many input tokens can be recovered from their hidden states.

    Brunner et al. 2020, section 4, B, D.1: a probe g is trained to predict the input x_i from the hidden state e_i^l.
    A token counts as recovered when x_i is nearer to g(e_i^l) than any other input of the same sentence. x is the
    output of the embedding block (``hidden_states[0]``: token, position and segment embeddings after their norm).
    A sentence is never split between training, validation and test.

    Args:
        lens: The model. If it is on a GPU with enough memory for the hidden states, probes are trained there too.
        texts: Texts, pairs, token ids or a batch. Each text is one sentence for splits and look-up.

    Raises:
        InputError: For texts or settings that cannot be used.
        NumericalError: If hidden states are NaN or infinite, naming the text, or no learning rate gives a finite loss.
        OutputFolderError: If a folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> texts = [sentence for text in idl.examples() for sentence in text.split(". ")]
        >>> tokens = idl.token_identifiability(lens, texts, layers=(1, 6), probes="naive", folds=2)
        >>> tokens
        TokenIdentifiability: At layer 6, the last that is tested, the naive probe with cosine distance does best: ...
    """

    name = "tokens"
    unit = "folds"
    alone = "later folds use the learning rates of the first"
    settings_type = TokenSettings
    result_type = TokenIdentifiability

    def __init__(self, lens: Lens, texts: Any, settings: TokenSettings) -> None:
        self.settings = settings
        self.lenses = {"model": lens}
        if settings.compare_model is not None:
            other = settings.compare_model
            if not isinstance(other, Lens):
                other = load(other, device=lens.device, dtype=lens.facts["dtype"])
            self.lenses["compared"] = other
        self.items = {
            name: read_items(each, texts, settings.max_length) for name, each in self.lenses.items()
        }
        self._check_texts()
        for name, each in self.lenses.items():
            layers = len(read_states(each, self.items[name][:1])[0]) - 1
            cells(settings, layers, settings.probes[0])
        splits = split_sentences(len(self.items["model"]), folds=settings.folds, seed=settings.seed)
        self.parts = [
            Part(name, probe, distance, split)
            for name in self.lenses
            for probe, distance in product(settings.probes, settings.distances)
            for split in (splits[: settings.mlp_folds] if probe == "mlp" else splits)
        ]
        self._rates: Rates = {}
        self._held: dict[str, HiddenStates] = {}
        self._temporary: TemporaryDirectory[str] | None = None

    def identity(self) -> Identity:
        """Return model, texts and the second checkpoint."""
        other = self.lenses.get("compared")
        facts = {"compared": other and other.facts}
        return Identity(self.lenses["model"].facts, self.items["model"].digests, facts)

    def begin(self, folder: RunFolder | None) -> None:
        """Read the learning rates that finished parts have chosen."""
        super().begin(folder)
        for part in range(len(self.parts)):
            if folder is not None and folder.has(part):
                remember(self._rates, folder.read([part]).tables["table"])

    def run(self, part: int) -> Output:
        """Return the rows of one fold of one probe and distance."""
        chosen = self.parts[part]
        if chosen.checkpoint not in self._held:
            self._held[chosen.checkpoint] = self._states(chosen.checkpoint)
        states, device = self._held[chosen.checkpoint], self.lenses["model"].device
        table = run_part(chosen, states, self.settings, self._rates, device, self.tell)
        remember(self._rates, table)
        return Output({"table": table})

    def finish(self, tables: Tables) -> Output:
        """Delete hidden states that were stored for this run only."""
        if self._temporary is not None:
            self._temporary.cleanup()
        return Output(tables)

    def _states(self, name: str) -> HiddenStates:
        """Return the hidden states of a checkpoint, in the folder of settings or run, or one for now."""
        cache = self.settings.states or (self.folder and self.folder / "states")
        if cache is None:
            self._temporary = self._temporary or TemporaryDirectory(ignore_cleanup_errors=True)
            cache = Path(self._temporary.name)
        # Hidden states stay after the run: later runs on the same texts use them.
        return extract(self.lenses[name], self.items[name], cache, self.tell)

    def _check_texts(self) -> None:
        lengths = array("q")
        for text in range(len(self.items["model"])):
            read = [items[text] for items in self.items.values()]
            check_tokens(read[0], text)
            if read[0].identity != read[-1].identity:
                raise InputError(
                    f"expected two checkpoints that read the same tokens, but text {text} differs; compare a model "
                    "with its own fine-tuned version, with the same tokenizer"
                )
            lengths.append(len(read[0].tensors["input_ids"]))
        check_corpus(self.settings, lengths)


token_identifiability = study_function(TokenStudy, "token_identifiability")
