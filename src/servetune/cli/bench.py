"""`servetune bench`."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from servetune import plugins
from servetune.benchmarks._api import parse_target
from servetune.cli._options import console
from servetune.core.benchmark import Level, LoadGenerator, Measurement, Percentiles, Progress, Workload
from servetune.core.clock import WallClock
from servetune.core.errors import NodeUnreachableError, UsageError
from servetune.core.quantities import latency

EXAMPLE = """
\b
Example:
  servetune bench http://127.0.0.1:30000 --concurrency 1,10,256,1024 --input-tokens 512 --output-tokens 256
  servetune bench http://127.0.0.1:8000 --api openai --rate poisson:20 --json
"""

CONNECT_TIMEOUT_S = 10.0


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 on, separated by commas."""

    name = "n,n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Fails with the value that is none."""
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.strip().isdigit() and int(word) > 0 for word in words):
            self.fail(f"{value!r}: write numbers from 1 on, such as 1,10,256", param, ctx)
        return tuple(int(word) for word in words)


class Length(click.ParamType[tuple[int, int]]):
    """Tokens: `512`, or `256-512` for lengths drawn evenly between both."""

    name = "n|low-high"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """The least and the most. Fails with the value that is none."""
        if isinstance(value, tuple):
            return value
        low, found, high = str(value).partition("-")
        bounds = (low, high if found else low)
        if not all(word.strip().isdigit() for word in bounds) or not 1 <= int(bounds[0]) <= int(bounds[1]):
            self.fail(f"{value!r}: write a number of tokens from 1 on, or two such as 256-512", param, ctx)
        return int(bounds[0]), int(bounds[1])


@click.command(epilog=EXAMPLE)
@click.argument("url")
@click.option("--concurrency", type=Numbers(), default="1,10,256,1024", show_default=True, help="Levels to hold.")
@click.option("--input-tokens", type=Length(), default="512", show_default=True, help="256-512: evenly between both.")
@click.option("--output-tokens", type=Length(), default="256", show_default=True, help="256-512: evenly between both.")
@click.option(
    "--api",
    type=click.Choice(["sglang", "openai"]),
    default="sglang",
    show_default=True,
    help="What is asked: /generate or /v1/completions.",
)
@click.option("--rate", help="Open loop: poisson:20 (requests per second), or trace. Concurrency is then the most.")
@click.option("--trace", help="JSONL file of lengths {input, output} and, for --rate trace, times {arrival}.")
@click.option(
    "--requests",
    type=click.IntRange(1),
    help="Requests per level instead of as many as precision needs. The last moment of a level is not measured, so "
    "that one or two fewer may be counted.",
)
@click.option(
    "--limit-s", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds per level at most."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and arrivals.")
@click.option("--header", "headers", multiple=True, help="`Name: value`, sent with each request; may be repeated.")
@click.option("--key-env", help="Variable that holds a key, sent as `Authorization: Bearer …`; never shown.")
@click.option("--goodput", help="Limits of one request, such as ttft_s=0.5,tpot_s=0.05.")
@click.option("--processes", type=click.IntRange(1), help="Of the client; without it, as the machine allows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
def command(**options: Any) -> None:
    """Measure the running server at URL, level by level, with the load generator that studies use.

    Exit status 1 when nothing answers at URL, when a level could not be measured or its figures must not be used.
    Ctrl-C ends it with status 130; the levels that were finished are kept.
    """
    generator = _generator(options)
    headers = dict(_header(text) for text in options["headers"]) | _key(options["key_env"])
    workload = Workload(
        input_tokens=options["input_tokens"][1],
        output_tokens=options["output_tokens"][1],
        concurrency=options["concurrency"],
        requests_per_level=options["requests"] or "auto",
        api=options["api"],
        seed=options["seed"],
    )
    demand_server(options["url"], headers)
    begin_s = _client_cpu_s()
    measured: list[Measurement] = []
    interrupted = False
    try:
        with _view(options["as_json"]) as view:
            for concurrency in workload.concurrency:
                level = Level(concurrency=concurrency, workload=workload, limit_s=options["limit_s"])
                measurement = generator.run(options["url"], level, WallClock(), view.progress, headers)
                assert measurement is not None  # nothing says stop
                measured.append(measurement)
                view.finished(measurement)
    except KeyboardInterrupt:
        interrupted = True
    if options["as_json"]:
        click.echo(json.dumps(document(measured, _client_cpu_s() - begin_s, interrupted), indent=2))
    if interrupted:
        raise click.exceptions.Abort
    if not all(measurement.valid for measurement in measured):
        sys.exit(1)


def demand_server(url: str, headers: dict[str, str]) -> None:
    """Raises NodeUnreachableError when no connection can be made to `url`, SpecError when it is no address."""
    target = parse_target(url, headers)
    try:
        socket.create_connection((target.host, target.port), CONNECT_TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        why = getattr(error, "strerror", None) or str(error)
        raise NodeUnreachableError(
            f"nothing answers at {target.authority}: {why}; start the server, or give the host and port it listens on"
        ) from error


def _client_cpu_s() -> float:
    """CPU seconds of this process and of the load processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def document(measured: list[Measurement], cpu_s: float, interrupted: bool = False) -> dict[str, Any]:
    """What `--json` prints. Times in seconds; `cpu_s`: CPU time of the client over all levels.

    `interrupted` is only there, and true, when levels are missing.
    """
    levels = [_level_document(measurement) for measurement in measured]
    told: dict[str, Any] = {"levels": levels, "client": {"cpu_s": cpu_s}}
    return told | ({"interrupted": True} if interrupted else {})


def _level_document(measurement: Measurement) -> dict[str, Any]:
    whole = measurement.model_dump(mode="json")
    rate = {"value": whole.pop("output_tokens_per_s"), "low": whole.pop("low"), "high": whole.pop("high")}
    first = {"concurrency": whole.pop("concurrency"), "output_tokens_per_s": rate}
    return first | {key: whole.pop(key) for key in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "valid", "warnings")} | whole


def _generator(options: dict[str, Any]) -> LoadGenerator:
    settings: dict[str, Any] = {
        "processes": options["processes"],
        "lengths": _lengths(options),
        "goodput": _goodput(options["goodput"]),
    }
    if options["rate"]:
        settings["rate"] = options["rate"]
    if options["rate"] == "trace" and options["trace"] is None:
        raise UsageError("--rate trace needs a file of arrival times: add --trace FILE")
    module = plugins.load("benchmarks", "open_loop" if options["rate"] else "closed_loop")
    try:
        found: LoadGenerator = module.create(module.Settings(**settings))
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    return found


def _lengths(options: dict[str, Any]) -> dict[str, Any]:
    bounds = {side: options[f"{side}_tokens"] for side in ("input", "output")}
    if all(low == high for low, high in bounds.values()):
        return {"trace": options["trace"]}
    return {"trace": options["trace"], "uniform": bounds}


def _goodput(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    limits = {}
    for part in text.split(","):
        name, _, bound = part.partition("=")
        try:
            limits[name.strip()] = float(bound)
        except ValueError:
            raise UsageError(f"--goodput is {text!r}; write limits such as ttft_s=0.5,tpot_s=0.05") from None
    from servetune.benchmarks._goodput import GoodputLimits  # brings numpy, which `--help` has no need of

    try:
        GoodputLimits.model_validate(limits)
    except ValidationError as error:
        name, known = str(error.errors()[0]["loc"][0]), ", ".join(GoodputLimits.model_fields)
        wrong = "is no limit" if name not in GoodputLimits.model_fields else "must be above 0"
        raise UsageError(
            f"--goodput is {text!r}: {name} {wrong}; allowed: {known}, each in seconds, such as ttft_s=0.5,tpot_s=0.05"
        ) from error
    return limits


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition(":")
    if not found or not name.strip() or not text.isprintable():
        raise UsageError(f"--header is {text!r}; write it as 'Name: value'")
    return name.strip(), value.strip()


def _key(variable: str | None) -> dict[str, str]:
    """A command line can be read by others on the machine, the environment cannot."""
    if variable is None:
        return {}
    if not (key := os.environ.get(variable)):
        raise UsageError(f"--key-env names {variable}, which is not set or empty here")
    return {"Authorization": f"Bearer {key}"}


class View:
    """Plain lines: one for each finished level and one for each warning."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def progress(self, progress: Progress) -> bool:
        """Called while a level is measured; never ends it."""
        return True

    def finished(self, measurement: Measurement) -> None:
        """A level is over."""
        self._console.print(line(measurement), markup=False, soft_wrap=True)
        for text in remarks(measurement):
            self._console.print(f"  {text}", markup=False, soft_wrap=True)


class LiveView(View):
    """A table of all levels, the one being measured with its progress."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self._live = live
        self._done: list[Measurement] = []

    def progress(self, progress: Progress) -> bool:
        """Draw the level under way."""
        self._live.update(_table(self._done, progress), refresh=True)
        return True

    def finished(self, measurement: Measurement) -> None:
        """Draw without a level under way; its warnings stay above the table."""
        self._done.append(measurement)
        for text in remarks(measurement):
            self._console.print(f"concurrency {measurement.concurrency}: {text}", markup=False, soft_wrap=True)
        self.ended()

    def ended(self) -> None:
        """Draw what was finished alone: a level that was broken off has no figures."""
        self._live.update(_table(self._done, None), refresh=True)


@contextmanager
def _view(as_json: bool) -> Iterator[View]:
    stream = sys.stderr if as_json else sys.stdout
    shown = console(stream)
    if not stream.isatty():
        yield View(shown if not as_json else Console(quiet=True))
        return
    with Live(console=shown, auto_refresh=False) as live:
        view = LiveView(shown, live)
        try:
            yield view
        finally:
            view.ended()


Column = tuple[str, Callable[[Measurement], str]]
GOODPUT: Column = (
    "goodput",
    lambda m: (
        f"{m.details['goodput_share']:.0%}, {m.details['goodput_requests_per_s']:,.3g} requests/s"
        if "goodput_share" in m.details
        else "–"
    ),
)
COLUMNS: tuple[Column, ...] = (
    ("concurrency", lambda m: str(m.concurrency)),
    ("tokens/s", lambda m: f"{m.output_tokens_per_s:,.1f}"),
    ("95 %", lambda m: f"{m.low:,.1f} – {m.high:,.1f}"),
    ("TTFT p50 / p99", lambda m: _pair(m.ttft_s)),
    ("ITL p50 / p99", lambda m: _pair(m.itl_s)),
    ("E2E p50 / p99", lambda m: _pair(m.e2e_s)),
    (
        "requests",
        lambda m: f"{m.requests_completed:,}" + (f" ({m.requests_failed} failed)" if m.requests_failed else ""),
    ),
    ("", lambda m: "" if m.valid else "NOT VALID"),
)


def _pair(percentiles: Percentiles | None) -> str:
    return "–" if percentiles is None else f"{_seconds(percentiles.p50)} / {_seconds(percentiles.p99)}"


def _seconds(value_s: float) -> str:
    """A latency of zero is none: the tokens of most answers reached the client all at once."""
    return latency(value_s) if value_s > 0 else "not measurable"


def _columns(measured: Sequence[Measurement]) -> tuple[Column, ...]:
    """With goodput when limits for it were given."""
    asked = any("goodput_share" in measurement.details for measurement in measured)
    return (*COLUMNS[:-1], GOODPUT, COLUMNS[-1]) if asked else COLUMNS


def line(measurement: Measurement) -> str:
    """A finished level as one line of text."""
    told = [f"{name} {text(measurement)}".strip() for name, text in _columns([measurement]) if text(measurement)]
    return "  ".join(told)


def remarks(measurement: Measurement) -> list[str]:
    """What made the level invalid first, then what is only worth knowing."""
    others = [text for text in measurement.warnings if text not in measurement.invalid_because]
    return [f"not valid because: {text}" for text in measurement.invalid_because] + [f"warning: {t}" for t in others]


def _table(done: list[Measurement], current: Progress | None) -> Table:
    columns = _columns(done)
    table = Table(*(name for name, _ in columns), box=None, pad_edge=False)
    for measurement in done:
        table.add_row(*(text(measurement) for _, text in columns))
    if current is not None:
        failed = f" ({current.failed} failed)" if current.failed else ""
        share = f"{current.completed:,} of about {max(current.expected, current.completed):,}{failed}"
        stage = f"{'warming up' if current.stage == 'warmup' else 'measuring'}, {current.elapsed_s:.0f} s"
        rate = f"{current.output_tokens_per_s:,.1f}"
        table.add_row(str(current.concurrency), rate, stage, "", "", "", share)
    return table
