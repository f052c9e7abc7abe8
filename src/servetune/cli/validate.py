"""`servetune validate`."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.cli._options import json_option, named_study, storage_option
from servetune.cli._validation import StandIns
from servetune.core.errors import UsageError

EXAMPLE = """
\b
Example:
  servetune validate studies/quickstart.yaml
  servetune validate studies/quickstart.yaml -- --tp-size 8 --moe-a2a-backend flashinfer
  servetune validate --node-facts node.yaml --model-config config.json --batch commands.jsonl --json
"""

_SEPARATOR = "servetune.arguments"


class _WithArguments(click.Command):
    """A command line whose words after `--` are kept apart: they are another program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_SEPARATOR] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


_FILE = click.Path(path_type=Path)


@click.command(cls=_WithArguments, epilog=EXAMPLE, options_metavar="[OPTIONS]")
@click.argument("study", required=False, metavar="[STUDY] [-- ARGUMENTS…]")
@click.option("--batch", metavar="FILE|-", help="Judge many: a JSON list of arguments on each line.")
@click.option("--node-facts", type=_FILE, metavar="FILE", help="Stands in for the node (YAML or JSON).")
@click.option("--model-config", type=_FILE, metavar="FILE", help="Stands in for the model: its config.json.")
@click.option("--engine-version", metavar="VERSION", help="Stands in for the installed version, such as 0.5.9.")
@click.option("--preflight", is_flag=True, help="Ask an installed engine's own checks, too.")
@click.option(
    "--engine-python", metavar="PYTHON", help="The interpreter here that has it; default: the study's, on its node."
)
@click.option(
    "--sample", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Of a study's space."
)
@storage_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    study: str | None,
    batch: str | None,
    node_facts: Path | None,
    model_config: Path | None,
    engine_version: str | None,
    preflight: bool,
    engine_python: str | None,
    sample: int,
    storage: str,
    as_json: bool,
) -> None:
    """Say in milliseconds what cannot work, and why. Nothing is started.

    STUDY (a study file, or the name of a study that was started) alone: check it, and count over a sample of its
    space what each layer of checks refuses. ARGUMENTS after `--`, or those on each line of a --batch file: judge
    commands as they are written, with what the engine makes of them. STUDY may be left out there when node facts and
    a model's config are given.
    """
    arguments: list[str] | None = ctx.meta.get(_SEPARATOR)
    if arguments is not None and batch is not None:
        raise UsageError("give arguments after --, or --batch FILE, not both")
    from servetune.cli._validate_commands import Asked

    stand_ins = StandIns(node_facts, model_config, engine_version)
    if arguments is None and batch is None:
        if study is None:
            raise UsageError("name a STUDY file, or give arguments after --, or --batch FILE")
        from servetune.cli._validate_study import validate_study

        asked = Asked(named_study(study, storage), stand_ins, preflight, engine_python)
        validate_study(study, sample, as_json, asked)
        return
    from servetune.cli._validate_commands import validate_batch, validate_command

    spec = None if study is None else named_study(study, storage)
    asked = Asked(spec, stand_ins, preflight, engine_python)
    if arguments is not None:
        validate_command(asked, arguments, as_json)
    else:
        validate_batch(asked, str(batch))
