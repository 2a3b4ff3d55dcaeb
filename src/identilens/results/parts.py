"""Running an analysis part by part, in memory or into a folder that an interrupted run goes on from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from identilens.results.run_folder import RunFolder

Tables = dict[str, pl.DataFrame]
Merger = Callable[[pl.DataFrame], pl.DataFrame]


def whole(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table as it is: the merger of tables whose parts are only put one after the other."""
    return table


def run_parts(
    record: dict[str, Any],
    sizes: Sequence[int],
    run: Callable[[int], Tables],
    merge: Mapping[str, Merger],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    before_writing: Callable[[], None] | None = None,
) -> Tables:
    """Return the tables of a run, each joined from its parts.

    Args:
        record: Provenance of the run.
        sizes: How many units of work (texts, rows) each part holds; progress counts these.
        run: Gives the tables of one part, by number.
        merge: What becomes of each table once its parts are joined.
        out: Folder to fill part by part; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (units done, units in all) after each part.
        before_writing: Called before a part is written into ``out``, for what belongs with it.

    Raises:
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    folder = None if out is None else RunFolder(Path(out), record, resume=resume, overwrite=overwrite)
    held: list[Tables] = []
    if folder is None or not folder.finished:
        for part in range(len(sizes)):
            if folder is None:
                held.append(run(part))
            elif not folder.has(part):
                tables = run(part)
                if before_writing:
                    before_writing()
                folder.write_part(part, tables)
            if progress:
                progress(sum(sizes[: part + 1]), sum(sizes))
    if folder is None:
        return {name: merger(pl.concat([tables[name] for tables in held])) for name, merger in merge.items()}
    if not folder.finished:
        folder.finish(dict(merge), len(sizes))
    return {name: pl.read_parquet(folder.path / f"{name}.parquet") for name in merge}
