//! The parameters of functions and methods.

use super::value::{Indirection, IntType, Value};

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    Any,
    String,
    Int,
    Duration,
    Time,
    Samples,
    Sample,
}

impl Parameter {
    pub(super) fn type_name(self) -> &'static str {
        match self {
            Parameter::Any => "interface {}",
            Parameter::String => "string",
            Parameter::Int => "int",
            Parameter::Duration => "time.Duration",
            Parameter::Time => "time.Time",
            Parameter::Samples => "template.queryResult",
            Parameter::Sample => "*template.sample",
        }
    }

    /// Whether the type has a nil: interfaces, lists and pointers.
    pub(super) fn accepts_nil(self) -> bool {
        matches!(self, Parameter::Any | Parameter::Samples | Parameter::Sample)
    }

    /// The value as this type. `None` if it is of another one.
    pub(super) fn convert(self, value: Value) -> Option<Value> {
        match (self, value) {
            (Parameter::Any, value)
            | (Parameter::String, value @ Value::String(_))
            | (Parameter::Int, value @ Value::Int(_, IntType::Int))
            | (Parameter::Duration, value @ Value::Int(_, IntType::Duration))
            | (Parameter::Samples, value @ Value::Samples(_))
            | (Parameter::Sample, value @ Value::Sample(_)) => Some(value),
            (Parameter::Duration, Value::DurationPointer(ns)) => {
                Some(Value::Int(ns, IntType::Duration))
            }
            (Parameter::Time, Value::Time(ns, _)) => Some(Value::Time(ns, Indirection::Value)),
            _ => None,
        }
    }
}

/// The parameters of a function or method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub(super) parameters: &'static [Parameter],
    /// The type of further arguments.
    pub(super) rest: Option<Parameter>,
    /// Why Go refuses to call it.
    pub(super) fault: Option<&'static str>,
}

impl Signature {
    pub(super) const fn fixed(parameters: &'static [Parameter]) -> Signature {
        Signature { parameters, rest: None, fault: None }
    }

    /// The type of the argument `idx`.
    pub(super) fn parameter(&self, idx: usize) -> Parameter {
        self.parameters.get(idx).copied().or(self.rest).unwrap_or(Parameter::Any)
    }
}

/// The parameters of a function. `None` if there is none of this name.
pub(super) fn signature(name: &str) -> Option<Signature> {
    use Parameter::{Any, Sample, Samples, String};
    let fixed = |parameters| Some(Signature::fixed(parameters));
    let variadic = |parameters| Some(Signature { parameters, rest: Some(Any), fault: None });
    match name {
        "and" | "or" | "eq" | "index" | "slice" | "call" => variadic(&[Any]),
        "ne" | "lt" | "le" | "gt" | "ge" => fixed(&[Any, Any]),
        "len" | "not" => fixed(&[Any]),
        "print" | "println" | "html" | "js" | "urlquery" | "args" => variadic(&[]),
        "printf" => variadic(&[String]),
        "now" | "pathPrefix" | "externalURL" => fixed(&[]),
        "query" | "safeHtml" | "title" | "toUpper" | "toLower" | "graphLink" | "tableLink"
        | "stripPort" | "stripDomain" | "parseDuration" | "urlQueryEscape" => fixed(&[String]),
        "first" => fixed(&[Samples]),
        "label" => fixed(&[String, Sample]),
        "value" | "strvalue" => fixed(&[Sample]),
        "sortByLabel" => fixed(&[String, Samples]),
        "match" => fixed(&[String, String]),
        "reReplaceAll" => fixed(&[String, String, String]),
        "humanize" | "humanize1024" | "humanizeDuration" | "humanizePercentage"
        | "humanizeTimestamp" | "toTime" | "toDuration" => fixed(&[Any]),
        _ => None,
    }
}
