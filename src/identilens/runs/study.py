"""A study: one analysis with its inputs, and the function that runs every study."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

import polars as pl
import torch

from identilens.errors import CheckFailedError, InputError
from identilens.runs.cluster import Job, run_parts
from identilens.runs.files import as_path, manifest_of
from identilens.runs.folder import Output, RunFolder
from identilens.runs.progress import Progress, watched
from identilens.runs.provenance import Identity, Record, provenance
from identilens.runs.request import Request
from identilens.runs.result import Result
from identilens.runs.settings import Settings, coerce, hints_of
from identilens.runs.tables import Tables
from identilens.runs.texts import is_columns, read_texts

S = TypeVar("S", bound=Settings)
R = TypeVar("R", bound=Result)
Merger = Callable[[pl.DataFrame], pl.DataFrame]

_NAMED = 3
"""Parts that failed which an error names."""


class Study(ABC, Generic[S, R]):
    """One analysis with its inputs; a subclass defines its parts and the output of each.

    The constructor reads and checks the inputs; nothing is written before the first part has run. The docstring of a
    subclass is that of its function, and its first line is the help of its command.

    Attributes:
        name: Name of the study in provenance and on the command line, such as ``"audit"``.
        unit: The unit that progress counts.
        takes: Names of the constructor's arguments before the settings.
        settings_type: Class of the settings.
        result_type: Class of the result.
        merge: By table name, a function applied to the joined table; a table without one stays unchanged.
        alone: Reason why its parts cannot be tasks of a Ray cluster; empty if they can.
        leaves: Reason why it needs a folder, for the error message; empty if it can run in memory.
        folder: Folder of the run, set by `begin`; None in memory.
        listener: Function called with notes on the progress.
        inputs: The constructor's arguments without the settings.
        request: The options with which the run can be repeated.
        parts: What each part is about.
    """

    name: ClassVar[str]
    unit: str = "texts"
    takes: ClassVar[tuple[str, ...]] = ("lens", "texts")
    settings_type: ClassVar[type[Settings]]
    result_type: ClassVar[type[Result]]
    merge: ClassVar[Mapping[str, Merger]] = {}
    leaves: str = ""
    alone: ClassVar[str] = ""

    folder: Path | None = None
    listener: Callable[[str, int], None] | None = None
    inputs: tuple[Any, ...] = ()
    request: Request | None = None
    settings: S
    parts: Sequence[Any] = ()

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def identity(self) -> Identity:
        """Return the identity of the inputs, for the provenance."""

    def sizes(self) -> Sequence[int]:
        """Return how many units of work each part contains: one by default."""
        return [1] * len(self.parts)

    @abstractmethod
    def run(self, part: int) -> Output:
        """Return the output of one part."""

    def begin(self, folder: RunFolder | None) -> None:
        """Prepare for the first part, using what an interrupted run has left in the folder.

        Raises:
            InputError: Without a folder, if the study needs one.
        """
        if folder is None and self.leaves:
            raise InputError(f"{self.leaves}, so it needs a folder. Pass out=... to the run.")
        self.folder = folder and folder.path

    def sent(self) -> Sequence[Any]:
        """Return the inputs as they are sent to the tasks of a Ray cluster."""
        return self.inputs

    def finish(self, tables: Tables) -> Output:
        """Return the tables of the whole run, with matrices that belong to no single part."""
        return Output(tables)

    def shown(self, result: R, folder: Path | None) -> R:
        """Return a finished result, new or loaded, with the settings that change only its presentation."""
        return result

    def tell(self, note: str, done: int = 0) -> None:
        """Report the current step and the number of finished units of the current part."""
        if self.listener is not None:
            self.listener(note, done)


def study_function(study: type[Study[Any, R]], name: str) -> Callable[..., R]:
    """Return the function that runs a study; its arguments are inputs, settings by name, and options of the run."""
    positional = list(
        takewhile(lambda one: one.name != "settings", inspect.signature(study).parameters.values())
    )
    names = [one.name for one in positional]
    required = sum(one.default is one.empty for one in positional)
    hints = hints_of(study.settings_type)
    common = dict(list(inspect.signature(run_study).parameters.items())[1:])

    def run(
        *inputs: Any,
        settings: Settings | None = None,
        **options: Any,
    ) -> R:
        if not required <= len(inputs) <= len(names):
            raise InputError(
                f"{name} takes {' and '.join(names) or 'nothing'} by position, got {len(inputs)} values. Pass each "
                "setting by its name."
            )
        if study.takes[:1] == ("lens",) and not hasattr(inputs[0], "capture"):
            raise InputError(
                f"expected a Lens first; got {type(inputs[0]).__name__}. Make one with identilens.load(id or folder), "
                "or with identilens.Lens(model, tokenizer) from a model in memory."
            )
        how = {name: options.pop(name) for name in common if name in options}
        read = [
            read_texts(one) if is_columns(one) or isinstance(one, Iterator) else one
            for one in inputs
        ]
        return run_study(bound_study(study, read, study.settings_type.of(settings, options)), **how)

    fields, shown = inspect.signature(study.settings_type).parameters, inspect.signature(run)
    settings = [fields[one].replace(annotation=_bare(hint)) for one, hint in hints.items()]
    run.__name__ = run.__qualname__ = name
    run.__module__ = study.__module__
    run.__doc__ = _docstring(study)
    run.__signature__ = shown.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=[*positional, *settings, shown.parameters["settings"], *common.values()],
        return_annotation=study.result_type,
    )
    return run


def bound_study(
    study: Any, inputs: Sequence[Any], settings: Settings, groups: Sequence[Settings] | None = None
) -> Any:
    """Return a study with its inputs, which it also stores as they were given: in Python, or as options."""
    made = study(*inputs, settings=settings)
    made.inputs = tuple(inputs)
    options = {}
    for group in (*(groups or ()), settings):
        options |= group.values_of(type(group))
    given = () if groups is not None else inputs
    made.request = Request.of(study.name, study.takes, given, options)
    return made


def _bare(hint: Any) -> Any:
    """Return an annotation without the parts for checks and for the command line."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_bare(one) for one in get_args(hint))]  # noqa: UP007 - made of a list
    return hint


def _docstring(study: type[Study[Any, R]]) -> str:
    """Return the docstring of a study with its settings, and the options of every run, among the arguments."""
    settings = study.settings_type
    summary, raises, rest = inspect.cleandoc(study.__doc__ or "").partition("\nRaises:")
    summary, _, inputs = summary.partition("Args:\n")
    described = [inputs]
    for kind in reversed(settings.__mro__):
        if is_dataclass(kind):
            described.append(inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2])
    described.append(_COMMON.format(settings=f"{settings.__module__}.{settings.__qualname__}"))
    blocks = "\n".join(block.rstrip("\n") for block in described if block)
    return f"{summary.rstrip()}\n\nArgs:\n{blocks}\n{raises}{rest}"


_COMMON = """\
    settings: All settings at once, as a `{settings}`; those that are passed by name come first.
    out: Folder for the results. Default: nothing is written.
    resume: Continue an interrupted run in ``out``, or return the finished one.
    overwrite: Delete the previous run in ``out``. Only the files that its manifest lists are deleted.
    allow_version_change: Continue a run that was started with other versions of the libraries.
    ray: Compute the parts as tasks of a Ray cluster: True for the cores of this machine, or the address of a running
        cluster. Default: this process.
    progress: False for no progress bar, or a function called with (units done, total units, note). Default: a bar
        in a notebook and on a terminal.
"""


@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def run_study(
    study: Study[Any, R],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    allow_version_change: bool = False,
    ray: bool | str = False,
    progress: Progress | bool | None = None,
) -> R:
    """Return the result of a study, run part by part in memory or into a folder; autocast is off meanwhile.

    Raises:
        OutputFolderError: If the folder contains other files or cannot be written.
        CheckFailedError: If parts failed on a Ray cluster; all other parts are saved.
        IdentilensError: Any error of the study.
    """
    resume = coerce("resume", bool, resume)
    overwrite = coerce("overwrite", bool, overwrite)
    allow_version_change = coerce("allow_version_change", bool, allow_version_change)
    if out is None and (resume or overwrite):
        raise InputError("there is nothing to resume or overwrite: name the folder with out=....")
    address = _address(study, ray, out)
    record = provenance(study.name, study.identity(), study.settings.recorded())
    if out is None:
        with watched(study.unit, progress) as report:
            result = _in_memory(study, record, report)
        return study.shown(result, None)
    path = as_path(out)
    around = manifest_of(path)
    folder = RunFolder.open(
        path,
        record,
        resume=resume,
        overwrite=overwrite,
        allow_version_change=allow_version_change,
    )
    if around is not None and around.file.is_file():
        around.add(f"{path.relative_to(around.root).as_posix()}/")
    with folder:
        if not folder.finished:
            with watched(study.unit, progress) as report:
                _into_folder(study, folder, report, address)
        return study.shown(study.result_type.load(path), path)  # pyright: ignore[reportReturnType, reportArgumentType]


def _address(study: Study[Any, R], ray: Any, out: str | Path | None) -> str | None:
    """Return the address of the Ray cluster for the parts, or None for this process."""
    if not isinstance(ray, bool | str):
        raise InputError(f"expected ray to be True or the address of a cluster; got {ray!r}.")
    if ray is False:
        return None
    if study.alone:
        raise InputError(f"{study.name} runs in one process: {study.alone}. Leave ray=... out.")
    if out is None:
        raise InputError("parts come back from a cluster into a folder: pass out=... with ray=....")
    return ray if isinstance(ray, str) and ray else "local"


def _in_memory(study: Study[Any, R], record: Record, progress: Progress | None) -> R:
    study.begin(None)
    outputs: list[Output] = []
    for part in _counted(study, progress, range(len(study.sizes()))):
        outputs.append(study.run(part))
    names = outputs[0].tables
    tables = {name: pl.concat([output.tables[name] for output in outputs]) for name in names}
    last = study.finish(_merged(study, tables))
    outputs.append(last)
    matrices = {name: tensor for output in outputs for name, tensor in output.matrices.items()}
    tokens = {text: names for output in outputs for text, names in output.tokens.items()}
    return study.result_type.of(last.tables, record, matrices, tokens)  # pyright: ignore[reportReturnType]


def _into_folder(
    study: Study[Any, R], folder: RunFolder, progress: Progress | None, address: str | None
) -> None:
    if study.request is not None:
        study.request.write(folder.path)
    study.begin(folder)
    parts = range(len(study.sizes()))
    folder.plan(len(parts))
    missing = [part for part in parts if not folder.has(part)]
    if address is not None and missing:
        _on_cluster(study, folder, missing, progress, address)
    else:
        for part in _counted(study, progress, missing):
            folder.write_part(part, study.run(part).content())
    last = study.finish(_merged(study, folder.read_parts(parts)))
    folder.finish(len(parts), last)


def _on_cluster(
    study: Study[Any, R],
    folder: RunFolder,
    missing: Sequence[int],
    progress: Progress | None,
    address: str,
) -> None:
    """Compute the missing parts on a cluster; raises CheckFailedError if parts failed, all others being saved."""
    sizes = study.sizes()
    total = sum(sizes)
    done = total - sum(sizes[part] for part in missing)
    inputs = study.sent()
    job = Job(
        study=type(study),
        inputs=inputs,
        settings=study.settings,
        record=folder.record,
        gpus=max((getattr(item, "gpus", 0) for item in inputs), default=0),
    )
    failed = {}
    if progress:
        progress(done, total, "the cluster starts")
    for part, result in run_parts(job, missing, address):
        if result.error:
            failed[part] = result.error
            continue
        folder.take(part, result.content, result.names, result.files)
        done += sizes[part]
        if progress:
            progress(done, total, "")
    if failed:
        raise CheckFailedError(_failures(study, failed))


def _failures(study: Study[Any, R], failed: Mapping[int, str]) -> str:
    """Return which parts failed, with the units that they are about, and why."""
    sizes = study.sizes()
    named = []
    for part in sorted(failed)[:_NAMED]:
        first = sum(sizes[:part])
        last = first + sizes[part] - 1
        units = f"{study.unit} {first}" + (f" to {last}" if last > first else "")
        named.append(f"part {part} ({units}): {failed[part]}")
    return (
        f"{len(failed)} of {len(sizes)} parts failed, each of them twice. {' '.join(named)} "
        "All others are saved: resume=True tries the rest again."
    )


def _counted(
    study: Study[Any, R], progress: Progress | None, parts: Sequence[int]
) -> Iterator[int]:
    """Yield the parts that are missing, and report how many units are done."""
    sizes = study.sizes()
    total = sum(sizes)
    done = total - sum(sizes[part] for part in parts)
    if progress:
        study.listener = lambda note, more: progress(done + more, total, note)
        progress(done, total, "")
    for part in parts:
        yield part
        done += sizes[part]
        if progress:
            progress(done, total, "")


def _merged(study: Study[Any, R], tables: Tables) -> Tables:
    merged = {name: merge(tables[name]) for name, merge in study.merge.items() if name in tables}
    return {**tables, **merged}
