"""The stated model of a simulated node, written a second time: from the text of the format, with nothing of ours.

Plain functions over the YAML document. Shares no code with `servetune.simulation`, so that the two can disagree.
"""

import math

#: Part of a launch that is over → seconds of the node, as the table of phases says.
PHASES = ("parse", "validate", "load", "kv_alloc", "graph_capture", "warmup")


def matches(when, flags):
    """A conjunction; each value one value or a list of alternatives. Absent switches are false."""

    def one(flag, wanted):
        alternatives = wanted if isinstance(wanted, list) else [wanted]
        value = flags.get(flag)
        if value is None and any(isinstance(a, bool) for a in alternatives):
            value = False
        return any(isinstance(a, bool) == isinstance(value, bool) and a == value for a in alternatives)

    return all(one(flag, wanted) for flag, wanted in when.items())


def configuration(document, launched):
    """The table's flags, overlaid; switches that the launch leaves out are off; what has no effect goes back."""
    table = document["flags"]
    flags = {flag: False if isinstance(value, bool) else value for flag, value in table.items()} | launched
    for entry in document.get("no_effect", []):
        if matches(entry["when"], flags):
            for flag in entry["when"]:
                flags.pop(flag, None)
                if flag in table:
                    flags[flag] = table[flag]
    return flags


def read(table, level, logarithmic=False):
    """A table at a level: linear in log concurrency (of logs, when asked), constant beyond its ends."""
    levels = sorted(table)
    if level <= levels[0] or level >= levels[-1]:
        return table[levels[0] if level <= levels[0] else levels[-1]]
    low = max(known for known in levels if known <= level)
    high = min(known for known in levels if known > level)
    share = math.log(level / low) / math.log(high / low)
    if logarithmic:
        return math.exp((1 - share) * math.log(table[low]) + share * math.log(table[high]))
    return (1 - share) * table[low] + share * table[high]


class Node:
    """One configuration on one node: its memory, its phases and its throughput."""

    def __init__(self, document, launched):
        self.sheet, self.flags = document, configuration(document, launched)
        gib = document["memory_gib"]
        extra = sum(entry["add"] for entry in gib.get("extra", []) if matches(entry["when"], self.flags))
        self.pre = gib["free_before_weights"]
        self.avail = self.pre - (gib["weights"] + extra)
        self.headroom = self.pre * (1 - self.flags["mem-fraction-static"])
        self.kv_gib = self.avail - self.headroom
        self.graphs = not self.flags.get("disable-cuda-graph")
        self.batch = self.flags["cuda-graph-max-bs"] if self.graphs else 0
        self.graph = gib["graph_base"] + gib["graph_per_batch_size"] * self.batch if self.graphs else 0
        chunk = gib["activation_per_1k_chunk"] * self.flags["chunked-prefill-size"] / 1024
        self.needed = self.graph + gib["activation"] + chunk

    def fault(self, phase, level=None):
        """The first stated failure of a phase that holds."""
        for entry in self.sheet.get("failures", []):
            loaded = level is not None and level >= entry.get("at_concurrency", 1)
            at = loaded if phase == "serving" else "at_concurrency" not in entry
            if entry["phase"] == phase and at and matches(entry["when"], self.flags):
                return entry["class"]
        return None

    def start(self):
        """Seconds at the end of the phase that fails, its name and class; or of the whole start."""
        took = self.sheet["startup_s"]
        capture = took["graph_base"] + took["graph_per_batch_size"] * math.ceil(self.batch / 8) if self.graphs else 0
        seconds = {"parse": 5, "validate": took["init"], "load": took["load_weights"], "kv_alloc": took["kv_pool"]}
        seconds |= {"graph_capture": capture, "warmup": took["warmup"]}
        memory_first = {
            "load": (None, "oom_weights" if self.avail < 0 else None),
            "kv_alloc": ("kv_budget" if self.kv_gib <= 0 else None, None),
            "graph_capture": ("oom_graph" if self.graphs and self.graph > self.headroom else None, None),
        }
        spent = 0
        for phase in PHASES:
            spent = seconds[phase] if phase in ("parse", "validate") else spent + seconds[phase]
            before, after = memory_first.get(phase, (None, None))
            stated = None if phase == "graph_capture" and not self.graphs else self.fault(phase)
            if found := before or stated or after:
                return spent, phase, found
        return spent, None, None

    def launch(self, levels):
        """Node seconds of a whole launch, its phase and class of failure, and what each level gives without noise."""
        spent, phase, slug = self.start()
        rates = []
        if slug is None:
            spent += 20
            if any(matches(entry["when"], self.flags) for entry in self.sheet.get("wrong_output", [])):
                phase, slug = "probe", "wrong_output"
        for level in levels if slug is None else ():
            memory = level >= 10 and self.needed > self.headroom
            slug = "oom_runtime" if memory else self.fault("serving", level)
            if slug is not None:
                phase, spent = "serving", spent + 20
                break
            rates.append(self.throughput(level))
            spent += max(30, min(180, 4 * level * self.sheet["output_tokens"] / rates[-1]))
        return spent + 15, phase, slug, rates

    def running(self, level):
        """Requests at once: as many as ask, as the KV pool holds, and as are allowed."""
        tokens = self.sheet["input_tokens"] + self.sheet["output_tokens"]
        held = self.kv_gib * self.sheet["kv_tokens_per_gib"] / tokens
        return min(level, held, self.flags.get("max-running-requests") or math.inf)

    def throughput(self, level):
        """Output tokens/s at a level."""
        table, running = self.sheet["throughput"], self.running(level)
        first = min(table)
        rate = table[first] * running / first if running < first else read(table, running, logarithmic=True)
        for entry in self.sheet.get("effects", []):
            if matches(entry["when"], self.flags):
                factor = entry["factor"]
                rate *= read(factor, level) if isinstance(factor, dict) else factor
        for curve in self.sheet.get("curves", []):
            octaves = abs(math.log2(self.flags[curve["flag"]] / curve["optimum"]))
            rate *= max(0.3, 1 - curve["penalty"] * octaves)
        return rate * (read(self.sheet["eager_factor"], level) if running > self.batch else 1)
