# Each target does all set-up that it needs on a fresh machine, and is safe to repeat.
#   make train ARGS="compile=max_autotune"    make test    make fast    make further    make lint    make docs

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Tests start some hundreds of processes: without bytecode on the disk each would compile every module that it imports, for more than a second. Empty is unset.
export PYTHONDONTWRITEBYTECODE :=
SCREEN_READER := .cache/virtual-screen-reader-0.33.0.js
NATIVE_SOURCES := $(wildcard dynacompile/*.cpp dynacompile/*/*.cpp dynacompile/*/*.h dynacompile/*.h)

.PHONY: train test fast further lint conf docs setup clean
.DELETE_ON_ERROR:

train: setup
	$(BIN)/python train.py $(ARGS)

test: setup $(VENV)/.browser $(SCREEN_READER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not further" $(PYTEST_ARGS)

fast: setup $(VENV)/.browser $(SCREEN_READER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m fast $(PYTEST_ARGS)

further: setup $(VENV)/.browser $(SCREEN_READER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m further $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

conf: setup
	$(BIN)/python scripts/write_conf.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory build/site"

setup: $(VENV)/.native

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first, by itself: the rest then resolves against the build that is there.
$(VENV)/.torch: $(VENV)/.created constraints.txt
	@echo "installing torch into $(VENV) (minutes, once)"
	$(PIP) install --constraint constraints.txt torch
	@touch $@

# Nothing may build in an isolated environment, which would fetch a torch of its own.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "installing dynacompile and what it needs into $(VENV)"
	$(PIP) install "setuptools>=77" wheel
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable ".[train,huggingface,docs,dev,sweep]"
	@touch $@

# For the tests of pages alone; training needs none.
$(VENV)/.browser: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --no-build-isolation --only-binary=PyQt6,PyQt6-WebEngine --editable ".[browser]" || echo "no browser for this machine: its tests are skipped"
	@touch $@

# Likewise: half a megabyte, in a second.
$(SCREEN_READER): | $(VENV)/.created
	$(BIN)/python scripts/screen_reader.py || echo "no screen reader for the tests of pages: they are skipped"

$(VENV)/.native: $(VENV)/.installed $(NATIVE_SOURCES)
	$(BIN)/python -c "from dynacompile import native; native.core()"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
