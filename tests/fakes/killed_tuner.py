"""Runs a study like `servetune start --or-resume`, and kills itself with SIGKILL at a chosen event.

usage: killed_tuner.py STUDY_FILE STORAGE [EVENT DELAY_S]

EVENT is the name of a step (`measuring:10`), of an event type (`LevelProgress`), or empty: never. With a delay the
kill comes from a timer, in the middle of whatever follows the event.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from servetune.core.events import Event, Step
from servetune.settings import load_study
from servetune.storage import StudyStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest


class KillAt:
    """Kills this process at the first event of the given name."""

    def __init__(self, name: str, delay_s: float) -> None:
        self.name, self.delay_s = name, delay_s

    def on(self, event: Event) -> None:
        names = {type(event).__name__, event.name if isinstance(event, Step) else ""}
        if self.name and self.name in names:
            threading.Timer(self.delay_s, kill).start() if self.delay_s else kill()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(file: str, storage: str, name: str = "", delay_s: str = "0") -> None:
    spec = load_study(Path(file), {"storage": storage})
    with StudyStore.open(storage) as store:
        if spec.study not in {study.name for study in store.studies()}:
            store.create_study(spec, Path(file).read_text())
        print(run_study(spec, store, KillAt(name, float(delay_s)), StopRequest()))


if __name__ == "__main__":
    main(*sys.argv[1:])
