# Every target creates the environment it needs, once, and again only when pyproject.toml changes.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# Busy waiting makes torch many times slower on a machine that something else uses too.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo studio test fuzz check fmt bench clean

demo: $(VENV)/ready
	$(BIN)/diti demo

# The page on which the shipped model can be played with.
studio: $(VENV)/ready-studio
	$(BIN)/diti serve --open

test: $(VENV)/ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile --no-loadscope-reorder

# Nasty options and damaged files for so many minutes; prints what it finds with the command to repeat it.
MINUTES ?= 10
fuzz: $(VENV)/ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --minutes $(MINUTES)

check: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV)

INSTALL = $(PYTHON) -m venv $(VENV) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(VENV)/ready: pyproject.toml constraints.txt
	$(INSTALL) .
	@touch $@

$(VENV)/ready-studio: pyproject.toml constraints.txt
	$(INSTALL) ".[studio]"
	@touch $(VENV)/ready $@

$(VENV)/ready-dev: pyproject.toml constraints.txt
	$(INSTALL) ".[dev]"
	@touch $(VENV)/ready $(VENV)/ready-studio $@
