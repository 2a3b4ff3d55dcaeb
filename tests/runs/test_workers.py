"""Workers of this machine, one at a time; whole runs on them are in test_engines.py."""

import time
from concurrent.futures.process import BrokenProcessPool

from helpers.toy import ToySettings, ToyStudy
from identilens.runs.workers import Job, Local


def test_a_worker_that_is_at_work_ends_at_once(tmp_path):
    job = Job(ToyStudy, (), ToySettings(), {}, "", tmp_path)
    with Local(workers=1).opened(job) as start:
        worker = start(0)
        work = worker.submit(time.sleep, 5)
        worker.close()
    assert isinstance(work.exception(), BrokenProcessPool)
