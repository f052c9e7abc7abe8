"""The README names every command, and every file that it and the repository offer can be read."""

import re
from pathlib import Path

import pytest

from servetune.cli import COMMANDS
from servetune.settings import load_space, load_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name):
    assert f"| `servetune {name}" in README


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_file_is_valid(path):
    assert load_study(path).study == path.stem


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_search_space_is_valid(path):
    assert load_space(path.stem, path.parent).parameters


def test_the_readmes_study_is_valid(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", README, re.DOTALL).group(1)
    (tmp_path / "study.yaml").write_text(text)
    assert load_study(tmp_path / "study.yaml").study == "kimi-k2.5"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
