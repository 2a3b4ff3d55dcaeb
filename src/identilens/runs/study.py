"""A study: one analysis with its inputs, and the function that runs every study."""

import inspect
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

import torch

from identilens.errors import InputError
from identilens.runs.cluster import run_on_cluster
from identilens.runs.files import list_in_manifest
from identilens.runs.folder import Output, RunFolder
from identilens.runs.progress import Progress, watched
from identilens.runs.provenance import Identity, provenance
from identilens.runs.request import input_options, write_request
from identilens.runs.result import Result
from identilens.runs.settings import Settings
from identilens.runs.tables import Tables
from identilens.runs.texts import read_texts

S = TypeVar("S", bound=Settings)
R = TypeVar("R", bound=Result)


class Study(ABC, Generic[S, R]):
    """One analysis with its inputs; a subclass defines its parts and the output of each.

    The constructor reads and checks the inputs; nothing is written before the first part has run. The docstring of a
    subclass is that of its function, and its first line is the help of its command.

    Attributes:
        name: Name of the study in provenance and on the command line, such as ``"audit"``.
        unit: The unit that progress counts.
        settings_type: Class of the settings.
        result_type: Class of the result.
        alone: Reason why its parts cannot be tasks of a Ray cluster; empty if they can.
        leaves: Reason why it needs a folder, for the error message; empty if it can run in memory.
        folder: Folder of the run, set by `begin`; None in memory.
        listener: Function called with notes on the progress.
        inputs: The constructor's arguments without the settings.
        options: Inputs and settings as options, with which the run can be repeated.
        parts: What each part is about.
    """

    name: ClassVar[str]
    unit: str = "texts"
    settings_type: ClassVar[type[Settings]]
    result_type: ClassVar[type[Result]]
    leaves: str = ""
    alone: ClassVar[str] = ""

    folder: Path | None = None
    listener: Callable[[str, int], None] | None = None
    inputs: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
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
    *positional, _ = inspect.signature(study).parameters.values()
    names = [parameter.name for parameter in positional]
    hints = get_type_hints(study.settings_type)
    common = dict(list(inspect.signature(run_study).parameters.items())[1:])

    def run(*inputs: Any, settings: Settings | None = None, **options: Any) -> R:
        inspect.Signature(positional).bind(*inputs)
        lens = next(iter(inputs), None)
        if names[:1] == ["lens"] and not hasattr(lens, "capture"):
            raise InputError(
                f"expected a Lens first; got {type(lens).__name__}. Make one with identilens.load(id or folder), "
                "or with identilens.Lens(model, tokenizer) from a model in memory."
            )
        how = {name: options.pop(name) for name in common if name in options}
        read = [
            read_texts(entry)
            if isinstance(entry, Iterator) or hasattr(entry, "column_names")
            else entry
            for entry in inputs
        ]
        chosen = study.settings_type.of(settings, options)
        return run_study(bound_study(study, read, chosen, input_options(names, read)), **how)

    fields, shown = inspect.signature(study.settings_type).parameters, inspect.signature(run)
    settings = [field.replace(annotation=hints[name]) for name, field in fields.items()]
    run.__name__ = run.__qualname__ = name
    run.__module__ = study.__module__
    run.__doc__ = _docstring(study)
    run.__signature__ = shown.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=[*positional, *settings, shown.parameters["settings"], *common.values()],
        return_annotation=study.result_type,
    )
    return run


def bound_study(
    study: Any, inputs: Sequence[Any], settings: Settings, options: Mapping[str, Any]
) -> Any:
    """Return a study with its inputs, which it also stores as they are and as options."""
    made = study(*inputs, settings=settings)
    made.inputs = tuple(inputs)
    made.options = {**options, **vars(settings)}
    return made


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
    ray: bool | str = False,
    progress: Progress | bool | None = None,
) -> R:
    """Return the result of a study, run part by part in memory or into a folder; autocast is off meanwhile.

    Raises:
        OutputFolderError: If the folder contains other files or cannot be written.
        CheckFailedError: If parts failed on a Ray cluster; all other parts are saved.
        IdentilensError: Any error of the study.
    """
    if out is None and (resume or overwrite or ray):
        raise InputError("resume, overwrite and ray are for a folder: name it with out=....")
    if ray and study.alone:
        raise InputError(f"{study.name} runs in one process: {study.alone}. Leave ray=... out.")
    kind: Any = study.result_type
    record = provenance(study.name, study.identity(), study.settings.recorded())
    if out is None:
        with watched(study.unit, progress) as report:
            output = _output(study, None, report, ray)
        result = kind.of(output.tables, record, matrices=output.matrices, tokens=output.tokens)
        return study.shown(result, None)
    path = Path(out)
    folder = RunFolder.open(path, record, resume=resume, overwrite=overwrite)
    list_in_manifest(path, "/")
    with folder:
        if not folder.finished:
            write_request(path, study.name, study.options)
            with watched(study.unit, progress) as report:
                folder.finish(_output(study, folder, report, ray))
        return study.shown(kind.load(path), path)


def _output(
    study: Study[Any, Any], folder: RunFolder | None, progress: Progress | None, ray: bool | str
) -> Output:
    """Return the output of a run from that of its parts, of which a folder may have some."""
    study.begin(folder)
    parts, outputs = range(len(study.sizes())), []
    missing = [part for part in parts if folder is None or not folder.has(part)]
    count = _counter(study, progress, missing)
    if folder and ray and missing:
        run_on_cluster(study, folder, missing, count, "local" if ray is True else ray)
        missing = []
    for part in missing:
        if folder:
            folder.write_part(part, study.run(part).content(), {})
        else:
            outputs.append(study.run(part))
        count(part)
    joined = folder.read(parts) if folder else Output.joined(outputs)
    last = study.finish(joined.tables)
    matrices = ChainMap(dict(last.matrices), joined.matrices)  # pyright: ignore[reportArgumentType] read only
    return Output(last.tables, matrices, {**joined.tokens, **last.tokens})


def _counter(
    study: Study[Any, Any], progress: Progress | None, missing: Sequence[int]
) -> Callable[[int], None]:
    """Return a function that is called with each finished part, and reports how many units are done."""
    sizes = study.sizes()
    total = sum(sizes)
    done = total - sum(sizes[part] for part in missing)

    def tell(note: str, more: int = 0) -> None:
        if progress:
            progress(done + more, total, note)

    def count(part: int) -> None:
        nonlocal done
        done += sizes[part]
        tell("")

    study.listener = tell
    tell("")
    return count
