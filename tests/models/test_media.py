"""Images and recordings from files, in Python and on the command line."""

import struct

import numpy as np
import pytest
import transformers as hf
from scipy.io import wavfile

import identilens as idl
from helpers.command import failing
from helpers.zoo import build
from identilens.errors import InputError
from identilens.models import Lens


@pytest.fixture
def tone(tmp_path):
    """Half a second of a tone at 8 kHz in two channels of 16 bits."""
    wave = np.sin(np.arange(4000) * 2 * np.pi * 440 / 8000)
    wavfile.write(tmp_path / "tone.wav", 8000, np.stack([wave, wave * 0.5], 1).astype(np.float32))
    wavfile.write(
        tmp_path / "tone16.wav", 8000, (np.stack([wave, wave * 0.5], 1) * 32767).astype(np.int16)
    )
    return tmp_path / "tone.wav"


def test_a_recording_is_read_in_every_width(tone):
    audio, coarse = idl.read_audio(tone), idl.read_audio(tone.with_name("tone16.wav"))
    assert (audio.rate, audio.samples.shape, audio.samples.dtype) == (8000, (4000,), np.float32)
    np.testing.assert_allclose(audio.samples, coarse.samples, atol=1e-4)


def test_what_cannot_be_read_or_used_is_told(tmp_path, tone):
    (tmp_path / "bad.wav").write_bytes(b"no recording")
    wavfile.write(tmp_path / "empty.wav", 8000, np.zeros(0, np.int16))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    out = ["-o", tmp_path / "out"]
    bert = ["-m", tmp_path / "none"]
    assert "cannot be read as .wav" in failing(
        "audit", *bert, "--audio", tmp_path / "bad.wav", *out
    )
    assert "contains no samples" in failing("audit", *bert, "--audio", tmp_path / "empty.wav", *out)
    assert "Check the path given to --audio" in failing(
        "audit", *bert, "--audio", tmp_path / "no.wav", *out
    )
    assert "cannot be read as an image" in failing(
        "audit", *bert, "--image", tmp_path / "bad.png", *out
    )
    assert "give exactly one of" in failing("audit", *bert, "--audio", tone, "--text", "a", *out)
    with pytest.raises(InputError, match="preprocessor_config"):
        Lens(build("bert")).read(idl.read_audio(tone))
    lens = Lens(build("whisper"), feature_extractor=hf.WhisperFeatureExtractor())
    with pytest.raises(InputError, match="the recording has 8,000"):
        lens.read(idl.read_audio(tone))


HEAD = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 236, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
SOUND = HEAD + struct.pack("<4sI", b"data", 200) + bytes(200)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"RIFF", "cannot"),
        (HEAD[:12], "cannot"),
        (SOUND[:32] + bytes(4) + SOUND[36:], "cannot"),
        (SOUND[:-50], "prematurely"),
        (SOUND[:24] + bytes(8) + SOUND[32:], "has no rate"),
        (SOUND[:20] + b"\3\0" + SOUND[22:34] + b"\x20\0" + SOUND[36:44] + b"\0\0\xc0\x7f" * 50, "NaN or infinite"),
    ],
)  # fmt: skip
def test_damaged_recordings_are_named(tmp_path, content, message):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError, match=message):
        idl.read_audio(tmp_path / "a.wav")
