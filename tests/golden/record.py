"""Rewrite the golden tables: ``python tests/golden/record.py [NAME ...]``, all cases when none is named.

With ``--check`` nothing is written: the tables are compared with those stored.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from golden import stored
from golden.cases import NAMES, case_named


def main():
    """Record the cases named, or compare them with what is stored."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    arguments = sys.argv[1:]
    if not arguments:
        stored.PROCESSOR.write_text(stored.processor(), encoding="utf-8")
    chosen = [name for name in arguments if name != "--check"] or NAMES
    for name in chosen:
        start = time.process_time()
        found = case_named(name).run()
        print(f"{name}: {time.process_time() - start:.1f} s", flush=True)
        if "--check" not in arguments:
            stored.write(name, found)
            continue
        for table, frame in stored.read(name).items():
            elsewhere = not stored.is_recorded_here()
            for line in stored.differences(case_named(name), table, frame, found[table], elsewhere):
                print(f"  {line}")


if __name__ == "__main__":
    main()
