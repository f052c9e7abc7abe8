"""`servetune validate … -- ARGUMENTS` and `--batch`: commands judged as they are written."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from servetune.cli._validation import Setting, StandIns, check_version_known, setting, version_notes
from servetune.core.errors import UsageError
from servetune.core.judgement import Judgement
from servetune.core.study import StudySpec
from servetune.settings import load_commands, read_commands


@dataclass(frozen=True)
class Asked:
    """What commands are judged against, and whether an installed engine is asked, too."""

    study: StudySpec | None
    stand_ins: StandIns
    preflight: bool = False
    engine_python: str | None = None

    def setting(self) -> Setting:
        """Engine and facts. Raises SpecError."""
        against = setting(self.study, self.stand_ins)
        for warning in against.warnings:
            click.echo(f"WARNING: {warning}", err=True)
        check_version_known(against)
        for note in version_notes(against):
            click.echo(f"note: {note}", err=True)
        return against


def validate_command(asked: Asked, arguments: list[str], as_json: bool) -> None:
    """Judge one command and print the judgement. Raises UsageError for none."""
    against = asked.setting()
    if not arguments:
        raise UsageError(
            "no command follows `--`: write the engine's arguments after it, such as `-- --tp-size 8`"
            + ("" if asked.study is None else "; without `--` the study is checked")
        )
    with _judge_of(against, asked) as judge:
        found = judge(arguments)
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json"), indent=2))
        return
    click.echo("\n".join(said(found, against)))


def validate_batch(asked: Asked, batch: str) -> None:
    """Judge each line. Output is one JSON judgement a line, in the order of the input."""
    against = asked.setting()
    commands = read_commands(_standard_input(), "standard input") if batch == "-" else load_commands(Path(batch))
    if not commands:
        click.echo(f"note: {'standard input' if batch == '-' else batch}: there are no commands in it", err=True)
    gc.disable()  # thousands of small results that all go at the end
    with _judge_of(against, asked) as judge:
        for arguments in commands:
            sys.stdout.write(judge(arguments).model_dump_json() + "\n")


@contextmanager
def _judge_of(against: Setting, asked: Asked) -> Iterator[Callable[[list[str]], Judgement]]:
    """Judges one command; with --preflight the engine's own word is added."""
    if not asked.preflight:
        yield lambda arguments: _judge(against, arguments)
        return
    from servetune.cli._validate_preflight import engine_word

    with engine_word(against, asked.engine_python) as word:
        yield lambda arguments: word.added(_judge(against, arguments), arguments)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text: {error}") from error


def _judge(against: Setting, arguments: list[str]) -> Judgement:
    engine = against.engine
    judge = getattr(engine, "judge", None)
    if judge is None:
        raise UsageError("this engine cannot judge commands without starting them")
    found: Judgement = judge(arguments, against.facts)
    return found


def said(found: Judgement, against: Setting) -> Iterator[str]:
    """The judgement in sentences."""
    facts = against.facts
    gpus = f"{facts.gpu_count} × {facts.gpu_names[0]}" if facts.gpu_names else "no known GPU"
    yield f"{found.verdict}: {facts.engine_name or 'sglang'} {facts.engine_version} on {gpus}"
    for violation in found.violations:
        yield f"refused by {violation.layer} {violation.rule}: {violation.message}"
        if violation.alternatives:
            yield f"    instead: {'; '.join(violation.alternatives)}"
        if violation.source:
            yield f"    source: {violation.source}"
    for change in found.changed:
        yield f"changed: --{change.flag} {_shown(change.before)} becomes {_shown(change.after)}: {change.reason}"
    for idle in found.no_effect:
        yield f"no effect: --{idle.flag}: {idle.reason}"
    for note in (note for note in found.notes if note not in version_notes(against)):
        yield f"note: {note}"
    yield f"effective: {' '.join(_flag(name, value) for name, value in found.effective.items())}"
    yield from memory_lines(found.memory)


def memory_lines(m: Mapping[str, Any]) -> Iterator[str]:
    """The forecast in sentences."""
    if m.get("known_from") is None:
        yield f"memory: nothing is forecast: {m.get('reason')}"
        return
    whose = "named" if m["fraction_named"] else "automatic"
    yield (
        f"memory of one GPU (from {m['known_from']}): {m['before_load_gib']:.1f} GiB before loading, "
        f"{m['weights_gib']:.1f} taken when the KV cache is sized, {m['free_after_load_gib']:.1f} left"
    )
    if m["fraction_needed"] > m["fraction_high"]:
        yield "  no memory fraction can work: weights, graphs and activations do not fit"
    else:
        yield f"  memory fractions from {m['fraction_needed']:.3f} to {m['fraction_high']:.3f} can work"
    if m["fraction"] is not None:
        yield f"  the {whose} fraction {m['fraction']:.4g} gives {m['kv_tokens']:,} KV tokens"
    yield from (f"  {problem}" for problem in m["problems"])


def _shown(value: object) -> str:
    return "(not given)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flag(name: str, value: object) -> str:
    if name.startswith("env."):
        return f"{name[4:]}={value}"
    return f"--{name}" if value is True else f"--{name} {value}"
