"""`servetune doctor`."""

from __future__ import annotations

import json
import sys

import click

from servetune.cli._examination import examined, show
from servetune.cli._options import console, json_option, named_study, storage_option

EXAMPLE = """
\b
Example:
  servetune doctor studies/kimi.yaml
  servetune doctor kimi-k2.5 --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("study")
@storage_option
@json_option
def command(study: str, storage: str, as_json: bool) -> None:
    """Examine the node of STUDY (a study file, or the name of a study that was started).

    One row a subject, each with a remedy. Exit status 1 when a row is an error. Nothing is started there but a
    test of the load generator.
    """
    findings = examined(named_study(study, storage))
    if as_json:
        click.echo(json.dumps([finding.model_dump() for finding in findings], indent=1))
    else:
        show(findings, console())
    if any(finding.state == "error" for finding in findings):
        sys.exit(1)
