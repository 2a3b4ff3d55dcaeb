"""Small made data in the forms that the readers know: two kinds of sentences that a word tells apart."""

import random

KINDS = {"NUM": "how many ferries left harbour", "LOC": "where is the old lighthouse"}
WORDS = ["storm", "winter", "bridge", "keeper", "letter", "road", "night", "lamp", "snow", "pass"]


def write_trec(folder, train=60, test=20, seed=0):
    """Write a task folder with the columns of TREC."""
    folder.mkdir(parents=True, exist_ok=True)
    picker = random.Random(seed)
    for part, count in (("train", train), ("test", test)):
        rows = ["coarse\tfine\tquestion"]
        for _ in range(count):
            kind = picker.choice(sorted(KINDS))
            words = [*KINDS[kind].split(), *picker.choices(WORDS, k=picker.randrange(1, 8))]
            rows.append(f"{kind}\tany\t{' '.join(words)} ?")
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder
