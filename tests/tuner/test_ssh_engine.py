"""A study of an engine that is installed on the node (a stand-in that starts the simulated server), not a rehearsal."""

from __future__ import annotations

import contextlib
import shutil
import sys

import engine_package
import pytest
import yaml
from nodes.sshd import needs_sshd, running
from tuner.ssh_lab import SCENARIO

from servetune.core.errors import NodeUnusableError
from servetune.core.trial import TrialState

pytestmark = [needs_sshd, pytest.mark.sshd]

SIMULATED = f"-m servetune.simulation.server --scenario {SCENARIO} --time-scale 2000 -- python"
DMESG = "[12.3] NVRM: Xid (PCI:0000:9a:00): 79, pid=1, GPU has fallen off the bus"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd"), gpus=True) as server:
        dmesg = server.folder / "programs" / "dmesg"
        dmesg.write_text(f"#!/bin/sh\necho '{DMESG}'\n")
        dmesg.chmod(0o755)
        yield server


@pytest.fixture
def study(lab, tmp_path):
    """A study file; the folder with the engine's package."""
    package = tmp_path / "packages"
    shutil.copytree(engine_package.PACKAGE, package)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *sglang.launch_server*) exec {sys.executable} {SIMULATED} "$@";; esac\n'
        f"PYTHONPATH='{package}' exec {sys.executable} \"$@\"\n"
    )
    python.chmod(0o755)
    node = {**lab.node(), "rehearse": None}
    engine = {"name": "sglang", "model": "/models/kimi-k2.5-int4", "python": str(python)}
    return lab.write(node, engine=engine, fixed={"tp-size": 2}), package


def sit_on(lab, file, trials):
    """Go on with a larger budget."""
    study = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**study, "budget": {"trials": trials}}))
    return lab.sit(file)


@contextlib.contextmanager
def instead(old, new, *files):
    """Another version in these files, for a while."""
    texts = {file: file.read_text() for file in files}
    try:
        for file, text in texts.items():
            assert old in text
            file.write_text(text.replace(old, new))
        yield
    finally:
        for file, text in texts.items():
            file.write_text(text)


def test_an_installation_is_kept_with_a_run_and_another_one_refused(lab, sshd, study):
    """Also the remedy: once the old one is back, the study goes on."""
    file, package = study
    happening = lab.sit(file)
    [first] = lab.trials(file)
    assert first.state is TrialState.COMPLETE, happening.notes
    [run] = first.runs
    assert (run.facts.driver_version, run.facts.engine_version) == ("580.159.04", "0.5.9")
    assert run.facts.gpu_names == ("NVIDIA H200", "NVIDIA H200")
    for moment in ("start", "end"):
        told = run.log_facts["node"][moment]
        assert (told["engine_version"], told["xid"]) == ("0.5.9", [DMESG])
        assert told["gpus"]["0"]["sm_clock_mhz"] == 1980
    driver = (sshd.answers / "query", sshd.answers / "conditions")
    with instead("580.159.04", "590.10.01", *driver), pytest.raises(NodeUnusableError, match=r"driver .* to 590\.10"):
        sit_on(lab, file, 2)
    engine = (package / "sglang-0.5.9.dist-info" / "METADATA", package / "sglang" / "version.py")
    with instead("0.5.9", "0.5.10", *engine), pytest.raises(NodeUnusableError, match=r"engine .* 0\.5\.9 to 0\.5\.10"):
        sit_on(lab, file, 2)
    assert len([trial for trial in lab.trials(file) if trial.runs]) == 1
    sit_on(lab, file, 2)
    assert len([trial for trial in lab.trials(file) if trial.runs]) == 2
