"""Answers of the model that a log shows: a probe's line, a response in JSON, a client's object, tokens by number.

`read` finds them by the structure of the line and says which make no sense (`_answer_sense`); `compared` looks at
several together: one answer to different prompts, different answers to one prompt without sampling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servetune.engines.sglang._answer_sense import asks_for_it, is_ruled, nonsense, same_tokens, unlike

#: Answers that are remembered.
ANSWERS = 64
#: A response's own fields: a request that is shown has none of them.
_RESPONSE = (
    '"choices"',
    '"meta_info"',
    '"finish_reason"',
    '"stop_reason"',
    '"completion_tokens"',
    '"done":',
    '"role":"assistant"',
)
_CUT_OFF = re.compile(r'"(?:finish|stop)_reason": ?(?:"length"|\{"type": ?"length")')
#: What stands before an answer that a probe or a client prints.
_SEPARATORS = ("='", '="', ": ", "'", ' "', "答")
_JSON_TEXT = re.compile(
    r'"(?:text|content|output_text|response|completion|answer|output|generated_text)": ?"((?:[^"\\]|\\.)*+)"'
)
_JSON_PROMPT = re.compile(r'"(?:prompt|question|input)": ?"((?:[^"\\]|\\.)*+)"')
#: An answer without quotes is the rest of the line.
_BARE = re.compile(
    r"^(?:\[[a-z][\w .-]{1,24}\] *)?(?i:output|answer|response|completion|reply|generated(?: text)?|model|assistant)"
    r" ?: (?P<answer>[^'\"{\[].*)(?P<rest>)$"
)
_ARROW = re.compile(r""" [-=]> ?(['"])(?P<answer>.*)\1(?P<rest>[^'"]*(?:\(.*)?)$""")
_KEYED = re.compile(
    r"""(?i)(?:\b(?:answer|out|output|response|completion|reply|got|content|generated|generated[_ ]text"""
    r"""|response text|tokens? \d{1,6} ?(?:-|–|to|\.\.) ?\d{1,6})|(?:^|\s)A|答|回答|输出)(?:: ?|=| )(['"])"""
    r"""(?P<answer>(?:[^'"\\]|\\.|(?!\1)['"]|(?<=\w)'(?=\w))*+)\1(?P<rest>.*)$"""
)
_PROMPT = re.compile(
    r"""(?i)(?:\bprompt|\bquestion|\binput|(?:^|\s)Q|问|提问)(?:: ?|=| )(['"])(?P<prompt>.*?)\1(?=[\s,;)]|$)"""
)
_QUOTED_BEFORE = re.compile(r"""(['"])(?P<prompt>[^'"]+)\1[^'"]*$""")
_IDS = re.compile(r"""(?:output_ids|\btokens|token_ids)['"]?(?:=|: ?)\[(?P<ids>\d+(?:, ?\d+)*)""")
_NO_NUMBERS = re.compile(r"logprobs?['\"]?(?:=|: ?)\[[^\]]{0,200}\b(?:NaN|nan)\b")
#: What a probe says of its own answer.
_FINE = re.compile(r"(?i)\b(?:ok|pass(?:ed)?|correct|match(?:es)?|good)\b(?!.*(?:\bnot\b|fail|mismatch|wrong))")
_GREEDY = re.compile(r"(?i)temp(?:erature)?\s*[=:]?\s*0(?:\.0+)?(?![.\d])|greedy|deterministic")
#: A request that the engine logs is a user's: what was asked for there is unknown.
_LOGGED_REQUEST = re.compile(r"\b(?:Receive|Finish): obj=|GenerateReqInput\(")
#: A line may hold an answer only with one of these (see `_log_words`).
HINTS = re.compile(
    r"""(?i) -> ?['"]| => ?['"]|"text": ?"|"content": ?"|"output_text": ?"|"response": ?"|"completion": ?"|"""
    r""""answer": ?"|"output": ?"|"generated_text": ?"|output_ids|token_ids|tokens['"]?(?:=|: ?)\[|logprobs"""
    r"""|\ba: ['"]|答: ?['"]|回答: ?['"]|输出: ?['"]|\bgot ['"]"""
    r"""|(?:answer|output|response|completion|reply|content|generated|text)(?:: ?|=| )['"]"""
    r"""|\bout=['"]|tokens? \d{1,6} ?(?:-|–|to|\.\.) ?\d{1,6}: ['"]"""
    r"""|(?:output|answer|response|completion|reply|generated|text|model|assistant) ?: """
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `problem`: why it makes no sense; empty where nothing is wrong with it.

    `about`: the line without what was asked and answered: a word in there ("stuck", "503") says nothing of the server.
    """

    number: int
    line: str
    prompt: str
    answer: str
    greedy: bool
    problem: str
    about: str


def read(number: int, text: str, judged: bool = True) -> Answer | None:
    """The answer that a line shows, if it does (see `HINTS`). `judged`: whether it makes sense is told."""
    if _LOGGED_REQUEST.search(text):
        return None
    ids = _IDS.search(text) if "tokens" in text or "_ids" in text else None
    if ids and same_tokens(ids["ids"]):
        return Answer(number, text, "", ids["ids"], False, "one token again and again", text)
    if "logprob" in text and _NO_NUMBERS.search(text):
        return Answer(number, text, "", "", False, "probabilities that are no numbers", text)
    if any(map(text.__contains__, _RESPONSE)) or (text.startswith("{") and _JSON_PROMPT.search(text)):
        return _of_response(number, text, judged)
    return _of_probe(number, text, judged) if any(map(text.__contains__, _SEPARATORS)) else None


def _of_response(number: int, text: str, judged: bool) -> Answer | None:
    asked = _JSON_PROMPT.search(text)
    before = text.partition("{")[0]
    told = None if asked else _PROMPT.search(before) or _QUOTED_BEFORE.search(before)
    prompt = _unescaped(asked[1] if asked else told["prompt"] if told else "")
    for match in _JSON_TEXT.finditer(text):
        answer = _unescaped(match[1])
        if answer:
            about = _JSON_TEXT.sub("", _JSON_PROMPT.sub("", text))
            problem = nonsense(answer, prompt) if judged else ""
            if judged and not problem and not prompt and _CUT_OFF.search(text) and is_ruled(answer.strip()):
                problem = "one sign until the answer was cut off"
            return Answer(number, text, prompt, answer, False, problem, about)
    return None


def _of_probe(number: int, text: str, judged: bool) -> Answer | None:
    match = _ARROW.search(text) or _KEYED.search(text) or _BARE.search(text)
    if match is None:
        return None
    before = text[: match.start()]
    asked = _PROMPT.search(before) or _QUOTED_BEFORE.search(before)
    prompt, answer = _unescaped(asked["prompt"]) if asked else "", _unescaped(match["answer"])
    tagged = text.lstrip().startswith("[") or bool(asked)
    problem = "" if not judged or _FINE.search(match["rest"]) else nonsense(answer, prompt)
    if not answer.strip() and prompt and tagged and not _FINE.search(match["rest"]):
        problem = "no answer at all"
    about = text
    if asked:
        about = (
            before[: asked.start("prompt")]
            + before[asked.end("prompt") :]
            + text[match.start() : match.start("answer")]
        )
        about += text[match.end("answer") :]
    return Answer(number, text, prompt, answer, bool(_GREEDY.search(text)), problem, about)


def _unescaped(text: str) -> str:
    r"""The text with `\n`, `é` and the like read as the letters that they stand for."""
    if "\\" not in text:
        return text
    safe = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text.replace("\\'", "'"))
    safe = re.sub(r'(?<!\\)"', r"\"", safe)
    try:
        return str(json.loads(f'"{safe}"', strict=False))
    except ValueError:
        return text


def compared(answers: Sequence[Answer]) -> Iterator[tuple[Answer, str]]:
    """The first answer of those that are wrong only beside one another, and why."""
    by_answer: dict[str, list[Answer]] = {}
    by_prompt: dict[str, list[Answer]] = {}
    for one in answers:
        if one.prompt:
            by_answer.setdefault(one.answer.strip(), []).append(one)
            by_prompt.setdefault(one.prompt, []).append(one)
    for answer, those in by_answer.items():
        if len({one.prompt for one in those}) >= 3 and len(answer) >= 8 and " " in answer:
            yield those[0], "the same answer to different prompts"
    for those in by_prompt.values():
        for one in those[1:]:
            if one.greedy and those[0].greedy and not asks_for_it(one.prompt) and unlike(those[0].answer, one.answer):
                yield one, "another answer to the same prompt without sampling"
