"""Small linear algebra on one thread."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the context, or inside a function that it decorates.

    Decompositions and programs of a row then have the same digits on any number of threads, and threads do not wait for
    each other at every small step, which takes many times as long where other programs use the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
