"""`servetune start`."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.cli._examination import check_before_start
from servetune.cli._options import console
from servetune.cli._sampled import tally_of
from servetune.cli._seeding import with_hints_of
from servetune.cli._sitting import say_result, sit
from servetune.cli._validation import fitted
from servetune.core.errors import UsageError
from servetune.core.study import StudyRunState
from servetune.settings import load_study
from servetune.storage import StudyStore
from servetune.tuner.opening import at_node, known_facts, open_engine, read_installation

EXAMPLE = """
\b
Example:
  servetune start studies/quickstart.yaml
  servetune start studies/quickstart.yaml --new-name second-try
"""

#: Configurations that are judged before a start: a tenth of a second of it.
SAMPLED = 200


@click.command(epilog=EXAMPLE)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--new-name", metavar="NAME", help="Start under another name than the file's.")
@click.option("--storage", metavar="URL", help="Study database; default: the one that the study file names.")
@click.option("--seed-from", metavar="STUDY", help="Measure the best configurations of an earlier study first.")
@click.option("--or-resume", is_flag=True, help="Go on with the study when it exists; say so when it is finished.")
@click.option("--force", multiple=True, metavar="ROW", help="Start although this row of the doctor is an error.")
def command(
    file: Path,
    new_name: str | None,
    storage: str | None,
    seed_from: str | None,
    or_resume: bool,
    force: tuple[str, ...],
) -> None:
    """Start the tuning study that FILE describes. Ctrl-C once stops cleanly, twice at once; `resume` goes on."""
    overrides = {key: value for key, value in (("study", new_name), ("storage", storage)) if value is not None}
    spec = load_study(file, overrides)
    with StudyStore.open(spec.storage) as store:
        if seed_from is not None:
            spec = with_hints_of(spec, store.study(seed_from), store.trials(seed_from))
        known = {study.name: study for study in store.studies()}
        if spec.study in known and or_resume:
            if known[spec.study].state is StudyRunState.FINISHED:
                console().print(f"study {spec.study!r} is finished already")
                say_result(store.study(spec.study).spec, store)
                return
            spec = store.study(spec.study).spec.model_copy(update={"storage": spec.storage})
        elif spec.study in known:
            raise UsageError(
                f"study {spec.study!r} exists already in {store.url}: go on with `servetune resume {spec.study}`, "
                f"or start another with `servetune start {file} --new-name NAME`"
            )
        else:
            # what is wrong with a setting, a scenario's file, a flag or the node is said before anything is written
            with at_node(spec) as node:
                engine, facts = open_engine(spec), known_facts(spec, node)
                read_installation(spec, node, engine, facts)
                space, _ = fitted(spec, engine, facts)
                if nothing := tally_of(space, engine, facts, SAMPLED, spec.seed).nothing_launched(space.fixed):
                    console().print(f"WARNING: {nothing}", markup=False, soft_wrap=True)
                check_before_start(spec, node, force, console())
            store.create_study(spec, file.read_text(encoding="utf-8"))
        sit(spec, store)
