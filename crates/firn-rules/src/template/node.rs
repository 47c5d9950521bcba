//! The tree of a template. [`std::fmt::Display`] prints nodes as Go does in errors.

use std::fmt;
use std::sync::Arc;

use firn_promql::go_quote;

use super::number::Number;

/// A node outside of pipelines.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String),
    /// Prints its value unless it declares or assigns.
    Action(Pipe),
    /// Also `else if`: the first arm whose value is true.
    If(Choice),
    /// The same; the value becomes the dot.
    With(Choice),
    Range {
        pipe: Pipe,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Break,
    Continue,
    Call(Call),
}

#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) arms: Vec<(Pipe, Vec<Node>)>,
    pub(super) otherwise: Vec<Node>,
}

/// `{{template "name" pipe}}`.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) at: usize,
    pub(super) name: String,
    pub(super) pipe: Option<Pipe>,
}

/// Commands: each receives the value of the previous one as its last argument.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    pub(super) at: usize,
    /// The variables that receive the value.
    pub(super) variables: Vec<String>,
    /// `=` in place of `:=`.
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

/// A function with its arguments, or a value.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) at: usize,
    pub(super) first: Operand,
    pub(super) arguments: Vec<Operand>,
}

#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) at: usize,
    pub(super) kind: OperandKind,
}

#[derive(Clone, Debug)]
pub(super) enum OperandKind {
    Dot,
    Nil,
    Bool(bool),
    Number(Number),
    String {
        quoted: String,
        text: Arc<str>,
    },
    /// A function.
    Identifier(String),
    /// `.Labels.job`, at least one name.
    Field(Vec<String>),
    /// `$x.Labels.job`.
    Variable {
        name: String,
        fields: Vec<String>,
    },
    Pipe(Box<Pipe>),
    /// `(pipe).Field`, at least one name.
    Chain {
        of: Box<Operand>,
        fields: Vec<String>,
    },
}

/// Whether a list of nodes has only spaces.
pub(super) fn is_empty(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()))
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{{template {}", go_quote(self.name.as_bytes()))?;
        if let Some(pipe) = &self.pipe {
            write!(f, " {pipe}")?;
        }
        f.write_str("}}")
    }
}

impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.variables.is_empty() {
            let sign = if self.assigns { "=" } else { ":=" };
            write!(f, "{} {sign} ", self.variables.join(", "))?;
        }
        for (idx, command) in self.commands.iter().enumerate() {
            if idx > 0 {
                f.write_str(" | ")?;
            }
            write!(f, "{command}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_operand(f, &self.first)?;
        for argument in &self.arguments {
            f.write_str(" ")?;
            write_operand(f, argument)?;
        }
        Ok(())
    }
}

/// Inside of a command a pipeline has parentheses.
fn write_operand(f: &mut fmt::Formatter<'_>, operand: &Operand) -> fmt::Result {
    match operand.kind {
        OperandKind::Pipe(_) => write!(f, "({operand})"),
        _ => write!(f, "{operand}"),
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            OperandKind::Dot => f.write_str("."),
            OperandKind::Nil => f.write_str("nil"),
            OperandKind::Bool(value) => write!(f, "{value}"),
            OperandKind::Number(number) => f.write_str(&number.text),
            OperandKind::String { quoted, .. } => f.write_str(quoted),
            OperandKind::Identifier(name) => f.write_str(name),
            OperandKind::Field(fields) => write_fields(f, fields),
            OperandKind::Variable { name, fields } => {
                f.write_str(name)?;
                write_fields(f, fields)
            }
            OperandKind::Pipe(pipe) => write!(f, "{pipe}"),
            OperandKind::Chain { of, fields } => {
                write_operand(f, of)?;
                write_fields(f, fields)
            }
        }
    }
}

fn write_fields(f: &mut fmt::Formatter<'_>, fields: &[String]) -> fmt::Result {
    fields.iter().try_for_each(|field| write!(f, ".{field}"))
}
