//! End to end with the real programs: Prometheus, node exporter, an S3 server, strace.
//!
//! A scene whose programs are not installed is skipped with a printed reason, or fails when
//! `FIRN_REQUIRE_SHARED=1`, as in continuous integration. `make deps` installs them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod access;
mod alert_restarts;
mod alerts;
mod bounded_tools;
mod cache_server;
mod changed_tables;
mod check_config;
mod check_database;
mod check_rules;
mod collect_cases;
mod command;
mod connections;
mod deletes;
mod differential;
mod documents;
mod failing_log;
mod grafana;
mod greedy_queries;
mod groups;
mod hangup;
mod hard_queries;
mod hostile;
mod http;
mod influx_proxy;
mod kill;
mod memory;
mod metadata;
mod newcomer;
mod one_line;
mod outside;
mod pipes;
mod process;
mod prometheus;
mod promtool;
mod proxy;
mod remote_read;
mod remote_write;
mod remote_write_out;
mod replay;
mod replaying;
mod result_cache;
mod rule_kill;
mod scrapes;
mod scraping;
mod secrets;
mod side_by_side;
mod stored_runs;
mod strace;
mod tiers;
mod tls;
mod transactions;
