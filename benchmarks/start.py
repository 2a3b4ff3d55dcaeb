"""How soon something happens: help, import, and the first result of an audit; seconds of processor time."""

import subprocess
import sys
from collections.abc import Sequence

from common import machine, report

EMPTY = "pass"
IMPORT = "import identilens"
HELP = (
    "import sys; sys.argv = ['identilens', '--help']; from identilens.cli.app import main; main()"
)
LOAD = "import identilens as idl; lens = idl.load('bundled', device='cpu')"
AUDIT = f"{LOAD}; idl.audit(lens, ['Nobody came.'], progress=False).summary()"
RUN = """
import sys, time
try:
    exec(sys.argv[1])
except SystemExit:
    pass
print(time.process_time(), file=sys.stderr)
"""


def processor_seconds(code: str, repeats: int = 3) -> list[float]:
    """Return the processor time of fresh processes that run some code, the first one aside."""
    _once(code)
    return [_once(code) for _ in range(repeats)]


def _once(code: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", RUN, code], capture_output=True, text=True, check=True
    )
    return float(done.stderr.strip().splitlines()[-1])


def less(taken: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return the seconds of each repeat less those of the base."""
    return [one - other for one, other in zip(taken, base, strict=True)]


def main() -> int:
    print(machine())
    empty, loaded = processor_seconds(EMPTY), processor_seconds(LOAD)
    met = report(
        "import identilens, s", less(processor_seconds(IMPORT), empty), 0.3, at_least=False
    )
    met &= report("identilens --help, s", less(processor_seconds(HELP), empty), 0.5, at_least=False)
    audited = less(processor_seconds(AUDIT), loaded)
    met &= report("audit of a short text, beyond loading the model, s", audited, 2, at_least=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
