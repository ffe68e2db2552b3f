# `make run` runs a flow; `make test` runs all checks and tests. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers
PREFECT := .venv-prefect
FUZZ   := .venv-fuzz
AGENTS := .agents
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore

SEEDS ?= 500
KILLS ?= 100
ZOMBIES ?= 20
CUTS ?= 200
RESTARTS ?= 10
N ?= 50

.PHONY: help run run-agents tour test test-agents lint fuzz simulate campaign bench docs lock clean

help:
	@echo "make run     set up .venv and run a flow: a fan-out, a retry, checks, a skipped branch"
	@echo "make run-agents   play a flow with a coding agent (a script) and people: question, budget, review, approval, merge"
	@echo "make tour    set up .venv and show the shipped machines"
	@echo "make test    set up .venv and run all checks and tests"
	@echo "make test-agents   install real coding agents in .agents (1.9 GB) and try them, offline; needs Node.js 20 and npm"
	@echo "make lint    run only the static checks: ruff, mypy, import-linter"
	@echo "make fuzz N=50   send up to 50 cases to each route of a server, twice on each database"
	@echo "make simulate SEEDS=500   run 500 seeds of the simulation, on all cores"
	@echo "make campaign KILLS=100 ZOMBIES=20 CUTS=200 RESTARTS=10   break real workers, connections and servers"
	@echo "make bench   measure kernel, engine, flows and server against peers and floors, and update docs/benchmarks.md"
	@echo "make docs    regenerate the reference and the pictures of the shipped machines"
	@echo "make lock    regenerate requirements/*.txt from pyproject.toml"
	@echo "make clean   remove the environments and all build files"

run: $(VENV)/run.stamp
	@$(BIN)/python examples/tour.py flow

run-agents: $(VENV)/mcp.stamp
	@$(BIN)/python examples/agents/play.py

tour: $(VENV)/run.stamp
	@$(BIN)/python examples/tour.py machines

test: lint $(FUZZ)/fuzz.stamp
	@$(BIN)/python -m compileall -q src tests  # as an installed program is, whatever PYTHONDONTWRITEBYTECODE says
	@$(BIN)/python -m pytest -n auto --dist worksteal; code=$$?; [ $$code -eq 1 ] || exit $$code; \
	echo "What failed among other tests runs again alone; what fails again has failed."; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-agents: $(VENV)/test.stamp $(AGENTS)/npm.stamp $(AGENTS)/aider/aider.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/agents

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fuzz: $(VENV)/test.stamp $(FUZZ)/fuzz.stamp
	$(BIN)/python -m tests.system.server.fuzz --cases $(N)

simulate: $(VENV)/test.stamp
	$(BIN)/python -m tests.system.simulation --seeds $(SEEDS)

campaign: $(VENV)/test.stamp
	$(BIN)/python -m tests.system.campaign --kills $(KILLS) --zombies $(ZOMBIES) --cuts $(CUTS) --restarts $(RESTARTS)

docs: $(VENV)/test.stamp
	$(BIN)/python docs/generate.py

bench: $(VENV)/bench.stamp $(PEERS)/peers.stamp $(PREFECT)/prefect.stamp
	$(BIN)/python bench/kernel.py --write docs/benchmarks.md
	$(BIN)/python bench/engine.py --peers $(PEERS)/bin/python --write docs/benchmarks.md
	$(BIN)/python bench/run.py --prefect $(PREFECT)/bin/python --write docs/benchmarks.md
	$(BIN)/python bench/server.py --prefect $(PREFECT)/bin/python --write docs/benchmarks.md

# The environments. A Python without ensurepip works too, if it has pip.
$(VENV)/venv.stamp $(PEERS)/venv.stamp $(PREFECT)/venv.stamp $(FUZZ)/venv.stamp $(AGENTS)/aider/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pointsman needs Python 3.11 or later. Choose one: make PYTHON=python3.12")'
	@echo "Setting up $(@D) …"
	@$(PYTHON) -m venv $(@D) 2>/dev/null || { rm -rf $(@D) && $(PYTHON) -m venv --without-pip $(@D) && $(PYTHON) -m pip --python $(@D)/bin/python install -q pip; }
	@touch $@

$(VENV)/run.stamp: requirements/run.txt pyproject.toml $(VENV)/venv.stamp
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/run.txt
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src  # as an installed program is: without bytecode, each start takes half as long again
	@touch $@

$(VENV)/mcp.stamp: requirements/mcp.txt $(VENV)/run.stamp
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/mcp.txt
	@touch $@

$(VENV)/test.stamp: requirements/test.txt $(VENV)/run.stamp
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/test.txt
	@touch $@

$(VENV)/bench.stamp: requirements/bench.txt $(VENV)/run.stamp
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/bench.txt
	@touch $@

$(PEERS)/peers.stamp: requirements/peers.txt $(PEERS)/venv.stamp
	@$(PEERS)/bin/python -m pip install -q --no-deps --require-hashes -r requirements/peers.txt
	@touch $@

$(PREFECT)/prefect.stamp: requirements/prefect.txt $(PREFECT)/venv.stamp
	@$(PREFECT)/bin/python -m pip install -q --require-hashes -r requirements/prefect.txt
	@touch $@

$(FUZZ)/fuzz.stamp: requirements/fuzz.txt $(FUZZ)/venv.stamp
	@$(FUZZ)/bin/python -m pip install -q --require-hashes -r requirements/fuzz.txt
	@touch $@

# `npm ci` would ask for programs of other platforms, which not every registry has. Only the scripts of two packages run: they link the
# program for this platform, which npm has installed beside them.
$(AGENTS)/npm.stamp: requirements/agents/package.json requirements/agents/package-lock.json
	@command -v npm >/dev/null || { echo "make test-agents needs Node.js 20 or later, with npm." >&2; exit 1; }
	@echo "Installing the coding agents of npm in $(@D) …"
	@mkdir -p $(@D)
	@cp requirements/agents/package.json requirements/agents/package-lock.json $(@D)
	@npm install --prefix $(@D) --silent --ignore-scripts --no-audit --no-fund
	@npm rebuild --prefix $(@D) --silent @anthropic-ai/claude-code opencode-ai
	@touch $@

$(AGENTS)/aider/aider.stamp: requirements/aider.txt $(AGENTS)/aider/venv.stamp
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13) and "aider needs Python 3.12 or older. Choose one: make PYTHON=python3.12")'
	@$(AGENTS)/aider/bin/python -m pip install -q --require-hashes -r requirements/aider.txt
	@touch $@

LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header
COMPILE = $(LOCK) pyproject.toml

lock: $(VENV)/venv.stamp
	@$(BIN)/python -m pip install -q uv
	$(COMPILE) --upgrade --group build -o requirements/run.txt
	$(COMPILE) --upgrade --group build --extra mcp -c requirements/run.txt -o requirements/mcp.txt
	$(COMPILE) --upgrade --group build --extra otel -c requirements/run.txt -o requirements/otel.txt
	$(COMPILE) --upgrade --group test -c requirements/run.txt -o requirements/test.txt
	$(COMPILE) --upgrade --group bench -c requirements/run.txt -o requirements/bench.txt
	$(LOCK) --upgrade --group peers -o requirements/peers.txt
	$(LOCK) --upgrade --group prefect -o requirements/prefect.txt
	$(LOCK) --upgrade --group fuzz -o requirements/fuzz.txt
	$(LOCK) --upgrade --group aider -o requirements/aider.txt
	npm install --prefix requirements/agents --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved

clean:
	rm -rf $(VENV) $(PEERS) $(PREFECT) $(FUZZ) $(AGENTS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
