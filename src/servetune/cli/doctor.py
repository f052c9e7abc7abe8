"""`servetune doctor`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from servetune.cli._examination import examined, show
from servetune.cli._options import console, json_option, open_store, storage_option
from servetune.core.study import StudySpec
from servetune.settings import load_study

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
    findings = examined(_spec(study, storage))
    if as_json:
        click.echo(json.dumps([finding.model_dump() for finding in findings], indent=1))
    else:
        show(findings, console())
    if any(finding.state == "error" for finding in findings):
        sys.exit(1)


def _spec(study: str, storage: str) -> StudySpec:
    path = Path(study)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return load_study(path)
    with open_store(storage) as store:
        return store.study(study).spec
