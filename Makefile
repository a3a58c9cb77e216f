# All that Scaleup needs is installed into .venv of this folder; `make` alone lists what there is.
#
# Variables, each given as `make demo NAME=value`:
#   EXPERIMENT    which ladder `make demo` climbs, a file in configs/experiments (gpt_stdlib)
#   KEEP          0 ends Airflow and MLflow when the ladder has ended; 1 leaves them up until Ctrl-C (1)
#   AIRFLOW_PORT  port of Airflow's UI, on 127.0.0.1 (8080)
#   MLFLOW_PORT   port of MLflow's UI, on 127.0.0.1 (5000)
#   PYTHON        the Python that .venv is made from (the first of 3.11, 3.12, 3.13 that is there)
#   VENV          the virtual environment (.venv)
#   TORCH_INDEX   one more package index for torch alone. Empty: PyPI, whose Linux wheels bring CUDA along (gigabytes).
#                 An index of CPU builds, if you have one, saves them; a rehearsal needs no more.

EXPERIMENT ?= gpt_stdlib
KEEP ?= 1
AIRFLOW_PORT ?= 8080
MLFLOW_PORT ?= 5000
PYTHON ?=
VENV ?= .venv
TORCH_INDEX ?=

BIN := $(VENV)/bin
INSTALL := PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" .ci/install
.DEFAULT_GOAL := help
.PHONY: help demo test check bench chaos lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' Makefile
	@echo "  variables: EXPERIMENT KEEP AIRFLOW_PORT MLFLOW_PORT PYTHON VENV TORCH_INDEX; the Makefile's head explains them"

demo: $(VENV)/.installed-run ## Airflow, MLflow and the ladder 8 -> 64 -> 1000, live in this terminal
	@KEEP=$(KEEP) $(BIN)/scaleup demo $(EXPERIMENT) --airflow-port $(AIRFLOW_PORT) --mlflow-port $(MLFLOW_PORT)

test: $(VENV)/.installed-dev ## the tests, on two workers; those that need a real Airflow all on one
	@$(BIN)/python -m pytest -p tests.strict -n 2 --dist loadgroup --no-loadscope-reorder

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
