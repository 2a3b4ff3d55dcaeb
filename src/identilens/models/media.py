"""Images from files."""

from pathlib import Path
from typing import Any

from identilens.errors import InputError


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
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow fails on damaged files in many ways
        raise InputError(f"{file} cannot be read as an image: {error}. Check the path.") from error
