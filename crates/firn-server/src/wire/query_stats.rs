//! Query statistics in the API: Prometheus' fields, and with `stats=all` storage and memory
//! figures, unless the user has matchers.

use firn_model::{QueryContext, excerpt};
use firn_promql::{QueryOutput, SampleStats};
use firndb::QueryTime;

use crate::wire::json::{push_array, push_object};
use crate::wire::number::{push_float, push_time, push_u64};

/// The parameter `stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsLevel {
    /// Empty or missing.
    None,
    /// `true`: sums.
    Sums,
    /// `all`: each step, and storage.
    All,
    /// Something else, which counts as `true` until Prometheus refuses it.
    Deprecated(String),
}

/// Times measured by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Nanoseconds of the whole evaluation.
    pub eval_ns: u64,
}

impl StatsLevel {
    /// Parses the value of the parameter.
    pub fn named(value: &str) -> StatsLevel {
        match value {
            "" => StatsLevel::None,
            "true" => StatsLevel::Sums,
            "all" => StatsLevel::All,
            other => StatsLevel::Deprecated(other.to_owned()),
        }
    }

    /// The warning about the parameter's value, if any.
    pub fn warning(&self) -> Option<String> {
        let StatsLevel::Deprecated(value) = self else { return None };
        Some(format!(
            "value {:?} for parameter \"stats\" is deprecated and will be rejected in the next major release, \
             use \"true\" or \"all\"",
            excerpt(value)
        ))
    }

    /// The bytes that [`StatsLevel::push`] and the warning take, at most.
    pub fn bytes_max(&self, output: &QueryOutput) -> usize {
        // A step: its time and two numbers.
        const STEP_BYTES: usize = 48;
        let step_count =
            |samples: &SampleStats| samples.queryable_per_step.len() + samples.read_per_step.len();
        match self {
            StatsLevel::None => 0,
            _ => 8_192 + STEP_BYTES * output.samples.as_ref().map_or(0, step_count),
        }
    }

    /// Appends `,"stats":{..}` if requested.
    pub fn push(
        &self,
        output: &QueryOutput,
        time: QueryTime,
        timings: Timings,
        context: &QueryContext,
        out: &mut Vec<u8>,
    ) {
        if *self == StatsLevel::None {
            return;
        }
        out.extend_from_slice(br#","stats":{"timings":"#);
        push_timings(timings, context, out);
        out.extend_from_slice(br#","samples":{"#);
        if let Some(samples) = &output.samples {
            push_samples(samples, (*self == StatsLevel::All).then_some(time), out);
        }
        out.extend_from_slice(br#""peakSamples":"#);
        push_u64(output.samples_peak, out);
        out.push(b'}');
        // Blocks and groups are read whole: the figures depend on series that a user with matchers
        // does not see.
        if *self == StatsLevel::All && context.scope.is_empty() {
            push_storage(output, context, out);
        }
        out.push(b'}');
    }
}

fn push_timings(timings: Timings, context: &QueryContext, out: &mut Vec<u8>) {
    push_object(timing_fields(timings, context), out, |ns, out| push_float(ns as f64 / 1e9, out));
}

/// Nanoseconds of the stages of a query, under Prometheus' names.
pub fn timing_fields(timings: Timings, context: &QueryContext) -> [(&'static str, u64); 6] {
    let stats = &context.stats;
    let (queue_ns, sort_ns) = (stats.queue_ns.get(), stats.sort_ns.get());
    // Several threads may select at once; their sum may then exceed the elapsed time.
    let select_ns = stats.select_ns.get().min(timings.eval_ns);
    [
        ("evalTotalTime", timings.eval_ns),
        ("resultSortTime", sort_ns),
        ("queryPreparationTime", select_ns),
        ("innerEvalTime", timings.eval_ns.saturating_sub(select_ns + sort_ns)),
        ("execQueueTime", queue_ns),
        ("execTotalTime", queue_ns + timings.eval_ns),
    ]
}

/// The samples' fields, each with a comma after it; those of single steps if their times are known.
fn push_samples(samples: &SampleStats, steps: Option<QueryTime>, out: &mut Vec<u8>) {
    let fields = [
        ("totalQueryableSamples", samples.queryable(), &samples.queryable_per_step),
        ("samplesRead", samples.read(), &samples.read_per_step),
    ];
    for (name, total, per_step) in fields {
        if let Some(time) = steps {
            push_key(name, "PerStep", out);
            push_array(per_step.iter().enumerate(), out, |(idx, count), out| {
                out.push(b'[');
                push_time(step_time(time, idx), out);
                out.push(b',');
                push_u64(*count, out);
                out.push(b']');
            });
            out.push(b',');
        }
        push_key(name, "", out);
        push_u64(total, out);
        out.push(b',');
    }
}

fn push_key(name: &str, suffix: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(suffix.as_bytes());
    out.extend_from_slice(b"\":");
}

fn step_time(time: QueryTime, idx: usize) -> i64 {
    match time {
        QueryTime::Instant(ts) => ts,
        QueryTime::Range { start, step_ms, .. } => {
            start.saturating_add(step_ms.saturating_mul(i64::try_from(idx).unwrap_or(i64::MAX)))
        }
    }
}

/// Statistics beyond Prometheus': reads of the index and the tiers, and memory.
fn push_storage(output: &QueryOutput, context: &QueryContext, out: &mut Vec<u8>) {
    out.extend_from_slice(br#","storage":"#);
    push_object(cost_fields(output.samples_read, context), out, push_u64);
}

/// Reads and memory of a query.
pub fn cost_fields(samples_decoded: u64, context: &QueryContext) -> [(&'static str, u64); 11] {
    let stats = &context.stats;
    [
        ("groupsScanned", stats.groups_scanned.get()),
        ("groupsMatched", stats.groups_matched.get()),
        ("samplesDecoded", samples_decoded),
        ("memoryBytes", stats.memory_bytes.get()),
        ("localBytes", stats.fast_bytes.get()),
        ("slowBytes", stats.slow_bytes.get()),
        ("cacheHits", stats.cache_hits.get()),
        ("cacheMisses", stats.cache_misses.get()),
        ("resultStepsKept", stats.steps_kept.get()),
        ("resultStepsMissing", stats.steps_not_kept.get()),
        ("peakBytes", context.budget.usage().peak_bytes),
    ]
}
