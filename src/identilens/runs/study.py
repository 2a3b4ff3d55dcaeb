"""A study: one analysis bound to its inputs, and the one way in which every study is run."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

import polars as pl
import torch
from torch import Tensor

from identilens.errors import InputError
from identilens.runs.columns import is_columns
from identilens.runs.engines.driver import Driver
from identilens.runs.engines.engine import Engine
from identilens.runs.engines.worker import SENT, Job
from identilens.runs.folder import RunFolder, joined_folder
from identilens.runs.manifest import Manifest, manifest_of
from identilens.runs.matrices import Tokens
from identilens.runs.mirror import settle
from identilens.runs.progress import Progress, watched
from identilens.runs.provenance import Identity, provenance
from identilens.runs.request import Request, options_of, options_of_inputs
from identilens.runs.result import Result
from identilens.runs.settings import Settings, hints_of
from identilens.runs.stored import fetch, local_place, shown_place, told_by_url
from identilens.runs.texts import read_texts

S = TypeVar("S", bound=Settings)
R = TypeVar("R", bound=Result)
Tables = Mapping[str, pl.DataFrame]
Merger = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class Output:
    """What one part of a study gives: tables as in the result's schema, matrices to keep by `MatrixKey`, and tokens."""

    tables: Tables
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[int, Tokens] = field(default_factory=dict)


class Study(ABC, Generic[S, R]):
    """One analysis bound to its inputs; a subclass says what its parts are and what each gives.

    Making one reads and checks the inputs; nothing is written before the first part has run. The docstring of a
    subclass is that of its function and, by its first line, the help of its command.

    Attributes:
        name: Of the study in provenance and on the command line, such as ``"audit"``.
        unit: What progress counts.
        takes: What the constructor takes before the settings.
        settings_type: Its settings.
        result_type: Its result.
        merge: What becomes of a table once its parts are joined; left as it is when not named.
        joins: Name of a study whose folder may hold this one beneath it.
        alone: Why its parts cannot be shared among workers; nothing where they can.
        leaves: What it does that needs a folder, for the error message; nothing where it can run in memory.
        folder: Of the run, from `begin` on; None in memory.
        listener: Is told what is being done.
        inputs: What it was made of, beside its settings.
        request: What was asked, to be run again.
        reports: Whether this process speaks for the run: False in all but the first of several that share it.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "texts"
    takes: ClassVar[tuple[str, ...]] = ("lens", "texts")
    settings_type: ClassVar[type[Settings]]
    result_type: ClassVar[type[Result]]
    merge: ClassVar[Mapping[str, Merger]] = {}
    joins: ClassVar[str | None] = None
    leaves: ClassVar[str] = ""
    alone: ClassVar[str] = ""

    folder: Path | None = None
    listener: Callable[[str, int], None] | None = None
    reports: bool = True
    inputs: tuple[Any, ...] = ()
    request: Request | None = None
    settings: S

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def identity(self) -> Identity:
        """Return what the study runs on, for its provenance."""

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """Return how many units of work each part contains."""

    @abstractmethod
    def run(self, part: int) -> Output:
        """Return what one part gives."""

    def begin(self, folder: RunFolder | None) -> None:
        """Get ready for the first part: take up what an interrupted run has left in the folder, if there is one.

        Raises:
            InputError: Without a folder, where the study leaves something behind.
        """
        if folder is None and self.leaves:
            raise InputError(f"{self.leaves}, so it needs a folder. Pass out=... (--out).")
        self.folder = folder and folder.path

    def sent(self, folder: Path) -> tuple[Any, ...]:
        """Return the inputs as they are sent to workers; what must lie in files for that goes into the folder."""
        return self.inputs

    def finish(self, tables: Tables) -> Output:
        """Return the tables of the whole run, with matrices that belong to no single part."""
        return Output(tables)

    def shown(self, result: R, folder: Path | None) -> R:
        """Return a finished result, just made or made before, as settings that change no number ask to show it."""
        return result

    def tell(self, note: str, done: int = 0) -> None:
        """Say what is being done, and how many units of the present part are done, to whoever watches."""
        if self.listener is not None:
            self.listener(note, done)

    def in_turn(self) -> AbstractContextManager[Any]:
        """Return what the folder is opened in: with several processes, the first one goes before the others."""
        return nullcontext()

    def wait(self) -> None:
        """Wait for all processes that share the run."""


def study_function(study: type[Study[Any, R]], name: str) -> Callable[..., R]:
    """Return the function that runs a study: its inputs, its settings by name, and where the run goes."""

    def run(
        *inputs: Any, settings: Settings | None = None, out: str | Path | None = None, resume: bool = False,
        overwrite: bool = False, allow_version_change: bool = False, engine: Engine | None = None,
        progress: Progress | bool | None = None, **options: Any,
    ) -> R:  # fmt: skip
        chosen = study.settings_type.of(settings, options)
        _check_inputs(study, inputs, progress)
        read = [read_texts(one) if is_columns(one) or isinstance(one, Iterator) else one for one in inputs]
        return run_study(
            bound_study(study, read, chosen), out=out, resume=resume, overwrite=overwrite,
            allow_version_change=allow_version_change, engine=engine, progress=progress,
        )  # fmt: skip

    run.__name__ = run.__qualname__ = name
    run.__module__ = study.__module__
    run.__doc__ = f"{inspect.cleandoc(study.__doc__ or '')}\n\n{_COMMON.format(settings=study.settings_type.__name__)}"
    run.__signature__ = _signature(study, inspect.signature(run))  # pyright: ignore[reportFunctionMemberAccess]
    return run


def bound_study(study: Any, inputs: Sequence[Any], settings: Settings, asked: Sequence[Settings] | None = None) -> Any:
    """Return a study bound to its inputs, which it remembers as they were given: in Python, or as options."""
    made = study(*inputs, settings)
    made.inputs = tuple(inputs)
    options, lost = ({}, []) if asked is not None else options_of_inputs(study.takes, inputs)
    for one in (*(asked or ()), settings):
        options |= options_of(one)
    made.request = Request(study.name, options, lost)
    return made


def _check_inputs(study: type[Study[Any, R]], inputs: Sequence[Any], progress: Any) -> None:
    if study.takes[:1] == ("lens",) and inputs and not hasattr(inputs[0], "capture"):
        raise InputError(
            f"expected a Lens first; got {type(inputs[0]).__name__}. Make one with identilens.load(id or folder), or "
            "with identilens.Lens(model, tokenizer) from a model in memory."
        )
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InputError(f"expected progress to be False or a function of (done, total, note); got {progress!r}.")


_COMMON = """Besides its inputs it takes:

    settings: All settings at once, a `{settings}`; or each by its name.
    out: Folder, or URL such as ``"s3://bucket/run"``, to fill part by part; nothing is written when not given.
    resume: Go on with an interrupted run in ``out``, or return the finished one.
    overwrite: Drop the run that ``out`` contains: the files that its manifest lists, and no other.
    allow_version_change: Go on with a run that other versions of the libraries have begun.
    engine: Who computes the parts: `Local` (processes of this machine) or `Ray`; this process when not given.
    progress: A bar in a notebook and on a terminal; none when False; or called with (units done, units in all, note).
"""


@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def run_study(
    study: Study[Any, R], *, out: str | Path | None = None, resume: bool = False, overwrite: bool = False,
    allow_version_change: bool = False, engine: Engine | None = None, progress: Progress | bool | None = None,
) -> R:  # fmt: skip
    """Return the result of a study, run part by part in memory or into a folder; autocast is off meanwhile.

    Raises:
        OutputFolderError: If the folder contains something else or cannot be written.
        CheckFailedError: If parts failed on workers; all others are there.
        IdentilensError: Whatever the study raises.
    """
    if engine is not None:
        _check_shared(study, out)
    record = provenance(study.name, study.identity(), study.settings.recorded())
    if out is None:
        with watched(study.unit, study.reports and progress) as told:
            found = _in_memory(study, record, told)
        return study.shown(found, None)
    with told_by_url(out):
        folder = _folder(study, local_place(out), record, resume, overwrite, allow_version_change)
        with folder:
            if not folder.finished:
                if study.reports and study.request is not None:
                    study.request.write(folder.path)
                with watched(study.unit, study.reports and progress) as told:
                    _into_folder(study, folder, told, engine)
            study.wait()
            return study.shown(study.result_type.load(folder.path), folder.path)  # pyright: ignore[reportReturnType, reportArgumentType]


def _folder(
    study: Study[Any, R], out: Path, record: dict[str, Any], resume: bool, overwrite: bool, changed: bool
) -> RunFolder:
    """Return the folder of a run: ``out``, or one beneath the run there that it joins and is then noted by."""
    with study.in_turn():
        if study.joins:
            fetch(out)
        path = joined_folder(out, record, study.joins)
        around = manifest_of(path) if path == out else Manifest(out)
        folder = RunFolder(
            path, record, resume=resume or not study.reports, overwrite=overwrite and study.reports,
            allow_version_change=changed, leads=study.reports,
        )  # fmt: skip
        if around is not None and around.file.is_file():
            around.add(path)
            settle(path)
        return folder


def _in_memory(study: Study[Any, R], record: dict[str, Any], progress: Progress | None) -> R:
    study.begin(None)
    held = [study.run(part) for part in _counted(study, progress)]
    last = study.finish(_joined(study, [one.tables for one in held]))
    matrices = {name: tensor for one in (*held, last) for name, tensor in one.matrices.items()}
    tokens = {text: names for one in (*held, last) for text, names in one.tokens.items()}
    return study.result_type.of(last.tables, record, matrices, tokens)  # pyright: ignore[reportReturnType]


def _check_shared(study: Study[Any, R], out: str | Path | None) -> None:
    if study.alone:
        raise InputError(f"{study.name} runs in one process: {study.alone}. Leave out engine (--engine).")
    if out is None:
        raise InputError("workers write into a folder: pass out=... (--out) with an engine.")


def _into_folder(
    study: Study[Any, R], folder: RunFolder, progress: Progress | None, engine: Engine | None
) -> None:  # fmt: skip
    study.begin(folder)
    if engine is None:
        for part in _counted(study, progress):
            if not folder.has(part):
                output = study.run(part)
                if study.reports:
                    folder.write_part(part, output.tables, output.matrices, output.tokens)
    else:
        _on_engine(study, folder, progress, engine)
    if not study.reports:
        return
    parts = len(study.sizes())
    last = study.finish(_joined(study, [folder.read_part(part) for part in range(parts)]))
    folder.finish(parts, last.tables, last.matrices, last.tokens)


def _on_engine(study: Study[Any, R], folder: RunFolder, progress: Progress | None, engine: Engine) -> None:
    sizes, done = study.sizes(), [0]

    def told(part: int, note: str) -> None:
        done[0] += sizes[part]
        if progress:
            progress(done[0], sum(sizes), note)

    if progress:
        progress(0, sum(sizes), "workers start")
    place = shown_place(folder.path.resolve())
    job = Job(type(study), study.sent(folder.path / SENT), study.settings, folder.record, place)
    Driver(job, engine, sizes, study.unit, told).run(folder)
    fetch(folder.path)
    folder.manifest.reread()
    folder.manifest.remove(f"{SENT}/")


def _counted(study: Study[Any, R], progress: Progress | None) -> Any:
    sizes = study.sizes()
    done, total = 0, sum(sizes)
    if progress:
        study.listener = lambda note, more: progress(done + more, total, note)
        progress(0, total, "")
    for part, size in enumerate(sizes):
        yield part
        done += size
        if progress:
            progress(done, total, "")


def _joined(study: Study[Any, R], parts: Sequence[Tables]) -> dict[str, pl.DataFrame]:
    tables = {name: pl.concat([part[name] for part in parts]) for name in parts[0]}
    return tables | {name: merger(tables[name]) for name, merger in study.merge.items() if name in tables}


def _signature(study: type[Study[Any, R]], run: inspect.Signature) -> inspect.Signature:
    """Return the signature that users see: inputs, each setting with its default, and the options of a run."""
    made = inspect.signature(study).parameters
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    hinted = {name: made[name].annotation if name in made else empty for name in study.takes}
    inputs = [inspect.Parameter(name, kind, annotation=hint) for name, hint in hinted.items()]
    own = inspect.signature(study.settings_type).parameters
    hints = hints_of(study.settings_type)
    settings = [own[name].replace(annotation=_bare(hint)) for name, hint in hints.items()]
    common = [one for one in run.parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    return run.replace(parameters=[*inputs, *settings, *common], return_annotation=study.result_type)


def _bare(hint: Any) -> Any:
    """Return an annotation without what is meant for checks and for the command line."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_bare(one) for one in get_args(hint))]  # noqa: UP007 - made of a list
    return hint
