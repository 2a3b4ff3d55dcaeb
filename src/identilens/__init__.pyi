# ruff: noqa: E501, F811
import collections.abc
import pathlib
import typing

from . import claims as claims
from . import errors as errors
from . import lab as lab
from .cli.verify import verify as verify
from .demo.examples import examples as examples
from .models.bundled import bundled_model as bundled_model
from .models.lens import Lens as Lens
from .models.loading import load as load
from .models.media import read_image as read_image
from .runs.conllu import read_conllu as read_conllu
from .runs.texts import read_texts as read_texts
from .studies.alternatives.study import alternatives as alternatives
from .studies.answer.study import answer as answer
from .studies.audit.study import audit as audit
from .studies.certify.study import certify as certify
from .studies.compare.comparison import compare as compare
from .studies.faithfulness.study import faithfulness as faithfulness
from .studies.influence.study import influence as influence
from .studies.inversion.invert import invert as invert
from .studies.inversion.study import inversion as inversion
from .studies.mixing.study import mixing as mixing
from .studies.patterns.study import patterns as patterns
from .studies.reports import load_result as load_result
from .studies.reports import write_report as write_report
from .studies.rollout.study import rollout as rollout
from .studies.structure.study import structure as structure
from .studies.tokens.study import token_identifiability as token_identifiability

__version__: str

# What follows is made by tools/reference.py.
# fmt: off
import identilens.studies.alternatives.result
import identilens.studies.answer.result
import identilens.studies.audit.result
import identilens.studies.certify.result
import identilens.studies.faithfulness.result
import identilens.studies.influence.result
import identilens.studies.inversion.result
import identilens.studies.mixing.result
import identilens.studies.patterns.result
import identilens.studies.rollout.result
import identilens.studies.structure.result
import identilens.studies.tokens.result

def alternatives(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    heads: int | str | collections.abc.Sequence[int] | None = ...,
    max_length: int | None = ...,
    kind: typing.Literal['encoder', 'decoder', 'cross'] | None = ...,
    realisable: bool = ...,
    distance: float = ...,
    starts: int = ...,
    seed: int = ...,
    outcome: typing.Literal['head', 'layer', 'states', 'prediction'] = ...,
    aim: typing.Literal['least', 'farthest', 'sparsest'] | str | collections.abc.Sequence[typing.Literal['least', 'farthest', 'sparsest']] = ...,
    tolerance: float | int | str | collections.abc.Sequence[float | str] | None = ...,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    keys: int | str | collections.abc.Sequence[int | str] | None = ...,
    answer: int | str | collections.abc.Sequence[int | str] | None = ...,
    together: bool = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.alternatives.result.Alternatives:
    r"""Find other attention weights with the same output, and run the model with them.

    For each head: an alternative drawn uniformly from all (``sampled``) and the farthest found (``far``), with an upper
    bound of the distance of any. On request also one that other queries and keys give (``realisable``). Each is put
    back into the model. The changes of the final hidden state, the logits and the loss are measured. Derivations and
    limits: docs/alternatives.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
        realisable: Also search for other queries and keys that give the same output.
        distance: Mean total variation distance that the realisable alternative must reach.
        starts: Random starts for each row in the search for a far alternative. Other starts empty its largest weights.
        seed: Seed of the random numbers.
        outcome: What stays the same: each head's output; or, for one row of a map and within the tolerance, the sum of
            the outputs of the chosen heads of each layer, whose rows then change together, the model's prediction, or
            its final hidden states.
        aim: But for head: what the row is to do: put least attention on the keys, or go farthest from what it is, or
            give the sparsest row, with attention on few keys.
        tolerance: For prediction and states: a share of the row's effect (1%), or a number with its unit
            (0.001nats, 0.01change); 1% by default. For layer: a share of the sum, or a rounding; bfloat16 by default.
        queries: Position (or several, 3,10-12) or token of the row; last by default. For head: the rows that change;
            all by default.
        keys: But for head: positions or tokens whose attention is to go elsewhere; those that hold 90 % of the row's
            attention by default.
        answer: For prediction and states: position or token of the predictions, or states, that count; last for the
            prediction and all states by default.
        together: For prediction and states: change the rows of all chosen heads together.
        settings: All settings at once, as a `identilens.studies.alternatives.settings.AlternativeSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used, a head the model lacks, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an answer cannot be certified.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def answer(
    lens: Lens,
    chats: typing.Any,
    *,
    tolerance: float | int | str | collections.abc.Sequence[float | str] | None = ...,
    max_new_tokens: int = ...,
    bounded: int = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.answer.result.Answers:
    r"""Say where the attention of an answer lies, how much of that is certain, and what of its prompt the answer needs.

    The model answers a prompt or messages, or the answer is given. One pass over prompt and answer measures the rows of
    the answer's tokens: row t − 1 predicts token t. For each token, layer, head and segment (system, messages,
    documents, question, answer so far, template): the attention, and for drawn rows its proven ends over all
    alternatives with the same output of the head. What the answer needs is another question: each segment is taken out
    of the prompt alone, and the probability of the answer is taken again. Words and limits: docs/answer.md.

    Args:
        lens: The model.
        chats: A prompt; a list of messages, each with ``role`` and ``content``; a mapping with ``prompt`` or
            ``messages``, and ``answer`` (after a prompt with the space before it) and ``segments`` (by name: words of
            the prompt or the answer, or first character and the one after the last) if wanted; or a list of these.
        tolerance: How much each head's output may change and count as the same: 0, a share (0.01, 1%) or a rounding
            (model, bfloat16, float16, float32). Default: bfloat16 and 0. Findings rest on the first.
        max_new_tokens: Largest number of tokens that are generated, the most likely one each time. The model's stop
            token ends an answer earlier.
        bounded: Rows of attention whose ends are proven, so many of each layer, drawn by the seed from those of all
            heads and tokens of the answer. Attention itself is measured in all rows.
        seed: Seed of the drawn rows.
        settings: All settings at once, as a `identilens.studies.answer.settings.AnswerSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For conversations that cannot be used, messages for a tokenizer without a chat template, or more
            tokens than the model has positions.
        UnsupportedModelError: If the model's attention cannot be captured faithfully, it reads both sides, or it
            cannot generate.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def audit(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    batch_size: int = ...,
    max_length: int | None = ...,
    matrices: bool = ...,
    examples: int = ...,
    example_length: int = ...,
    certain_rows: int | None = ...,
    effects: typing.Literal['auto', 'removal', 'estimate', 'none'] = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.audit.result.Audit:
    r"""Measure how much of every attention map is certain, influential, and without effect on its head's output.

    Certain: certain mass of drawn rows of drawn texts (linear programs). Influential: what happens to the model's
    answer without the head, in some of these texts; norms of head outputs stand beside it. Without effect: rank and
    nullity of T (Brunner et al. 2020, Eq. 6), the share of squared weight in its null space (Eq. 8, 9), the correlation
    of raw and effective attention (Fig. 1a), and the attention to each token type (Fig. 1b, 1c, 5). Measures are
    computed layer by layer while the model runs. Padding is removed first. Definitions: docs/concepts.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0 within each kind of attention; all by default.
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. Then every measure is of these
            rows alone, and only they are in memory. A token selects every position where it occurs; last is the last
            row, and negative positions count from the end.
        batch_size: Number of texts in one forward pass.
        max_length: Cut longer texts to this many tokens.
        matrices: Save raw and effective attention of every text.
        examples: Number of texts whose matrices are saved for the report, drawn from those of at most example_length
            tokens; on as many texts, of any length, heads are removed.
        example_length: Largest number of tokens in an example.
        certain_rows: Rows of each map whose certain mass is computed by linear programs (about 40 ms for a row of 100
            keys), of every text. The rows are drawn at random. Default: 4 rows of each head for each of the examples,
            spread over four times as many texts, which are drawn from all (at most 6,144 tokens together).
        effects: How the effect of each head on the model's answer is found in some of these texts: by its removal,
            a run of the model for each head; by an estimate to first order, a few backward passes for all heads; or not
            at all. Default: auto, the removal where heads times tokens are at most 32,768, else the estimate, in texts
            of at most 2,048 tokens.
        seed: Seed of the drawn rows, and of the estimates.
        settings: All settings at once, as a `identilens.studies.audit.settings.AuditSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If the model's attention has NaN or infinite entries, naming where.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def certify(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    heads: int | str | collections.abc.Sequence[int] | None = ...,
    max_length: int | None = ...,
    kind: typing.Literal['encoder', 'decoder', 'cross'] | None = ...,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    outcome: typing.Literal['head', 'layer', 'states', 'prediction'] = ...,
    tolerance: float | int | str | collections.abc.Sequence[float | str] | None = ...,
    answer: int | str | collections.abc.Sequence[int | str] | None = ...,
    claim: typing.Any | str | collections.abc.Sequence[typing.Any] = ...,
    pattern: str | collections.abc.Sequence[str] = ...,
    segment: typing.Any | str | collections.abc.Sequence[typing.Any] = ...,
    source: str | collections.abc.Sequence[str] = ...,
    certificates: bool = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.certify.result.Certainty:
    r"""Say for each attention weight whether the output determines it, and how much of the output its key brings.

    For each row: a proven interval of each weight over all distributions with the same output; each key's share of
    what the keys add; its Contribution Weight; the change when it is removed; a verdict in plain words; the key that is
    first in every alternative. At most two linear programs for each weight. Words and thresholds: docs/certify.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. A token selects every position
            where it occurs; last is the last row, and negative positions count from the end.
        outcome: What must stay the same: the output of the head; that of its layer, all heads of a row together; the
            model's final hidden states; or its prediction. The last two are certified to first order.
        tolerance: How much it may change and count as the same: 0, a share (0.01, 1%) or a rounding (model, bfloat16,
            float16, float32); of states and prediction a share of the row's effect, or a number with its unit
            (0.01change, 0.001nats). Default: bfloat16 and 0 for the head, bfloat16 and 1% for its layer, 1% otherwise.
        answer: Position or token of the predictions, or states, that count; last for the prediction and all states by
            default.
        claim: Words whose attention is certified ("the storm"), or a claim on it ("the storm > 0.3", "storm > ferry"):
            is it true in every alternative? Every run of tokens that spells the words, and that the row sees to its
            end, counts. In Python also what `identilens.claims` makes.
        pattern: Published patterns whose attention is certified as a claim: previous, next, current, first, duplicate,
            induction, separator, punctuation.
        segment: A part of the text whose attention is certified as a claim, as name=words, or as name=start:end by
            characters. Of two or three segments also how much more attention one gets than another.
        source: The token whose logit is split by source: what each key of a row adds to it is certified as a claim. A
            text such as " river", a number, or "most likely"; of two, the difference of their logits.
        certificates: Write a file for each claim, row and tolerance, from which anyone can check the ends.
        settings: All settings at once, as a `identilens.studies.certify.settings.CertifySettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used, a head or query that is not there, or attention with
            sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an interval cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def faithfulness(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    heads: int | str | collections.abc.Sequence[int] | None = ...,
    max_length: int | None = ...,
    kind: typing.Literal['encoder', 'decoder', 'cross'] | None = ...,
    decision: str | None = ...,
    draws: int = ...,
    maps: int = ...,
    rows: int = ...,
    interventions: typing.Literal['zero', 'renormalise'] | str | collections.abc.Sequence[typing.Literal['zero', 'renormalise']] = ...,
    groups: int | str | collections.abc.Sequence[int] = ...,
    searched: int = ...,
    alternatives: int = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.faithfulness.result.Faithfulness:
    r"""Test explanations of attention rows or of decisions: do their orders follow what removing parts does.

    From each text some maps and rows are drawn. Faithful: keys are removed in each explanation's order, and one by one;
    the change of the final hidden states, logits and loss gives a rank correlation and the normalised area over the
    perturbation curve. Stable: the agreement of the explanation with itself over other weights with the same output.
    With ``decision``, tokens of the text are taken out instead, one by one and in each explanation's order, or are kept
    alone, and the probability of the decision is taken again (comprehensiveness and sufficiency, DeYoung et al. 2020).
    Every order is tested against random orders. Definitions: docs/faithfulness.md.

    Args:
        lens: The model; for decisions one that classifies texts or predicts the next token, with one stack.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
        decision: Test the tokens of one decision in place of attention rows: the name of a class, the next token, or an
            answer of several tokens; an empty name is the model's own. The space before a word may be left out. Heads
            and all settings of rows then have no effect.
        draws: Number of random orders of the same parts that each order is tested against; 19 can give p = 0.05.
        maps: Number of attention maps drawn from each text.
        rows: Number of rows drawn from each map.
        interventions: Set weights to zero (zero), or also scale the other weights of the row to sum to 1 (renormalise).
        groups: Sizes of the groups of keys that are removed together.
        searched: Number of keys from which the search for the best and the worst order chooses; never fewer than the
            largest group has.
        alternatives: Number of alternatives drawn of each row.
        seed: Seed of the random numbers.
        settings: All settings at once, as a `identilens.studies.faithfulness.settings.FaithfulnessSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used, a head the model lacks, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an answer cannot be certified.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def influence(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    heads: int | str | collections.abc.Sequence[int] | None = ...,
    max_length: int | None = ...,
    kind: typing.Literal['encoder', 'decoder', 'cross'] | None = ...,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    outcome: typing.Literal['head', 'layer', 'states', 'prediction'] = ...,
    answer: int | str | collections.abc.Sequence[int | str] | None = ...,
    decision: str | None = ...,
    directions: int = ...,
    removed: int | None = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.influence.result.Influence:
    r"""Remove heads, and keys of rows, one at a time, and see what happens to the model's answer.

    A head that is removed writes nothing (zero), or at each row the mean of its output over the text (mean); all that
    comes after it is computed by the model. The change of the prediction is KL(p ‖ p') in nats, the mean over the
    positions; that of the final hidden states is ‖h' − h‖ / ‖h‖. Of a given answer the change of its log probability
    has a sign: it falls without a head that the answer needs. Beside it stands an estimate to first order for all
    heads, from a few backward passes. A key is hidden from one row, whose other weights are scaled up. Definitions:
    docs/concepts.md; removal of heads: Michel et al. 2019 ("Are Sixteen Heads Really Better than One?").

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. A token selects every position
            where it occurs; last is the last row, and negative positions count from the end.
        queries: Position (or several, 3,10-12) or token of a row: its keys are removed, too, one by one. None by
            default.
        outcome: What may change: the prediction, or the final hidden states.
        answer: Position or token of the text whose outcome counts: the prediction of what comes after it, say. All
            positions by default. A classifier has one prediction.
        decision: An answer that follows each text, of one token or several: the predictions of its tokens count, and
            the change of its log probability without each head is measured, too. The space before it may be left out.
        directions: Random directions of an estimate, each one backward pass; 0 for no estimates.
        removed: Heads of each text that are removed: those with the largest estimates. All by default, or 32 where
            more than 512 are chosen; the others have an estimate only.
        seed: Seed of the random directions.
        settings: All settings at once, as a `identilens.studies.influence.settings.InfluenceSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def inversion(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    noise: str | float | collections.abc.Sequence[str | float] = ...,
    bits: int | str | collections.abc.Sequence[int] = ...,
    stored: typing.Literal['states', 'cache'] = ...,
    risk: float = ...,
    substitutes: int = ...,
    max_length: int | None = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.inversion.result.Inversion:
    r"""Say which tokens of a text can be read from its hidden states or cache, exactly and without a probe.

    For a causal model and a known beginning, every token of the vocabulary gives one state: F_i(v). With the margin
    m_i = ½ min ‖F_i(v) − h_i‖ over v other than the text's own token, decoding to the nearest is right wherever the
    error of the stored state is smaller than the margin; if it is at every position, the whole text follows by
    induction. The noise of the forward pass itself (with a cache and without, in a batch and alone) is measured and
    taken off. Definitions, proof and limits: docs/concepts.md. Without certificates: Nikolaou et al. 2025 (SipIt,
    arXiv 2510.15511). Cost: one run of the whole vocabulary for each token; memory: one batch of candidates.

    For encoders margins are those of texts that differ in one token. An error below them is necessary for a certificate
    of every error of that length, not for reading the text; no position of an encoder is certified.

    Args:
        lens: The model.
        texts: Single texts or token ids.
        layers: Layers whose states are read: 0 (embedding output) to L, for a cache 0 to L - 1. All by default.
        noise: How states are stored or released: bfloat16, float16, float32, int8 (one scale for each token; 2 to 16
            bits), int8-channel, drop0.1 (share of dimensions set to 0), or the relative size of Gaussian noise.
        bits: Numbers of bits that are tried in any case, with one scale for each token.
        stored: What is stored: hidden states (states), or keys and values of each layer (cache).
        risk: Largest probability with which Gaussian noise may spoil a certified text.
        substitutes: Tokens tried in place of each token of an encoder's text, those with the nearest embeddings.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of random noise.
        settings: All settings at once, as a `identilens.studies.inversion.settings.InversionSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: For an encoder-decoder, or ``stored="cache"`` of a model without a cache.
        NumericalError: If states are NaN or infinite.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def mixing(
    lens: Lens,
    texts: typing.Any,
    *,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    method: typing.Literal['exact', 'sketch'] = ...,
    sketch_probes: int | None = ...,
    max_length: int | None = ...,
    rollouts: bool = ...,
    seed: int = ...,
    tags: typing.Literal['xpos', 'upos'] = ...,
    track: str | None = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.mixing.result.Mixing:
    r"""Compute the contribution of every input token to every hidden token (Hidden Token Attribution).

    Brunner et al. 2020, Eq. 11. Each text runs alone, without padding, in evaluation mode. Encoder–decoders have three
    kinds of contributions: of the encoder's inputs to its states, of the decoder's inputs to its states, and of the
    encoder's inputs to the decoder's states ("cross"). Each kind is normalised separately; the column ``norm`` allows
    comparing them.

    Args:
        lens: The model; half precision is computed in float32.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`. Texts from a CoNLL-U file (`read_conllu`)
            bring parts of speech.
        queries: Position (or several, 3,10-12) or token whose hidden states are looked at, in time for these alone; all
            by default. A token selects every position where it occurs; last is the last position, negative positions
            count from the end.
        layers: Layers in the result; 1 is the first layer's output. All by default. Fewer layers save space, not time.
        method: Exact norms (exact), or a sketch by random probes with standard errors, about ten times as fast.
        sketch_probes: Number of probes for each token in a sketch; 32 by default.
        max_length: Cut longer texts to this many tokens.
        rollouts: Add raw and effective attention rollout, for comparison.
        seed: Seed of the random probes.
        tags: Which tags of a treebank are used: its own (xpos) or the universal ones (upos).
        track: Show which inputs contribute to this token, layer by layer.
        settings: All settings at once, as a `identilens.studies.mixing.settings.MixingSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or options that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured or its first layer not be found.
        NumericalError: If a derivative is NaN or infinite, naming the text.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def patterns(
    lens: Lens,
    texts: typing.Any,
    *,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    heads: int | str | collections.abc.Sequence[int] | None = ...,
    max_length: int | None = ...,
    kind: typing.Literal['encoder', 'decoder', 'cross'] | None = ...,
    tolerance: float | int | str | collections.abc.Sequence[float | str] | None = ...,
    pattern: str | collections.abc.Sequence[str] = ...,
    rows: int = ...,
    least_score: float = ...,
    repeated: int = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.patterns.result.PatternScores:
    r"""Score every head on published patterns of attention, and bound the scores over all alternatives.

    The score is the mean attention to the keys that a pattern names (the previous token, tokens that followed the same
    token before, and others), over rows drawn by the seed. Rows choose independently, so the
    mean of the proven ends of the rows is a proven interval of the score: what the head could show with the same output
    in every row. Patterns:
    `identilens.measures.attention.pattern_keys`; protocol: docs/patterns.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
        tolerance: How much each head's output may change and count as the same: 0, a share (0.01, 1%) or a rounding
            (model, bfloat16, float16, float32). Default: bfloat16 and 0. Findings rest on the first.
        pattern: Patterns: previous, next, current, first, duplicate, induction, separator, punctuation. Default: all.
        rows: Rows of each text, layer and pattern that the score rests on, drawn by the seed from those that have the
            pattern; the same for all heads of a layer.
        least_score: Score from which on a head is called by the pattern.
        repeated: Tokens of a random sequence that stands twice in a row, as four further texts; 0 for none. Induction
            is usually measured on them.
        seed: Seed of the drawn rows, and of random sequences.
        settings: All settings at once, as a `identilens.studies.patterns.settings.PatternSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def rollout(
    lens: Lens,
    texts: typing.Any,
    *,
    tolerance: float | int | str | collections.abc.Sequence[float | str] | None = ...,
    queries: int | str | collections.abc.Sequence[int | str] | None = ...,
    targets: int | str | collections.abc.Sequence[int | str] | None = ...,
    witnesses: bool = ...,
    max_length: int | None = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.rollout.result.Rollouts:
    r"""Bound attention rollout over all maps that leave the output of every head the same.

    Rollout (Abnar and Zuidema 2020) multiplies the attention of all layers, the residual connection counting half.
    Other maps with the same output of every head leave the model as it is, but not its rollout. Of each query and
    target: the value, proven ends of it over all these maps, and bounds of the target's rank. Derivation and limits:
    docs/rollout.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        tolerance: How much each head's output may change and count as the same: 0, a share (0.01, 1%) or a rounding
            (model, bfloat16, float16, float32). Default: bfloat16 and 0. Findings rest on the first.
        queries: Position (or several, 3,10-12) or token of a row; all rows by default. A token selects every position
            where it occurs; last is the last row, and negative positions count from the end.
        targets: Position or token whose value is bounded (with a tolerance above 0, weights and values of later
            layers are held as they are); all tokens of the text by default, which also bounds ranks.
        witnesses: Save maps that reach both ends of each target at the first tolerance, for all queries at once, and
            put them into the model.
        max_length: Cut longer texts to this many tokens.
        settings: All settings at once, as a `identilens.studies.rollout.settings.RolloutSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully, some layers are no attention, or
            there is cross attention.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def structure(
    lens: Lens,
    texts: typing.Any,
    *,
    length: int,
    threshold: float | None = ...,
    clusters: int | None = ...,
    pool: int = ...,
    compared_pairs: int = ...,
    perturbed: int = ...,
    seed: int = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.structure.result.Structure:
    r"""Compute for every head what the attention of texts of one length shares: W, the subspace R, norms.

    Two passes over the texts; only sums are stored (structure2025, II.B and III). The first pass sums the Gram matrix
    of R (Eq. 6) and the raw and effective weights, and collects the embeddings from which representatives are chosen
    (III.B.1). The second pass compares each text with R, and sums the representatives' weights to W (Eq. 7, 8). With
    more texts, memory grows by the embeddings of at most ``pool`` of them.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.
        length: Number of tokens of every text, special tokens included; shorter texts are left out.
        threshold: l of Eq. 8: smaller weights are cut. Default: 2/n on the mean, twice the uniform weight.
        clusters: Number of representative texts. Default: the number with the largest silhouette.
        pool: Largest number of texts, drawn at random, from which representatives are chosen.
        compared_pairs: Number of pairs of texts whose null spaces are compared.
        perturbed: Number of representatives whose weights are perturbed and put back into the model.
        seed: Seed of clusters, pool and perturbations.
        settings: All settings at once, as a `identilens.studies.structure.settings.StructureSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For too few texts of the length, or options outside their range.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If weights or values are NaN or infinite, naming where.
        OutputFolderError: If ``out`` contains something else or cannot be written.
    """

def token_identifiability(
    lens: Lens,
    texts: typing.Any,
    *,
    experiment: typing.Literal['same-layer', 'across-layers', 'layer-to-layer', 'neighbours', 'data-share'] = ...,
    probes: typing.Literal['naive', 'linear', 'mlp'] | str | collections.abc.Sequence[typing.Literal['naive', 'linear', 'mlp']] = ...,
    distances: typing.Literal['cosine', 'l2'] | str | collections.abc.Sequence[typing.Literal['cosine', 'l2']] = ...,
    folds: int = ...,
    mlp_folds: int | None = ...,
    layers: int | str | collections.abc.Sequence[int] | None = ...,
    offsets: int | str | collections.abc.Sequence[int] = ...,
    shares: float | str | collections.abc.Sequence[float] = ...,
    learning_rates: float | str | collections.abc.Sequence[float] | None = ...,
    batch_size: int = ...,
    patience: int = ...,
    max_epochs: int = ...,
    hidden_units: int = ...,
    max_length: int | None = ...,
    seed: int = ...,
    states: str | pathlib.Path | None = ...,
    settings: typing.Any = ...,
    out: str | pathlib.Path | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    ray: bool | str = ...,
    progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...,
) -> identilens.studies.tokens.result.TokenIdentifiability:
    r"""Measure for every layer how many input tokens can be recovered from their hidden states.

    Brunner et al. 2020, section 4, B, D.1: a probe g is trained to predict the input x_i from the hidden state e_i^l.
    A token counts as recovered when x_i is nearer to g(e_i^l) than any other input of the same sentence. x is the
    output of the embedding block (``hidden_states[0]``: token, position and segment embeddings after their norm).
    A sentence is never split between training, validation and test.

    Args:
        lens: The model. If it is on a GPU with enough memory for the hidden states, probes are trained there too.
        texts: Texts, pairs, token ids or a batch. Each text is one sentence for splits and look-up.
        experiment: Which tokens are recovered from which hidden states.
        probes: Maps from hidden state to input.
        distances: Distances of loss and look-up.
        folds: Number of random 70/15/15 splits of the sentences.
        mlp_folds: Number of folds for the MLP, the slowest probe; the first ones are used.
        layers: Layers to train on, counted from 1. Default: all; for data-share the last but one.
        offsets: Relative positions of the tokens to recover, for neighbours.
        shares: Shares of the training sentences, for data-share.
        learning_rates: Learning rates of trained probes, one or several to search on the first fold;
            the paper's seven by default.
        batch_size: Number of tokens in a training step.
        patience: Number of epochs without a lower validation loss after which training stops.
        max_epochs: Largest number of epochs; the paper gives no limit.
        hidden_units: Width of the MLP's hidden layer.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of splits, initial weights and batches.
        states: Folder where hidden states are stored for later runs; states/ in the run's folder by default.
        settings: All settings at once, as a `identilens.studies.tokens.settings.TokenSettings`; those that are passed by name come first.
        out: Folder for the results. Default: nothing is written.
        resume: Continue an interrupted run in ``out``, or return the finished one.
        overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
        ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
            cluster. Default: this process.
        progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
            in a notebook and on a terminal.

    Raises:
        InputError: For texts or settings that cannot be used.
        NumericalError: If hidden states are NaN or infinite, naming the text, or no learning rate gives a finite loss.
        OutputFolderError: If a folder contains something else or cannot be written.
    """
