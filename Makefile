SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
PARALLEL := -n auto --maxprocesses 8 --dist loadfile
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-rlhf test test-full lint types tests format docs

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

setup:           ## the environment .venv from pinned versions; costs nothing when it is there
	@bash scripts/setup.sh

demo: setup      ## train the embedded model and show what it gained
	@$(BIN)/quatrain train recipes/demo.yaml

demo-rlhf: setup ## SFT, reward model, PPO and a comparison on a tiny model, in some minutes (docs/rlhf.md)
	@test -e runs/rlhf/base || $(BIN)/python recipes/rlhf/shop.py runs/rlhf/base
	@$(BIN)/quatrain train recipes/rlhf/sft.yaml
	@test -e runs/rlhf/answers.json || $(BIN)/quatrain eval runs/rlhf/sft --task recipes/rlhf/shop.py:prompts \
		--verifier recipes/rlhf/shop.py:gold --samples 4 --set rollout.max_tokens=48 --out runs/rlhf/answers.json
	@$(BIN)/quatrain train recipes/rlhf/reward.yaml
	@$(BIN)/quatrain train recipes/rlhf/ppo.yaml
	@$(BIN)/quatrain eval runs/rlhf/ppo --against runs/rlhf/sft --out runs/rlhf/compared.json
	@$(BIN)/python recipes/rlhf/results.py runs/rlhf

test: setup lint types tests   ## the gate: lint, types, layers and tests

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

tests: setup
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q $(PARALLEL)

test-full: setup lint types    ## the gate and the long tier
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m 'full or not full' $(PARALLEL)

format: setup    ## repair layout and imports
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

docs: setup      ## write the generated pages docs/metrics.md and docs/recipes.md anew
	@$(BIN)/python -m quatrain.telemetry.catalogue \
		$(addprefix quatrain.algorithms.,grpo ppo sft preference reward_model) > docs/metrics.md
	@$(BIN)/python scripts/settings_page.py > docs/recipes.md
