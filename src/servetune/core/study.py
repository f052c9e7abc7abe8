"""The study: everything that a study file says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from servetune.core.benchmark import Workload
from servetune.core.engine import EngineChoice
from servetune.core.node import EnvRef
from servetune.core.objective import Objective
from servetune.core.space import Frozen, SearchSpace, Value
from servetune.core.trial import TrialState


class NodeChoice(Frozen):
    """The `node:` mapping: the name of a node kind; its other keys are that node's settings, checked by the node."""

    name: str = "local"
    settings: Mapping[str, Any] = Field(default_factory=dict)


class NamedChoice(Frozen):
    """`{name: …, **settings}`: a sampler, pruner or load generator."""

    name: str
    settings: Mapping[str, Any] = Field(default_factory=dict)


class Budget(Frozen):
    """When the search ends: whichever comes first. `patience`: trials in a row without a better value.

    `level_sd`: relative standard deviation that is enough for a level while searching, where the load generator can
    measure for less than its usual time; 0: always the usual time. Baseline and confirmation take the usual time.
    `level_error`: a level ends early when it is surely below the best configuration's, and this is the chance that one
    as good is ended so; 0: none is ended. Only for plain throughput without limits, and while `level_sd` is not 0.
    """

    trials: int = Field(default=40, ge=1, le=100_000)
    node_hours: float | None = Field(default=None, gt=0)
    patience: int | None = Field(default=None, ge=1)
    level_sd: float = Field(default=0.03, ge=0, lt=1)
    level_error: float = Field(default=0.0, ge=0, lt=0.5)


class Timeouts(Frozen):
    """Deadlines in node seconds. `stall_s`: no new log line while starting."""

    ready_s: float = Field(default=1800, gt=0)
    stall_s: float = Field(default=600, gt=0)
    level_s: float = Field(default=600, gt=0)
    stop_s: float = Field(default=20, gt=0)  # for each of INT and TERM before the next stronger signal


class Confirmation(Frozen):
    """The best `top` configurations and the baseline are launched `launches` more times each, interleaved. 0: off.

    While that leaves open whether the best one is ahead, further rounds follow, up to `most` launches of each (absent:
    6; with a single launch, which gives no interval, none).
    """

    top: int = Field(default=1, ge=0, le=20)
    launches: int = Field(default=2, ge=0, le=20)
    most: int | None = Field(default=None, ge=0, le=50)

    @property
    def rounds_at_most(self) -> int:
        """Launches of each contender at most."""
        extended = (6 if self.launches > 1 else self.launches) if self.most is None else self.most
        return max(self.launches, extended)


class Retries(Frozen):
    """How often a transient failure is tried again, how many node faults in a row stop the study.

    `repairs`: mended configurations that are tried for one failure.
    """

    transient: int = Field(default=1, ge=0, le=10)
    node_faults: int = Field(default=3, ge=1, le=100)
    repairs: int = Field(default=2, ge=0, le=10)


class StudySpec(Frozen):
    """A whole study. `space` is already loaded, narrowed and extended, and holds the plain `fixed:` flags.

    `baseline` is what is set beside the fixed flags in the first trial (may be empty).
    """

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    engine: EngineChoice
    node: NodeChoice = NodeChoice()
    space: SearchSpace
    secret_flags: Mapping[str, EnvRef] = Field(default_factory=dict)  # of `fixed:`; plain ones are in `space.fixed`
    baseline: Mapping[str, Value] = Field(default_factory=dict)
    workload: Workload = Workload()
    objective: Objective = Objective()
    budget: Budget = Budget()
    timeouts: Timeouts = Timeouts()
    sampler: NamedChoice = NamedChoice(name="adaptive")
    pruner: NamedChoice = NamedChoice(name="none")
    load_generator: NamedChoice = NamedChoice(name="closed_loop")
    confirm: Confirmation = Confirmation()
    retries: Retries = Retries()
    storage: str = "sqlite:///studies/studies.db"
    seed: int = 0
    source_file: str = ""  # absolute path of the study file; relative paths in it resolve against its folder


class StudyRunState(StrEnum):
    """What a study is doing. `running` is what was last written: only its lease says whether the tuner still lives."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"  # by the user, or by a node that is unusable; can be resumed
    FINISHED = "finished"
    FAILED = "failed"  # the tool could not go on; can be resumed


class StoredStudy(Frozen):
    """A study as the database holds it. `source` is the text of its study file, `fingerprint` that of its space."""

    name: str
    spec: StudySpec
    source: str
    fingerprint: str
    created_at: str  # ISO 8601, UTC
    state: StudyRunState = StudyRunState.CREATED
    reason: str = ""  # why it stopped or failed


class StudySummary(Frozen):
    """One line of a list of studies. `trials` counts by state (absent: none); `best`: highest value, tokens/s."""

    name: str
    state: StudyRunState
    reason: str = ""
    created_at: str
    trials: Mapping[TrialState, int] = Field(default_factory=dict)
    best: float | None = None
