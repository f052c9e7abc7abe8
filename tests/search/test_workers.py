"""Ten processes that ask one database at once, twice: no two of them get the same point."""

import json
import multiprocessing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from servetune.search.samplers import adaptive
from servetune.search.sampling import Reseeded, quiet_optuna, suggest
from servetune.settings import load_space

WORKERS, ROUNDS = 10, 2
FORK = multiprocessing.get_context("fork")  # the imports of ten interpreters would take longer than all they ask


def work(url, barrier, answers):
    quiet_optuna()
    space = load_space("simulated", Path())
    sampler = Reseeded(lambda seed: adaptive.create(adaptive.Settings(), seed, space), 0)
    study = optuna.load_study(study_name="s", storage=url, sampler=sampler)
    for _ in range(ROUNDS):
        barrier.wait()
        answers.put(json.dumps(suggest(study.ask(), space), sort_keys=True))


@pytest.mark.timeout(120)
def test_ten_processes_that_ask_at_once_never_get_the_same_point(tmp_path):
    url = f"sqlite:///{tmp_path}/studies.db"
    quiet_optuna()
    optuna.create_study(study_name="s", storage=url, direction="maximize")
    barrier, answers = FORK.Barrier(WORKERS, timeout=60), FORK.Queue()
    workers = [FORK.Process(target=work, args=(url, barrier, answers)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    points = [answers.get(timeout=100) for _ in range(WORKERS * ROUNDS)]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    assert len(set(points)) == WORKERS * ROUNDS
    running = optuna.load_study(study_name="s", storage=url).get_trials(states=(TrialState.RUNNING,))
    assert len(running) == WORKERS * ROUNDS
