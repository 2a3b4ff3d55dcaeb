"""Prints the lowest version of each dependency that pyproject.toml allows, as constraints for pip.

Usage: python tools/lowest.py
"""

import re
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        one
        for name, group in project["optional-dependencies"].items()
        for one in group
        if name != "dev"
    ]
    for requirement in [*project["dependencies"], *extras]:
        for name, lowest in re.findall(r"^([A-Za-z0-9_.-]+)[>=]=([0-9.]+)", requirement):
            print(f"{name}=={lowest}")


if __name__ == "__main__":
    main()
