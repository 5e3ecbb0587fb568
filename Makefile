# klamm's commands. Each builds the virtual environment on first need, from the locked requirement files: `make run` with
# what klamm needs to run, the others with all that checks and tests need as well.
# Many tests wait more than they work: five workers have room on two cores.
PYTEST_WORKERS ?= 5
PORT ?= 9092
SEEDS ?= 500
ROUNDS ?= 2000
# Rooms of tests that `make interop` runs whole; of all others it runs what is marked `long`.
INTEROP := tests/interop tests/clients tests/recipes tests/faults tests/durability
BIN := .venv/bin
PYTHON := $(BIN)/python
# pytest rewrites the asserts of 1,500 modules. Where Python may not keep its bytecode, each worker does that again, which
# takes three quarters of the time of a collection.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv run test check bytecode interop simulate planted mutants beside hostile bench format docs pictures lock release system clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/.dev  ## build or renew .venv from requirements/dev.txt

.venv/.base: requirements/base.txt pyproject.toml scripts/make-venv bin/klamm-python
	@scripts/make-venv base
	@touch $@

.venv/.dev: requirements/dev.txt pyproject.toml scripts/make-venv bin/klamm-python
	@scripts/make-venv dev
	@touch .venv/.base $@

run: .venv/.base  ## three brokers with embedded ZooKeeper on ports from $(PORT), data in ./klamm-data
	@exec $(BIN)/klamm up --port $(PORT)

check: venv  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A clone has no bytecode yet. One process makes it beside the check, which leaves a core idle, so that not every worker
# rewrites all asserts.
bytecode: venv
	@$(PYTHON) -m pytest --collect-only -qq >/dev/null 2>&1 &

test: venv system bytecode check  ## everything: check, then all tests
	$(PYTHON) -m pytest -n $(PYTEST_WORKERS) --dist loadfile --durations 15

interop: venv system  ## all tests that talk to real Kafka, ZooKeeper and clients, the long ones too
	$(PYTHON) -m pytest -n $(PYTEST_WORKERS) --dist loadfile --durations 15 -m "long or not long" $(INTEROP)
	$(PYTHON) -m pytest -n $(PYTEST_WORKERS) --dist loadfile --durations 15 -m long $(INTEROP:%=--ignore=%)

simulate: venv  ## random faults on simulated clusters, SEEDS=500 of them
	$(PYTHON) -m klamm.simulation --seeds $(SEEDS) --jobs $$(getconf _NPROCESSORS_ONLN)

planted: venv  ## faults planted in builds of the simulator, each until a seed finds it: the table of docs/simulation.md
	PYTHONPATH=.:tests $(PYTHON) -m support.planted_faults --jobs $$(nproc)

mutants: venv  ## guards of klamm removed or turned round one at a time, each until a test or a seed finds it
	PYTHONPATH=.:tests $(PYTHON) -m support.mutants

beside: venv system  ## scenarios under both controllers, then requests to both brokers, beside Kafka 2.8.2: SEEDS=500 of each
	PYTHONPATH=.:tests $(PYTHON) -m support.both_controllers --seeds $(SEEDS)
	PYTHONPATH=.:tests $(PYTHON) -m support.requests_beside --seeds $(SEEDS)

hostile: venv  ## bytes that nobody who means well writes: clients', logs', znodes'; ROUNDS=2000 of each kind
	KLAMM_HOSTILE_ROUNDS=$(ROUNDS) $(PYTHON) -m pytest -q --timeout 7200 -k hostile \
		tests/storage tests/broker tests/znodes

bench: venv system  ## klamm and Apache Kafka 2.8.2 side by side, as ratios
	$(PYTHON) bench/run.py
	$(PYTHON) bench/run.py --brokers 3
	$(PYTHON) bench/controller.py
	$(PYTHON) bench/storage.py
	$(PYTHON) bench/cleaner.py
	$(PYTHON) bench/groups.py
	$(PYTHON) bench/transactions.py
	$(PYTHON) bench/steps.py
	$(PYTHON) bench/metrics.py
	$(PYTHON) bench/verify.py --size-mb 1000
	$(PYTHON) bench/merge.py
	$(PYTHON) bench/reassignment.py
	$(PYTHON) bench/plans.py
	$(PYTHON) bench/cockpit.py
	$(PYTHON) bench/spark.py
	$(PYTHON) bench/formats.py

format: venv  ## apply the formatter and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: venv  ## write the generated parts of docs/ again
	$(PYTHON) -m klamm.broker.start.protocol_table > docs/protocol.md
	$(PYTHON) -m klamm.config.unsupported_table docs/unsupported.md
	PYTHONPATH=.:tests $(PYTHON) -m support.recipe_page docs/recipes.md
	PYTHONPATH=.:tests $(PYTHON) -m support.metrics.page docs/metrics.md

pictures: venv system  ## take the pictures of the cockpit in docs/pictures again
	PYTHONPATH=.:tests $(PYTHON) -m support.pictures docs/pictures

lock: venv  ## write requirements/*.txt again from pyproject.toml
	scripts/lock

release: venv  ## build dist/, check it, and say what to push; pushes nothing
	@scripts/release

# Java, Maven, kcat, Prometheus and Chromium for the tests that use them: brought where the system allows it, otherwise
# said loudly.
system:
	@scripts/system-packages

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
