# One command a task. Everything runs in .venv, made from the hashed locks in requirements/.
SHELL := /bin/bash
PY := .venv/bin/python
BIN := .venv/bin
PYTHON ?= 3.11
# Where this is set, each of the thousands of processes of a test run compiles every module it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv lock format check test test-python test-at test-docs nightly test-lab integration deploy scenarios reached mutations promises kinds situations lab-up lab-down pages screenshots bench reference docs wheel compiled release-check clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/.done: requirements/dev.txt
	uv venv --quiet --allow-existing --python $(PYTHON) .venv
	uv pip sync --quiet --python $(PY) --require-hashes requirements/dev.txt
	uv pip install --quiet --python $(PY) --no-deps --editable .
	@touch $@

venv: .venv/.done  ## make .venv from the locks

lock:  ## write the hashed locks anew from pyproject.toml (make lock UPGRADE=--upgrade for newer versions)
	uv pip compile --quiet $(UPGRADE) --universal --generate-hashes --all-extras pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url -c requirements/runtime.txt pyproject.toml -o requirements/container.txt
	uv pip compile --quiet $(UPGRADE) --universal --generate-hashes --all-extras --group dev pyproject.toml -o requirements/dev.txt
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url -c requirements/dev.txt --group docs -o requirements/docs.txt
	uv pip compile --quiet $(UPGRADE) --python-version 3.12 --generate-hashes --no-emit-index-url requirements/focus.in -o requirements/focus.txt
	uv pip compile --quiet $(UPGRADE) --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements/release.in -o requirements/release.txt

format: venv  ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: venv  ## formatting, lint (Lua too), types, import rules, dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	@which luacheck > /dev/null || { echo "check needs luacheck; hint: apt-get install lua-check"; exit 1; }
	luacheck --quiet src/fairway/engines/slurm/policy/job_submit.lua

test: venv  ## unit and contract tests, no real engine needed
	$(PY) -m pytest tests/unit tests/contract tests/scenarios/test_parts.py -m "not slurm and not kubernetes and not lab" -n 3

test-python: ## the tests of `make test` on another Python, as PYTHON=3.13, in a venv of their own
	uv venv --quiet --allow-existing --python $(PYTHON) build/python-$(PYTHON)
	uv pip sync --quiet --python build/python-$(PYTHON)/bin/python --require-hashes requirements/dev.txt
	uv pip install --quiet --python build/python-$(PYTHON)/bin/python --no-deps --editable .
	build/python-$(PYTHON)/bin/python -m pytest tests/unit tests/contract -m "not slurm and not kubernetes and not lab" -n 3

test-at: venv  ## tests at another time, as AT="2026-12-01 00:02": no test may need the hour or the month it runs in
	@which faketime > /dev/null || { echo "test-at needs faketime; hint: apt-get install faketime"; exit 1; }
	off=$$(($$(date -ud "$(AT)" +%s) - $$(date +%s))) && \
	for tests in $(if $(TESTS),"$(TESTS)","tests/unit tests/contract" tests/pages); do \
	  faketime -m -f "$$(printf %+d $$off)" \
	    $(PY) -m pytest $$tests -m "not slurm and not kubernetes and not lab" -n 2 || exit 1; \
	done  # pages apart: a browser's driver leaves its event loop running, and others could not start theirs

lab-up: venv  ## a real Slurm of each version, a real Kubernetes + Kueue with a real node, PostgreSQL, Prometheus
	$(PY) -m lab up slurm --name slurm-24 --version 24.11 --spot-nodes 2
	$(PY) -m lab up slurm --name slurm-26 --version 26.05 --spot-nodes 2
	$(PY) -m lab up kubernetes --name kubernetes --real-nodes 1 --spot-nodes 2 --with jobset,lws,trainer,kuberay
	$(PY) -m lab up postgres --name postgres
	$(PY) -m lab up prometheus --name prometheus
	$(PY) -m lab status

lab-down: venv  ## end everything the lab started
	$(PY) -m lab down --all

# What `make test` (the virtual engine) and .ci/wheel (server and demo) run is left out.
integration: venv  ## tests against the engines that `make lab-up` started
	$(PY) -m pytest tests/contract tests/integration tests/docs/test_lab_pages.py -n 4 \
	  -k "not (contract and virtual)" --ignore tests/integration/server/test_demo.py --ignore tests/integration/server/test_server.py

test-lab: venv  ## the lab's own tests: they start and end instances of their own
	$(PY) -m pytest tests/lab -m "lab" -n 2

deploy: venv  ## units, image, rules, dashboards; the chart on a real cluster of its own: install, kill, upgrade, roll back
	$(PY) -m pytest tests/deploy -n 0

scenarios: venv  ## what every engine must keep, on virtual, Slurm 24.11, Slurm 26.05 and Kubernetes (needs lab-up)
	rm -f build/promises.json
	FAIRWAY_REQUIRE_LAB=1 $(PY) -m pytest tests/scenarios/test_promises.py -n 4

reached: venv  ## does what `make scenarios` found suffice, engine by engine?
	$(PY) -m pytest tests/scenarios/test_reached.py

mutations: venv  ## plant deliberate faults in the translations; some scenario must catch each (needs lab-up, minutes)
	$(PY) -m tests.scenarios.mutations virtual slurm-24 kubernetes

promises: venv  ## write docs/promises.md from what `make scenarios` found
	$(PY) -m tests.scenarios.table

kinds: venv  ## try every kind of workload and write docs/engines/kinds.md (needs a lab with all operators)
	FAIRWAY_TESTS=nightly $(PY) -m pytest tests/kinds/test_kinds_kubernetes.py
	$(PY) -m tests.kinds.table

situations: venv  ## set up every situation in which a job waits and write docs/engines/situations.md (needs lab-up)
	FAIRWAY_TESTS=nightly FAIRWAY_REQUIRE_LAB=1 $(PY) -m pytest tests/situations -n 3
	$(PY) -m tests.situations.table

test-docs: venv  ## every command and every YAML block of the docs is tried
	$(PY) -m pytest tests/docs -m "not slurm and not kubernetes" -n 2

nightly:  ## everything: CI's stages at full size, scale, hundreds of kills, mutations, other Pythons, other dates
	python3 -m ci --nightly

pages: venv  ## every page in a real browser (Debian's chromium), over a demo of its own
	$(PY) -m pytest tests/pages -n 2

screenshots: venv  ## every page of a demo on three screens, light and dark: build/screenshots, and docs/pictures
	$(PY) -m tests.pages.screenshots --docs

bench: venv  ## the small size of every benchmark; build/bench.jsonl keeps the figures
	$(PY) -m bench all --size small

reference: venv  ## write docs/reference and the schema anew from the code
	$(PY) -m docs.reference.generate

build/docs-venv/.done: requirements/docs.txt
	@which uv > /dev/null || { echo "make docs needs uv; hint: pipx install uv, or see https://docs.astral.sh/uv/"; exit 1; }
	uv venv --quiet --clear --python $(PYTHON) build/docs-venv
	uv pip sync --quiet --python build/docs-venv/bin/python --require-hashes requirements/docs.txt
	@touch $@

docs: build/docs-venv/.done  ## build the docs site into build/site, in an environment of its own (needs uv)
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

wheel: venv  ## build the wheel into dist/
	uv build --quiet --wheel --out-dir dist

compiled: venv  ## build the optional compiled wheel, test it, and compare it with the pure one
	$(PY) -m ci.compiled

release-check: venv  ## build sdist and wheel, check them, install each without an index, run a job in its demo
	$(PY) -m ci.release_check

clean:  ## remove what can be made again
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
