"""Checks the documentation: links lead somewhere, and Python examples run.

Usage: python docs/check.py
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if "://" not in target and not (page.parent / target).exists()]


def run_examples(page: Path) -> str | None:
    """Run a page's Python examples one after another in a folder of their own; return the error, if any."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    if not code:
        return None
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
    return done.stderr if done.returncode else None


def main() -> int:
    """Check every page and return the exit code."""
    failed = False
    for page in PAGES:
        name = page.relative_to(ROOT)
        for target in broken_links(page):
            failed = True
            print(f"{name}: broken link {target}")
        error = run_examples(page)
        if error:
            failed = True
            print(f"{name}: an example fails\n{error}")
    print(f"{len(PAGES)} pages checked")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
