"""Rebuild the shipped flag table of SGLang from unpacked releases.

    python tools/extract_sglang_flags.py DIR [DIR …]

Each DIR holds one release's `sglang/` package, as `pip download --no-deps sglang==X` and unzipping the wheel give it
(outside the repository). Nothing of it is imported. The table holds, per flag, its changes: `[[version, description or
null], …]`, so that a diff of the file shows what a new release brings.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from servetune.engines.sglang import _source  # noqa: E402

TABLE = ROOT / "src/servetune/engines/sglang/tables/flags.json"


def main() -> None:
    """Read every release, merge them into change lists, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dirs", nargs="+", type=Path, metavar="DIR")
    releases = sorted((_read(directory) for directory in parser.parse_args().dirs), key=lambda release: release[0])
    versions = [version for _, version, _, _ in releases]
    flags = _changes([(version, flags) for _, version, flags, _ in releases])
    environment = _changes([(version, dict.fromkeys(names, 1)) for _, version, _, names in releases])
    TABLE.write_text(_text(versions, flags, environment), encoding="utf-8")
    print(f"{TABLE}: {len(versions)} releases, {len(flags)} flags, {len(environment)} environment variables")


def _read(directory: Path) -> tuple[tuple[int, ...], str, dict[str, Any], list[str]]:
    version = _source.read_version(directory)
    flags = {
        name: {k: v for k, v in flag.items() if k != "name"} for name, flag in _source.read_flags(directory).items()
    }
    return tuple(map(int, version.split("."))), version, flags, _source.read_environment(directory)


def _changes(states: list[tuple[str, dict[str, Any]]]) -> dict[str, list[list[Any]]]:
    """Name → `[[version, state or null], …]`, one entry per change; absent before its first entry."""
    found: dict[str, list[list[Any]]] = {}
    for name in sorted({name for _, state in states for name in state}):
        last: Any = None
        for version, state in states:
            now = state.get(name)
            if now != last:
                found.setdefault(name, []).append([version, now])
            last = now
    return found


def _text(versions: list[str], flags: dict[str, Any], environment: dict[str, Any]) -> str:
    """JSON with one flag per line."""

    def lines(entries: dict[str, Any]) -> str:
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())

    seen = {name: [version for version, _ in entry] for name, entry in environment.items()}
    head = f'{{"versions": {json.dumps(versions)},\n "flags": {{\n'
    return f'{head}{lines(flags)}\n }},\n "environment": {{\n{lines(seen)}\n }}}}\n'


if __name__ == "__main__":
    main()
