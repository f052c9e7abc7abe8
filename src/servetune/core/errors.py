"""Exceptions: the tool itself cannot go on. A failed trial is a value (`core.failure.Failure`), never an exception.

ServetuneError
├── SpecError             the study, space or scenario file is wrong: fix the file            exit status 2
│   ├── FlagsError        flags that the engine's version does not take                       exit status 2
│   ├── InterpreterError  the engine's interpreter is not on the node, or cannot be run        exit status 2
│   └── UsageError        the command line asks for something that cannot be: change it       exit status 2
├── NodeError
│   ├── NodeUnreachableError   wait and try again                                            exit status 1
│   │   └── ConnectionLostError    it broke in the middle of something: ask again            exit status 1
│   ├── ProgramEndedError      a program of ours on the node ended by itself: do without it  exit status 1
│   ├── NodeBusyError          another tuner or process holds it: choose another, or wait     exit status 1
│   ├── NodeUnusableError      a person has to mend the node                                  exit status 1
│   └── HostKeyError           the host key is unknown or changed: never continue             exit status 1
├── StudyBusyError        another tuner holds this study                                       exit status 1
└── StorageError          the study database cannot be read or written: stop                  exit status 1

They are sorted by the reaction they want. Every message says what is wrong, the value, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ServetuneError(Exception):
    """Root of everything that servetune raises on purpose. `exit_status` is the process's exit status."""

    exit_status = 1


class SpecError(ServetuneError):
    """A file or value given by the user is wrong; nothing has been written or started."""

    exit_status = 2


class UsageError(SpecError):
    """A command asks for something that does not exist or is not allowed now."""


class FlagProblem(NamedTuple):
    """What is wrong with a flag or parameter. `section`: that of the study file, where it is `fixed` or `baseline`."""

    flag: str
    text: str
    section: str = ""

    def __str__(self) -> str:
        return f"{self.section}: {self.text}" if self.section else self.text


class FlagsError(SpecError):
    """Flags of a study that the engine's version does not take."""

    def __init__(self, head: str, problems: Sequence[FlagProblem]) -> None:
        self.head, self.problems = head, tuple(problems)
        super().__init__("\n".join([head, *(f"  {problem}" for problem in problems)]))


class InterpreterError(SpecError):
    """The engine's interpreter cannot be run: nothing is known of its installation."""


class NodeError(ServetuneError):
    """Something about a node stops the study."""


class NodeUnreachableError(NodeError):
    """The node does not answer; waiting may help."""


class ConnectionLostError(NodeUnreachableError):
    """The connection broke in the middle of something, which may be begun anew once it stands again."""


class ProgramEndedError(NodeError):
    """A program of ours on the node ended by itself; its last words are the message."""


class NodeBusyError(NodeError):
    """Somebody else uses the node."""


class NodeUnusableError(NodeError):
    """The node fails whatever is launched on it; a person has to look."""


class HostKeyError(NodeError):
    """The SSH host key is not the one that is known. Never continued."""


class StudyBusyError(ServetuneError):
    """Another tuner process works on this study."""


class StorageError(ServetuneError):
    """The study database cannot be read or written."""
