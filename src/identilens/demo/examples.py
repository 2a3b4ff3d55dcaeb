"""The texts that identilens brings, to try it on."""

from importlib.resources import files

STORY = "The painter moved to Paris with his wife, and in the city he opened his"
"""The text of the documentation's first page, with which the explorer starts: a map of a head, and its opposite."""


def examples() -> list[str]:
    """Return the sample texts: six English paragraphs of 42 to 175 tokens of the bundled encoder.

    Attention over fewer tokens than a head's d_v is determined throughout (rank(T) is then full); these are longer.

    Examples:
        >>> import identilens as idl
        >>> texts = idl.examples()
        >>> texts[0][:29]
        'The tailor measured him twice'
    """
    lines = files("identilens.demo").joinpath("texts.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if len(line.split()) > 30]
