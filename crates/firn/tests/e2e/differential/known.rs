//! The one list of where an answer may differ, each with its reason.

use firn_promql::{AggregateOp, NodeKind, parse};
use firn_promqltest::expressions::Dialect;

use super::answer::Answer;

/// A difference that is none.
struct KnownDifference {
    reason: &'static str,
    /// Whether it is about Prometheus 2 only.
    is_v2: bool,
    /// Whether two error texts, equal in type and status, mean the same.
    same: fn(theirs: &str, ours: &str) -> bool,
}

const ERROR_TEXTS: [KnownDifference; 8] = [
    KnownDifference {
        reason: "2.x does not name the parameter in all errors",
        is_v2: true,
        same: |theirs, ours| ours.split_once(": ").is_some_and(|(_, rest)| rest == theirs),
    },
    KnownDifference {
        reason: "which of the groups is met first depends on the order of series",
        is_v2: false,
        same: |theirs, ours| {
            let head = |text: &str| text.split(" {").next().map(str::to_owned);
            theirs.contains("duplicate series for the match group") && head(theirs) == head(ours)
        },
    },
    KnownDifference {
        reason: "since 3.0 the error text contains the pattern as the user wrote it",
        is_v2: true,
        same: |theirs, ours| {
            theirs.contains("error parsing regexp")
                && ours.ends_with(&theirs.replace("`^(?:", "`").replace(")$`", "`"))
        },
    },
    KnownDifference {
        reason: "2.x capitalizes it",
        is_v2: true,
        same: |theirs, ours| theirs.replace("Invalid time", "invalid time") == ours,
    },
    KnownDifference {
        reason: "2.x has a position for an empty query",
        is_v2: true,
        same: |theirs, ours| theirs.replace("1:1: parse", "unknown position: parse") == ours,
    },
    KnownDifference {
        reason: "2.x has a position for an empty query, and does not name the parameter",
        is_v2: true,
        same: |theirs, ours| {
            theirs == "1:1: parse error: no expression found in input"
                && ours.ends_with("unknown position: parse error: no expression found in input")
        },
    },
    KnownDifference {
        reason: "2.x accepts durations only; later versions accept numbers and computations too",
        is_v2: true,
        same: |theirs, ours| {
            let old = |text: &str| {
                text.replace("expected number, duration, step(), or range()", "expected duration")
                    .replace("bad number or duration syntax", "bad duration syntax")
            };
            old(ours).ends_with(theirs)
        },
    },
    KnownDifference {
        reason: "2.x knows the function by another name",
        is_v2: true,
        same: |theirs, ours| theirs.replace("holt_winters", "double_exponential_smoothing") == ours,
    },
];

/// Why a difference is none, if it is none.
pub(super) fn reason(dialect: Dialect, theirs: &Answer, ours: &Answer) -> Option<&'static str> {
    match (theirs, ours) {
        (
            Answer::Error { status, kind, text },
            Answer::Error { status: our_status, kind: our_kind, text: our_text },
        ) if status == our_status && kind == our_kind => error_reason(dialect, text, our_text),
        (Answer::Error { text, .. }, Answer::Data(_))
            if dialect == Dialect::V2 && text.contains("invalid label name") =>
        {
            Some("since 3.0 every text is a label's name")
        }
        _ => None,
    }
}

/// The same for the texts of two errors of one type.
pub(super) fn error_reason(dialect: Dialect, theirs: &str, ours: &str) -> Option<&'static str> {
    ERROR_TEXTS
        .iter()
        .find(|known| (!known.is_v2 || dialect == Dialect::V2) && (known.same)(theirs, ours))
        .map(|known| known.reason)
}

/// Whether the order of the series of an instant query is part of the result: behind sorting
/// functions and behind `topk` and `bottomk`, except for their groups, which have no order.
pub(super) fn is_ordered(text: &str) -> bool {
    parse(text).is_ok_and(|expr| match &expr.root.kind {
        NodeKind::Call { function, .. } => ["sort", "sort_desc"].contains(&function.name),
        NodeKind::Aggregate(aggregate) => {
            matches!(aggregate.op, AggregateOp::Topk | AggregateOp::Bottomk)
                && aggregate.grouping.is_empty()
                && !aggregate.without
        }
        _ => false,
    })
}
