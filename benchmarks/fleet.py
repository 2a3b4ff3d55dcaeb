"""A simulated fleet: how the time of ten million texts falls with the number of workers, and where it stops falling.

The model: the duration of a part is the measured one times a lognormal factor. The driver hands out parts one after the
other, each at the measured cost. A worker takes a while to start, dies at random and is replaced, and its part is done
again. At the end one process joins all parts. ``benchmarks/engine.py`` prints the measured costs as options of this
program; the defaults are those of docs/scale.md.
"""

import argparse
import heapq
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Fleet:
    """The assumptions of the simulation; durations are in seconds unless stated otherwise.

    Attributes:
        texts: Number of texts.
        part: Texts in a part.
        part_seconds: Duration of a part on a worker.
        spread: Standard deviation of the logarithm of a part's duration.
        hand_out: Time that the driver needs to hand out a part.
        join: Time that the driver needs to join a part at the end.
        start: Time from the start of a worker to its first part.
        life: Mean hours until a worker dies.
    """

    texts: int = 10_000_000
    part: int = 32
    part_seconds: float = 0.93
    spread: float = 0.4
    hand_out: float = 0.0014
    join: float = 0.0038
    start: float = 10.0
    life: float = 24.0


def hours(fleet: Fleet, workers: int, seed: int = 0) -> tuple[float, float]:
    """Return the hours that a run takes, and those of them that the driver takes to join parts."""
    generator = np.random.default_rng(seed)
    parts = -(-fleet.texts // fleet.part)
    # Batches of several parts where parts are many: the simulation is as exact at their ends.
    grain = max(1, parts // 100_000)
    left, driver_free = -(-parts // grain), 0.0
    queue = [(fleet.start, worker) for worker in range(workers)]
    heapq.heapify(queue)
    end = 0.0
    while left:
        now, worker = heapq.heappop(queue)
        driver_free = max(now, driver_free) + fleet.hand_out * grain
        work = (
            fleet.part_seconds * grain * generator.lognormal(-(fleet.spread**2) / 2, fleet.spread)
        )
        death = generator.exponential(fleet.life * 3600)
        if death < work:
            heapq.heappush(queue, (driver_free + death + fleet.start, worker))
            continue
        left -= 1
        end = max(end, driver_free + work)
        heapq.heappush(queue, (driver_free + work, worker))
    joining = parts * fleet.join
    return (end + joining) / 3600, joining / 3600


def asked() -> Fleet:
    """Return the fleet that the command line describes."""
    words = argparse.ArgumentParser(description=__doc__)
    for one in fields(Fleet):
        words.add_argument(
            f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default
        )
    return Fleet(**vars(words.parse_args()))


def main(fleet: Fleet) -> None:
    """Print hours by number of workers."""
    print(fleet)
    alone = hours(fleet, 1)[0]
    for workers in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        found, joining = hours(fleet, workers)
        print(
            f"{workers:5} workers: {found:7.2f} h ({joining:.2f} h joining), {alone / found:6.1f} times as fast as one"
        )


if __name__ == "__main__":
    main(asked())
