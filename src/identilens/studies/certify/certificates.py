"""Files of certificates: written beside a run, and checked without model, solver or the run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from identilens.charts.labels import said, shortened
from identilens.claims import OPEN, Claim, verdict_of
from identilens.errors import InputError
from identilens.linalg.certificate import Certificate
from identilens.runs.files import tensor_bytes, write_bytes

FOLDER = "certificates"
"""Folder of a run with its certificates."""

LARGEST = 64 * 2**20
"""Bytes of a certificate that is written or read."""

MOST = 10_000
"""Certificates of a run."""

EXACT = ("head", "layer")
"""Outcomes whose certificates do not rest on a first order."""

_COUNTED = 200
"""Characters in which the keys of a claim are named."""

_SENTENCES = """\
{holds}. Stated: between {stated_lo:.6g} and {stated_hi:.6g}.
Proven: between {proven_lo:.6g} and {proven_hi:.6g}, for all weights of the same sum that move what they mix with the \
file's factor by at most {delta:.6g}; the row itself has {own:.6g}.
Of these weights, some have {met_lo:.6g}, some {met_hi:.6g}.
That it is {sign} {bound:g} is {verdict}.
The numbers are of {keys}. Not checked, since nothing in the file ties it to the numbers: that they are of {subject}, \
{words!r}, {where}; and that the factor and the limit stand for outcome {outcome}, up to {tolerance}{order}."""

_NAME = "identilens"
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
            if not file.is_file():
                raise ValueError("it is no file")
            if file.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST:,} bytes")
            with safe_open(file, framework="pt") as stored:
                said = json.loads((stored.metadata() or {}).get(_NAME, "null"))
                numbers = {name: stored.get_tensor(name) for name in _SIZES}
            _check(numbers, said)
        except (ValueError, OSError, RecursionError, SafetensorError) as error:
            raise InputError(
                f"{file} is no certificate: {error}. Pass files from the folder certificates of a run with "
                "certificates=True (--certificates)."
            ) from error
        return cls(Certificate(**numbers), said)

    def write(self, file: Path) -> None:
        """Write the file.

        Raises:
            InputError: If it would be too large.
        """
        numbers = {one.name: getattr(self.certificate, one.name) for one in fields(Certificate)}
        content = tensor_bytes(numbers, {_NAME: json.dumps(self.said)})
        if len(content) > LARGEST:
            raise InputError(
                f"a certificate of {len(self.certificate.row):,} weights has {len(content):,} bytes, and at most "
                f"{LARGEST:,} are written. Cut the text with max_length=... (--max-length), or leave certificates out."
            )
        write_bytes(file, content)

    def sentences(self) -> str:
        """Return what the numbers prove, in words; the stated ends are only compared with them."""
        certificate, numbers = self.certificate, dict(self.said)
        met = [None, None] if certificate.met is None else certificate.met.tolist()
        for name, ends in (
            ("stated", certificate.ends.tolist()),
            ("proven", certificate.proven().tolist()),
            ("met", met),
        ):
            for side, end in zip(("lo", "hi"), ends, strict=True):
                # A proven end may be this far from a stated one.
                near = end is not None and abs(end) <= certificate.slack
                numbers[f"{name}_{side}"] = 0.0 if near and name != "proven" else end
        counted = enumerate(certificate.functional.tolist())
        of = ", ".join(f"{one:g} times key {key}" for key, one in counted if one)
        numbers |= {
            "holds": "holds" if certificate.holds else "does not hold",
            "delta": float(certificate.tolerance),
            "own": float(certificate.functional @ certificate.row),
            "verdict": None,
            "keys": shortened(of, _COUNTED) or "no key",
            "order": "" if numbers["outcome"] in EXACT else ", to first order",
        }
        if numbers["sign"]:
            proven = numbers["proven_lo"], numbers["proven_hi"]
            verdict = verdict_of(numbers["sign"], numbers["bound"], *proven)
            numbers["verdict"] = verdict if certificate.holds else OPEN
        return " ".join(said(_SENTENCES, numbers))


def said_of(claim: Claim, outcome: str, tolerance: str, where: str) -> dict[str, Any]:
    """Return what a certificate's file says beside its numbers."""
    return {
        "words": claim.words,
        "subject": claim.subject,
        "sign": claim.sign,
        "bound": claim.bound,
        "outcome": outcome,
        "tolerance": tolerance,
        "where": where,
    }


def _check(numbers: Mapping[str, torch.Tensor], said: Any) -> None:
    """Raise ValueError for numbers that are no certificate, or words that are missing."""
    texts = ("words", "subject", "sign", "outcome", "tolerance", "where")
    if not isinstance(said, dict) or not all(isinstance(said.get(name), str) for name in texts):
        raise ValueError(f"expected the texts {', '.join(texts)} under {_NAME!r} in its metadata")
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
    if not keys or numbers["row"].min() < 0 or numbers["tolerance"] < 0:
        raise ValueError("expected weights of at least 0, and a tolerance of at least 0")
