# The front door. Every target is one line that calls cargo; `make` alone prints this list.

.PHONY: help serve dist test deps lint settings hostile bench-quick bench-query bench-fresh bench-index bench-log bench-head bench-tree bench-cache bench-collect soak fuzz promqltest collect-cases
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

serve: ## build and start the database on 127.0.0.1:9420, data in ./firn-data
	cargo xtask serve

dist: ## build the program for packages, with link-time optimisation, into target/dist
	cargo xtask dist

test: ## format, lints, repository rules, all tests; as root it first installs the programs that tests start
	cargo xtask test

deps: ## install the programs that tests and benchmarks start (as root; prints the apt line)
	cargo xtask deps

lint: ## format, repository rules, packages and lints alone
	cargo xtask lint

settings: ## write docs/settings.md again after a setting was changed
	FIRN_UPDATE_DOCS=1 cargo test --quiet --package firn-server --lib the_settings_page_is_up_to_date

bench-quick: ## CPU and memory against Prometheus and VictoriaMetrics, and of TLS with a token; ONLY=tls for that alone; writes target/bench/quick.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-quick $(if $(ONLY),--only "$(ONLY)")

bench-query: ## CPU, latency and memory of queries against Prometheus and VictoriaMetrics; ONLY=words of names, PROGRAMS=words; writes target/bench/query.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-query --only "$(ONLY)" --programs "$(PROGRAMS)"

bench-fresh: ## queries, samples and restarts on data of six kinds of senders, against Prometheus and VictoriaMetrics; ONLY=words of shapes, labels, sizes, ages, classes; PROGRAMS=words; PROMETHEUS=, VICTORIA_METRICS=paths; writes target/bench/fresh.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-fresh --only "$(ONLY)" --programs "$(PROGRAMS)"

bench-index: ## bytes and nanoseconds per series of the index, 1M and 5M series; writes target/bench/index.json; ONLY=words
	cargo build --release --package firn --package firn-bench
	target/release/bench-index --only "$(ONLY)"

bench-log: ## DecLog's transactions, the log's CPU and bytes, senders, recovery, SIGKILL; writes target/bench/log.json; ONLY=words
	cargo build --release --package firn --package firn-bench
	target/release/bench-log --only "$(ONLY)"

bench-head: ## memory of active series and CPU of samples, grouped, alone, irregular; writes target/bench/head.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-head

bench-tree: ## bytes per sample by level, bytes put, size control, late data, queries of far history; ONLY=words of bytes blocks puts size late compact cold; writes target/bench/tree.json
	cargo build --release --package firn-bench
	target/release/bench-tree --only "$(ONLY)"

bench-cache: ## the cache against no cache, fixed chunks and other policies, and a dashboard; ONLY=words of names; writes target/bench/cache.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-cache --only "$(ONLY)"

bench-collect: ## scraping, churn, faults and rules beside Prometheus and VictoriaMetrics; PROGRAMS=words; writes target/bench/collect.json
	cargo build --release --package firn --package firn-bench
	target/release/bench-collect --programs "$(PROGRAMS)"

soak: ## more simulation seeds, property tests, histories, log restarts, damaged bytes, comparisons with Prometheus and kills than `make test` runs; SEEDS=n, HISTORIES=n, LIVES=n, PLACES=n, ROUNDS=n, KILLS=n, ANSWERS=n, CASES=n, STAGE=seconds
	FIRN_HISTORIES=$(or $(HISTORIES),20000) FIRN_SEED_COUNT=$(or $(SEEDS),20000) FIRN_DAMAGE_COUNT=$(or $(PLACES),100000) cargo test --package firn-engine --test simulation -- --nocapture
	PROPTEST_CASES=$(or $(CASES),2000) cargo test --package firn-codec --package firn-collect --package firn-head --package firn-index --package firn-log --package firn-model --package firn-promql
	FIRN_SOAK=$(or $(LIVES),100) cargo test --package firn-log --test log
	FIRN_SEED_COUNT=$(or $(ROUNDS),40) cargo test --package firn --test e2e differential -- --nocapture
	FIRN_KILLS=$(or $(KILLS),200) cargo test --package firn --test e2e kill:: -- --nocapture
	FIRN_STAGE_SECONDS=$(or $(STAGE),60) cargo test --package firn --test e2e side_by_side:: -- --nocapture
	FIRN_SEED_COUNT=$(or $(ANSWERS),4000) cargo test --package firn-cache --lib -- --nocapture invariant_9
	FIRN_SEED_COUNT=$(or $(ANSWERS),4000) cargo test --package firndb --test results -- --nocapture invariant_9
	FIRN_MEMORY_MIB=128 cargo test --package firn --test e2e memory:: -- --nocapture

hostile: ## attacks on a running server within its memory limit; ONLY=words of families, FLAGS=--verbose; writes target/bench/hostile.json
	cargo build --release --package firn --package firn-hostile
	target/release/hostile --only "$(ONLY)" $(FLAGS)

fuzz: ## fuzzers of every decoder and of the language, SECONDS=n each; ONLY=names; PACK=--pack minimises and keeps the corpus
	cargo xtask fuzz $(SECONDS) $(ONLY) $(PACK)

promqltest: ## test files of PromQL; DIR=folder
	cargo run --quiet --package firn-promqltest -- $(or $(DIR),../shared/promqltest)

collect-cases: ## cases of configurations, relabelling, rules, promtool, templates, targets; DIR=folder
	cargo build --quiet --package firn --package firn-collecttest
	target/debug/firn-collecttest $(or $(DIR),../shared/collect) target/debug/firn
