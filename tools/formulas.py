"""Typesets the formulas of the documentation: LaTeX becomes MathML when the site is built.

An extension of Python-Markdown that zensical.toml names. A formula with lines of its own stands in a fence
```` ```math ````, as on GitHub; one within a sentence between dollars, ``$a_j$``, on one line.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring, tostring

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

FENCE = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = r"(?<![\\$\w])\$(?! )([^$\n]+)(?<! )\$(?![$\w])([.,:;)]*)"
"""A formula and the punctuation behind it, which no line may begin with."""

BEFORE_FENCES = 27
"""Python-Markdown's order of preprocessors: code in fences is read at 25."""

BEFORE_ESCAPES = 185
"""The order of what stands within a line: behind code (190), before backslashes (180) and emphasis."""


NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
PRIME, NORM = "′", "‖"


def typeset(latex: str, display: str) -> str:
    """Return a formula as MathML.

    Raises:
        ValueError: For a command that the conversion does not know: it would be shown as it is written.
    """
    try:
        formula = fromstring(convert(latex.strip(), display=display).replace(NAMESPACE, ""))
    except ParseError:
        formula = None
    if formula is None or "\\" in "".join(formula.itertext()):
        raise ValueError(
            f"latex2mathml does not know all commands of this formula: {latex.strip()}"
        )
    for one in formula.iter():
        if one.text == NORM:
            # Both ends are of one size only if neither stretches: one may stand within an exponent's base.
            one.set("stretchy", "false")
        if one.tag in ("msup", "msubsup") and one[-1].text == PRIME:
            lower_prime(one)
    return tostring(formula, encoding="unicode")


def lower_prime(script: Element) -> None:
    """Put a prime beside its letter: as an exponent it is raised, and made small, a second time."""
    base, *below, prime = list(script)
    prime.tag = "mo"
    prime.attrib = {"lspace": "0", "rspace": "0"}
    letter = Element("mrow")
    letter.extend([base, prime])
    script[:] = [letter, *below]
    script.tag = "msub" if below else "mrow"


class FencedFormulas(Preprocessor):
    """Typesets formulas that stand in fences."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines with a placeholder for each formula."""
        return FENCE.sub(self._stored, "\n".join(lines)).split("\n")

    def _stored(self, match: re.Match[str]) -> str:
        formula = f'<div class="formula">{typeset(match[1], "block")}</div>'
        return f"\n{self.md.htmlStash.store(formula)}\n"


class InlineFormulas(InlineProcessor):
    """Typesets formulas between dollars."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802 the name is Markdown's
        """Return a placeholder, and where the formula begins and ends."""
        formula = f'<span class="formula-inline">{typeset(m[1], "inline")}{m[2]}</span>'
        return self.md.htmlStash.store(formula), m.start(0), m.end(0)


class Formulas(Extension):
    """Reads formulas in both places."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 the name is Markdown's
        """Put both readers in their places."""
        md.preprocessors.register(FencedFormulas(md), "formulas", BEFORE_FENCES)
        md.inlinePatterns.register(InlineFormulas(INLINE, md), "formulas", BEFORE_ESCAPES)


def makeExtension(**settings: Any) -> Formulas:  # noqa: N802 the name is Markdown's
    """Return the extension: Python-Markdown calls this."""
    return Formulas(**settings)
