"""The text that simulated servers answer with: deterministic, plausible, and cut at any token in constant time."""

from __future__ import annotations

import re

_PROSE = """A lighthouse keeper once kept two logs. In the first one he wrote what the sea did: the height of the waves,
the direction of the wind, the hour at which the fog came in and the hour at which it left. In the second one he wrote
what he had expected the sea to do. Every evening he compared them by the light of his own lamp, and every evening he
found that the two had drifted apart a little further than he liked. At first he blamed the instruments. He cleaned the
barometer, replaced the cord of the sounding line and oiled the vane until it turned at a breath. The logs still
disagreed. Then he blamed his memory and began to write his expectations down in the morning, before looking out of the
window, so that nothing he saw could improve them afterwards. Now the second log became shorter and more careful. He no
longer wrote that the wind would turn to the north; he wrote that it would turn to the north on six days out of ten.
After a year he could say how often he had been right, and for which kinds of weather, and he noticed that he was best
at storms, which everybody fears, and worst at calm days, which nobody had ever taught him to foresee. A visitor asked
why he took such trouble over days on which nothing happened. Because, he said, a ship is lost as easily by waiting in
a harbour for a storm that does not come as by meeting one that does; it only takes longer to find out. The visitor
thought about this on the way down the stairs, all two hundred and seven of them, and when he reached the door he had
forgotten what he had come to ask. Outside the water was flat and grey as slate, and a single boat was crossing it very
slowly, with its lamp already lit although there were still some hours left before the evening. """

#: Words with the space before them, as tokenizers cut them.
_PIECES = re.findall(r" ?[A-Za-z]+|[^A-Za-z ]", " ".join(_PROSE.split()))


class Passage:
    """An endless text of ASCII tokens, safe inside a JSON string."""

    def __init__(self, pieces: list[str]) -> None:
        self.period = len(pieces)
        self._text = "".join(pieces).encode()
        self._ids = b"".join(b"%d," % _token_id(piece) for piece in pieces)
        self._text_ends = _offsets([piece.encode() for piece in pieces])
        self._id_ends = _offsets([b"%d," % _token_id(piece) for piece in pieces])
        self._text_tape, self._id_tape = self._text, self._ids

    def text(self, first: int, last: int) -> bytes:
        """Tokens `first` up to, not including, `last`."""
        begin, end = _place(self._text_ends, first), _place(self._text_ends, last)
        while len(self._text_tape) < end:
            self._text_tape += self._text_tape
        return self._text_tape[begin:end]

    def ids(self, first: int, last: int) -> bytes:
        """Their ids, separated by commas."""
        begin, end = _place(self._id_ends, first), _place(self._id_ends, last)
        while len(self._id_tape) < end:
            self._id_tape += self._id_tape
        return self._id_tape[begin : max(begin, end - 1)]


def _token_id(piece: str) -> int:
    """Different words have different ids below 32,000, as far as this text goes."""
    number = 0
    for letter in piece.encode():
        number = (number * 131 + letter) % 31_337
    return 100 + number if piece != "!" else 0


def _offsets(pieces: list[bytes]) -> list[int]:
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return ends


def _place(ends: list[int], token: int) -> int:
    rounds, rest = divmod(token, len(ends) - 1)
    return rounds * ends[-1] + ends[rest]


def plausible() -> Passage:
    """English prose."""
    return Passage(_PIECES)


def nonsense() -> Passage:
    """One token for ever, which is what a broken kernel usually says."""
    return Passage(["!"])
