# All that Scaleup needs is installed into .venv of this folder; `make` alone lists what there is.
#
# Variables, each given as `make demo NAME=value`:
#   EXPERIMENT    which ladder `make demo` climbs, a file in configs/experiments (gpt_stdlib)
#   KEEP          0 ends Airflow and MLflow when the ladder has ended; 1 leaves them up until Ctrl-C (1)
#   AIRFLOW_PORT  port of Airflow's UI, on 127.0.0.1 (8080)
#   MLFLOW_PORT   port of MLflow's UI, on 127.0.0.1 (5000)
#   PYTHON        the Python that .venv is made from (the first of 3.11, 3.12, 3.13 that is there)
#   VENV          the virtual environment (.venv)
#   BACKUP        the folder that `make backup` writes and `make restore` reads
#   TORCH_INDEX   one more package index for torch alone. Empty: PyPI, whose Linux wheels bring CUDA along (gigabytes).
#                 An index of CPU builds, if you have one, saves them; a rehearsal needs no more.

EXPERIMENT ?= gpt_stdlib
KEEP ?= 1
AIRFLOW_PORT ?= 8080
MLFLOW_PORT ?= 5000
PYTHON ?=
VENV ?= .venv
TORCH_INDEX ?=
BACKUP ?=

BIN := $(VENV)/bin
INSTALL := PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" .ci/install
.DEFAULT_GOAL := help
.PHONY: help demo test test-compose check bench chaos lock clean secrets up down logs backup restore

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables: EXPERIMENT KEEP AIRFLOW_PORT MLFLOW_PORT PYTHON VENV TORCH_INDEX BACKUP; the Makefile's head explains them"

demo: $(VENV)/.installed-run ## Airflow, MLflow and the ladder 8 -> 64 -> 1000, live in this terminal
	@KEEP=$(KEEP) $(BIN)/scaleup demo $(EXPERIMENT) --airflow-port $(AIRFLOW_PORT) --mlflow-port $(MLFLOW_PORT)

test: $(VENV)/.installed-dev ## the tests, on two workers; those that need a real Airflow all on one
	@$(BIN)/python -m pytest -p tests.strict -n 2 --dist loadgroup --no-loadscope-reorder

test-compose: $(VENV)/.installed-dev ## docker-compose.yml in a container engine of its own, which needs root
	@$(BIN)/python -m pytest -p tests.strict tests/compose

check: $(VENV)/.installed-dev ## style, types, directions of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.installed-dev ## the benchmarks in tests/benchmarks
	@if [ -d tests/benchmarks ]; then $(BIN)/python -m pytest tests/benchmarks -s; else echo "there are no benchmarks yet"; fi

chaos: $(VENV)/.installed-dev ## everything killed and cleared at any point, with a real Airflow and without
	@$(BIN)/python -m pytest -p tests.strict tests/chaos
	@$(BIN)/python -m pytest -p tests.strict -m airflow tests

secrets: ## for docker-compose.yml: .env and ./secrets, unless they are there
	@deploy/compose.sh secrets

up: ## build the images, start docker-compose.yml's services, return when all are healthy
	@$(if $(TORCH_INDEX),TORCH_INDEX="$(TORCH_INDEX)" )deploy/compose.sh build
	@deploy/compose.sh up

down: ## stop them; volumes, and so all data, stay
	@deploy/compose.sh down

logs: ## follow their logs
	@deploy/compose.sh logs

backup: ## databases, objects and runs of docker-compose.yml into a new folder, BACKUP=...
	@deploy/compose.sh backup "$(BACKUP)"

restore: ## such a folder back, into volumes that do not exist yet, BACKUP=...
	@deploy/compose.sh restore "$(BACKUP)"

lock: ## write constraints.txt anew: the newest versions that fit pyproject.toml together
	@$(INSTALL) lock

clean: ## remove .venv and caches; runs and their checkpoints in .scaleup stay
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build scaleup.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	@if [ -d .scaleup ]; then echo "runs are kept in .scaleup; remove that folder by hand if nobody needs them"; fi

$(VENV)/.installed-run: pyproject.toml constraints.txt
	@$(INSTALL) run

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	@$(INSTALL) dev
