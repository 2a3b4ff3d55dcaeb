"""Timing and printing shared by the benchmarks."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

DATA = Path(__file__).parents[2] / "shared" / "data"
"""Real data sets, where present."""


def best_time(function: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest of several wall-clock times in seconds: the one least disturbed by other work."""
    return best_times([function], repeats)[0]


def best_times(functions: Sequence[Callable[[], Any]], repeats: int = 5) -> list[float]:
    """Return the shortest time of each function, the functions taking turns so that all see the same machine."""
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    for _ in range(repeats):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def report(claim: str, measured: float, target: float, *, at_least: bool = True) -> bool:
    """Print a ratio beside its target and return whether it is met."""
    met = measured >= target if at_least else measured <= target
    sign = ">=" if at_least else "<="
    print(f"{'ok  ' if met else 'MISS'} {claim}: {measured:.2f} (target {sign} {target:g})")
    return met


def machine() -> str:
    """Return what the figures were measured on."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads"
