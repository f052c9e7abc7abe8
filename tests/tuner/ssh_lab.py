"""Small studies over a real sshd against the simulated server, in this process; something goes wrong on the way."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from contracts.node_contract import carriers
from nodes.sshd import Sshd

from servetune.core.events import Event, Note, Step
from servetune.core.trial import TrialRecord
from servetune.settings import load_study
from servetune.storage import StudyStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

SCENARIO = "kimi-k2.5-int4-8x-rtx-pro-6000"
STUDY = {
    "engine": {"name": "sglang", "model": "/models/kimi-k2.5-int4"},
    "load_generator": {"name": "scenario", "hold_s": 0.3},
    "fixed": {"tp-size": 8},
    "search_space": {"parameters": {"chunked-prefill-size": [2048, 4096, 8192]}},
    "workload": {"concurrency": [1, 10]},
    "timeouts": {"ready_s": 200_000, "stall_s": 200_000, "level_s": 200_000},
    "budget": {"trials": 1},
    "sampler": {"name": "random", "seed": 3},
    "confirm": {"launches": 0},
}


class Happening:
    """Hears every event; does `what` once, at the first event of that name, `delay_s` later."""

    def __init__(self, name: str = "", what: Callable[[], object] = lambda: None, delay_s: float = 0.0) -> None:
        self.name, self.what, self.delay_s = name, what, delay_s
        self.notes: list[str] = []
        self.steps: list[str] = []

    def on(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, Step):
            self.steps.append(event.name)
        if self.name and self.name in (type(event).__name__, getattr(event, "name", "")):
            self.name = ""
            threading.Timer(self.delay_s, self.what).start() if self.delay_s else self.what()


class Lab:
    """Studies in a folder of their own."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self.sshd, self.folder = sshd, folder
        self.names: list[str] = []

    @property
    def storage(self) -> str:
        return f"sqlite:///{self.folder}/studies/studies.db"

    def node(self, **more: object) -> dict[str, object]:
        rehearse = {"scenario": SCENARIO, "time_scale": 2000}
        return {"name": "ssh", **self.sshd.settings(rehearse=rehearse, python=sys.executable, **more)}

    def write(self, node: dict[str, object] | None = None, **changes: object) -> Path:
        name = f"lab-{uuid.uuid4().hex[:10]}"
        self.names.append(name)
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({"study": name, "node": node or self.node(), **STUDY, **changes}))
        return file

    def sit(self, file: Path, happening: Happening | None = None) -> Happening:
        """Start or resume. Raises what the tuner raises."""
        happening = happening or Happening()
        spec = load_study(file, {"storage": self.storage})
        with StudyStore.open(self.storage) as store:
            if spec.study not in {study.name for study in store.studies()}:
                store.create_study(spec, file.read_text())
            run_study(spec, store, happening, StopRequest())
        return happening

    def trials(self, file: Path) -> tuple[TrialRecord, ...]:
        with StudyStore.open(self.storage) as store:
            return store.trials(file.stem)

    def story(self, file: Path) -> list[tuple]:
        return [
            (t.number, t.state, dict(t.assignment), t.value, [r.failure and r.failure.slug for r in t.runs])
            for t in self.trials(file)
        ]

    def left(self) -> list[int]:
        return [pid for name in self.names for pid in carriers(name)]
