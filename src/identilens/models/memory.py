"""A limit to the memory that foreign code may take."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import resource
except ImportError:  # there is no such limit on Windows
    resource = None

_PAGES = Path("/proc/self/statm")


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let the process take at most so many bytes more inside the context, where the system can limit that.

    Code that needs more gets a MemoryError.
    """
    if resource is None or not _PAGES.exists():
        yield
        return
    taken = int(_PAGES.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + size
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
