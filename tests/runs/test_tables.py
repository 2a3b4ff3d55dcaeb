"""Tables in the terminal: numbers to the right, what is missing as a dash."""

import polars as pl

from identilens.runs.tables import counted, percent, print_table


def test_numbers_stand_to_the_right_and_words_to_the_left(capsys):
    frame = pl.DataFrame({
        "name": ["a", "longer"], "number": [1, 20_000], "share": [0.123456, None], "some": [True, False],
    })  # fmt: skip
    print_table("Title", frame)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].strip() == "Title"
    assert [line for line in lines if "│" in line] == [
        "│ a      │      1 │ 0.1235 │ True  │",
        "│ longer │  20000 │      – │ False │",
    ]


def test_counts_and_shares_in_words():
    assert [counted(count, "text") for count in (0, 1, 1200)] == [
        "0 texts",
        "1 text",
        "1,200 texts",
    ]
    assert [percent(share) for share in (None, 0, 0.1234, 1)] == ["", "0.0 %", "12.3 %", "100.0 %"]
