from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("contracts.node_contract")

from contracts.node_contract import NodeContract  # noqa: E402
from nodes.sshd import Sshd, needs_sshd, running  # noqa: E402

from servetune.core.node import Node  # noqa: E402
from servetune.nodes import ssh  # noqa: E402

pytestmark = [needs_sshd, pytest.mark.sshd]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


class TestSshNode(NodeContract):
    @pytest.fixture
    def node(self, sshd: Sshd) -> Node:
        node = ssh.create(ssh.Settings(**sshd.settings()), Path.cwd())
        yield node
        node.close()

    @pytest.fixture
    def node_source(self, sshd: Sshd) -> str:
        settings = repr(sshd.settings())
        return f"from servetune.nodes import ssh; node = ssh.create(ssh.Settings(**{settings}), Path('/'))"
