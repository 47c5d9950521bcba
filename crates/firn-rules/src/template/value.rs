//! The values of templates.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Histogram, PointValue};
use firn_promql::VectorPoint;

/// A value. Each variant is a type of Go, whose name errors contain. Clones are cheap.
#[derive(Clone, Debug)]
pub enum Value {
    /// No value.
    Nil,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64, IntType),
    /// An integer without a sign.
    Uint(u64, UintType),
    /// A double.
    Float(f64),
    /// A text.
    String(Arc<str>),
    /// A text that is marked as HTML. Its type differs from that of other texts.
    Html(Arc<str>),
    /// Texts by name. A missing name is the empty text.
    Labels(Arc<BTreeMap<String, String>>),
    /// Values by name.
    Map(Arc<ValueMap>),
    /// Values of one type.
    List(ListType, Arc<[Value]>),
    /// The result of a query.
    Samples(Arc<[Arc<Sample>]>),
    /// A sample of it.
    Sample(Arc<Sample>),
    /// The data of an alert's template.
    Alert(Arc<AlertData>),
    /// A native histogram.
    Histogram(Arc<Histogram>),
    /// Nanoseconds since 1970; in Go a value or a pointer.
    Time(i128, Indirection),
    /// A pointer to a duration in nanoseconds. A duration by value is an integer.
    DurationPointer(i64),
}

/// The types of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntType {
    /// `int`
    Int,
    /// `int32`
    Int32,
    /// `int64`
    Int64,
    /// Nanoseconds.
    Duration,
    /// A month, from 1.
    Month,
    /// A day of the week; Sunday is 0.
    Weekday,
}

/// The types of integers without a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UintType {
    /// `uint8`
    Uint8,
    /// `uint64`
    Uint64,
    /// The hint of a histogram.
    ResetHint,
}

/// The types of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// `[]float64`
    Float,
    /// `[]int`
    Int,
    /// `[]int64`
    Int64,
    /// `[]string`
    String,
    /// `[]uint64`
    Uint64,
}

/// Whether a value of Go is behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirection {
    /// A value.
    Value,
    /// A pointer.
    Pointer,
}

/// The values of [`Value::Map`].
#[derive(Clone, Debug)]
pub struct ValueMap {
    values: BTreeMap<String, Value>,
    /// Maps inside of each other.
    depth: usize,
}

impl ValueMap {
    pub(super) fn new(values: BTreeMap<String, Value>) -> ValueMap {
        let depth = values.values().map(Value::depth).max().unwrap_or(0).saturating_add(1);
        ValueMap { values, depth }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

/// A sample of a query's result.
#[derive(Clone, Debug)]
pub struct Sample {
    pub(super) labels: Arc<BTreeMap<String, String>>,
    pub(super) value: Value,
}

impl Sample {
    /// The labels with the name, and the value.
    pub fn into_parts(self) -> (Arc<BTreeMap<String, String>>, Value) {
        (self.labels, self.value)
    }
}

impl From<&VectorPoint> for Sample {
    fn from(point: &VectorPoint) -> Sample {
        let labels =
            point.labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Sample { labels: Arc::new(labels), value: Value::from(&point.value) }
    }
}

impl From<&PointValue> for Value {
    fn from(value: &PointValue) -> Value {
        match value {
            PointValue::Float(value) => Value::Float(*value),
            PointValue::Histogram(histogram) => Value::Histogram(Arc::clone(histogram)),
        }
    }
}

/// The data of an alert's template: `.Labels`, `.ExternalLabels`, `.ExternalURL`, `.Value`.
#[derive(Clone, Debug)]
pub struct AlertData {
    /// The labels of the sample, with the name.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The labels of this server.
    pub external_labels: Arc<BTreeMap<String, String>>,
    /// The URL of this server.
    pub external_url: Arc<str>,
    /// The sample's value.
    pub value: Value,
}

/// The kinds of types that functions treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeKind {
    Invalid,
    Bool,
    Int,
    Uint,
    Float,
    String,
    Map,
    Slice,
    Struct,
    Pointer,
}

impl Value {
    /// A text.
    pub fn text(text: impl Into<Arc<str>>) -> Value {
        Value::String(text.into())
    }

    pub(super) fn int(value: i64) -> Value {
        Value::Int(value, IntType::Int)
    }

    /// An `int`, as lengths are.
    pub(super) fn count(count: usize) -> Value {
        Value::int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(super) fn kind(&self) -> TypeKind {
        match self {
            Value::Nil => TypeKind::Invalid,
            Value::Bool(_) => TypeKind::Bool,
            Value::Int(..) => TypeKind::Int,
            Value::Uint(..) => TypeKind::Uint,
            Value::Float(_) => TypeKind::Float,
            Value::String(_) | Value::Html(_) => TypeKind::String,
            Value::Labels(_) | Value::Map(_) => TypeKind::Map,
            Value::List(..) | Value::Samples(_) => TypeKind::Slice,
            Value::Alert(_) | Value::Time(_, Indirection::Value) => TypeKind::Struct,
            Value::Sample(_)
            | Value::Histogram(_)
            | Value::Time(_, Indirection::Pointer)
            | Value::DurationPointer(_) => TypeKind::Pointer,
        }
    }

    /// The name of the type in Go.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Nil => "<nil>",
            Value::Bool(_) => "bool",
            Value::Int(_, IntType::Int) => "int",
            Value::Int(_, IntType::Int32) => "int32",
            Value::Int(_, IntType::Int64) => "int64",
            Value::Int(_, IntType::Duration) => "time.Duration",
            Value::Int(_, IntType::Month) => "time.Month",
            Value::Int(_, IntType::Weekday) => "time.Weekday",
            Value::Uint(_, UintType::Uint8) => "uint8",
            Value::Uint(_, UintType::Uint64) => "uint64",
            Value::Uint(_, UintType::ResetHint) => "histogram.CounterResetHint",
            Value::Float(_) => "float64",
            Value::String(_) => "string",
            Value::Html(_) => "template.HTML",
            Value::Labels(_) => "map[string]string",
            Value::Map(_) => "map[string]interface {}",
            Value::List(ListType::Float, _) => "[]float64",
            Value::List(ListType::Int, _) => "[]int",
            Value::List(ListType::Int64, _) => "[]int64",
            Value::List(ListType::String, _) => "[]string",
            Value::List(ListType::Uint64, _) => "[]uint64",
            Value::Samples(_) => "template.queryResult",
            Value::Sample(_) => "*template.sample",
            Value::Alert(_) => {
                "struct { Labels map[string]string; ExternalLabels map[string]string; \
                 ExternalURL string; Value interface {} }"
            }
            Value::Histogram(_) => "*histogram.FloatHistogram",
            Value::Time(_, Indirection::Value) => "time.Time",
            Value::Time(_, Indirection::Pointer) => "*time.Time",
            Value::DurationPointer(_) => "*time.Duration",
        }
    }

    /// Whether a condition with this value holds.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Nil => false,
            Value::Bool(value) => *value,
            Value::Int(value, _) => *value != 0,
            Value::Uint(value, _) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::String(text) | Value::Html(text) => !text.is_empty(),
            Value::Labels(labels) => !labels.is_empty(),
            Value::Map(map) => map.len() > 0,
            Value::List(_, items) => !items.is_empty(),
            Value::Samples(samples) => !samples.is_empty(),
            Value::Sample(_)
            | Value::Alert(_)
            | Value::Histogram(_)
            | Value::Time(..)
            | Value::DurationPointer(_) => true,
        }
    }

    /// The text, if the type is one of texts.
    pub(super) fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Value::String(text) | Value::Html(text) => Some(text),
            _ => None,
        }
    }

    /// Maps inside of each other, which printing and dropping recurse over.
    pub(super) fn depth(&self) -> usize {
        match self {
            Value::Map(map) => map.depth,
            _ => 0,
        }
    }
}
