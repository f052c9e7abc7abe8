from __future__ import annotations

from pathlib import Path

import pytest

from contracts.node_contract import NodeContract
from servetune.core.node import Node
from servetune.nodes import local


class TestLocalNode(NodeContract):
    @pytest.fixture
    def node(self) -> Node:
        return local.create(local.Settings(), Path.cwd())

    @pytest.fixture
    def node_source(self) -> str:
        return "from servetune.nodes import local; node = local.create(local.Settings(), Path('/'))"
