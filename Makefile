# Two commands from a fresh clone with nothing but Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
EXTRAS := redis,nats,httpx,httpx2,aiohttp,requests,cli,tenacity,plot,otel,prometheus

.PHONY: install test search lint types demo bench docs clean

install: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]" --group test --group bench
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(VENV)/openai2 \
	    "openai<3" distro tqdm   # litellm and openai-agents ask for openai 2; the rest of what it needs is there
	touch $@

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

search: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" --hypothesis-profile searching

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	$(BIN)/mypy tests/typing

demo: install
	$(BIN)/python -m headgate demo --plot $(VENV)/demo.png

bench: install
	$(BIN)/python bench/run.py

docs: install
	$(BIN)/python -m pytest tests/test_docs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
