"""Files of certificates: written beside a run, and checked without model, solver or the run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from identilens.charts.labels import said, shortened
from identilens.claims import OPEN, verdict_of
from identilens.errors import InputError
from identilens.linalg.certificate import Certificate
from identilens.runs.files import tensor_bytes, write_bytes

FOLDER = "certificates"
"""Folder of a run with its certificates."""

LARGEST = 64 * 2**20
"""Bytes of a certificate that is written or read."""

EXACT = ("head", "layer")
"""Outcomes whose certificates do not rest on a first order."""

_COUNTED = 200
"""Characters in which the keys of a claim are named."""

_SENTENCES = """\
{holds}. Stated: between {stated_lo:≥.6g} and {stated_hi:≤.6g}.
Proven: between {proven_lo:≥.6g} and {proven_hi:≤.6g}, for all weights of the same sum that move what they mix with \
the file's factor by at most {delta:.6g}; the row itself has {own:.6g}.
Of these weights, some have {met_lo:.6g}, some {met_hi:.6g}.
That it is {sign} {bound:g} is {verdict}.
The numbers are of {keys}. Not checked, since nothing in the file ties it to the numbers: that they are of {subject}, \
{words!r}, {where}; and that the factor and the limit stand for outcome {outcome}, up to {tolerance}{order}."""

_NAME = "identilens"
_WORDS = ("words", "subject", "sign", "outcome", "tolerance", "where")
_SIZES = {
    "row": ("key",),
    "factor": ("key", "r"),
    "blocks": ("key",),
    "functional": ("key",),
    "tolerance": (),
    "multipliers": (2, "r"),
    "ends": (2,),
    "witnesses": (2, "key"),
}


@dataclass(frozen=True)
class CertificateFile:
    """A certificate as its file has it: the numbers, and what is said of them.

    Attributes:
        certificate: The numbers.
        said: The claim's ``words`` and ``subject``, its ``sign`` and ``bound``, what stays (``outcome``, up to which
            ``tolerance``), and where: text, layer, head, kind, query, model.
    """

    certificate: Certificate
    said: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> "CertificateFile":
        """Return the certificate of a file; its numbers have the right shapes and are finite.

        Raises:
            InputError: For a file that is no certificate.
        """
        file = Path(path)
        try:
            if file.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST:,} bytes")
            with safe_open(file, framework="pt") as stored:
                said = json.loads((stored.metadata() or {}).get(_NAME, "null"))
                numbers = {name: stored.get_tensor(name) for name in _SIZES}
            _check(numbers, said)
        except (ValueError, OSError, RecursionError, SafetensorError) as error:
            raise InputError(
                f"{file} is no certificate: {error}. Pass files from the folder certificates of a run with "
                "certificates=True."
            ) from error
        return cls(Certificate(**numbers), said)

    def write(self, file: Path) -> None:
        """Write the file."""
        numbers = {name: getattr(self.certificate, name) for name in _SIZES}
        write_bytes(file, tensor_bytes(numbers, **{_NAME: json.dumps(self.said)}))

    def sentences(self) -> str:
        """Return what the numbers prove, in words; the stated ends are only compared with them."""
        certificate, told = self.certificate, self.said
        proven = certificate.proven()
        counted = enumerate(certificate.functional.tolist())
        of = ", ".join(f"{factor:g} times key {key}" for key, factor in counted if factor)
        verdict = verdict_of(told["sign"], told["bound"], *proven.tolist())
        numbers = {
            **told,
            "holds": "holds" if certificate.holds else "does not hold",
            "delta": float(certificate.tolerance),
            "own": float(certificate.functional @ certificate.row),
            "verdict": verdict if certificate.holds else verdict and OPEN,
            "keys": shortened(of, _COUNTED) or "no key",
            "order": "" if told["outcome"] in EXACT else ", to first order",
        }
        named = {"stated": certificate.ends, "met": certificate.met, "proven": proven}
        for name, ends in named.items():
            if ends is not None:
                numbers[f"{name}_lo"], numbers[f"{name}_hi"] = ends.tolist()
        return " ".join(said(_SENTENCES, numbers))


def _check(numbers: Mapping[str, torch.Tensor], said: Any) -> None:
    """Raise ValueError for numbers that are no certificate, or words that are missing."""
    texts = [said.get(name) for name in _WORDS] if isinstance(said, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected the texts {', '.join(_WORDS)} under {_NAME!r} in its metadata")
    if said["sign"] not in ("", "<", ">") or type(said.get("bound")) is not float:
        raise ValueError("expected the sign <, > or nothing, and a bound")
    keys, columns = (*numbers["factor"].shape, 0, 0)[:2]
    sizes = {"key": keys, "r": columns, 2: 2}
    for name, axes in _SIZES.items():
        tensor, shape = numbers[name], tuple(sizes[axis] for axis in axes)
        kind = torch.int64 if name == "blocks" else torch.float64
        if (tensor.dtype, tensor.shape) != (kind, shape) or not tensor.isfinite().all():
            raise ValueError(f"expected finite numbers of type {kind}, {shape}, as {name!r}")
    if said["outcome"] != "layer" and numbers["blocks"].unique().numel() > 1:
        raise ValueError("it has several rows of attention, which only the outcome layer has")
    if not keys or min(numbers["row"].min(), numbers["tolerance"]) < 0:
        raise ValueError("expected weights of at least 0, and a tolerance of at least 0")
