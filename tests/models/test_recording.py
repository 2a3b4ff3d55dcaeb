"""Recordings of attention: the model's own numbers without the model, and nothing that does not fit."""

import json
from dataclasses import replace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import identilens as idl
from helpers.command import failing, identilens
from helpers.gated import GATED, gated, normed
from helpers.zoo import _T5, build, ids
from identilens.errors import InputError, OutputFolderError, UnsupportedModelError
from identilens.models import reading
from identilens.models.recording import read_recording
from identilens.models.replayed import NotRecorded

TEXTS = [ids(24), ids(9)]


def apart(a, b):
    """The largest difference of two tables; other columns must be equal."""
    most = 0.0
    for name, kind in a.schema.items():
        if kind.is_float():
            assert a[name].null_count() == b[name].null_count(), name
            most = max(most, (a[name] - b[name]).abs().max() or 0.0)
        else:
            assert a[name].equals(b[name]), name
    return most


def recorded(lens, folder, texts=TEXTS):
    files = [folder / f"{number}.safetensors" for number in range(len(texts))]
    for text, file in zip(texts, files, strict=True):
        idl.record(lens, text, file)
    return files


def stored(layer):
    """The tensors of a layer, named as in a file."""
    return {f"{layer.layer}.{name}": one.clone() for name, one in layer.tensors().items()}


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("llama"), name="llama")


@pytest.fixture(scope="module")
def files(lens, tmp_path_factory):
    return recorded(lens, tmp_path_factory.mktemp("recordings"))


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "mistral", "qwen3"])
def test_tables_are_those_of_the_model(family, tmp_path):
    lens = idl.Lens(build(family))
    recording = idl.Recording(*recorded(lens, tmp_path))
    assert recording.texts == [list(range(24)), list(range(24, 33))]
    for study in (
        lambda one, texts: idl.audit(one, texts, examples=1, effects="none"),
        lambda one, texts: idl.certify(
            one, texts[:1], layers=1, heads=0, queries=-1, outcome="layer", tolerance="1%"
        ),
        lambda one, texts: idl.rollout(one, texts[1:], queries=-1),
    ):
        of_model, found = study(lens, TEXTS).table, study(recording, recording.texts).table
        tokens = [name for name in of_model.columns if name.endswith("token")]
        assert apart(of_model.drop(tokens), found.drop(tokens)) < 1e-5
        for name in tokens:
            assert found[name].equals(of_model[name])


def test_half_precision_is_recorded_as_it_is(tmp_path):
    lens = idl.Lens(build("llama").bfloat16())
    recording = idl.Recording(*recorded(lens, tmp_path))
    assert recording.dtype == torch.bfloat16
    tables = [
        idl.audit(one, texts, examples=1, effects="none").table
        for one, texts in ((lens, TEXTS), (recording, recording.texts))
    ]
    assert apart(*tables) < 0.02


def test_a_recording_has_the_names_of_tokens_and_of_the_model(bundled, tmp_path):
    text = "The ferry left the harbour before dawn."
    idl.record(bundled, text, tmp_path / "text.safetensors")
    recording = idl.load(tmp_path / "text.safetensors")
    assert recording.name == bundled.name
    [item] = recording.read(recording.texts)
    assert item.tokens["encoder"] == bundled.read([text])[0].tokens["encoder"]
    assert recording.facts["family"] == "identilens_recording"
    found = idl.certify(recording, recording.texts, layers=3, heads=0, queries="ferry")
    assert found.table["query_token"].unique().to_list() == ["ferry"]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, projection=one.projection.flip(0)),
        lambda one: replace(one, projection=one.projection.roll(8, 0)),
        lambda one: replace(one, mixed=one.mixed.roll(1, 0)),
        lambda one: replace(one, value=one.value.flip(0)),
        lambda one: replace(one, key=one.key.roll(1, 1)),
        lambda one: replace(one, query=1.1 * one.query),
        lambda one: replace(one, scaling=1.0),
        lambda one: replace(one, mask="full"),
        lambda one: replace(one, output=one.output.roll(1, 0)),
        lambda one: replace(one, mixed=one.mixed * torch.nan),
    ],
)
def test_what_does_not_fit_is_refused(files, change, tmp_path):
    layers, tokens, model = read_recording(files[0])
    changed = change(layers[1])
    with pytest.raises(InputError, match=r"layer 1: .* a row is .* of the largest one away"):
        idl.write_recording(tmp_path / "x.safetensors", [layers[0], changed], tokens, model=model)
    assert not (tmp_path / "x.safetensors").exists()
    # A file that was changed afterwards is refused when it is read.
    tensors = load_file(files[0]) | stored(changed)
    facts = {
        "format": "identilens recording 1",
        "model": model,
        "tokens": tokens,
        "layers": [layers[0].facts(), changed.facts()],
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"identilens": json.dumps(facts)})
    with pytest.raises(InputError, match=r"x.safetensors, layer 1: .* a row is"):
        idl.load(tmp_path / "x.safetensors")


def test_masks_that_have_a_name_take_no_room(files, tmp_path):
    assert {one.mask for one in read_recording(files[0])[0]} == {"causal"}
    [file] = recorded(idl.Lens(build("bert")), tmp_path, TEXTS[:1])
    assert {one.mask for one in read_recording(file)[0]} == {"full"}
    [file] = recorded(idl.Lens(build("mistral")), tmp_path, TEXTS[:1])
    masks = [one.mask for one in read_recording(file)[0]]
    assert all(isinstance(mask, torch.Tensor) and not mask[-1, 0] for mask in masks)


def test_sizes_must_fit(files, tmp_path):
    layers, tokens, _ = read_recording(files[0])
    with pytest.raises(InputError, match="its tensors do not fit each other"):
        idl.write_recording(
            tmp_path / "x.safetensors", [replace(layers[0], value=layers[0].value[:, 1:])], tokens
        )
    with pytest.raises(InputError, match="has 24 positions, and there are 23 tokens"):
        idl.write_recording(tmp_path / "x.safetensors", layers, tokens[1:])
    with pytest.raises(InputError, match=r"in the order of the model, .*; got numbers \[1, 0\]"):
        idl.write_recording(tmp_path / "x.safetensors", layers[::-1], tokens)
    with pytest.raises(InputError, match="in the order of the model"):
        idl.write_recording(tmp_path / "x.safetensors", [], tokens)


@pytest.mark.parametrize(
    "change",
    [
        {"query": torch.zeros(4, 24)},
        {"query": torch.zeros(4, 24, 8, dtype=torch.int64)},
        {"key": torch.zeros(2, 24, 8, dtype=torch.float64)},
        {"value": torch.zeros(2)},
        {"value": torch.zeros(0, 24, 8)},
        {"mixed": torch.zeros(24, 32)},
        {"bias": torch.zeros(3)},
        {"output": torch.zeros(0)},
        {"mask": torch.ones(3, 3, dtype=torch.bool)},
        {"mask": "window"},
    ],
)
def test_tensors_of_other_sizes_or_types_are_refused(files, change, tmp_path):
    layers, tokens, _ = read_recording(files[0])
    with pytest.raises(InputError, match="layer 0: its tensors do not fit"):
        idl.write_recording(tmp_path / "x.safetensors", [replace(layers[0], **change)], tokens)
    assert not [*tmp_path.iterdir()]


def test_numbers_of_layers_are_bounded(files, tmp_path):
    layers, tokens, _ = read_recording(files[0])
    for number in (-1, 10**9):
        with pytest.raises(InputError, match="in the order of the model, from 0 to"):
            idl.write_recording(
                tmp_path / "x.safetensors", [replace(layers[0], layer=number)], tokens
            )


def test_a_place_that_cannot_be_written_is_an_error(files, tmp_path):
    layers, tokens, _ = read_recording(files[0])
    with pytest.raises(OutputFolderError, match="cannot be written"):
        idl.write_recording(tmp_path / "no" / "x.safetensors", layers, tokens)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"identilens": "x"},
        {"identilens": "[]"},
        {"identilens": "{}"},
        {"identilens": '{"format": "identilens recording 1"}'},
        {
            "identilens": '{"format": "identilens recording 1", "tokens": 3, "model": "x", "layers": 1}'
        },
        {"identilens": "[" * 100_000},
        {
            "identilens": '{"format": "identilens recording 1", "tokens": [], "model": "x", "layers": []}'
        },
    ],
)
def test_files_that_are_no_recordings_are_refused(metadata, tmp_path):
    file = tmp_path / "x.safetensors"
    if metadata is None:
        file.write_bytes(b"no tensors")
    else:
        save_file({"a": torch.zeros(2)}, file, metadata=metadata)
    with pytest.raises(
        InputError, match=r"x.safetensors(, expected layers| is no recording| is damaged)"
    ):
        idl.load(file)
    with pytest.raises(InputError, match="is damaged"):
        idl.load(tmp_path / "absent.safetensors")


def test_recordings_of_other_models_are_not_joined(files, tmp_path):
    other = recorded(idl.Lens(build("llama", seed=1)), tmp_path, TEXTS[:1])
    with pytest.raises(InputError, match="is of another model, or of other layers"):
        idl.Recording(files[0], *other)


def test_some_layers_may_be_recorded(lens, files, tmp_path):
    layers, tokens, _ = read_recording(files[0])
    idl.write_recording(tmp_path / "one.safetensors", layers[1:], tokens)
    recording = idl.load(tmp_path / "one.safetensors")
    audit = idl.audit(recording, recording.texts, certain_rows=0)
    assert set(audit.table["layer"]) == {1}
    assert "have none: layers.0 (NotRecorded)" in audit.summary().text
    assert torch.equal(NotRecorded()(torch.ones(2), torch.ones(1)), torch.ones(2))
    with pytest.raises(UnsupportedModelError):
        idl.rollout(recording, recording.texts)


@pytest.mark.parametrize(
    "study",
    [
        lambda one, texts: idl.audit(one, texts, effects="removal"),
        lambda one, texts: idl.certify(one, texts, layers=1, heads=0, outcome="states"),
        lambda one, texts: idl.mixing(one, texts),
        lambda one, texts: idl.alternatives(one, texts, layers=1, heads=0),
        lambda one, texts: idl.influence(one, texts, outcome="states"),
        lambda one, texts: idl.inversion(one, texts),
        lambda one, texts: idl.token_identifiability(one, 4 * texts),
        lambda one, texts: next(one.capture(texts, hidden_states=True)),
        lambda one, texts: one.substitute({}, texts[0]),
    ],
)
def test_what_needs_the_model_is_refused(files, study):
    recording = idl.Recording(*files)
    with pytest.raises(UnsupportedModelError, match="a recording has attention alone"):
        study(recording, recording.texts)


@pytest.mark.parametrize("options", [{}, {"weights": True}, {"rows": [3, 8]}], ids=str)
@pytest.mark.parametrize("family", ["qwen3_next", "afmoe", "bitnet", "muse_spark"])
def test_gates_and_norms_are_recorded(family, options, tmp_path):
    """Rows of gated heads have their own T, with the gate in it, as in the model; those of a norm have V."""
    lens = gated(family) if family in GATED else normed(family)
    file = tmp_path / "x.safetensors"
    idl.record(lens, TEXTS[1], file, **options)
    layers, tokens, _ = read_recording(file)
    assert layers[0].gate.shape == layers[0].mixed.shape
    assert layers[0].normed == (family not in GATED)
    recording = idl.load(file)
    places = options.get("rows")
    audits = [
        idl.audit(one, text, queries=places, effects="none", certain_rows=2).table.drop("d_k")
        for one, text in ((lens, TEXTS[1:]), (recording, recording.texts))
    ]
    assert apart(*audits) < 1e-5
    rows = [
        idl.certify(
            one,
            text,
            layers=layers[-1].layer,
            heads=0,
            queries=8,
            tolerance="1%",
            outcome="layer" if family in GATED else "head",
        ).table
        for one, text in ((lens, TEXTS[1:]), (recording, recording.texts))
    ]
    assert apart(*(one.drop("key_token", "query_token", strict=False) for one in rows)) < 1e-5
    forged = [replace(one, gate=one.gate.flip(0)) for one in layers]
    with pytest.raises(InputError, match="mixed values times the projection do not give"):
        idl.write_recording(tmp_path / "y.safetensors", forged, tokens)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_attention_to_another_sequence_is_not_recorded(family, tmp_path):
    lens = idl.Lens(build(family))
    with pytest.raises(UnsupportedModelError, match="which a recording does not hold"):
        idl.record(lens, TEXTS[1], tmp_path / "x.safetensors", weights=True)


def test_rounded_weights_with_a_sink_are_not_recorded(tmp_path):
    lens = idl.Lens(build("gpt_oss").bfloat16())
    with pytest.raises(UnsupportedModelError, match='Load the model with dtype="float32"'):
        idl.record(lens, TEXTS[1], tmp_path / "x.safetensors")


def of_weights(family, folder, **options):
    """A model, its recording with weights, and what was recorded: sinks, soft caps and position biases included."""
    torch.manual_seed(0)
    model = hf.T5EncoderModel(hf.T5Config(**_T5)).eval() if family == "t5" else build(family)
    lens = idl.Lens(model)
    files = [folder / f"{number}.safetensors" for number in range(len(TEXTS))]
    for text, file in zip(TEXTS, files, strict=True):
        idl.record(lens, text, file, weights=family in ("llama", "bert", "mistral"), **options)
    return lens, idl.Recording(*files), read_recording(files[0])


@pytest.mark.parametrize("family", ["llama", "bert", "mistral", "gpt_oss", "gemma2", "t5"])
def test_weights_take_the_place_of_queries_and_keys(family, tmp_path):
    lens, recording, (layers, _, _) = of_weights(family, tmp_path)
    assert layers[0].query is None
    assert layers[0].sink == (family == "gpt_oss")
    tables = [
        idl.audit(one, texts, examples=1, effects="none").table
        for one, texts in ((lens, TEXTS), (recording, recording.texts))
    ]
    assert apart(*(one.drop("d_k") for one in tables)) < 1e-5
    assert tables[1]["d_k"].null_count() == len(tables[1]), "it is not known"
    if family != "gpt_oss":
        rows = [
            idl.certify(one, texts[:1], layers=1, heads=0, queries=-1, outcome="layer").table
            for one, texts in ((lens, TEXTS), (recording, recording.texts))
        ]
        assert apart(*rows) < 1e-5
    with pytest.raises(InputError, match="of a text of 24 tokens; got 9 of them. Give the whole"):
        idl.audit(recording, [recording.texts[0][:9]])


@pytest.mark.parametrize("family", ["llama", "bert", "gemma2", "gpt_oss"])
def test_some_rows_are_recorded(family, tmp_path):
    """A row of a long text is n numbers a head, and is measured as in the model; what was not recorded is refused."""
    lens, places = idl.Lens(build(family)), [3, 20, 23]
    idl.record(lens, TEXTS[0], tmp_path / "x.safetensors", rows=[20, 3, 23])
    layers, _, _ = read_recording(tmp_path / "x.safetensors")
    assert layers[0].weights.shape[1:] == (3, 24)
    assert layers[0].places == places
    assert family != "bert" or layers[0].mask == "full"
    recording = idl.load(tmp_path / "x.safetensors")
    tables = [
        idl.audit(one, texts, queries=places, examples=1, effects="none").table.drop("d_k")
        for one, texts in ((lens, TEXTS[:1]), (recording, recording.texts))
    ]
    assert apart(*tables) < 1e-5
    for study in (
        lambda: idl.audit(recording, recording.texts),
        lambda: idl.audit(recording, recording.texts, queries=[0, 3]),
        lambda: idl.rollout(recording, recording.texts),
        lambda: next(recording.capture(recording.texts, weights=True)),
    ):
        with pytest.raises(
            InputError,
            match=r"position 0 was not recorded; the rows at \[3, 20, 23\] were. Ask for",
        ):
            study()
    with pytest.raises(InputError, match="expected rows from 0 to 23, at least one; got"):
        idl.record(lens, TEXTS[0], tmp_path / "y.safetensors", rows=[24])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, projection=one.projection.roll(8, 0)), "a row is .* away"),
        (lambda one: replace(one, value=one.value.flip(0)), "a row is .* away"),
        (lambda one: replace(one, mixed=one.mixed.roll(1, 0)), "a row is .* away"),
        (lambda one: replace(one, weights=one.weights.flip(0)), "a row is .* away"),
        (lambda one: replace(one, weights=one.weights.roll(1, 1)), "no attention: expected none"),
        (lambda one: replace(one, weights=0.99 * one.weights), "the sums are 0.99 to 0.99"),
        (lambda one: replace(one, weights=0.99 * one.weights, sink=True), "a row is .* away"),
        (lambda one: replace(one, weights=1.01 * one.weights, sink=True), "or to less; the sums"),
        (lambda one: replace(one, weights=one.weights.bfloat16().float()), "rounded to half"),
        (lambda one: replace(one, weights=one.weights * torch.nan), "no attention"),
        (lambda one: replace(one, mask=torch.eye(24).bool()), "no attention"),
        (lambda one: replace(one, weights=one.weights.half()), "its tensors do not fit"),
        (lambda one: replace(one, weights=one.weights[:, 1:]), "its tensors do not fit"),
        (lambda one: replace(one, query=one.weights), "its tensors do not fit"),
        (lambda one: replace(one, rows=torch.arange(24).flip(0)), "its tensors do not fit"),
        (lambda one: replace(one, rows=torch.arange(1, 25)), "its tensors do not fit"),
        (lambda one: replace(one, weights=None), "its tensors do not fit"),
    ],
)
def test_forged_weights_are_refused(lens, change, said, tmp_path_factory, tmp_path):
    idl.record(lens, TEXTS[0], tmp_path / "x.safetensors", weights=True)
    layers, tokens, model = read_recording(tmp_path / "x.safetensors")
    changed = change(layers[1])
    with pytest.raises(InputError, match=f"layer 1: .*{said}"):
        idl.write_recording(tmp_path / "y.safetensors", [layers[0], changed], tokens)
    tensors = stored(layers[0]) | stored(changed)
    facts = {
        "format": "identilens recording 1",
        "model": model,
        "tokens": tokens,
        "layers": [layers[0].facts(), changed.facts()],
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"identilens": json.dumps(facts)})
    with pytest.raises(InputError, match=f"x.safetensors, layer 1: .*{said}"):
        idl.load(tmp_path / "x.safetensors")


def test_what_needs_queries_and_keys_has_none_of_recorded_weights(lens, tmp_path):
    idl.record(lens, TEXTS[1], tmp_path / "x.safetensors", weights=True)
    recording = idl.load(tmp_path / "x.safetensors")
    head = next(next(recording.capture(recording.texts, weights=True)).heads)
    assert head.d_k == head.queries.shape[1] == head.keys.shape[1] == 0
    assert not head.follows_logits
    assert torch.equal(head.attention, head.family_weights.double())
    with pytest.raises(UnsupportedModelError, match="a recording has attention alone"):
        idl.alternatives(recording, recording.texts, layers=0, heads=0)


def test_the_command_line_takes_a_recording_with_its_text(files, lens, tmp_path):
    out = tmp_path / "run"
    identilens("audit", "--model", files[0], "--certain-rows", "2", "--out", out, code=0)
    table = idl.load_result(out).table
    of_model = idl.audit(lens, TEXTS[:1], certain_rows=2, effects="none").table
    assert apart(of_model.drop("sink_token"), table.drop("sink_token")) < 1e-5
    again = idl.rerun(out)
    assert again.table.equals(table)
    assert "exactly one of --text" in failing("audit", "--model", "name", "--out", tmp_path / "x")


def test_an_engine_needs_no_transformers_to_write_a_recording(tmp_path):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 7, 4, generator=generator)
    weights = torch.softmax((q @ k.mT / 2).masked_fill(~torch.ones(7, 7).tril().bool(), -1e9), -1)
    mixed, projection = (weights @ v).transpose(0, 1), torch.randn(8, 16, generator=generator)
    layer = idl.RecordedLayer(
        query=q,
        key=k,
        value=v,
        mixed=mixed,
        projection=projection,
        output=mixed.flatten(1) @ projection,
    )
    idl.write_recording(tmp_path / "own.safetensors", [layer], list("abcdefg"), model="own")
    recording = idl.load(tmp_path / "own.safetensors")
    [captured] = recording.capture(recording.texts, weights=True)
    torch.testing.assert_close(captured.layers[0].weights, weights, atol=1e-6, rtol=0)
    assert next(iter(captured.heads)).projected.compact.shape[0] == 7
    assert idl.audit(recording, recording.texts, certain_rows=1).table["rank"].max() == 4


def test_texts_within_and_beyond_a_window_are_of_one_model(tmp_path):
    model = build("mistral")
    model.config.sliding_window = 16
    lens = idl.Lens(model)
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    for text, file in zip(TEXTS, files, strict=True):
        idl.record(lens, text, file, weights=True)
    assert [type(read_recording(file)[0][0].mask) for file in files] == [torch.Tensor, str]
    recording = idl.Recording(*files)
    tables = [
        idl.audit(one, texts, certain_rows=0, effects="none").table.drop("d_k")
        for one, texts in ((lens, TEXTS), (recording, recording.texts))
    ]
    assert apart(*tables) < 1e-5


def test_rows_are_read_alone_in_long_texts(lens, monkeypatch):
    """As they are read from whole maps."""
    whole = reading.read_head(lens, lens.read([TEXTS[0]])[0], 1, 2, rows=[3, 20])
    monkeypatch.setattr(reading, "_WEIGHTS", 0)
    alone = reading.read_head(lens, lens.read([TEXTS[0]])[0], 1, 2, rows=[3, 20])
    every = reading.read_head(lens, lens.read([TEXTS[0]])[0], 1, 2)
    assert alone.weights.shape == whole.weights.shape == (2, 24)
    for query in (3, 20):
        for one in (whole, alone):
            torch.testing.assert_close(one.row(query), every.row(query), atol=1e-6, rtol=0)
            assert torch.equal(one.seen(query), every.seen(query))
