//! Queries generated from bytes: every function, operator and modifier, usually well typed. The
//! bytes are choices; after the last byte the simplest option is chosen, so generation always ends.

use firn_promql::{Function, ValueType};

// The maximum nesting; each level may double the length.
const DEPTH_MAX: usize = 5;

const METRICS: [&str; 7] =
    ["foo", "bar", "odd", "h_bucket", "native", "none", "{__name__=~\"foo|bar\"}"];
const MATCHERS: [&str; 5] =
    ["instance=\"1\"", "instance!=\"1\"", "job=~\"a|b\"", "le!~\"1|2.*\"", "gone=\"\""];
const DURATIONS: [&str; 9] =
    ["1m", "5m", "15s", "1h", "1ms", "2m + 30s", "step()", "max_of(1m, step())", "7w"];
const LABELS: [&str; 6] =
    ["", "instance", "job", "instance, job", "le", "instance, job, le, __name__"];
const NUMBERS: [&str; 12] =
    ["1", "0", "-1", "2", "0.5", "NaN", "Inf", "-Inf", "1e300", "0x1f", "5m", "60"];
const TEXTS: [&str; 8] =
    ["\"x\"", "\"instance\"", "\"$1\"", "\"(.*)\"", "\"\"", "\"job\"", "\"le\"", "\"__name__\""];
const AGGREGATIONS: [&str; 10] =
    ["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "count", "sum"];
const AGGREGATIONS_BY_NUMBER: [&str; 5] = ["topk", "bottomk", "quantile", "limitk", "limit_ratio"];
const OPERATORS: [&str; 13] =
    ["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", ">", "<", ">=", "<="];
const SET_OPERATORS: [&str; 3] = ["and", "or", "unless"];

/// The query that `data` encodes.
pub(crate) fn query(data: &[u8]) -> String {
    let mut choices = ByteChoices(data);
    match choices.below(8) {
        0 => choices.scalar(DEPTH_MAX),
        _ => choices.vector(DEPTH_MAX),
    }
}

/// The remaining bytes.
struct ByteChoices<'a>(&'a [u8]);

impl ByteChoices<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(byte) % bound.max(1)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn vector(&mut self, depth: usize) -> String {
        let Some(depth) = depth.checked_sub(1) else { return self.selector() };
        match self.below(12) {
            0 | 1 => self.selector(),
            2..=5 => self.call(ValueType::Vector, depth),
            6 => self.aggregation(depth),
            7 => self.aggregation_by_parameter(depth),
            8 | 9 => self.binary(depth),
            10 => format!("{}({})", self.pick(&["", "-", "+"]), self.vector(depth)),
            _ => format!("({}){}", self.vector(depth), self.subquery_and_modifiers())
                .replace("()", "(foo)"),
        }
    }

    fn scalar(&mut self, depth: usize) -> String {
        match depth.checked_sub(1) {
            Some(depth) if self.below(3) > 0 => match self.below(2) {
                0 => self.call(ValueType::Scalar, depth),
                _ => {
                    let operator = self.pick(&OPERATORS);
                    let is_comparison = OPERATORS[7..].contains(&operator);
                    let bool = if is_comparison { "bool" } else { "" };
                    format!("({} {operator} {bool} {})", self.scalar(depth), self.scalar(depth))
                }
            },
            _ => self.pick(&NUMBERS).to_owned(),
        }
    }

    fn selector(&mut self) -> String {
        let metric = self.pick(&METRICS);
        let matchers = match self.below(3) {
            0 if !metric.starts_with('{') => format!("{{{}}}", self.pick(&MATCHERS)),
            _ => String::new(),
        };
        format!("{metric}{matchers}{}", self.modifiers())
    }

    fn modifiers(&mut self) -> String {
        match self.below(8) {
            0 => format!(" offset {}", self.pick(&["1m", "-1m", "(1m + step())", "1h", "-7w"])),
            1 => format!(" @ {}", self.pick(&["100", "300.5", "start()", "end()", "-1e12"])),
            2 => {
                format!(" @ {} offset {}", self.pick(&["100", "end()"]), self.pick(&["1m", "-1m"]))
            }
            _ => String::new(),
        }
    }

    fn matrix(&mut self, depth: usize) -> String {
        if depth > 0 && self.below(4) == 3 {
            let inner = self.vector(depth - 1);
            return format!("({inner}){}", self.subquery_and_modifiers());
        }
        let metric = self.pick(&METRICS);
        let range = self.pick(&DURATIONS);
        let borders = self.pick(&["", "", "", " anchored", " smoothed"]);
        format!("{metric}[{range}]{borders}{}", self.modifiers())
    }

    fn subquery_and_modifiers(&mut self) -> String {
        let step = self.pick(&["", "1m", "30s", "7s", "step()"]);
        format!("[{}:{step}]{}", self.pick(&DURATIONS[..5]), self.modifiers())
    }

    fn aggregation(&mut self, depth: usize) -> String {
        let (operator, grouping) = (self.pick(&AGGREGATIONS), self.grouping());
        format!("{operator} {grouping} ({})", self.vector(depth))
    }

    fn aggregation_by_parameter(&mut self, depth: usize) -> String {
        let grouping = self.grouping();
        let (operator, parameter) = match self.below(6) {
            0 => ("count_values", self.pick(&TEXTS).to_owned()),
            _ => (self.pick(&AGGREGATIONS_BY_NUMBER), self.scalar(1)),
        };
        format!("{operator} {grouping} ({parameter}, {})", self.vector(depth))
    }

    fn grouping(&mut self) -> String {
        match self.below(3) {
            0 => String::new(),
            1 => format!("by ({})", self.pick(&LABELS)),
            _ => format!("without ({})", self.pick(&LABELS)),
        }
    }

    fn binary(&mut self, depth: usize) -> String {
        let kind = self.below(8);
        let (lhs, operator) = (self.vector(depth), self.pick(&OPERATORS));
        let bool =
            if OPERATORS[7..].contains(&operator) && self.below(2) == 1 { "bool" } else { "" };
        match kind {
            0 | 1 => format!("({lhs}) {operator} {bool} {}", self.scalar(1)),
            2 => format!("{} {operator} {bool} ({lhs})", self.scalar(1)),
            3 | 4 => {
                let (set, matching) = (self.pick(&SET_OPERATORS), self.matching());
                format!("({lhs}) {set} {matching} ({})", self.vector(depth))
            }
            _ => {
                let (matching, side) = (self.matching(), self.side());
                format!("({lhs}) {operator} {bool} {matching} {side} ({})", self.vector(depth))
            }
        }
    }

    fn matching(&mut self) -> String {
        let kind = self.pick(&["on", "ignoring"]);
        format!("{kind} ({})", self.pick(&LABELS))
    }

    fn side(&mut self) -> String {
        match self.below(6) {
            0 => format!("group_left ({})", self.pick(&["", "job", "le"])),
            1 => format!("group_right ({})", self.pick(&["", "job", "le"])),
            2 => format!("fill ({})", self.pick(&["0", "NaN"])),
            3 => format!("fill_left ({}) fill_right (1)", self.pick(&["0", "-1"])),
            _ => String::new(),
        }
    }

    /// A call of any function that returns `returned`.
    fn call(&mut self, returned: ValueType, depth: usize) -> String {
        let functions: Vec<&Function> =
            Function::all().iter().filter(|function| function.returns == returned).collect();
        let function = functions[self.below(functions.len())];
        let optional = usize::from(function.variadic.unsigned_abs()).min(2);
        let required = function.args.len() - usize::from(function.variadic != 0);
        let count = required + if optional > 0 { self.below(optional + 1) } else { 0 };
        let args: Vec<String> = (0..count)
            .map(|idx| match function.args[idx.min(function.args.len() - 1)] {
                ValueType::Vector if function.name == "info" && idx == 1 => {
                    "{instance=\"1\"}".to_owned()
                }
                ValueType::Vector => self.vector(depth),
                ValueType::Scalar => self.scalar(depth.min(1)),
                ValueType::Matrix => self.matrix(depth),
                ValueType::String => self.pick(&TEXTS).to_owned(),
            })
            .collect();
        format!("{}({})", function.name, args.join(", "))
    }
}
