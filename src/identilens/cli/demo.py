"""``identilens demo``: a real model on real texts, from installation to report."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from identilens.cli.common import OutOption, console, load_lens, progress
from identilens.models import bundled_model
from identilens.studies.audit.study import audit


def demo(
    out: OutOption = Path("demo-report"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Drop an earlier demo.")] = False,
) -> None:
    """Audit the bundled encoder on a bundled English text sample and write the report."""
    texts = files("identilens.demo").joinpath("texts.txt").read_text(encoding="utf-8").splitlines()
    lens = load_lens(str(bundled_model()), "cpu", "float32")
    lens.name = "all-MiniLM-L6-v2 (bundled)"
    with progress("texts") as update:
        result = audit(
            lens, [text for text in texts if text], out=out, overwrite=overwrite, progress=update, examples=3
        )
    result.show()
    console.print(f"report: {result.to_html(out / 'report.html').resolve()}", soft_wrap=True)
