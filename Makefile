# `make help` lists what there is. Everything beyond Rust is installed when it is first needed.

BUF_VERSION := 1.75.0
DOCKER ?= docker

# Passed to `claimlock serve`, as in: make run ARGS='--grpc-addr 127.0.0.1:7430 --http-addr 127.0.0.1:7431 --data-dir /var/tmp/claimlock-2'
ARGS ?=
# Passed to `cargo test`, as in: make unit TEST=a_late_holder
TEST ?=

needs := scripts/install-needs.sh
# Where `cargo install` puts cargo-deny, and rustup puts cargo.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
# The order of `test` is the order in which a mistake is cheapest to find.
.NOTPARALLEL:
.PHONY: help run test test-needs fmt layers rules proto-lint deny clippy unit generate doc docker clean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## Builds, and serves on a Redis of its own. ARGS go to `claimlock serve`.
	@$(needs) build server
	cargo build --release --locked
	@scripts/try-next.sh
	@exec cargo run --release --locked --quiet -- serve $(ARGS)

test: test-needs fmt layers rules proto-lint deny clippy doc unit ## Runs every check and every test, as CI does.

test-needs:
	@$(needs) build rustfmt clippy redis-server faketime promtool node cargo-deny

fmt: ## Checks the formatting; `cargo fmt` mends it.
	@$(needs) build rustfmt
	cargo fmt --all --check

layers: ## Checks who uses whom, against the map of the modules.
	@scripts/check-layers.sh --self-test
	@scripts/check-layers.sh

rules: ## Checks the alert rules, and when each fires.
	@$(needs) promtool
	promtool check rules deploy/observability/alerts.yaml
	promtool test rules deploy/observability/alerts_test.yaml

proto-lint: ## Lints the wire contract, by buf and proto/buf.yaml.
	@$(needs) node
	npx --yes @bufbuild/buf@$(BUF_VERSION) lint proto

deny: ## Checks the dependencies: licences, bans, sources, advisories.
	@$(needs) cargo-deny
	scripts/check-dependencies.sh

clippy: ## Lints the code, warnings denied.
	@$(needs) build clippy
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

unit: ## Runs the tests alone. TEST is a part of their names.
	@$(needs) build redis-server faketime promtool
	cargo test --locked --workspace --all-features $(TEST)

generate: ## Generates the Rust client's code anew, from the wire contract.
	@$(needs) build
	CLAIMLOCK_GENERATE=1 cargo build --locked

doc: ## Builds the documentation of the code, warnings denied.
	@$(needs) build
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --all-features --no-deps --document-private-items

docker: ## Builds both images: claimlock:slim, and claimlock:latest with its own Valkey.
	$(DOCKER) build --target slim --tag claimlock:slim .
	$(DOCKER) build --target embedded --tag claimlock:latest .

clean: ## Removes what was built.
	cargo clean
