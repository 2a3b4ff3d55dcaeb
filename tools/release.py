"""Tries a built release in an environment outside the checkout: its files, the command line, the demo, a result.

Usage: python tools/release.py DIST FOLDER   (FOLDER/venv holds the installed wheel)
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "identilens"
CHECK = """
import identilens as idl
assert "site-packages" in idl.__file__, idl.__file__
audit = idl.audit(idl.load(idl.bundled_model()), idl.examples()[:1], out="run", certain_rows=1)
again = idl.load_result("run")
assert again.table.equals(audit.table)
print(idl.__version__, len(audit.table), "maps")
"""


def missing_files(wheel: Path) -> list[str]:
    """Return what the package holds here and the wheel lacks."""
    held = set(zipfile.ZipFile(wheel).namelist())
    here = {
        str(Path("identilens") / file.relative_to(ROOT))
        for file in ROOT.rglob("*")
        if file.is_file()
    }
    return sorted(name for name in here - held if "__pycache__" not in name)


def missing_licences(wheel: Path) -> list[str]:
    """Return what the wheel should say of its licences and does not."""
    with zipfile.ZipFile(wheel) as files:
        [metadata] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        held = {
            name.rpartition("/")[2] for name in files.namelist() if ".dist-info/licenses/" in name
        }
        said = files.read(metadata).decode().splitlines()
    expected = ["License-Expression: Apache-2.0 AND CC-BY-SA-3.0"]
    return [line for line in expected if line not in said] + sorted(
        {"LICENSE", "THIRD-PARTY.md"} - held
    )


def main() -> int:
    dist, folder = (Path(name).resolve() for name in sys.argv[1:])
    [wheel], [source] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    if missing := missing_files(wheel):
        print(f"{wheel.name} lacks {', '.join(missing)}")
        return 1
    if missing := missing_licences(wheel):
        print(f"{wheel.name} lacks {', '.join(missing)}")
        return 1
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if (
        not {"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "pyproject.toml", "Makefile"}
        <= names
    ):
        print(f"{source.name} lacks files of the project's root")
        return 1
    programs = folder / "venv" / "bin"
    for command in (
        [programs / "identilens", "--version"],
        [programs / "python", "-c", CHECK],
        [programs / "identilens", "report", "run"],
        [programs / "identilens", "demo", "--out", "demo"],
    ):
        subprocess.run(command, cwd=folder, check=True)
    print(f"{wheel.name} and {source.name}: fine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
