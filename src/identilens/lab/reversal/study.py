"""The reversal task from training to the threshold sweep, for an LSTM and a small transformer (structure2025, V)."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration

from identilens.lab.drawing import seeded
from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import TRANSFORMER_HEADS, ReversalSettings, TaskSettings
from identilens.lab.reversal.task import DRAFT_THRESHOLD, threshold_sweep
from identilens.measures.attention.effective import effective_attention
from identilens.measures.attention.rank import numerical_rank
from identilens.measures.structure.weights import structure_weights
from identilens.models.lens import Lens
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.structure.perturbation import perturbation_rows

Sequences = Int[Tensor, "batch n"]
PERTURBED_INPUTS = 5


CrossAttention = tuple[
    Float[Tensor, "head text n n"],
    Float[Tensor, "head text n d_v"],
    Float[Tensor, "head text d_v d_model"],
]
"""Weights, values and output projections of the attention of a decoder to its encoder."""


def before(target: Sequences, start: int) -> Sequences:
    """Return the decoder's input: a start token, then the target without its last token."""
    return nn.functional.pad(target[:, :-1], (1, 0), value=start)


def reversal_data(settings: TaskSettings) -> list[Int[Tensor, "sequence n"]]:
    """Return the sequences to train on, to validate and to test with, drawn independently."""
    return [
        torch.randint(
            settings.vocabulary,
            (count, settings.length),
            generator=seeded(3 * settings.seed + part),
        )
        for part, count in enumerate((settings.train, settings.held_out, settings.held_out))
    ]


def train_reverser(
    model: nn.Module,
    train: Sequences,
    validation: Int[Tensor, "held_out n"],
    settings: ReversalSettings,
    tell: Callable[[str], None],
) -> list[Row]:
    """Train a model in place until it is accurate enough, and return its course: a row for each epoch.

    Cross entropy, Adam, gradients clipped at norm 1; the decoder is given the right tokens before each. Nothing of
    the test set takes part.
    """
    generator = seeded(settings.seed)
    optimiser = torch.optim.Adam(model.parameters(), settings.rate)
    course = []
    for epoch in range(1, settings.epochs + 1):
        model.train()
        total, order = 0.0, torch.randperm(len(train), generator=generator)
        for chosen in order.split(settings.batch_size):
            source = train[chosen]
            target = source.flip(-1)
            loss = nn.functional.cross_entropy(
                model(source, target).flatten(0, 1), target.flatten()
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            total += float(loss.detach()) * len(chosen)
        accuracy = token_accuracy(model, validation)[0]
        course.append({"epoch": epoch, "loss": total / len(train), "validation_accuracy": accuracy})
        tell(f"epoch {epoch} of at most {settings.epochs}, validation accuracy {accuracy:.3f}")
        if accuracy >= settings.accuracy:
            break
    return course


@torch.no_grad()
def token_accuracy(model: nn.Module, source: Sequences) -> tuple[float, float]:
    """Return the share of tokens that are right, given the right ones before, and of sequences without a wrong one."""
    model.eval()
    parts = source.split(256)
    right = torch.cat([model(some, some.flip(-1)).argmax(-1) == some.flip(-1) for some in parts])
    return float(right.double().mean()), float(right.all(-1).double().mean())


class AttentionReverser(nn.Module):
    """Reads tokens with one LSTM, writes with another that attends to the first's outputs (structure2025, V).

    The attention weights are softmax(D Eᵀ) between decoder outputs D and encoder outputs E (Luong's dot product: the
    draft names no scores); the dense layer maps [context, D] to the vocabulary. One token more starts the decoder.
    """

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.encoder = nn.LSTM(vocabulary, hidden, batch_first=True)
        self.decoder = nn.LSTM(vocabulary + 1, hidden, batch_first=True)
        self.dense = nn.Linear(2 * hidden, vocabulary)

    def forward(self, source: Sequences, target: Sequences) -> Float[Tensor, "batch n v"]:
        """Return logits of every target token, given those before it."""
        return self._read(source, target)[0]

    @torch.no_grad()
    def cross_attention(self, source: Sequences) -> CrossAttention:
        """Return the attention to the encoder, each token given the right ones before it."""
        _, weights, values = self._read(source, source.flip(-1))
        projection = self.dense.weight[:, : self.encoder.hidden_size].T.expand(len(source), -1, -1)
        return weights.double()[None], values.double()[None], projection.double()[None]

    @torch.no_grad()
    def written(self, source: Sequences) -> float:
        """Return the share of tokens that are right when the model goes on from its own."""
        written = torch.zeros_like(source)
        for position in range(source.shape[1]):
            written[:, position] = self(source, written)[:, position].argmax(-1)
        return float((written == source.flip(-1)).double().mean())

    def _read(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the attention weights, and the encoder's outputs."""
        tokens = nn.functional.one_hot(before(target, self.vocabulary), self.vocabulary + 1)
        encoded, state = self.encoder(nn.functional.one_hot(source, self.vocabulary).float())
        decoded, _ = self.decoder(tokens.float(), state)
        weights = torch.softmax(decoded @ encoded.mT, -1)
        return self.dense(torch.cat([weights @ encoded, decoded], -1)), weights, encoded


class TransformerReverser(nn.Module):
    """BART with one layer on each side (structure2025, V, with the attention of today's models).

    Three tokens more are the model's own.
    """

    def __init__(self, vocabulary: int, hidden: int, length: int) -> None:
        super().__init__()
        self.start_token = vocabulary
        config = BartConfig(
            vocab_size=vocabulary + 3,
            d_model=hidden,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=TRANSFORMER_HEADS,
            decoder_attention_heads=TRANSFORMER_HEADS,
            encoder_ffn_dim=2 * hidden,
            decoder_ffn_dim=2 * hidden,
            dropout=0.0,
            max_position_embeddings=length,
            decoder_start_token_id=vocabulary,
            bos_token_id=vocabulary,
            eos_token_id=vocabulary + 1,
            pad_token_id=vocabulary + 2,
        )
        self.model = BartForConditionalGeneration(config)

    def forward(self, source: Sequences, target: Sequences) -> Float[Tensor, "batch n v"]:
        """Return logits of every target token, given those before it."""
        decoded = before(target, self.start_token)
        return self.model(source, decoder_input_ids=decoded, use_cache=False).logits

    def cross_attention(self, source: Sequences) -> CrossAttention:
        """Return the decoder's attention to the encoder, each token given the right ones before it."""
        texts = [
            [*text.layers[-1].heads] for text in self.lens.capture(self.batch(source), weights=True)
        ]

        def stacked(part: str) -> Tensor:
            heads = [torch.stack([getattr(head, part) for head in text]) for text in texts]
            return torch.stack(heads, 1).double()

        return stacked("attention"), stacked("values"), stacked("output_projection")

    @property
    def lens(self) -> Lens:
        """The model, opened for inspection."""
        return Lens(self.model, name="reversal transformer")

    def batch(self, source: Sequences) -> dict[str, Tensor]:
        """Return the inputs of the encoder, with those of a decoder that reverses them."""
        decoded = before(source.flip(-1), self.start_token)
        return {"input_ids": source, "decoder_input_ids": decoded}


class ReversalStudy(Study[ReversalSettings, Reversal]):
    """Train a model to reverse sequences, and sweep the threshold l over the structure W of its cross attention.

    The attention that reverses a sequence is known (structure2025, V): W should be the antidiagonal. Perturbed cross
    attention is put back into the transformer, but not into the LSTM, which is not a model of transformers.

    Raises:
        InputError: For settings that cannot be used.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> small = {"length": 4, "vocabulary": 4, "hidden": 8, "train": 200, "held_out": 20, "inputs": 5}
        >>> reversal = idl.lab.train_reversal(**small, epochs=2)
        >>> reversal.table.columns[:3], len(reversal.sweep)
        (['model', 'epochs', 'validation_accuracy'], 204)
    """

    name = "lab reversal"
    unit = "models"
    settings_type = ReversalSettings
    result_type = Reversal
    parts = ("model",)

    def identity(self) -> Identity:
        """Return the model, with the learning rate that is used."""
        return Identity(
            {"name": f"reversal {self.settings.model}"}, [], {"learning_rate": self.settings.rate}
        )

    @torch.random.fork_rng(devices=[])
    def run(self, part: int) -> Output:
        """Return everything about the model; the state of torch's global generator is restored afterwards."""
        torch.manual_seed(self.settings.seed)
        settings = self.settings
        train, validation, test = reversal_data(settings)
        if settings.model == "lstm":
            model = AttentionReverser(settings.vocabulary, settings.hidden)
        else:
            model = TransformerReverser(
                settings.vocabulary,
                settings.hidden,
                settings.length,
            )
        course = train_reverser(model, train, validation, settings, self.tell)
        source = test[: settings.inputs]
        weights, values, projection = model.cross_attention(source)
        effective = effective_attention(
            values, weights=weights, output_projection=projection
        ).effective
        accuracy, sequences = token_accuracy(model, test)
        row = {
            "model": settings.model,
            "epochs": len(course),
            "validation_accuracy": course[-1]["validation_accuracy"],
            "accuracy": accuracy,
            "whole": sequences,
            "written": model.written(test) if isinstance(model, AttentionReverser) else None,
        }
        nullity = numerical_rank(values, projection).nullity.double().mean(-1)
        # The same values of l are used on the sum as on the mean, so that the two scales can be compared.
        sweep = [
            {"head": head, "weights": name, **swept}
            for head in range(len(weights))
            for name, maps in (("raw", weights[head]), ("effective", effective[head].abs()))
            for scale in ("mean", "sum")
            for swept in threshold_sweep(maps, scale=scale).iter_rows(named=True)
        ]
        perturbations = []
        if isinstance(model, TransformerReverser):
            self.tell("perturbed weights in the model")
            raw, sizes = (
                structure_weights(maps.mean(1), DRAFT_THRESHOLD)
                for maps in (weights, effective.abs())
            )
            lens, structures = model.lens, {"cross.layer0": (raw, sizes)}
            for text, item in enumerate(lens.read(model.batch(source))[:PERTURBED_INPUTS]):
                perturbations += perturbation_rows(lens, item, text, structures, settings.seed)
        rows = {
            "table": [row],
            "heads": [{"head": head, "nullity": float(mean)} for head, mean in enumerate(nullity)],
            "course": course,
            "sweep": sweep,
            "perturbations": perturbations,
        }
        # Where T has no null space, effective weights are the weights themselves: safetensors refuses shared tensors.
        return Output(
            {name: table_of(columns, rows[name]) for name, columns in Reversal.schema.items()},
            {"cross.weights": weights, "cross.effective": effective.clone(), "source": source},
        )


train_reversal = study_function(ReversalStudy, "train_reversal")
