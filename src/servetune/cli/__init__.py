"""The command line: one module per command, imported only when it is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from servetune import __version__
from servetune.core.errors import ServetuneError

#: Command → the line that `servetune --help` shows for it. The module of the same name holds `command`.
COMMANDS = {
    "start": "Start a tuning study.",
    "resume": "Go on with a study after any interruption.",
    "status": "Show the studies, or the trials of one.",
    "report": "Rank the configurations against the baseline; say what failed and why.",
    "export": "Print the best launch command.",
    "validate": "Check a study file and its search space; say what a study would do.",
    "doctor": "Examine a study's node before any node hour is spent.",
    "diagnose": "Say why a server died, from its log or that of a trial.",
    "knowledge": "Show, pass on or take over what crashes taught.",
    "simulate": "Run whole studies on simulated nodes in virtual time.",
    "bench": "Measure a running server.",
}


class _ReaderGoneError(Exception):
    """Whoever read the output reads no more of it, such as `head`."""


class _LazyGroup(click.Group):
    """Knows the commands by name; imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"servetune.cli.{cmd_name}").command
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but for a closed pipe, of which click makes exit status 1: the job failed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="servetune")
def cli() -> None:
    """Find the launch command with the highest throughput for an LLM inference server.

    Exit status: 0 done, 1 the job failed, 2 bad input, 130 interrupted.
    """


def main() -> None:
    """Run the command line; every error that a person sees is one message on stderr."""
    try:
        cli.main(prog_name="servetune", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except ServetuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (BrokenPipeError, _ReaderGoneError):
        # nobody reads on: end as a program ends by SIGPIPE; what is still held has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
