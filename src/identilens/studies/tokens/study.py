"""Texts in, results out: can the input token still be read off its hidden state."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from identilens.errors import InputError
from identilens.measures.tokens.splits import split_sentences
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.results.run_folder import finished_parts, read_record
from identilens.results.tokens import ANALYSIS, TokenIdentifiability
from identilens.studies.tokens.extraction import HiddenStates, check_tokens, extract, layer_shape
from identilens.studies.tokens.runner import Part, Runner, Watch
from identilens.studies.tokens.settings import TokenSettings, cells, check_corpus, chosen_settings, probe_kinds


def token_identifiability(
    lens: Lens,
    texts: Any,
    *,
    compare: Lens | None = None,
    seed: int = 0,
    states: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
    settings: TokenSettings | None = None,
    **options: Any,
) -> TokenIdentifiability:
    """Return how many input tokens are recovered from their hidden states (Brunner et al. 2020, section 4, B, D.1).

    A probe g is trained to predict the input x_i from the hidden state e_i^l, and a token counts as recovered when
    x_i is the nearest of the inputs in its own sentence to g(e_i^l). x is what the embedding block gives
    (``hidden_states[0]``: token, position and segment embeddings behind their norm). Sentences are never split
    between training, validation and test. All layers (and rates) of a fold train as one stack.

    Args:
        lens: The model. Where it is on a GPU with room for the hidden states, probes train there too.
        texts: Texts, pairs, token ids or a batch: each is one sentence for splits and look-up.
        compare: A second checkpoint, such as the model after fine-tuning, on the same texts (Fig. 12, 13).
        seed: Of splits, initial weights and batches.
        states: Folder to keep hidden states in, reused while model and texts are unchanged; when not given,
            they lie in a temporary folder while the run lasts.
        out: Folder to fill fold by fold; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (folds done, folds in all), counting the folds of every probe and distance.
        watch: Called with a line on what is being done, epoch by epoch.
        settings: All options at once.
        options: Single options of `TokenSettings`, such as ``experiment="neighbours"``.

    Raises:
        InputError: For texts or options that cannot be used.
        NumericalError: If hidden states are NaN or infinite, naming the text, or no learning rate gives a finite loss.
        OutputFolderError: If a folder holds something else or cannot be written.
    """
    chosen = chosen_settings(settings, options)
    lenses = {"model": lens} | ({} if compare is None else {"compared": compare})
    items = {name: each.read(texts, chosen.max_length) for name, each in lenses.items()}
    layers = {name: _checked_layers(each, items[name], chosen, seed) for name, each in lenses.items()}
    _check_same(items)
    record = _record(lenses, items["model"], chosen, seed)
    splits = split_sentences(len(items["model"]), folds=chosen.folds, seed=seed)
    parts = [
        Part(name, kind, split)
        for name in lenses
        for kind in probe_kinds(chosen)
        for split in (splits[: chosen.mlp_folds] if kind.probe == "mlp" else splits)
    ]
    with ExitStack() as stack:
        cache = states if states is not None else stack.enter_context(TemporaryDirectory(prefix="identilens-"))
        held: dict[str, HiddenStates] = {}

        def states_of(name: str) -> HiddenStates:
            if name not in held:
                held[name] = extract(lenses[name], texts, cache, max_length=chosen.max_length, progress=_told(watch))
            return held[name]

        runner = Runner(states_of, chosen, seed, lens.device, watch)
        if out is not None and resume and (read_record(Path(out)) or {}).get("fingerprint") == record["fingerprint"]:
            for table in finished_parts(Path(out), "table"):
                runner.recall(table, layers)
        tables = run_parts(
            record,
            [1] * len(parts),
            lambda part: {"table": runner.run(parts[part])},
            {"table": whole},
            out=out,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
    return TokenIdentifiability(tables["table"], record) if out is None else TokenIdentifiability.load(out)


def _checked_layers(lens: Lens, items: list[Item], settings: TokenSettings, seed: int) -> int:
    """Return the number of layers after checking that the experiment can be done: before anything is written."""
    check_tokens(items)
    check_corpus(settings, [len(item.tensors["input_ids"]) for item in items], seed)
    layers = layer_shape(lens, items[0])[0] - 1
    for probe in settings.probes:
        cells(settings, layers, probe)
    return layers


def _check_same(items: Mapping[str, list[Item]]) -> None:
    """Raise InputError unless both checkpoints read the same tokens."""
    if "compared" not in items:
        return
    for text, (one, other) in enumerate(zip(items["model"], items["compared"], strict=True)):
        if one.identity != other.identity:
            raise InputError(
                f"expected two checkpoints that read the same tokens, but text {text} differs; compare a model with "
                "its own fine-tuned version, with the same tokenizer"
            )


def _told(watch: Watch | None) -> Callable[[int, int], None] | None:
    if watch is None:
        return None
    return lambda done, total: watch(f"hidden states of {done:,} of {total:,} texts")


def _record(lenses: Mapping[str, Lens], items: list[Item], settings: TokenSettings, seed: int) -> dict[str, Any]:
    values = asdict(settings) | {"compared": lenses["compared"].facts if "compared" in lenses else None}
    # Options that play no part in this experiment do not make two runs different.
    for name, experiment in (("offsets", "neighbours"), ("shares", "data-share")):
        if settings.experiment != experiment:
            values[name] = None
    return provenance(
        ANALYSIS,
        model=lenses["model"].facts,
        texts=[item.identity for item in items],
        settings=values,
        seed=seed,
    )
