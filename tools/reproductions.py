"""Writes docs/reproductions.md: every figure and table of the papers, published beside measured.

Usage: python tools/reproductions.py

The rows are stored in docs/results/reproductions.toml.
"""

import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "results" / "reproductions.toml"
PAGE = DOCS / "reproductions.md"

VERDICTS = {
    "agrees": "the number, or the paper's claim where it prints none, is confirmed by the measured number",
    "partly": "a part is confirmed, another is not",
    "differs": "the measured number contradicts the published one",
    "no number": "the paper gives a picture, or its number is lost; only ours is given",
    "not run": "not run, or not in the paper's setting, for the reason given",
    "illustration": "nothing was measured in the paper",
}

OPENING = """# Reproductions

Every figure and table of the first four papers below, and one measurement each of the last two, published beside
measured. Layers are counted from 1, as in the papers. Brunner et al. measured BERT-base (12 layers, d_v = 64); the
measured numbers are of the bundled encoder (6 layers, d_v = 32), so that claims can agree and numbers need not.
The commands take any model (`--model bert-base-uncased`; the default is the bundled encoder); their other defaults are
the paper's settings where it states them. The linked pages say in which settings the numbers here were measured.

The folder of `--data` (default: `data`) holds mrpc/dev.tsv.xz, cola/dev.tsv, mnli/dev_matched.tsv.xz,
ud_ewt/en_ewt-ud-test.conllu.xz and wiki_en/segments_1000.jsonl.xz; fine-tuning also needs train.tsv.xz in mrpc, cola
and sst, and sst/dev.tsv.xz. The commands of Bhardwaj et al. read the files of their tasks ([tasks](encoder.md#tasks)).
"""


def stored_rows() -> list[dict[str, str]]:
    """Return the stored rows."""
    return tomllib.loads(STORED.read_text(encoding="utf-8"))["row"]


def page() -> str:
    """Return the page."""
    rows = stored_rows()
    counts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    meanings = "\n".join(
        f"- **{name}** ({counts[name]}): {words}" for name, words in VERDICTS.items()
    )
    parts = [OPENING + "\n" + meanings]
    for paper in dict.fromkeys(row["paper"] for row in rows):
        lines = [
            "| | what | published | measured | verdict | command |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in rows if row["paper"] == paper]
        parts.append(f"## {paper}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(row: dict[str, str]) -> str:
    verdict = f"[{row['verdict']}]({row['page']})" if row["page"] else row["verdict"]
    command = f"`{row['command']}`" if row["command"] else ""
    return f"| {row['item']} | {row['what']} | {row['published']} | {row['ours']} | {verdict} | {command} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
