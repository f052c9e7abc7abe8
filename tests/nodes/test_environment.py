from __future__ import annotations

import pytest

from servetune.core.errors import SpecError
from servetune.core.node import EnvRef, LaunchSpec
from servetune.nodes._environment import inherited, resolved

SHELL = {"PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/cuda/lib64", "CUDA_HOME": "/cuda", "NCCL_DEBUG": "INFO"}


def test_what_a_shell_would_give_is_passed_on():
    assert inherited(SHELL) == SHELL


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PGPASSWORD", "github_token", "X_SECRET"],
)
def test_secrets_that_the_study_does_not_name_are_kept_back(name):
    assert inherited({**SHELL, name: "s3cret"}) == SHELL


def test_an_address_with_a_password_is_kept_back_unless_it_is_a_proxy():
    address = "http://me:s3cret@host:3128/"
    assert inherited({"DATABASE_URL": address, "https_proxy": address, "HF_ENDPOINT": "https://host/a@b"}) == {
        "https_proxy": address,
        "HF_ENDPOINT": "https://host/a@b",
    }


@pytest.mark.parametrize("name", ["HF_HOME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "SGLANG_LOG_LEVEL", "http_proxy"])
def test_names_that_only_resemble_secrets_are_passed_on(name):
    assert inherited({name: "1"}) == {name: "1"}


def test_markers_of_an_outer_tuner_are_not_passed_on():
    assert inherited({**SHELL, "SERVETUNE_STUDY": "outer", "SERVETUNE_TRIAL": "1"}) == SHELL


def test_a_referenced_secret_is_given_under_the_name_that_the_spec_says():
    spec = LaunchSpec(argv=("x", EnvRef(from_env="MY_KEY")), env={"HF_TOKEN": EnvRef(from_env="MY_TOKEN")}, port=1)
    argv, environment, secrets = resolved(spec, {**SHELL, "MY_KEY": "k", "MY_TOKEN": "t"})
    assert argv == ["x", "k"]
    assert environment["HF_TOKEN"] == "t"
    assert {"MY_KEY", "MY_TOKEN"}.isdisjoint(environment)
    assert secrets == {"MY_KEY": "k", "MY_TOKEN": "t"}


def test_the_spec_wins_over_the_shell():
    spec = LaunchSpec(argv=("x",), env={"NCCL_DEBUG": "WARN", "SPT_NOENV": ""}, port=1)
    _, environment, _ = resolved(spec, SHELL)
    assert environment == {**SHELL, "NCCL_DEBUG": "WARN", "SPT_NOENV": ""}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LaunchSpec(argv=(), port=1), "launch command is empty"),
        (LaunchSpec(argv=("",), port=1), "launch command is empty"),
        (LaunchSpec(argv=("x", "a\0b"), port=1), "NUL"),
        (LaunchSpec(argv=("x",), env={"A=B": "1"}, port=1), "'A=B'"),
        (LaunchSpec(argv=("x",), env={"A": EnvRef(from_env="EMPTY")}, port=1), "EMPTY is empty"),
        (LaunchSpec(argv=(EnvRef(from_env="GONE"),), port=1), r"GONE is not set.*export GONE="),
    ],
)
def test_what_cannot_be_started_is_said(spec, message):
    with pytest.raises(SpecError, match=message):
        resolved(spec, {"EMPTY": ""})
