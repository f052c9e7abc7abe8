"""The study database: Optuna's tables and ours in one SQLite file or PostgreSQL database."""

from servetune.storage.leases import Lease
from servetune.storage.store import StudyStore

__all__ = ["Lease", "StudyStore"]
