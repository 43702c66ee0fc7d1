# Everything that people and continuous integration run. The work is in integration/*.sh; `make` alone prints this help.
#
# What is built or fetched and worth keeping is outside the checkout, in
# $CLOUDMAP_MCS_CACHE, by default $XDG_CACHE_HOME/cloudmap-mcs or ~/.cache/cloudmap-mcs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

STAGES := . integration/stages.sh;
TESTBED := integration/testbed/testbed
IMAGE ?= cloudmap-mcs:dev
EMULATOR_IMAGE ?= cloudmap-emulator:dev
CLUSTERS ?= 2
# What a release consists of; the workflow makes the binaries on machines of both architectures.
STEPS ?= audit notes binary image chart sbom provenance sign

.PHONY: help demo kind-quickstart kind-quickstart-down test conformance conformance-testbed upstream-conformance aws-smoke check soak fuzz bench cutover-bench site docs build image emulator-image release release-dry-run testbed-up testbed-down clean-testbed clean

help: ## Print this help
	@echo "usage: make TARGET"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' Makefile | expand -t 18
	@echo
	@echo "Needed: Linux, root, cargo, go, make, a C compiler and kubectl; the rest is installed or built once."
	@echo "Otherwise, on clusters you have (kind, EKS):  CONTEXTS=a,b IMAGE=name:tag make demo"

demo: ## Two clusters on this machine and a tour of them; KEEP=1 leaves them running, CONTEXTS=a,b takes yours
	@integration/demo.sh

kind-quickstart: ## Two kind clusters with the controller, an emulator and a first export; needs Docker and kind
	@integration/quickstart.sh up

kind-quickstart-down: ## Remove them
	@integration/quickstart.sh down

check: ## What every change has to pass, in a few minutes, without root: fmt, clippy, rustdoc, dependencies, scripts, library tests
	@integration/check.sh

test: ## All tests: `make check`, simulation, adapter, emulator and, on nine real clusters, conformance and end-to-end
	@integration/test.sh

conformance: ## The conformance suite alone, on clusters that have the controller (CONTEXTS=a,b[,c]); writes a report
	@integration/conformance.sh

conformance-testbed: ## The same on this machine, with clusters of another version of Kubernetes: KUBERNETES=1.30 or 1.37
	@SUITES=conformance integration/test.sh

upstream-conformance: ## The suite of kubernetes-sigs/mcs-api (SUITE=clone), unchanged, on two clusters; ends in its own report
	@integration/upstream.sh

aws-smoke: ## Check facts of Cloud Map in an AWS account (ACCOUNT=id BUDGET=usd; REGION=, VPC=, REPORT=, FLAGS=); removes what it made
	@$(STAGES) use_target; cargo run --quiet --package cloudmap-mcs-integration --bin aws-smoke -- $(FLAGS)

soak: ## Simulate the ledger and whole controllers under faults, SEEDS=n of each scenario, on all cores
	@integration/soak.sh

fuzz: ## Try changed inputs on all that decodes what others wrote, SECONDS_EACH=600 of each target, on all cores
	@integration/fuzz.sh

bench: ## Measure propagation, idle cost and memory; prints one JSON line per figure
	@integration/bench.sh

cutover-bench: ## Move services from ECS to pods and back under load, SERVICES=n of them; prints one JSON line per figure
	@integration/cutover-bench.sh

site: ## The documents as a site with search, outside the checkout
	@integration/site.sh

docs: ## Write docs/reference from the code, and the facts of AWS that nobody has checked yet; tests compare
	@$(STAGES) use_target; CLOUDMAP_MCS_WRITE_DOCS=1 cargo test --quiet --workspace --lib --test repository -- reference:: aws_smoke::tests

build: ## The binary as images have it (some minutes)
	@$(STAGES) use_target; build_dist; echo "built: $$DIST"

image: ## A container image of it as a file (IMAGE=name:tag, IMAGE_TAR=file); with Docker, use the Dockerfile instead
	@$(STAGES) use_target; build_dist; \
		$(TESTBED) image "$(IMAGE)" "$(or $(IMAGE_TAR),cloudmap-mcs.tar)" "$$DIST"

emulator-image: ## The same of the emulator of Cloud Map (EMULATOR_IMAGE=name:tag, IMAGE_TAR=file); target `emulator` of the Dockerfile
	@$(STAGES) use_target; build_release --bin cloudmap-emulator; \
		$(TESTBED) image "$(EMULATOR_IMAGE)" "$(or $(IMAGE_TAR),cloudmap-emulator.tar)" "$$CARGO_TARGET_DIR/release/cloudmap-emulator"

release-dry-run: ## All artefacts of a release that this machine can make, outside the checkout; says what it cannot
	@KEEP_GOING=1 integration/release.sh $(STEPS)

release: ## The same, failing where something is missing; STEPS=... are those of integration/release.sh
	@integration/release.sh $(STEPS)

testbed-up: ## Two empty clusters on this machine (CLUSTERS=4: four); prints how to use them
	@$(TESTBED) up --clusters "$(CLUSTERS)"; $(TESTBED) env

testbed-down: ## Stop them and leave nothing behind
	@$(TESTBED) down --all

clean-testbed: testbed-down ## Also forget what was built for them
	@$(STAGES) rm -rf "$$CLOUDMAP_MCS_CACHE"/{components,images,peers,logs}

clean: ## Forget what cargo built
	@$(STAGES) use_target; cargo clean
