//! The functions of the template language itself.

use std::sync::Arc;

use super::exec::{Run, too_long};
use super::print::{TooLong, action_text, sprint, sprintf, sprintln};
use super::text::{html_escape, js_escape, query_escape};
use super::value::{Indirection, Sample, TypeKind, UintType, Value};

const BAD_COMPARISON: &str = "invalid type for comparison";

impl Run<'_> {
    /// Calls a function of the language.
    ///
    /// # Errors
    /// The message of the function.
    pub(super) fn call_builtin(&mut self, name: &str, args: &[Value]) -> Result<Value, String> {
        let first = args.first().unwrap_or(&Value::Nil);
        let second = args.get(1).unwrap_or(&Value::Nil);
        let rest = args.get(1..).unwrap_or_default();
        let bytes_max = self.limits.bytes_left();
        let printed = |text: Result<String, TooLong>| text.map_err(|_| too_long());
        let text = match name {
            "not" => return Ok(Value::Bool(!first.is_true())),
            "len" => return length(first).map(Value::count),
            "index" => return index(first, rest),
            "slice" => {
                let slice = slice(first, rest)?;
                self.limits.take_bytes(slice.as_text().map_or(0, |text| text.len()))?;
                return Ok(slice);
            }
            "eq" => return self.equals_any(first, rest).map(Value::Bool),
            "ne" => {
                return self
                    .equals_any(first, std::slice::from_ref(second))
                    .map(|equal| Value::Bool(!equal));
            }
            "lt" => return less(first, second).map(Value::Bool),
            "ge" => return less(first, second).map(|less| Value::Bool(!less)),
            "le" => return self.less_or_equal(first, second).map(Value::Bool),
            "gt" => return self.less_or_equal(first, second).map(|less| Value::Bool(!less)),
            "print" => printed(sprint(args, bytes_max))?,
            "println" => printed(sprintln(args, bytes_max))?,
            "printf" => {
                let format = first.as_text().map_or("", |text| &**text);
                printed(sprintf(format, rest, bytes_max))?
            }
            "html" => html_escape(&self.joined(args)?),
            "js" => js_escape(&self.joined(args)?),
            "urlquery" => query_escape(&self.joined(args)?),
            _ => return Err("not implemented".to_owned()),
        };
        self.limits.take_bytes(text.len())?;
        Ok(Value::text(text))
    }

    /// The text of the arguments of functions that escape.
    fn joined(&self, args: &[Value]) -> Result<String, String> {
        let bytes_max = self.limits.bytes_left();
        let mut values = Vec::with_capacity(args.len());
        for value in args {
            values.push(match value {
                Value::Nil => Value::text("<no value>"),
                Value::Sample(_) => {
                    Value::text(action_text(value, bytes_max).map_err(|_| too_long())?)
                }
                other => other.clone(),
            });
        }
        sprint(&values, bytes_max).map_err(|_| too_long())
    }

    fn equals_any(&self, first: &Value, others: &[Value]) -> Result<bool, String> {
        if others.is_empty() {
            return Err("missing argument for comparison".to_owned());
        }
        for other in others {
            if self.equals(first, other)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn equals(&self, a: &Value, b: &Value) -> Result<bool, String> {
        Ok(match (a, b) {
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a, _), Value::Int(b, _)) => a == b,
            (Value::Uint(a, _), Value::Uint(b, _)) => a == b,
            (Value::Int(int, _), Value::Uint(uint, _))
            | (Value::Uint(uint, _), Value::Int(int, _)) => u64::try_from(*int) == Ok(*uint),
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::String(a) | Value::Html(a), Value::String(b) | Value::Html(b)) => a == b,
            (Value::Nil, Value::Nil) => true,
            (Value::Nil, _) | (_, Value::Nil) => false,
            _ if is_basic(a) || is_basic(b) => return Err(incompatible(a, b)),
            _ if a.kind() != b.kind() => {
                let (a_text, b_text) = (self.value_text("%s", a)?, self.value_text("%v", b)?);
                let (a_type, b_type) = (a.type_name(), b.type_name());
                return Err(format!("non-comparable types {a_text}: {a_type}, {b_type}: {b_text}"));
            }
            (Value::Time(a, Indirection::Value), Value::Time(b, Indirection::Value)) => a == b,
            (Value::Time(a, _), Value::Time(b, _)) => a == b,
            (Value::DurationPointer(a), Value::DurationPointer(b)) => a == b,
            (Value::Sample(a), Value::Sample(b)) => Arc::ptr_eq(a, b),
            (Value::Histogram(a), Value::Histogram(b)) => Arc::ptr_eq(a, b),
            _ if b.kind() == TypeKind::Pointer => false,
            _ => {
                let shown = self.value_text("%s", b)?;
                return Err(format!("non-comparable type {shown}: {}", b.type_name()));
            }
        })
    }

    fn less_or_equal(&self, a: &Value, b: &Value) -> Result<bool, String> {
        Ok(less(a, b)? || self.equals(a, b)?)
    }
}

fn incompatible(a: &Value, b: &Value) -> String {
    format!("incompatible types for comparison: {} and {}", a.type_name(), b.type_name())
}

/// Whether the type is one of numbers, texts or truth values.
fn is_basic(value: &Value) -> bool {
    matches!(
        value.kind(),
        TypeKind::Bool | TypeKind::Int | TypeKind::Uint | TypeKind::Float | TypeKind::String
    )
}

fn less(a: &Value, b: &Value) -> Result<bool, String> {
    Ok(match (a, b) {
        (Value::Int(a, _), Value::Int(b, _)) => a < b,
        (Value::Uint(a, _), Value::Uint(b, _)) => a < b,
        (Value::Int(a, _), Value::Uint(b, _)) => u64::try_from(*a).is_ok_and(|a| a < *b) || *a < 0,
        (Value::Uint(a, _), Value::Int(b, _)) => u64::try_from(*b).is_ok_and(|b| *a < b),
        (Value::Float(a), Value::Float(b)) => a < b,
        (Value::String(a) | Value::Html(a), Value::String(b) | Value::Html(b)) => a < b,
        _ if !is_basic(a) || !is_basic(b) || a.kind() == b.kind() => {
            return Err(BAD_COMPARISON.to_owned());
        }
        _ => return Err(incompatible(a, b)),
    })
}

/// The type behind a pointer.
fn pointee(value: &Value) -> &'static str {
    let name = value.type_name();
    name.strip_prefix('*').unwrap_or(name)
}

fn length(value: &Value) -> Result<usize, String> {
    match value {
        Value::Nil => Err("reflect: call of reflect.Value.Type on zero Value".to_owned()),
        Value::String(text) | Value::Html(text) => Ok(text.len()),
        Value::Labels(labels) => Ok(labels.len()),
        Value::Map(map) => Ok(map.len()),
        Value::List(_, items) => Ok(items.len()),
        Value::Samples(samples) => Ok(samples.len()),
        other => Err(format!("len of type {}", pointee(other))),
    }
}

/// An index of a list or text: at most `count`.
fn position(index: &Value, count: usize) -> Result<usize, String> {
    let (position, shown) = match index {
        Value::Int(index, _) => (usize::try_from(*index).ok(), *index),
        Value::Uint(index, _) => (usize::try_from(*index).ok(), index.cast_signed()),
        Value::Nil => return Err("cannot index slice/array with nil".to_owned()),
        other => return Err(format!("cannot index slice/array with type {}", other.type_name())),
    };
    position
        .filter(|&position| position <= count && shown >= 0)
        .ok_or_else(|| format!("index out of range: {shown}"))
}

fn map_key(index: &Value) -> Result<&str, String> {
    match index {
        Value::String(name) => Ok(name),
        Value::Nil => Err("value is nil; should be of type string".to_owned()),
        other => Err(format!("value has type {}; should be string", other.type_name())),
    }
}

fn index(value: &Value, indexes: &[Value]) -> Result<Value, String> {
    if matches!(value, Value::Nil) {
        return Err("index of untyped nil".to_owned());
    }
    let mut item = value.clone();
    for index in indexes {
        let beyond = |kind: &str| format!("reflect: {kind} index out of range");
        item = match &item {
            // The empty entry of a map of values.
            Value::Nil => return Err("index of nil pointer".to_owned()),
            Value::String(text) | Value::Html(text) => {
                let at = position(index, text.len())?;
                let byte = text.as_bytes().get(at).copied().ok_or_else(|| beyond("string"))?;
                Value::Uint(byte.into(), UintType::Uint8)
            }
            Value::List(_, items) => {
                items.get(position(index, items.len())?).cloned().ok_or_else(|| beyond("slice"))?
            }
            Value::Samples(samples) => {
                let sample = samples.get(position(index, samples.len())?);
                Value::Sample(Arc::clone(sample.ok_or_else(|| beyond("slice"))?))
            }
            Value::Labels(labels) => {
                Value::text(labels.get(map_key(index)?).map_or("", String::as_str))
            }
            Value::Map(map) => map.get(map_key(index)?).cloned().unwrap_or(Value::Nil),
            other => return Err(format!("can't index item of type {}", pointee(other))),
        };
    }
    Ok(item)
}

fn slice(value: &Value, indexes: &[Value]) -> Result<Value, String> {
    if matches!(value, Value::Nil) {
        return Err("slice of untyped nil".to_owned());
    }
    if indexes.len() > 3 {
        return Err(format!("too many slice indexes: {}", indexes.len()));
    }
    let count = match value {
        Value::String(_) | Value::Html(_) if indexes.len() == 3 => {
            return Err("cannot 3-index slice a string".to_owned());
        }
        Value::String(text) | Value::Html(text) => text.len(),
        Value::List(_, items) => items.len(),
        Value::Samples(samples) => samples.len(),
        other => return Err(format!("can't slice item of type {}", pointee(other))),
    };
    let mut positions = [0, count, count];
    for (place, index) in positions.iter_mut().zip(indexes) {
        *place = position(index, count)?;
    }
    let [start, end, capacity] = positions;
    for (low, high) in [(start, end), (end, capacity)] {
        if low > high {
            return Err(format!("invalid slice index: {low} > {high}"));
        }
    }
    let text = |text: &str| -> Arc<str> {
        let bytes = text.as_bytes().get(start..end).unwrap_or_default();
        String::from_utf8_lossy(bytes).into()
    };
    Ok(match value {
        Value::String(whole) => Value::String(text(whole)),
        Value::Html(whole) => Value::Html(text(whole)),
        Value::List(kind, items) => {
            Value::List(*kind, items.get(start..end).unwrap_or_default().into())
        }
        Value::Samples(samples) => {
            let kept: &[Arc<Sample>] = samples.get(start..end).unwrap_or_default();
            Value::Samples(kept.into())
        }
        other => other.clone(),
    })
}
