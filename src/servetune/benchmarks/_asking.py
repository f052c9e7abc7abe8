"""Asking a server fixed prompts, unstreamed and greedy, alone and under a load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal

from servetune.benchmarks._api import Target
from servetune.benchmarks._server import ControlClient
from servetune.benchmarks._tasks import Task
from servetune.core.answers import Answer

PROMPTS = 24
PROMPT_TOKENS = 96
ANSWER_TOKENS = 32
TASK_TOKENS = 256
TOP = 5
PATIENCE_S = 300.0  # wall time for one answer: under load it may wait in the server's queue
LOOK_EVERY_S = 0.05


class Asking:
    """Asks prompts, `at_once` at a time. `api` and `model` as for the load."""

    def __init__(self, target: Target, api: Literal["sglang", "openai"], model: str, at_once: int) -> None:
        self._api = api
        self._hide = target.hide
        self._model = model
        self._client = ControlClient(target, PATIENCE_S)
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix="servetune-asking")

    def close(self) -> None:
        """Close the connections; what has not been asked yet is not asked."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def begin(self, prompts: Sequence[Sequence[int]]) -> list[Future[Answer]]:
        """Ask all prompts; the answers in order."""
        return [self._executor.submit(self._ask, prompt) for prompt in prompts]

    def begin_tasks(self, tasks: Sequence[Task]) -> list[Future[bool | None]]:
        """Ask all tasks; whether each was solved (None only for those that are given up: asked too late)."""
        return [self._executor.submit(self._solves, task) for task in tasks]

    def _solves(self, task: Task) -> bool | None:
        if self._api == "sglang":
            body: dict[str, Any] = {
                "text": task.prompt,
                "sampling_params": {"temperature": 0, "max_new_tokens": TASK_TOKENS},
            }
            document = self._client.ask("POST", "/generate", body).json()
        else:
            body = {"model": self._model, "prompt": task.prompt, "temperature": 0, "max_tokens": TASK_TOKENS}
            document = self._client.ask("POST", "/v1/completions", body).json()
        return task.solved_by(_text_of(document))

    def _ask(self, ids: Sequence[int]) -> Answer:
        if self._api == "sglang":
            sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
            body = {
                "input_ids": list(ids),
                "sampling_params": sampling,
                "return_logprob": True,
                "top_logprobs_num": TOP,
            }
            reply = self._client.ask("POST", "/generate", body)
        else:
            body = {"model": self._model, "prompt": list(ids), "temperature": 0, "max_tokens": ANSWER_TOKENS}
            reply = self._client.ask("POST", "/v1/completions", {**body, "ignore_eos": True, "logprobs": TOP})
        if reply.status != 200:
            return Answer(asked=ANSWER_TOKENS, error=self._hide(f"HTTP {reply.status}: {reply.text}"))
        return read_answer(reply.json(), ANSWER_TOKENS)


def _text_of(document: Any) -> str:
    if not isinstance(document, dict):
        return ""
    choices = document.get("choices")
    source = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else document
    return str(source.get("text") or "")


def finished(futures: Sequence[Future[Any]]) -> bool:
    """Whether all answers are there; waits a moment for them."""
    return not wait(futures, timeout=LOOK_EVERY_S).not_done


def read_answer(document: Any, asked: int) -> Answer:
    """SGLang's or OpenAI's answer, with log-probabilities where it has them. Malformed: an answer with `error`."""
    if not isinstance(document, dict):
        return Answer(asked=asked, error="the answer is not a JSON object")
    if isinstance(document.get("choices"), list):
        choices = document["choices"]
        usage = document.get("usage")
        given = _count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        return _openai(choices[0] if choices and isinstance(choices[0], dict) else {}, asked, given)
    return _sglang(document, asked)


def _sglang(document: Mapping[str, Any], asked: int) -> Answer:
    meta = document.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    chosen = [row for row in meta.get("output_token_logprobs") or () if isinstance(row, list) and len(row) > 1]
    ids = document.get("output_ids") or [row[1] for row in chosen]
    reason = meta.get("finish_reason")
    return Answer(
        tokens=tuple(str(i) for i in ids) or _words(document.get("text")),
        asked=asked,
        given=_count(meta.get("completion_tokens")),
        logprobs=tuple(_number(row[0]) for row in chosen),
        top=tuple(
            tuple((str(row[1]), _number(row[0])) for row in rows or () if isinstance(row, list) and len(row) > 1)
            for rows in meta.get("output_top_logprobs") or ()
        ),
        finish_reason=str(reason.get("type")) if isinstance(reason, dict) else None,
    )


def _openai(choice: Mapping[str, Any], asked: int, given: int | None) -> Answer:
    told = choice.get("logprobs")
    told = told if isinstance(told, dict) else {}
    return Answer(
        tokens=tuple(str(token) for token in told.get("tokens") or ()) or _words(choice.get("text")),
        asked=asked,
        given=given,
        logprobs=tuple(_number(value) for value in told.get("token_logprobs") or ()),
        top=tuple(
            tuple((str(k), _number(v)) for k, v in (row or {}).items()) for row in told.get("top_logprobs") or ()
        ),
        finish_reason=choice.get("finish_reason"),
    )


def _number(value: Any) -> float:
    """A log-probability; servers write null for what is no number. Four decimals: they are stored."""
    return round(float(value), 4) if isinstance(value, int | float) else float("nan")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(text: Any) -> tuple[str, ...]:
    return tuple(text.split()) if isinstance(text, str) else ()
