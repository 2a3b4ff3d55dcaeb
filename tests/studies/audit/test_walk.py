"""The way from `idl.audit` to the numbers is as short as docs/architecture.md says."""

import re
import sys
from pathlib import Path

import identilens as idl
from identilens.linalg.rows import FullRows

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "identilens"


def test_the_page_names_every_frame_from_the_call_to_the_projector(bundled, monkeypatch):
    texts, frames, mixer = idl.examples()[:2], [], FullRows.mixer

    def noted(*args, **options):
        frame = sys._getframe(1)
        while frame and frames[-1:] != ["studies/audit/study.py audit"]:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(SOURCE):
                name = frame.f_code.co_qualname.replace("study_function.<locals>.run", "audit")
                place = (
                    "studies/audit/study.py"
                    if name == "audit"
                    else file.relative_to(SOURCE).as_posix()
                )
                frames.append(f"{place} {name}")
            frame = frame.f_back
        return mixer(*args, **options)

    bundled.prove_once(bundled.read(texts))  # the first batch of a kind also passes the proof
    monkeypatch.setattr(FullRows, "mixer", noted)
    idl.audit(bundled, texts, certain_rows=0, examples=0, progress=False)
    walk = [*reversed(frames), "linalg/rows.py FullRows.mixer"]
    assert len(walk) <= 8
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\d+\. `(\S+)` `([\w.<>]+)`", page, re.MULTILINE) == [
        tuple(one.split()) for one in walk
    ]
