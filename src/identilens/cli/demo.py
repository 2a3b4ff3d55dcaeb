"""``identilens demo``: a real model on real texts, from installation to report."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from identilens.cli.later import called
from identilens.cli.options import ModelOptions
from identilens.demo.examples import bundled_texts
from identilens.runs.settings import Switch
from identilens.runs.terminal import say

audit = called("identilens.studies.audit.study:audit")
write_report = called("identilens.studies.reports:write_report")


def demo(
    *,
    out: Annotated[Path, Parameter(alias="-o")] = Path("demo-report"),
    overwrite: Switch = False,
    decoder: Switch = False,
) -> None:
    """Audit a bundled model on a bundled English text sample and write the report.

    Args:
        out: Folder for the results.
        overwrite: Delete the previous demo in the folder.
        decoder: Audit the bundled decoder. Default: the bundled encoder.
    """
    lens = ModelOptions(
        model="bundled-decoder" if decoder else "bundled", device="cpu", dtype="float32"
    ).load()
    longest = 256 if decoder else None
    result = audit(
        lens, bundled_texts(), out=out, overwrite=overwrite, examples=3, max_length=longest
    )
    result.show()
    say(f"report: {write_report(out).resolve()}")
