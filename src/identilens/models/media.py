"""Images and recordings from files."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy.io import wavfile

from identilens.errors import InputError


@dataclass(frozen=True)
class Audio:
    """A recording with one channel.

    Attributes:
        samples: Samples in [-1, 1].
        rate: Number of samples per second.

    Examples:
        >>> import identilens as idl
        >>> import numpy as np
        >>> tone = idl.Audio(np.sin(np.arange(8000, dtype=np.float32)), rate=8000)
        >>> len(tone.samples) / tone.rate
        1.0
    """

    samples: Float32[np.ndarray, " sample"]
    rate: int


def read_audio(file: str | Path) -> Audio:
    """Return the recording in a .wav file, as the mean of its channels.

    Raises:
        InputError: If there is no such file, or it cannot be read.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from scipy.io import wavfile
        >>> file = Path(tempfile.mkdtemp()) / "tone.wav"
        >>> wavfile.write(file, 8000, np.zeros(4000, dtype=np.int16))
        >>> idl.read_audio(file).rate, len(idl.read_audio(file).samples)
        (8000, 4000)
    """
    try:
        with warnings.catch_warnings():
            # Only a warning tells of a file that was cut.
            warnings.filterwarnings("error", "Reached EOF")
            rate, samples = wavfile.read(_existing(file, "--audio"))
    except InputError:
        raise
    except Exception as error:  # scipy fails on damaged headers in many ways
        raise InputError(
            f"{file} cannot be read as .wav: {error}. Convert it, for example with ffmpeg."
        ) from error
    if not samples.size:
        raise InputError(f"{file} contains no samples.")
    if samples.dtype == np.uint8:
        samples = (samples.astype(np.float32) - 128) / 128
    elif samples.dtype.kind == "i":
        samples = samples.astype(np.float32) / np.iinfo(samples.dtype).max
    mono = np.asarray(samples if samples.ndim == 1 else samples.mean(1), dtype=np.float32)
    if not rate or not np.isfinite(mono).all():
        raise InputError(f"{file} has no rate, or samples that are NaN or infinite.")
    return Audio(mono, rate)


def read_image(file: str | Path) -> Any:
    """Return the image in a file as a Pillow image in RGB.

    Raises:
        InputError: If there is no such file, it is not an image, or Pillow is not installed.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> file = Path(tempfile.mkdtemp()) / "red.png"
        >>> Image.new("L", (8, 4)).save(file)
        >>> idl.read_image(file).size, idl.read_image(file).mode
        ((8, 4), 'RGB')
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("images need Pillow. Run: pip install 'identilens[images]'") from error
    try:
        with Image.open(_existing(file, "--image")) as image:
            return image.convert("RGB")
    except InputError:
        raise
    except Exception as error:  # Pillow fails on damaged files in many ways
        raise InputError(f"{file} cannot be read as an image: {error}.") from error


def _existing(file: str | Path, option: str) -> Path:
    if not isinstance(file, str | Path) or not Path(file).is_file():
        raise InputError(f"no such file: {file}. Check the path given to {option}.")
    return Path(file)
