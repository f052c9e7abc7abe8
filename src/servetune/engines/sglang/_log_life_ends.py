"""Lives that certainly end at the next arguments and leave nothing, told by their lines, each on its own.

A line that the engine's logger stamped belongs to no traceback. So one that says that a process dies counts whatever
was printed before it, and after it any arguments are those of the next server (`Run.restarted_by`).
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from servetune.engines.sglang._log_args import parse_command, parse_export, shows_arguments
from servetune.engines.sglang._log_lines import Line, LineCleaner
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_words import shape_of, topics_of

#: Shapes of lines that are remembered, and the longest of them in bytes; a longer line may be anything.
_REMEMBERED, _REMEMBERED_BYTES, _LONGEST = 8192, 512, 4000
#: A longer life is rather read.
_LONGEST_LIFE = 16 * 1024
#: What numbers may hide: letters in JSON, the end of a word, a colour whose escape got lost.
_HIDING = (b"\\u", b"\0", b"\r")
_LOST, _ESCAPE = b"[0m", b"\x1b"


class _Says(Enum):
    """What all lines of a shape say."""

    NOTHING = 0
    DEATH = 1
    MORE = 2  # they may show a command, a variable, arguments, a prefix


def ends_for_certain(shape: bytes) -> bool:
    """Whether a life of this shape ends with the next arguments and leaves nothing.

    `shape`: whole lines behind the arguments, with no known prefix before them.
    """
    dies = False
    for line in shape.split(b"\n") if len(shape) <= _LONGEST_LIFE else ():
        said = _said(line)
        if said is _Says.MORE:
            return False
        dies = dies or said is _Says.DEATH
    return dies


def _said(shape: bytes) -> _Says:
    return (_of_shape if len(shape) <= _REMEMBERED_BYTES else _of_shape.__wrapped__)(shape)


@lru_cache(maxsize=_REMEMBERED)
def _of_shape(shape: bytes) -> _Says:
    lost = shape.count(_LOST) != shape.count(_ESCAPE + _LOST)
    if len(shape) > _LONGEST or lost or any(map(shape.__contains__, _HIDING)):
        return _Says.MORE
    cleaner = LineCleaner()
    lines = cleaner.clean(0, shape)
    texts = [line.text for line in lines]
    if any(line.unclosed for line in lines):
        return _Says.MORE
    if cleaner.learned or any(parse_command(text) or parse_export(text) or shows_arguments(text) for text in texts):
        return _Says.MORE
    alone = len(lines) == 1 and lines[0].stamped and shape.startswith(b"[0000-")
    return _Says.DEATH if alone and _kills(lines[0]) else _Says.NOTHING


def _kills(line: Line) -> bool:
    """Whether a stamped line makes any run end. One that may also ask it to stop does not count: numbers decide."""
    run = Run()
    run.take(line)
    return bool(run.deaths) and not topics_of(shape_of(line.text)).stop
