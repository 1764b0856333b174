# Everything a person runs. Needs only Python 3.11 to 3.13 and make; `make setup` brings the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PACKAGES := judgment-weights judgment-engine judgevet-stdio contract-runner a8-http
PROJECTS := $(wildcard packages/*/pyproject.toml)
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" $(foreach p,$(PACKAGES),--no-emit-package $(p))

.PHONY: help setup lint format test test-all-pythons test-fresh demo contracts conformance bench-durability bench-http bench-hosted bench-embedded bench-abstention bench-recall bench-filter peer dist lock clean

help: ## What each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(VENV)/.ready ## Build .venv from the hashed locks (does nothing when it is current)

$(VENV)/.ready: requirements/uv.txt requirements/dev.txt $(PROJECTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/python packages/judgment-weights/hatch_build.py
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(foreach p,$(PACKAGES),-e packages/$(p))
	touch $@

demo: setup ## Ask real judgment questions through real MCP clients, with no key and no network
	$(BIN)/python -m judgevet_stdio.demo
	$(BIN)/python -m a8_http.demo

contracts: setup ## Rewrite the pins of contracts/ from the servers' definitions
	$(BIN)/python -m a8_http.pins contracts/a8
	$(BIN)/contract-run judgevet --stdio $(BIN)/judgevet-mcp --update

conformance: setup ## The official MCP suite, the contract and five other clients against both servers
	$(BIN)/python tests/conformance/run.py

bench-http: setup ## a8-http under load, and what one judge costs
	$(BIN)/python tests/bench/http_load.py

bench-hosted: setup ## Sixteen callers against a slow System One service, ours and the peer's
	$(BIN)/python tests/bench/hosted.py

peer: setup ## Drive the published judgevet 0.23.0 through our cases: the differences are exactly the listed ones
	$(BIN)/python tests/peer/compare.py

bench-durability: setup ## kill -9 of a teaching server, 20 times in 2,000 teaches each, on SQLite and PostgreSQL
	$(BIN)/python tests/bench/durability.py

bench-abstention: setup ## What the certificates promise, on eleven public criteria (QUICK=1: two draws)
	OMP_NUM_THREADS=1 $(BIN)/python tests/bench/abstention.py $(if $(QUICK),--quick)

bench-recall: setup ## Recall among 100,000 taught examples of one organization
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/bench/recall.py

bench-filter: setup ## What the embedded harm filter stops at each threshold
	$(BIN)/python tests/bench/filter.py

bench-embedded: setup ## The embedded provider on public sets: accuracy, calibration, CPU (downloads them once, 440 MB)
	$(BIN)/python tests/bench/embedded.py

lint: setup ## ruff, pyright and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: setup ## Rewrite the files as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup ## The whole suite
	$(BIN)/python -m pytest -n 2

test-fresh: setup ## The fast part of the suite on today's newest releases, resolved afresh into .venv-fresh
	$(PYTHON) -m venv --clear .venv-fresh
	$(UV) pip install --quiet --python .venv-fresh/bin/python --upgrade -r requirements/dev.in $(foreach p,$(PACKAGES),-e packages/$(p))
	.venv-fresh/bin/python -m pytest -n 2 -m "not slow"

test-all-pythons: setup ## The suite on every interpreter from 3.11 to 3.13 that is found
	$(BIN)/python tests/all_pythons.py

dist: setup ## Wheels of every package into dist/
	rm -rf dist
	for package in $(PACKAGES); do $(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist packages/$$package || exit 1; done
	ls dist

lock: $(BIN)/python ## Resolve the dependencies again and rewrite requirements/*.txt
	cd requirements && ../$(BIN)/$(LOCK) uv.in -o uv.txt
	$(BIN)/$(LOCK) $(PROJECTS) requirements/dev.in -o requirements/dev.txt

clean: ## Remove what the targets made
	rm -rf $(VENV) .venv-* dist bench/out .pytest_cache .ruff_cache .hypothesis
