//! The language: text to tree, tree to text, and the checks that need no data.
//!
//! Reading order: this file (the tree), `lexer`, `parser`, `check`, `function`, `duration`,
//! `print`, `pretty`, `edit`, `size`.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod check;
mod duration;
mod edit;
mod error;
mod function;
mod lexer;
mod parser;
mod pretty;
mod print;
mod quote;
mod size;
mod value_type;

use std::sync::Arc;

use firn_model::{Error, ErrorKind, Matcher, QueryContext, Reservation, Result, Timestamp};

pub use error::ParseError;
pub use function::Function;
pub use parser::{parse, parse_matchers, parse_selector, prepare, tree_bytes};
pub use pretty::Pretty;
pub use value_type::ValueType;

pub(crate) use duration::{format_duration, parse_duration_ms};
pub(crate) use error::line_column;
pub(crate) use function::FunctionId;
pub(crate) use lexer::{check_metric, check_series};
pub use quote::{
    format_f, format_g, go_quote, go_quote_char, is_printable, parse_float, parse_uint,
};
pub(crate) use quote::{parse_number, unquote};
pub(crate) use size::matchers_bytes;

/// Byte positions `start..end` in the query text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Span {
        let bounded = |offset| u32::try_from(offset).unwrap_or(u32::MAX);
        Span { start: bounded(start), end: bounded(end) }
    }

    pub(crate) fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

/// A parsed and type-checked query. Displayed in Prometheus' normal form.
#[derive(Clone, Debug)]
pub struct Expr {
    text: Arc<str>,
    /// The tree.
    pub root: Node,
    /// The matchers with patterns to compile, with their positions, in the order of the text.
    regexes: Arc<[(Matcher, Span)]>,
    /// The memory of the tree.
    _held: Option<Arc<Reservation>>,
    /// The memory of the tree and of the patterns when they were compiled.
    held_bytes: u64,
}

impl Expr {
    /// Compiles the patterns of the matchers within the limits of a query. [`crate::eval()`] calls
    /// this first; later calls do nothing.
    ///
    /// # Errors
    /// `Invalid` with the position of the first pattern that is no regular expression, or of the
    /// first selector that would select every series; otherwise as [`Matcher::compile`].
    pub fn compile(&self, context: &QueryContext) -> Result<()> {
        compile(&self.text, &self.regexes, context)?;
        if !self.regexes.is_empty() {
            check::check(&self.text, &self.root)?;
        }
        Ok(())
    }

    fn regex_bytes(&self) -> u64 {
        let regexes = self.regexes.iter().filter_map(|(matcher, _)| matcher.regex());
        regexes.map(|regex| regex.held_bytes()).sum()
    }

    /// The memory that [`prepare`] reserved for the expression.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The query text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The query text without a copy.
    pub fn shared_text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// The type of its value.
    pub fn value_type(&self) -> ValueType {
        self.root.value_type()
    }

    /// One of its nodes as an expression, with positions in the whole.
    pub(crate) fn part(&self, node: &Node) -> Expr {
        Expr {
            text: Arc::clone(&self.text),
            root: node.clone(),
            regexes: Arc::clone(&self.regexes),
            _held: self._held.clone(),
            held_bytes: self.held_bytes,
        }
    }

    /// Line and column of `span`'s first byte, both from 1, columns in bytes.
    pub fn position(&self, span: Span) -> (u32, u32) {
        line_column(&self.text, span.start)
    }
}

/// Compiles the matchers of `text`; faults are reported at their positions.
fn compile(text: &str, regexes: &[(Matcher, Span)], context: &QueryContext) -> Result<()> {
    let compile = |(matcher, span): &(Matcher, Span)| {
        matcher.compile(context).map_err(|error| match error.kind() {
            ErrorKind::Invalid => Error::from(ParseError::at(text, *span, error.to_string())),
            _ => error,
        })
    };
    regexes.iter().try_for_each(compile)
}

/// A part of a query with its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its bytes in the query text.
    pub span: Span,
    /// The variant with its operands.
    pub kind: NodeKind,
}

/// The kind of a [`Node`]. Large variants are boxed because the evaluator recurses over nodes.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// `1.5`, `0x1f`, `5m` (durations are seconds).
    Number {
        /// The number, seconds for a duration.
        value: f64,
        /// Whether it is written as a duration.
        is_duration: bool,
    },
    /// A string; PromQL strings are bytes.
    String(Vec<u8>),
    /// `up{job="a"} offset 5m @ 100`.
    Selector(Box<Selector>),
    /// `up[5m]`.
    Matrix(Box<MatrixSelector>),
    /// `expr[1h:1m]`.
    Subquery(Box<Subquery>),
    /// `(expr)`.
    Paren(Box<Node>),
    /// `-expr`, `+expr`.
    Unary {
        /// Whether it is a minus.
        negate: bool,
        /// The operand.
        operand: Box<Node>,
    },
    /// `a + b`.
    Binary(Box<Binary>),
    /// `sum by (x) (expr)`.
    Aggregate(Box<Aggregate>),
    /// `rate(expr)`.
    Call {
        /// The function.
        function: &'static Function,
        /// Its arguments.
        args: Vec<Node>,
    },
}

impl Node {
    /// The type of its value.
    pub fn value_type(&self) -> ValueType {
        match &self.kind {
            NodeKind::Number { .. } => ValueType::Scalar,
            NodeKind::String(_) => ValueType::String,
            NodeKind::Selector(_) | NodeKind::Aggregate(_) => ValueType::Vector,
            NodeKind::Matrix(_) | NodeKind::Subquery(_) => ValueType::Matrix,
            NodeKind::Paren(inner) => inner.value_type(),
            NodeKind::Unary { operand, .. } => operand.value_type(),
            NodeKind::Binary(binary) => {
                let scalar = ValueType::Scalar;
                if binary.lhs.value_type() == scalar && binary.rhs.value_type() == scalar {
                    scalar
                } else {
                    ValueType::Vector
                }
            }
            NodeKind::Call { function, .. } => function.returns,
        }
    }

    /// The node without parentheses around it.
    pub fn unparen(&self) -> &Node {
        let mut node = self;
        while let NodeKind::Paren(inner) = &node.kind {
            node = inner;
        }
        node
    }
}

/// A duration in the query: known, or computed from the query's step and range.
#[derive(Clone, Debug)]
pub enum Length {
    /// Nanoseconds, as in Go's durations.
    Fixed(i64),
    /// `[step() * 2]`.
    Computed(Box<DurationExpr>),
}

impl Length {
    /// No duration.
    pub const ZERO: Length = Length::Fixed(0);

    /// Whole milliseconds of a known length. 0 for a computed one; these are resolved before
    /// evaluation.
    pub fn ms(&self) -> i64 {
        match self {
            Length::Fixed(nanos) => nanos / 1_000_000,
            Length::Computed(_) => 0,
        }
    }

    /// Seconds of a known length.
    pub fn seconds(&self) -> f64 {
        match self {
            Length::Fixed(nanos) => *nanos as f64 / 1e9,
            Length::Computed(_) => 0.0,
        }
    }

    /// Whether the query contains no length here.
    pub fn is_zero(&self) -> bool {
        matches!(self, Length::Fixed(0))
    }
}

/// An expression of a duration, in seconds.
#[derive(Clone, Debug)]
pub enum DurationExpr {
    /// `300`, `5m`.
    Number {
        /// Seconds.
        value: f64,
        /// Whether it is written as a duration.
        is_duration: bool,
    },
    /// `step()`.
    Step,
    /// `range()`: end minus start of the query.
    Range,
    /// `-x`.
    Negate(Box<DurationExpr>),
    /// `(x)`.
    Paren(Box<DurationExpr>),
    /// `a + b` and the other arithmetic operators.
    Binary {
        /// One of `+ - * / % ^`.
        op: BinaryOp,
        /// Left operand.
        lhs: Box<DurationExpr>,
        /// Right operand.
        rhs: Box<DurationExpr>,
    },
    /// `min_of(a, b)`, `max_of(a, b)`.
    Choice {
        /// Whether the greater operand is selected.
        greater: bool,
        /// First operand.
        lhs: Box<DurationExpr>,
        /// Second operand.
        rhs: Box<DurationExpr>,
    },
}

/// The argument of `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// `@ 1234.5`, stored in milliseconds.
    Time(Timestamp),
    /// `@ start()`.
    Start,
    /// `@ end()`.
    End,
}

/// The treatment of a window's boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BoundaryMode {
    /// Samples inside the window, extrapolated by `rate` and similar functions.
    #[default]
    Plain,
    /// `anchored`: the last sample before the window supplies the value at its left boundary.
    Anchored,
    /// `smoothed`: values at both boundaries are interpolated.
    Smoothed,
}

/// `name{matchers} @ at offset o`.
#[derive(Clone, Debug)]
pub struct Selector {
    /// The name before the braces.
    pub name: Option<String>,
    /// All matchers; the one for [`Selector::name`] is the last.
    pub matchers: Vec<Matcher>,
    /// The offset into the past; negative into the future.
    pub offset: Length,
    /// The time to read at instead of the evaluation time.
    pub at: Option<At>,
    /// `anchored` or `smoothed`.
    pub boundary: BoundaryMode,
}

/// `selector[range]`.
#[derive(Clone, Debug)]
pub struct MatrixSelector {
    /// The series to read.
    pub selector: Selector,
    /// The window's length.
    pub range: Length,
}

/// `expr[range:step]`.
#[derive(Clone, Debug)]
pub struct Subquery {
    /// The expression that is evaluated inside the window.
    pub expr: Node,
    /// The window's length.
    pub range: Length,
    /// The interval between evaluations; zero selects the default.
    pub step: Length,
    /// The offset into the past.
    pub offset: Length,
    /// The time to read at instead of the evaluation time.
    pub at: Option<At>,
}

/// A binary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "documented by BinaryOp::text")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Atan2,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    TrimUpper,
    TrimLower,
    And,
    Or,
    Unless,
}

impl BinaryOp {
    /// The operator in a query.
    pub fn text(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Mod => "%",
            BinaryOp::Pow => "^",
            BinaryOp::Atan2 => "atan2",
            BinaryOp::Equal => "==",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterEqual => ">=",
            BinaryOp::TrimUpper => "</",
            BinaryOp::TrimLower => ">/",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
            BinaryOp::Unless => "unless",
        }
    }

    /// `==`, `<` and the other comparisons; not the trim operators.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        matches!(self, Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual)
    }

    /// `and`, `or`, `unless`.
    pub fn is_set(self) -> bool {
        matches!(self, BinaryOp::And | BinaryOp::Or | BinaryOp::Unless)
    }

    /// Whether the result is another metric, so that the name is dropped: arithmetic.
    pub fn is_arithmetic(self) -> bool {
        !self.is_comparison()
            && !self.is_set()
            && !matches!(self, BinaryOp::TrimUpper | BinaryOp::TrimLower)
    }
}

/// The number of series of one side that may match one series of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cardinality {
    /// Neither side repeats.
    #[default]
    OneToOne,
    /// `group_left`.
    ManyToOne,
    /// `group_right`.
    OneToMany,
    /// Set operators.
    ManyToMany,
}

/// The rule by which series of two vectors match.
#[derive(Clone, Debug, Default)]
pub struct Matching {
    /// The number of matching series per side.
    pub cardinality: Cardinality,
    /// `on` (true) or `ignoring` (false).
    pub on: bool,
    /// The labels named by `on` or `ignoring`.
    pub labels: Vec<String>,
    /// The labels that `group_left` or `group_right` copies from the "one" side.
    pub include: Vec<String>,
    /// The value of a missing series on the left.
    pub fill_left: Option<f64>,
    /// The value of a missing series on the right.
    pub fill_right: Option<f64>,
}

/// `lhs op rhs`.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The operator.
    pub op: BinaryOp,
    /// Left operand.
    pub lhs: Node,
    /// Right operand.
    pub rhs: Node,
    /// Whether a comparison returns 0 or 1 instead of filtering.
    pub return_bool: bool,
    /// The matching rule; used between two vectors only.
    pub matching: Matching,
}

/// An aggregation operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "documented by AggregateOp::text")]
pub enum AggregateOp {
    Sum,
    Avg,
    Count,
    Min,
    Max,
    Group,
    Stddev,
    Stdvar,
    Topk,
    Bottomk,
    CountValues,
    Quantile,
    Limitk,
    LimitRatio,
}

impl AggregateOp {
    /// The operator in a query.
    pub fn text(self) -> &'static str {
        match self {
            AggregateOp::Sum => "sum",
            AggregateOp::Avg => "avg",
            AggregateOp::Count => "count",
            AggregateOp::Min => "min",
            AggregateOp::Max => "max",
            AggregateOp::Group => "group",
            AggregateOp::Stddev => "stddev",
            AggregateOp::Stdvar => "stdvar",
            AggregateOp::Topk => "topk",
            AggregateOp::Bottomk => "bottomk",
            AggregateOp::CountValues => "count_values",
            AggregateOp::Quantile => "quantile",
            AggregateOp::Limitk => "limitk",
            AggregateOp::LimitRatio => "limit_ratio",
        }
    }

    /// Whether a parameter precedes the vector.
    pub fn has_param(self) -> bool {
        use AggregateOp::{Bottomk, CountValues, LimitRatio, Limitk, Quantile, Topk};
        matches!(self, Topk | Bottomk | CountValues | Quantile | Limitk | LimitRatio)
    }

    /// Whether the result consists of input series, as for `topk`.
    pub fn selects_series(self) -> bool {
        use AggregateOp::{Bottomk, LimitRatio, Limitk, Topk};
        matches!(self, Topk | Bottomk | Limitk | LimitRatio)
    }
}

/// `op by (grouping) (param, expr)`.
#[derive(Clone, Debug)]
pub struct Aggregate {
    /// The operator.
    pub op: AggregateOp,
    /// The aggregated expression.
    pub expr: Node,
    /// The parameter of `topk` and similar operators.
    pub param: Option<Node>,
    /// The labels named by `by` or `without`.
    pub grouping: Vec<String>,
    /// Whether it is `without`.
    pub without: bool,
}
