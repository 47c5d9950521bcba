//! The execution of a template.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use firn_promql::go_quote;
use regex::Regex;

use super::method;
use super::node::{Call, Choice, Command, Node, Operand, OperandKind, Pipe};
use super::number::Number;
use super::print::{action_text, sprintf};
use super::signature::{Parameter, Signature, signature};
use super::value::{AlertData, IntType, ListType, Sample, UintType, Value};
use super::{Environment, MissingKey, Result, Template, TemplateError};

/// The maximum number of nodes that an execution evaluates. Queries and regular expressions count
/// as many. A second of work.
pub const STEPS_MAX: usize = 1_000_000;
/// The maximum length of all texts that an execution produces, results of functions included.
pub const BYTES_MAX: usize = 4 << 20;
/// An execution has the first of these limits, and begins again with the next one if it produces
/// more, so that the memory that is reserved follows its need.
const BYTES_LIMITS: [usize; 3] = [64 << 10, 512 << 10, BYTES_MAX];
/// The maximum number of actions, parentheses and templates inside of each other.
pub const DEPTH_MAX: usize = 400;
/// The maximum number of templates inside of each other.
pub const CALLS_MAX: usize = 100;

/// Expands `template`.
pub(super) fn execute(
    template: &Template,
    data: &Value,
    environment: &Environment<'_>,
) -> Result<String, TemplateError> {
    let mut limits = BYTES_LIMITS.into_iter();
    loop {
        let bytes_max = limits.next().unwrap_or(BYTES_MAX);
        match execute_within(template, data, environment, bytes_max) {
            Err(error) if bytes_max < BYTES_MAX && error.0.ends_with(&too_long()) => {}
            expanded => return expanded,
        }
    }
}

fn execute_within(
    template: &Template,
    data: &Value,
    environment: &Environment<'_>,
    bytes_max: usize,
) -> Result<String, TemplateError> {
    let mut run = Run {
        template,
        environment,
        name: &template.name,
        variables: vec![("$", data.clone())],
        frame: 0,
        place: None,
        out: String::new(),
        depth: 0,
        call_count: 0,
        limits: Limits { steps_left: STEPS_MAX, bytes_left: bytes_max },
        bytes_max,
        regexes: BTreeMap::new(),
        regex_bytes: 0,
    };
    run.reserve(0).or_else(|why| run.fail(why))?;
    match template.trees.get(&template.name) {
        Some(nodes) => run.walk(data, nodes).map(|_| ())?,
        None => return run.fail("incomplete or empty template"),
    }
    Ok(run.out)
}

pub(super) struct Run<'t> {
    template: &'t Template,
    pub(super) environment: &'t Environment<'t>,
    /// The template that is executed: the text itself or one that it defines.
    name: &'t str,
    variables: Vec<(&'t str, Value)>,
    /// The first variable of the template.
    frame: usize,
    /// The node that errors name.
    place: Option<Position<'t>>,
    out: String,
    depth: usize,
    /// Templates that call each other.
    call_count: usize,
    pub(super) limits: Limits,
    /// The bytes that the execution may produce.
    pub(super) bytes_max: usize,
    pub(super) regexes: BTreeMap<String, Regex>,
    /// The memory of `regexes`.
    pub(super) regex_bytes: usize,
}

/// An offset in the text, and the node at it.
type Position<'t> = (usize, &'t dyn Display);

/// The steps and bytes that are left to an execution.
pub(super) struct Limits {
    steps_left: usize,
    bytes_left: usize,
}

impl Limits {
    /// The length of a text that may still be produced.
    pub(super) fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    pub(super) fn take_steps(&mut self, count: usize) -> Result<(), String> {
        let left = self.steps_left.checked_sub(count);
        self.steps_left =
            left.ok_or_else(|| format!("the template takes over {STEPS_MAX} steps"))?;
        Ok(())
    }

    pub(super) fn take_bytes(&mut self, count: usize) -> Result<(), String> {
        let left = self.bytes_left.checked_sub(count);
        self.bytes_left = left.ok_or_else(too_long)?;
        Ok(())
    }
}

pub(super) fn too_long() -> String {
    format!("the template produces over {BYTES_MAX} bytes")
}

/// The way out of a list of nodes.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// The arguments of a call: operands, and the value of the previous command.
#[derive(Clone, Copy)]
struct Arguments<'t, 'v> {
    operands: &'t [Operand],
    last: Option<&'v Value>,
}

const NO_ARGUMENTS: Arguments<'static, 'static> = Arguments { operands: &[], last: None };

impl Arguments<'_, '_> {
    fn is_empty(&self) -> bool {
        self.operands.is_empty() && self.last.is_none()
    }
}

enum Callee<'t, 'v> {
    Function(&'t str),
    Method(&'v Value, &'t str),
}

impl<'t> Run<'t> {
    fn fail<T>(&self, why: impl Display) -> Result<T> {
        let Some((at, node)) = self.place else {
            return Err(TemplateError(format!("template: {}: {why}", self.name)));
        };
        let before = self.template.text.get(..at).unwrap_or(&self.template.text);
        let line = before.matches('\n').count().saturating_add(1);
        let column = before.rsplit('\n').next().map_or(0, str::len);
        let (root, name) = (&self.template.name, go_quote(self.name.as_bytes()));
        Err(TemplateError(format!(
            "template: {root}:{line}:{column}: executing {name} at <{node}>: {why}"
        )))
    }

    fn at(&mut self, at: usize, node: &'t dyn Display) {
        self.place = Some((at, node));
    }

    fn at_operand(&mut self, operand: &'t Operand) {
        self.at(operand.at, operand);
    }

    fn step(&mut self) -> Result<()> {
        self.limits.take_steps(1).or_else(|why| self.fail(why))
    }

    fn print(&mut self, text: &str) -> Result<()> {
        self.limits.take_bytes(text.len()).or_else(|why| self.fail(why))?;
        self.out.push_str(text);
        Ok(())
    }

    fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            return self.fail(format!("nested over {DEPTH_MAX} levels deep"));
        }
        self.depth = self.depth.saturating_add(1);
        let result = run(self);
        self.depth = self.depth.saturating_sub(1);
        result
    }

    fn walk(&mut self, dot: &Value, nodes: &'t [Node]) -> Result<Flow> {
        self.deeper(|run| {
            for node in nodes {
                let flow = run.walk_node(dot, node)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn walk_node(&mut self, dot: &Value, node: &'t Node) -> Result<Flow> {
        self.step()?;
        match node {
            Node::Text(text) => self.print(text)?,
            // Variables persist until the end of the list around the action.
            Node::Action(pipe) => {
                let value = self.pipe(dot, pipe)?;
                if pipe.variables.is_empty() {
                    let text = action_text(&value, self.limits.bytes_left());
                    let text = text.or_else(|_| self.fail(too_long()))?;
                    self.print(&text)?;
                }
            }
            Node::If(choice) => return self.choice(dot, choice, false),
            Node::With(choice) => return self.choice(dot, choice, true),
            Node::Range { pipe, body, otherwise } => return self.range(dot, pipe, body, otherwise),
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
            Node::Call(call) => self.call_template(dot, call)?,
        }
        Ok(Flow::Next)
    }

    fn choice(&mut self, dot: &Value, choice: &'t Choice, sets_dot: bool) -> Result<Flow> {
        let variable_count = self.variables.len();
        for (pipe, body) in &choice.arms {
            let value = self.pipe(dot, pipe)?;
            if value.is_true() {
                let flow = self.walk(if sets_dot { &value } else { dot }, body)?;
                self.variables.truncate(variable_count);
                return Ok(flow);
            }
        }
        let flow = self.walk(dot, &choice.otherwise)?;
        self.variables.truncate(variable_count);
        Ok(flow)
    }

    fn range(
        &mut self,
        dot: &Value,
        pipe: &'t Pipe,
        body: &'t [Node],
        otherwise: &'t [Node],
    ) -> Result<Flow> {
        let variable_count = self.variables.len();
        let value = self.pipe(dot, pipe)?;
        let is_number =
            matches!(value, Value::Int(..) | Value::Uint(..) | Value::DurationPointer(_));
        if is_number && pipe.variables.len() > 1 {
            let shown = self.shown(&value)?;
            return self.fail(format!("can't use {shown} to iterate over more than one variable"));
        }
        let Some(mut items) = Items::of(&value) else {
            let shown = self.shown(&value)?;
            return self.fail(format!("range can't iterate over {shown}"));
        };
        let mark = self.variables.len();
        let mut is_empty = true;
        while let Some((key, item)) = items.next() {
            is_empty = false;
            self.step()?;
            self.set_range_variables(pipe, key, &item)?;
            let flow = self.walk(&item, body)?;
            self.variables.truncate(mark);
            if flow == Flow::Break {
                break;
            }
        }
        let flow = if is_empty { self.walk(dot, otherwise)? } else { Flow::Next };
        self.variables.truncate(variable_count);
        // In Go a `break` in `else` ends this range, a `continue` continues the one around it.
        Ok(if flow == Flow::Break { Flow::Next } else { flow })
    }

    /// One variable is the item; of two, the first one is the key.
    fn set_range_variables(&mut self, pipe: &'t Pipe, key: Value, item: &Value) -> Result<()> {
        let values = match pipe.variables.len() {
            0 => return Ok(()),
            1 => vec![item.clone()],
            _ => vec![key, item.clone()],
        };
        if pipe.assigns {
            for (name, value) in pipe.variables.iter().zip(values) {
                self.assign(name, value)?;
            }
            return Ok(());
        }
        let first = self.variables.len().saturating_sub(values.len());
        for (variable, value) in self.variables.iter_mut().skip(first).zip(values) {
            variable.1 = value;
        }
        Ok(())
    }

    fn shown(&self, value: &Value) -> Result<String> {
        action_text(value, self.limits.bytes_left()).or_else(|_| self.fail(too_long()))
    }

    fn call_template(&mut self, dot: &Value, call: &'t Call) -> Result<()> {
        self.at(call.at, call);
        let Some((name, nodes)) = self.template.trees.get_key_value(&call.name) else {
            let name = go_quote(call.name.as_bytes());
            return self.fail(format!("template {name} not defined"));
        };
        if self.call_count >= CALLS_MAX {
            return self.fail(format!("exceeded maximum template depth ({CALLS_MAX})"));
        }
        let data = match &call.pipe {
            Some(pipe) => self.pipe(dot, pipe)?,
            None => Value::Nil,
        };
        // The template has no other variables.
        let outer = (self.name, self.frame, self.place);
        let variable_count = self.variables.len();
        (self.name, self.frame) = (name, variable_count);
        self.variables.push(("$", data.clone()));
        self.call_count = self.call_count.saturating_add(1);
        self.walk(&data, nodes)?;
        self.call_count = self.call_count.saturating_sub(1);
        self.variables.truncate(variable_count);
        (self.name, self.frame, self.place) = outer;
        Ok(())
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        let frame = self.variables.get(self.frame..).unwrap_or_default();
        frame.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn assign(&mut self, name: &str, value: Value) -> Result<()> {
        let frame = self.variables.get_mut(self.frame..).unwrap_or_default();
        match frame.iter_mut().rev().find(|(known, _)| *known == name) {
            Some(variable) => {
                variable.1 = value;
                Ok(())
            }
            None => self.fail(format!("undefined variable: {name}")),
        }
    }

    /// The value of a pipeline, which also sets its variables.
    fn pipe(&mut self, dot: &Value, pipe: &'t Pipe) -> Result<Value> {
        self.step()?;
        self.at(pipe.at, pipe);
        self.deeper(|run| {
            let mut last: Option<Value> = None;
            for command in &pipe.commands {
                last = Some(run.command(dot, command, last.as_ref())?);
            }
            let value = last.unwrap_or(Value::Nil);
            for name in &pipe.variables {
                match pipe.assigns {
                    true => run.assign(name, value.clone())?,
                    false => run.variables.push((name, value.clone())),
                }
            }
            Ok(value)
        })
    }

    fn command(
        &mut self,
        dot: &Value,
        command: &'t Command,
        last: Option<&Value>,
    ) -> Result<Value> {
        let first = &command.first;
        let arguments = Arguments { operands: &command.arguments, last };
        match &first.kind {
            OperandKind::Field(_) | OperandKind::Chain { .. } | OperandKind::Variable { .. } => {
                return self.fields_of(dot, first, arguments);
            }
            OperandKind::Identifier(name) => {
                self.at_operand(first);
                return self.call(dot, Callee::Function(name), (command.at, command), arguments);
            }
            OperandKind::Pipe(pipe) => {
                self.check_no_arguments(first, arguments)?;
                return self.pipe(dot, pipe);
            }
            _ => {}
        }
        self.at_operand(first);
        self.check_no_arguments(first, arguments)?;
        match &first.kind {
            OperandKind::Bool(value) => Ok(Value::Bool(*value)),
            OperandKind::Dot => Ok(dot.clone()),
            OperandKind::Number(number) => self.constant(number),
            OperandKind::String { text, .. } => Ok(Value::String(Arc::clone(text))),
            _ => self.fail("nil is not a command"),
        }
    }

    fn check_no_arguments(&self, first: &Operand, arguments: Arguments<'_, '_>) -> Result<()> {
        match arguments.is_empty() {
            true => Ok(()),
            false => self.fail(format!("can't give argument to non-function {first}")),
        }
    }

    /// The value of a number where no type is demanded.
    fn constant(&self, number: &Number) -> Result<Value> {
        match (number.float, number.int) {
            (Some(float), _) if number.is_typed_float() => Ok(Value::Float(float)),
            (_, Some(int)) => Ok(Value::int(int)),
            _ => self.fail(format!("{} overflows int", number.text)),
        }
    }

    /// The value of an operand with fields; the last one may be a method with arguments.
    fn fields_of(
        &mut self,
        dot: &Value,
        operand: &'t Operand,
        arguments: Arguments<'t, '_>,
    ) -> Result<Value> {
        self.at_operand(operand);
        let (receiver, fields) = match &operand.kind {
            OperandKind::Field(fields) => (dot.clone(), fields),
            OperandKind::Variable { name, fields } => {
                let Some(value) = self.variable(name).cloned() else {
                    return self.fail(format!("undefined variable: {name}"));
                };
                if fields.is_empty() {
                    self.check_no_arguments(operand, arguments)?;
                    return Ok(value);
                }
                (value, fields)
            }
            OperandKind::Chain { of, fields } => (self.argument(dot, None, of)?, fields),
            _ => return self.argument(dot, None, operand),
        };
        let mut value = receiver;
        let mut is_interface = false;
        for (idx, field) in fields.iter().enumerate() {
            let is_last = idx.saturating_add(1) == fields.len();
            let arguments = if is_last { arguments } else { NO_ARGUMENTS };
            (value, is_interface) =
                self.field(dot, field, operand, arguments, &value, is_interface)?;
        }
        Ok(value)
    }

    /// A field, an entry of a map, or the result of a method. `is_interface` is for a receiver
    /// whose type in Go hides the type of its value; also returned.
    fn field(
        &mut self,
        dot: &Value,
        name: &'t str,
        node: &'t Operand,
        arguments: Arguments<'t, '_>,
        receiver: &Value,
        is_interface: bool,
    ) -> Result<(Value, bool)> {
        self.step()?;
        let type_name = if is_interface { "interface {}" } else { receiver.type_name() };
        if matches!(receiver, Value::Nil) {
            if is_interface {
                return self.fail(format!("nil pointer evaluating {type_name}.{name}"));
            }
            if self.environment.missing_key == MissingKey::Error {
                let name = go_quote(name.as_bytes());
                return self.fail(format!("nil data; no entry for key {name}"));
            }
            return Ok((Value::Nil, false));
        }
        if method::signature(receiver, name).is_some() {
            let callee = Callee::Method(receiver, name);
            return Ok((self.call(dot, callee, (node.at, node), arguments)?, false));
        }
        let entry = match receiver {
            Value::Labels(labels) => {
                let entry = labels.get(name).map(|text| Value::text(text.as_str()));
                (entry, Value::text(""), false)
            }
            Value::Map(map) => (map.get(name).cloned(), Value::Nil, true),
            _ => match field_of(receiver, name) {
                Some((field, is_interface)) => {
                    if !arguments.is_empty() {
                        return self.fail(format!(
                            "{name} has arguments but cannot be invoked as function"
                        ));
                    }
                    return Ok((field, is_interface));
                }
                None => {
                    return self.fail(format!("can't evaluate field {name} in type {type_name}"));
                }
            },
        };
        if !arguments.is_empty() {
            return self.fail(format!("{name} is not a method but has arguments"));
        }
        match (entry, self.environment.missing_key) {
            ((Some(value), _, is_interface), _) => Ok((value, is_interface)),
            ((None, zero, is_interface), MissingKey::Zero) => Ok((zero, is_interface)),
            ((None, ..), MissingKey::Invalid) => Ok((Value::Nil, false)),
            ((None, ..), MissingKey::Error) => {
                self.fail(format!("map has no entry for key {}", go_quote(name.as_bytes())))
            }
        }
    }

    /// Evaluates the arguments and calls.
    fn call(
        &mut self,
        dot: &Value,
        callee: Callee<'t, '_>,
        place: Position<'t>,
        arguments: Arguments<'t, '_>,
    ) -> Result<Value> {
        self.step()?;
        let (name, found) = match callee {
            Callee::Function(name) => (name, signature(name)),
            Callee::Method(receiver, name) => (name, method::signature(receiver, name)),
        };
        let Some(signature) = found else {
            return self.fail(format!("{} is not a defined function", go_quote(name.as_bytes())));
        };
        self.check_count(name, signature, arguments)?;
        if let Some(why) = signature.fault {
            return self.fail(why);
        }
        if matches!(callee, Callee::Function("and" | "or")) {
            return self.and_or(dot, name == "or", arguments);
        }
        let mut values = Vec::with_capacity(arguments.operands.len().saturating_add(1));
        for (idx, operand) in arguments.operands.iter().enumerate() {
            let parameter = signature.parameter(idx);
            values.push(self.argument(dot, Some(parameter), operand)?);
        }
        if let Some(last) = arguments.last {
            let parameter = signature.parameter(values.len());
            values.push(self.checked(last.clone(), Some(parameter))?);
        }
        let result = match callee {
            Callee::Function("call") => {
                let name = match (arguments.operands.first(), arguments.last) {
                    (Some(operand), _) => Cow::Owned(operand.to_string()),
                    (None, Some(Value::String(text))) => Cow::Borrowed(&**text),
                    (None, Some(value)) => Cow::Owned(format!("<{} Value>", value.type_name())),
                    (None, None) => Cow::Borrowed(""),
                };
                Err(match values.first() {
                    None | Some(Value::Nil) => "call of nil".to_owned(),
                    Some(value) => format!("non-function {name} of type {}", value.type_name()),
                })
            }
            Callee::Function(name) => self.call_function(name, &values),
            Callee::Method(receiver, name) => {
                let result = method::call(receiver, name, &values);
                result.and_then(|value| {
                    self.limits.take_bytes(value.as_text().map_or(0, |text| text.len()))?;
                    Ok(value)
                })
            }
        };
        result.or_else(|why| {
            self.place = Some(place);
            self.fail(format!("error calling {name}: {why}"))
        })
    }

    fn check_count(
        &self,
        name: &str,
        signature: Signature,
        arguments: Arguments<'_, '_>,
    ) -> Result<()> {
        let given = arguments.operands.len();
        let count = given.saturating_add(usize::from(arguments.last.is_some()));
        let wanted = signature.parameters.len();
        match signature.rest {
            Some(_) if count < wanted => self.fail(format!(
                "wrong number of args for {name}: want at least {wanted} got {given}"
            )),
            None if count != wanted => {
                self.fail(format!("wrong number of args for {name}: want {wanted} got {count}"))
            }
            _ => Ok(()),
        }
    }

    /// The first argument that decides, or the last one. Further ones are not evaluated.
    fn and_or(&mut self, dot: &Value, is_or: bool, arguments: Arguments<'t, '_>) -> Result<Value> {
        let mut value = Value::Nil;
        for operand in arguments.operands {
            value = self.argument(dot, Some(Parameter::Any), operand)?;
            if value.is_true() == is_or {
                return Ok(value);
            }
        }
        Ok(arguments.last.cloned().unwrap_or(value))
    }

    /// The value of an argument for a parameter; `None` accepts every value.
    fn argument(
        &mut self,
        dot: &Value,
        parameter: Option<Parameter>,
        operand: &'t Operand,
    ) -> Result<Value> {
        self.at_operand(operand);
        let value = match &operand.kind {
            OperandKind::Dot => dot.clone(),
            OperandKind::Nil => {
                return match parameter.filter(|parameter| !parameter.accepts_nil()) {
                    Some(parameter) => {
                        self.fail(format!("cannot assign nil to {}", parameter.type_name()))
                    }
                    None => Ok(Value::Nil),
                };
            }
            OperandKind::Field(_) | OperandKind::Variable { .. } | OperandKind::Chain { .. } => {
                self.fields_of(dot, operand, NO_ARGUMENTS)?
            }
            OperandKind::Pipe(pipe) => self.pipe(dot, pipe)?,
            OperandKind::Identifier(name) => {
                let place: Position<'t> = (operand.at, operand);
                self.call(dot, Callee::Function(name), place, NO_ARGUMENTS)?
            }
            OperandKind::Bool(_) | OperandKind::Number(_) | OperandKind::String { .. } => {
                return self.literal(parameter, operand);
            }
        };
        self.checked(value, parameter)
    }

    fn literal(&self, parameter: Option<Parameter>, operand: &Operand) -> Result<Value> {
        let value = match (parameter.unwrap_or(Parameter::Any), &operand.kind) {
            (Parameter::Any, OperandKind::Bool(value)) => Some(Value::Bool(*value)),
            (Parameter::Any, OperandKind::Number(number)) => Some(self.constant(number)?),
            (Parameter::Any | Parameter::String, OperandKind::String { text, .. }) => {
                Some(Value::String(Arc::clone(text)))
            }
            (Parameter::Int, OperandKind::Number(number)) => number.int.map(Value::int),
            (Parameter::Duration, OperandKind::Number(number)) => {
                number.int.map(|ns| Value::Int(ns, IntType::Duration))
            }
            _ => None,
        };
        if let Some(value) = value {
            return Ok(value);
        }
        match parameter {
            Some(Parameter::String) => self.fail(format!("expected string; found {operand}")),
            Some(Parameter::Int | Parameter::Duration) => {
                self.fail(format!("expected integer; found {operand}"))
            }
            parameter => {
                let type_name = parameter.map_or("interface {}", Parameter::type_name);
                self.fail(format!("can't handle {operand} for arg of type {type_name}"))
            }
        }
    }

    /// The value as a parameter's type.
    fn checked(&self, value: Value, parameter: Option<Parameter>) -> Result<Value> {
        let Some(parameter) = parameter else { return Ok(value) };
        if matches!(value, Value::Nil) {
            return match parameter.accepts_nil() {
                true => Ok(value),
                false => self.fail(format!("invalid value; expected {}", parameter.type_name())),
            };
        }
        let (wanted, got) = (parameter.type_name(), value.type_name());
        parameter.convert(value).map_or_else(
            || self.fail(format!("wrong type for value; expected {wanted}; got {got}")),
            Ok,
        )
    }

    /// The text of a value in errors of functions.
    pub(super) fn value_text(&self, format: &str, value: &Value) -> Result<String, String> {
        let bytes_max = self.limits.bytes_left();
        sprintf(format, std::slice::from_ref(value), bytes_max).map_err(|_| too_long())
    }
}

/// A field of a struct, and whether its type in Go hides the type of its value.
fn field_of(receiver: &Value, name: &str) -> Option<(Value, bool)> {
    let labels =
        |labels: &Arc<BTreeMap<String, String>>| Some((Value::Labels(Arc::clone(labels)), false));
    match receiver {
        Value::Alert(data) => {
            let AlertData { labels: own, external_labels, external_url, value } = &**data;
            match name {
                "Labels" => labels(own),
                "ExternalLabels" => labels(external_labels),
                "ExternalURL" => Some((Value::String(Arc::clone(external_url)), false)),
                "Value" => Some((value.clone(), true)),
                _ => None,
            }
        }
        Value::Sample(sample) => {
            let Sample { labels: own, value } = &**sample;
            match name {
                "Labels" => labels(own),
                "Value" => Some((value.clone(), true)),
                _ => None,
            }
        }
        Value::Histogram(histogram) => {
            let floats = |values: &mut dyn Iterator<Item = f64>| {
                Value::List(ListType::Float, values.map(Value::Float).collect())
            };
            let value = match name {
                "Count" => Value::Float(histogram.count),
                "Sum" => Value::Float(histogram.sum),
                "ZeroCount" => Value::Float(histogram.zero_count),
                "ZeroThreshold" => Value::Float(histogram.zero_threshold),
                "Schema" => Value::Int(histogram.schema.into(), IntType::Int32),
                "CounterResetHint" => Value::Uint(histogram.reset_hint as u64, UintType::ResetHint),
                "PositiveBuckets" => floats(&mut histogram.positive.iter().map(|b| b.count)),
                "NegativeBuckets" => floats(&mut histogram.negative.iter().map(|b| b.count)),
                "CustomValues" => floats(&mut histogram.custom_bounds.iter().copied()),
                _ => return None,
            };
            Some((value, false))
        }
        _ => None,
    }
}

/// The keys and items of a range.
enum Items<'v> {
    Ints { next: i64, end: i64, kind: IntType },
    Uints { next: u64, end: u64, kind: UintType },
    List(std::iter::Enumerate<std::slice::Iter<'v, Value>>),
    Samples(std::iter::Enumerate<std::slice::Iter<'v, Arc<Sample>>>),
    Labels(std::collections::btree_map::Iter<'v, String, String>),
    Map(Box<dyn Iterator<Item = (&'v String, &'v Value)> + 'v>),
    Empty,
}

impl<'v> Items<'v> {
    /// `None` for a type without items.
    fn of(value: &'v Value) -> Option<Items<'v>> {
        match value {
            Value::Nil => Some(Items::Empty),
            Value::Int(end, kind) => Some(Items::Ints { next: 0, end: *end, kind: *kind }),
            Value::DurationPointer(end) => {
                Some(Items::Ints { next: 0, end: *end, kind: IntType::Duration })
            }
            Value::Uint(end, kind) => Some(Items::Uints { next: 0, end: *end, kind: *kind }),
            Value::List(_, items) => Some(Items::List(items.iter().enumerate())),
            Value::Samples(samples) => Some(Items::Samples(samples.iter().enumerate())),
            Value::Labels(labels) => Some(Items::Labels(labels.iter())),
            Value::Map(map) => Some(Items::Map(Box::new(map.iter()))),
            _ => None,
        }
    }

    fn next(&mut self) -> Option<(Value, Value)> {
        match self {
            Items::Empty => None,
            Items::Ints { next, end, kind } => {
                let item = Value::Int(*next, *kind);
                (*next < *end).then_some(())?;
                *next = next.saturating_add(1);
                Some((Value::Nil, item))
            }
            Items::Uints { next, end, kind } => {
                let item = Value::Uint(*next, *kind);
                (*next < *end).then_some(())?;
                *next = next.saturating_add(1);
                Some((Value::Nil, item))
            }
            Items::List(items) => items.next().map(|(idx, item)| (Value::count(idx), item.clone())),
            Items::Samples(samples) => samples
                .next()
                .map(|(idx, sample)| (Value::count(idx), Value::Sample(Arc::clone(sample)))),
            Items::Labels(labels) => labels
                .next()
                .map(|(name, label)| (Value::text(name.as_str()), Value::text(label.as_str()))),
            Items::Map(entries) => {
                entries.next().map(|(name, value)| (Value::text(name.as_str()), value.clone()))
            }
        }
    }
}
