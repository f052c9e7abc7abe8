"""The flag that a reference ran without: "without --enable-dp-attention", "no speculation", "without the flag"."""

from __future__ import annotations

import re

from servetune.engines.sglang._log_args import flag_name
from servetune.engines.sglang._log_flags import KERNELS, PATHS, VALUED, LaunchFlags, kept, value_in
from servetune.engines.sglang._log_run import Run

#: As typed.
_TYPED = re.compile(r"(?i)\b(?:without|w/o|no) --([a-z][a-z0-9-]+)")
#: In words, of a run that is compared with.
_COMPARED = re.compile(
    r"(?i)\b(?:reference|baseline|expected|previous|known[ -]good|last good|published|unmodified|stock|same \w+"
    r"|not reached)\b"
)
_WORDS = re.compile(
    r"(?i)\b(?:without|w/o|no|minus)\s+(?:the |any )?(?P<behind>\w[\w -]{1,40})"
    r"|(?P<before>\b[\w -]{2,40}?) (?:off|disabled)\b"
)
_THE_FLAG = re.compile(
    r"(?i)\b(?:without|w/o|minus) (?:the|this|that) (?:\w+ )?(?:flag|option|switch|change|setting)\b"
)
#: What an option is called.
_CALLED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?i)\b(?:{words})"), flag)
    for words, flag in (
        (r"speculat|spec(?:ulative)? dec|draft|eagle|nextn|mtp\b", "speculative-algorithm"),
        (r"(?:all-?reduce )?fusion", "enable-flashinfer-allreduce-fusion"),
        (r"torch symm", "enable-torch-symm-mem"),
        (r"symm", "enable-symm-mem"),
        (r"(?:torch[. -]?)?compil", "enable-torch-compile"),
        (r"dp[ -]att|data[ -]parallel att", "enable-dp-attention"),
        (r"eplb|(?:expert )?rebalanc|expert load", "enable-eplb"),
        (r"ep\b|expert[ -]parallel", "ep-size"),
        (r"two[ -]batch|tbo\b", "enable-two-batch-overlap"),
        (r"single[ -]batch|sbo\b", "enable-single-batch-overlap"),
        (r"piecewise", "enable-piecewise-cuda-graph"),
        (r"fp[48](?: \w+)? kv|kv[ -](?:cache )?quant|(?:quantized|fp[48]) (?:kv|cache)", "kv-cache-dtype"),
        (r"quantiz", "quantization"),
        (r"hicache|hierarchical", "enable-hierarchical-cache"),
        (r"mixed[ -]chunk", "enable-mixed-chunk"),
        (r"mscclpp|msccl\+\+", "enable-mscclpp"),
        (r"(?:deepep|a2a|all-to-all)\b", "moe-a2a-backend"),
    )
)


def left_out_of_reference(text: str, run: Run, flags: LaunchFlags) -> list[str]:
    """Flags that are on here and were not in a run beside which a text, or a score of this log, stands."""
    lines = [*text.split("\n"), *(score.text for score in run.scores if _COMPARED.search(score.text))]
    found: list[str] = []
    for line in lines:
        typed = [(name, flag_name(name)) for name in _TYPED.findall(line)]
        found += [flag for name, flag in typed if flags.on(flag) or not flags.known]
        if _COMPARED.search(line):
            found += [flag for flag in _called(line) if flags.on(flag)]
            found += _the_only_one(flags) if _THE_FLAG.search(line) else []
    return list(dict.fromkeys(found))


def named_before_reference(text: str, run: Run, flags: LaunchFlags) -> list[str]:
    """Choices whose value a line names for this run, before what it compares with: "MegaMoE: 42 %, reference …"."""
    lines = dict.fromkeys([*text.split("\n"), *(score.text for score in run.scores)])
    ours = [line[: match.start()] for line in lines if (match := _COMPARED.search(line))]
    return [flag for flag in VALUED if any(value_in(flags.value(flag), part) for part in ours)]


def _called(line: str) -> list[str]:
    """What is said in words to be left out."""
    phrases = [match["behind"] or match["before"] for match in _WORDS.finditer(line)]
    return [flag for phrase in phrases for words, flag in _CALLED if words.search(phrase)]


def _the_only_one(flags: LaunchFlags) -> list[str]:
    """The option that chooses how it computes, where only one was asked for."""
    asked = LaunchFlags(flags.asked or flags.effective)
    choosing = kept((*PATHS, *KERNELS), asked)
    switches = [flag for flag in choosing if flag.startswith("enable-")]
    return next((found for found in (choosing, switches, asked.switches()) if len(found) == 1), [])
