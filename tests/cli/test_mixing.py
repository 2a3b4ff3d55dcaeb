"""``identilens mixing`` as a person uses it: exit codes, messages, files, a run that is killed."""

import json
import os
import signal
import subprocess
import time

import polars as pl
import pytest
from identilens.cli.common import parse_bytes
from identilens.cli.texts import read_texts
from polars.testing import assert_frame_equal

from helpers.command import command
from identilens.errors import InputError
from identilens.measures.mixing import find_token
from identilens.results import Mixing

FIRST, SECOND = "A storm closed the pass.", "Snow shut it."
QUICK = ("--probes", 4)
TREEBANK = """# text = Snow shut it
1\tSnow\tsnow\tNOUN\tNN\t_\t2\tnsubj\t_\t_
2\tshut\tshut\tVERB\tVBD\t_\t0\troot\t_\t_
3\tit\tit\tPRON\tPRP\t_\t2\tobj\t_\t_

# text = Roads closed
1\tRoads\troad\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tclosed\tclose\tVERB\tVBD\t_\t0\troot\t_\t_
"""


def test_pairs_are_measured_and_a_token_is_tracked(bundled_path, tmp_path, here):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(f"{FIRST}\t{SECOND}\n\nOne.\tTwo.\nleft\tout\n", encoding="utf-8")
    out = tmp_path / "run"
    options = ("--pairs", "--limit", 2, "--track", "snow", "--layers", "1,6", "--seed", 3, *QUICK)
    written = here("mixing", "--model", bundled_path, "--file", pairs, *options, "--out", out)
    printed = " ".join(written.out.split())
    assert "the token at its own position makes up" in printed
    assert "What 'snow' (text 0, position 8) takes from each token" in printed
    assert "report.html" in printed
    assert "2/2" in written.err
    held = Mixing.load(out)
    assert held.names(0) == ["[CLS]", "a", "storm", "closed", "the", "pass", ".", "[SEP]", "snow", "shut", "it", ".",
                             "[SEP]"]  # fmt: skip
    assert held.table["layer"].unique().to_list() == [1, 6]
    assert held.provenance["seed"] == 3
    assert held.provenance["settings"]["probes"] == 4
    shares = held.array(0)[1, 8]
    row = next(line for line in written.out.splitlines() if "storm" in line)
    assert f"{100 * shares[2]:.1f}" in row
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '"opening":{"text":0,"position":8}' in page
    here("figures", out, "--formats", "svg")
    assert (out / "figures" / "own_contribution.svg").is_file()


def test_a_treebank_brings_texts_and_tags(bundled_path, tmp_path, here):
    (tmp_path / "small.conllu").write_text(TREEBANK, encoding="utf-8")
    options = ("--conllu", tmp_path / "small.conllu", "--tags", "upos", *QUICK)
    here("mixing", "--model", bundled_path, *options, "--out", tmp_path / "run")
    tags = Mixing.load(tmp_path / "run").tags
    assert tags.filter(text=1)["tag"].to_list() == ["[CLS]", "NOUN", "VERB", "[SEP]"]
    here("report", tmp_path / "run", "--out", tmp_path / "again.html")
    assert '"NOUN"' in (tmp_path / "again.html").read_text(encoding="utf-8")


def test_a_killed_run_goes_on_and_gives_the_same_table(bundled_path, tmp_path, here, failing_here):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([SECOND, FIRST, SECOND]), encoding="utf-8")
    arguments = ("mixing", "--model", bundled_path, "--file", texts, "--probes", 8, "--out")
    # One thread, as in this process: sums over more threads are rounded differently.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        command(*arguments, tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=alone
    )
    parts = tmp_path / "killed" / "parts"
    while not list(parts.glob("done-*.json")):
        assert started.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert not json.loads((tmp_path / "killed" / "provenance.json").read_text())["finished"]
    assert "interrupted. Pass --resume" in failing_here(*arguments, tmp_path / "killed")
    for options in ((tmp_path / "killed", "--resume"), (tmp_path / "whole",)):
        here(*arguments, *options)
    for name in ("table", "tokens"):
        killed, whole = (pl.read_parquet(tmp_path / folder / f"{name}.parquet") for folder in ("killed", "whole"))
        assert_frame_equal(killed, whole, check_exact=True)
    assert "holds another run" in failing_here(*arguments, tmp_path / "whole", "--seed", 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--text", FIRST, "--track", "stormy"], "no text holds the token 'stormy'; tokens such as 'storm'"),
        (["--text", FIRST, "--exact", "--probes", "8"], "--exact takes no probes"),
        (["--text", FIRST, "--probes", "1"], "probes must be from 2 to 384"),
        (["--text", FIRST, "--layers", "0,1"], "layers 1 to 6; got [0]"),
        (["--text", FIRST, "--memory-budget", "many"], "a size such as 512MiB or 2GB; got 'many'"),
        (["--text", FIRST, "--memory-budget", "1KiB"], "memory_budget=1024 bytes is too small"),
        (["--text", FIRST, "--pairs"], "takes every two --text as a pair; got 1"),
        (["--text", FIRST, "--conllu", "any.conllu"], "--conllu brings its own texts"),
        (["--conllu", "none.conllu"], "no such file: none.conllu"),
        (["--text", FIRST, "--spacy", "none_such"], "the spaCy pipeline 'none_such' is not installed"),
        (["--text", FIRST, "--dtype", "float16"], "too coarse for derivatives"),
        ([], "either --text"),
    ],
)
def test_unusable_options(tmp_path, bundled_path, failing_here, arguments, expected):
    message = failing_here("mixing", "--model", bundled_path, *arguments, "--out", tmp_path / "out")
    assert expected in message
    assert not list(tmp_path.glob("out/*.parquet"))


def test_tags_need_whole_texts(tmp_path, bundled_path, failing_here):
    (tmp_path / "small.conllu").write_text(TREEBANK, encoding="utf-8")
    options = ("--conllu", tmp_path / "small.conllu", "--max-length", 4)
    assert "need whole texts" in failing_here("mixing", "--model", bundled_path, *options, "--out", tmp_path / "out")


def test_pairs_from_every_kind_of_input(tmp_path):
    (tmp_path / "a.txt").write_text("one\teins\n\ntwo\tzwei\n", encoding="utf-8")
    (tmp_path / "a.tsv").write_text("en\tde\none\teins\ntwo\tzwei\n", encoding="utf-8")
    expected = [("one", "eins"), ("two", "zwei")]
    assert read_texts([], tmp_path / "a.txt", [], pairs=True) == expected
    assert read_texts([], tmp_path / "a.tsv", ["en", "de"], pairs=True) == expected
    assert read_texts(["one", "eins", "two", "zwei"], None, [], pairs=True) == expected
    with pytest.raises(InputError, match=r"--pairs needs --column twice.*got only 'en'"):
        read_texts([], tmp_path / "a.tsv", ["en"], pairs=True)
    (tmp_path / "b.txt").write_text("one\teins\nalone\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.txt, line 2: --pairs expects two sentences with a tab.*got 1 part\."):
        read_texts([], tmp_path / "b.txt", [], pairs=True)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("1.5KiB", 1536), ("2 GB", 2 * 10**9), ("256MiB", 2**28), ("7k", 7000)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


def test_tokens_are_found_with_and_without_their_marks():
    texts = [["<s>", "Ġwe", "fit"], ["▁fit", "fit", "##fits"]]
    assert find_token(texts, "fit") == (0, 2)
    assert find_token(texts, "we") == (0, 1)
    assert find_token(texts, "▁fit") == (1, 0)
    assert find_token(texts, "fits") == (1, 2)
    with pytest.raises(InputError, match=r"no text holds the token 'wefts'; tokens such as 'Ġwe'"):
        find_token(texts, "wefts")
