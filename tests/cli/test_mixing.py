"""``identilens mixing`` as a person uses it: exit codes, messages, files, a run that is killed."""

from helpers.command import failing, identilens
from identilens.studies.mixing.result import Mixing

QUICK = ("--sketch-probes", 4)
TREEBANK = """# text = Snow shut it
1\tSnow\tsnow\tNOUN\tNN\t_\t2\tnsubj\t_\t_
2\tshut\tshut\tVERB\tVBD\t_\t0\troot\t_\t_
3\tit\tit\tPRON\tPRP\t_\t2\tobj\t_\t_

# text = Roads closed
1\tRoads\troad\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tclosed\tclose\tVERB\tVBD\t_\t0\troot\t_\t_
"""


def test_a_treebank_brings_texts_and_tags(bundled_path, tmp_path):
    (tmp_path / "small.conllu").write_text(TREEBANK, encoding="utf-8")
    options = ("--file", tmp_path / "small.conllu", "--tags", "upos", *QUICK)
    identilens("mixing", "--model", bundled_path, *options, "--out", tmp_path / "run", code=0)
    tags = Mixing.load(tmp_path / "run").tags
    assert tags.filter(text=1)["tag"].to_list() == ["[CLS]", "NOUN", "VERB", "[SEP]"]
    identilens("export", tmp_path / "run", "--out", tmp_path / "again.html", code=0)
    assert '"tag":"NOUN"' in (tmp_path / "again.html").read_text(encoding="utf-8")
    message = failing(
        "mixing", "--model", bundled_path, *options, "--max-length", 4, "--out", tmp_path / "cut"
    )
    assert "expected --max-length to be left out: tags are of whole texts" in message
