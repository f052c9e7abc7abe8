"""The Python frames that `faulthandler` prints when native code crashes, of the thread that crashed."""

from __future__ import annotations

from dataclasses import dataclass, field

from servetune.engines.sglang._log_lines import Line
from servetune.engines.sglang._log_tracebacks import MAX_FRAMES, frame_of

#: Lines after the crash within which the thread must come: every other thread is printed first.
REACH = 2000


@dataclass(slots=True)
class NativeStack:
    """Of the first crash. `frames`: outermost first, as in a traceback. `line`: the innermost frame as printed."""

    frames: list[str] = field(default_factory=list)
    line: tuple[int, str] = (0, "")
    _left: int = 0
    _current: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to it."""
        return self._left > 0

    @property
    def stack(self) -> str:
        """One frame a line."""
        return "\n".join(self.frames)

    def take(self, line: Line) -> None:
        """Look at one line. The thread's block ends at the first line that is no frame."""
        if not self._left:
            if not self.frames and "Fatal Python error" in line.text:
                self._left = REACH
            return
        self._left -= 1
        if self._current:
            self._frame(line)
        elif line.text.startswith("Current thread"):
            self._current = True

    def _frame(self, line: Line) -> None:
        frame = frame_of(line.text)
        if not frame:
            self._left = 0
            return
        if not self.frames:
            self.line = line.number, line.text.strip()
        if len(self.frames) < MAX_FRAMES:
            self.frames.insert(0, frame)
