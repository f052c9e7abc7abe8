# Set-up and the main jobs. Everything is installed into .venv from requirements.lock; nothing is needed but Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: fit-h200 setup quickstart test check format lock sglang-cpu clean bench-load bench-search bench-search-ablations

setup: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "servetune needs Python 3.11 or newer, found " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the locked packages into .venv (about a minute) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The main job on the embedded default: a study on the simulated node, then the exported command.
quickstart: setup
	@$(BIN)/servetune start --or-resume studies/quickstart.yaml
	@$(BIN)/servetune report quickstart
	@$(BIN)/servetune export quickstart --format shell

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Needed after a change of the dependencies in pyproject.toml.
lock: setup
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --allow-unsafe --extra dev --generate-hashes --strip-extras --no-emit-options \
		--output-file requirements.lock pyproject.toml

# A real SGLang server for the CPU, in an environment of its own outside the clone.
sglang-cpu:
	tools/sglang_cpu/install.sh

# What a streamed event costs servetune's load generator, aiohttp, and three well-known load generators, side by side.
bench-load: setup
	PYTHON="$(PYTHON)" benchmarks/load/setup.sh
	$(BIN)/python benchmarks/load/compare.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Search strategies side by side on simulated nodes, in virtual time. Resumable; an hour or two of one core from scratch.
PEERS := random tpe-fail tpe-pruned scoot slo-guard one-at-a-time
bench-search: setup
	$(BIN)/python benchmarks/search/run.py --set handed,judging --seeds 0,1 adaptive $(PEERS)

# What each idea of the adaptive sampler is worth: each removed in turn.
bench-search-ablations: setup
	$(BIN)/python benchmarks/search/run.py --set tuning --count 8 --seeds 0 adaptive adaptive-no-blame adaptive-no-memory \
		adaptive-full-levels adaptive-no-learned-amplitudes adaptive-no-joint adaptive-no-outliers

# The tables of the recorded H200 studies, and the scenario fitted to them; run after a study went on. Copy the printed
# table of errors into docs/simulated-node.md.
H200 := tests/recordings/h200/study
H200_STUDIES := h200-moe h200-streaming
fit-h200: setup
	@set -e; tmp=$$(mktemp -d); trap 'rm -r $$tmp' EXIT; xz -dkc $(H200)/studies.db.xz > $$tmp/studies.db; \
	for study in $(H200_STUDIES); do \
		$(BIN)/servetune export $$study --storage sqlite:///$$tmp/studies.db --format table -o $(H200)/$$study.jsonl; done; \
	$(BIN)/python benchmarks/fit/run.py $(H200_STUDIES:%=$(H200)/%.jsonl) --name moe4b-bf16-1x-h200 \
		--architecture Qwen3MoeForCausalLM -o src/servetune/simulation/scenarios/moe4b-bf16-1x-h200.yaml
