"""The study database: Optuna's tables and ours in one SQLite file or PostgreSQL database."""

from typing import TypeAlias

from servetune.storage.leases import Lease
from servetune.storage.memory import MemoryLease, MemoryStore
from servetune.storage.store import StudyStore

#: What a tuner works on: a database, or for studies in virtual time the memory of this process.
Store: TypeAlias = StudyStore | MemoryStore

__all__ = ["Lease", "MemoryLease", "MemoryStore", "Store", "StudyStore"]
