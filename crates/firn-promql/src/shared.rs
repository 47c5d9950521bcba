//! Parts that several expressions have in common. Instant queries at one time, as those of a group
//! of rules, evaluate each part once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use firn_model::{Error, ErrorKind, Result};

use crate::depends::depends_on_samples_alone;
use crate::parts::PartResult;
use crate::syntax::{Expr, FunctionId, Node, NodeKind, Span, ValueType};
use crate::value::{HeldMemory, QueryOutput, Value};

/// Longer parts are never compared: their text would be formatted for each level of the tree.
const PART_TEXT_BYTES_MAX: u32 = 4_096;

/// Expressions with the parts that they share. [`SharedResults`] evaluates them.
///
/// A part is a selector, or an operator, aggregation or function above selectors, that occurs at
/// least twice: `rate(a[5m])` of `sum(rate(a[5m]))` and `rate(a[5m]) > 5`. A part may have parts.
#[derive(Debug)]
pub struct SharedExprs {
    exprs: Vec<SharedExpr<Arc<Expr>>>,
    /// A part is behind those that it uses.
    parts: Vec<SharedPart>,
    batches: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct SharedPart {
    part: SharedExpr<Expr>,
    /// Its uses in expressions and in other parts.
    use_count: usize,
}

/// An expression, and the nodes in it that are parts.
#[derive(Debug)]
struct SharedExpr<E> {
    expr: E,
    uses: Vec<PartUse>,
}

/// A node that is a part.
#[derive(Clone, Copy, Debug)]
struct PartUse {
    span: Span,
    part_idx: usize,
}

impl SharedExprs {
    /// Finds the parts of `exprs`.
    pub fn new(exprs: Vec<Arc<Expr>>) -> SharedExprs {
        let mut search = PartSearch::default();
        exprs.iter().for_each(|expr| search.count(&expr.root));
        let mut parts = Vec::new();
        let mut share = |expr: Arc<Expr>| {
            let mut uses = Vec::new();
            search.collect(&expr, &expr.root, &mut parts, &mut uses);
            SharedExpr { expr, uses }
        };
        let exprs: Vec<_> = exprs.into_iter().map(&mut share).collect();
        let batches = batches(&exprs, &parts);
        SharedExprs { exprs, parts, batches }
    }

    /// Expressions by position: those of one batch share parts, those of different batches do not.
    pub fn batches(&self) -> &[Vec<usize>] {
        &self.batches
    }

    /// Evaluates all expressions in order, each with the results of its parts. See
    /// [`SharedResults::evaluate`].
    pub fn evaluate_all(
        &self,
        evaluate: &mut dyn FnMut(&Expr, &[PartResult]) -> Result<QueryOutput>,
    ) -> Vec<Result<QueryOutput>> {
        let mut results = SharedResults::new(self);
        (0..self.len()).map(|idx| results.evaluate(idx, evaluate)).collect()
    }

    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// The memory of the parts, copies of nodes of the expressions.
    pub fn part_bytes(&self) -> u64 {
        let uses_bytes = |uses: &Vec<PartUse>| uses.capacity() * size_of::<PartUse>();
        let exprs = self.exprs.iter().map(|expr| uses_bytes(&expr.uses));
        let parts = self.parts.iter().map(|SharedPart { part, .. }| {
            // The list of parts grows to twice its length.
            let own = 2 * size_of::<SharedPart>() + uses_bytes(&part.uses);
            part.expr.root.heap_bytes().saturating_add(own)
        });
        parts.chain(exprs).fold(0, usize::saturating_add) as u64
    }

    /// Whether there is no expression.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }
}

/// Finds nodes that occur more than once where they are evaluated: a node inside of a repeated one
/// is evaluated with it.
#[derive(Default)]
struct PartSearch {
    /// By the hash of their normal form: all texts together are hundreds of times the expression.
    nodes: HashMap<u128, Occurrence>,
    hashers: [RandomState; 2],
}

#[derive(Default)]
struct Occurrence {
    count: usize,
    part_idx: Option<usize>,
}

impl PartSearch {
    fn count(&mut self, node: &Node) {
        if let Some(key) = self.key(node) {
            let known = self.nodes.entry(key).or_default();
            known.count = known.count.saturating_add(1);
            if known.count > 1 {
                return;
            }
        }
        operands(node).into_iter().for_each(|operand| self.count(operand));
    }

    /// Adds the parts in `node`, a node of `expr`, to `uses`, and new ones to `parts`.
    fn collect(
        &mut self,
        expr: &Expr,
        node: &Node,
        parts: &mut Vec<SharedPart>,
        uses: &mut Vec<PartUse>,
    ) {
        let key = self.key(node).filter(|key| self.nodes.get(key).is_some_and(|n| n.count > 1));
        let Some(key) = key else {
            let operands = operands(node).into_iter();
            return operands.for_each(|operand| self.collect(expr, operand, parts, uses));
        };
        let known = self.nodes.get(&key).and_then(|known| known.part_idx);
        let part_idx = known.unwrap_or_else(|| {
            let mut own = Vec::new();
            let operands = operands(node).into_iter();
            operands.for_each(|operand| self.collect(expr, operand, parts, &mut own));
            let part = SharedExpr { expr: expr.part(node), uses: own };
            parts.push(SharedPart { part, use_count: 0 });
            parts.len() - 1
        });
        parts[part_idx].use_count += 1;
        self.nodes.entry(key).or_default().part_idx = Some(part_idx);
        uses.push(PartUse { span: node.span, part_idx });
    }

    /// A node that may be a part. Equal nodes have equal keys.
    fn key(&self, node: &Node) -> Option<u128> {
        let text = part_text(node)?;
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(&text)));
        Some(high << 64 | low)
    }
}

/// The normal form of a node whose value depends on samples and the time alone.
fn part_text(node: &Node) -> Option<String> {
    let is_short = node.span.end.saturating_sub(node.span.start) <= PART_TEXT_BYTES_MAX;
    let is_operation = match &node.kind {
        NodeKind::Selector(_)
        | NodeKind::Aggregate(_)
        | NodeKind::Binary(_)
        | NodeKind::Call { .. }
        | NodeKind::Unary { .. } => true,
        NodeKind::Paren(_)
        | NodeKind::Number { .. }
        | NodeKind::String(_)
        | NodeKind::Matrix(_)
        | NodeKind::Subquery(_) => false,
    };
    let is_part = is_short
        && is_operation
        && node.value_type() == ValueType::Vector
        && depends_on_samples_alone(node);
    is_part.then(|| node.to_string())
}

/// The nodes below `node` that are evaluated at the same time as `node`, to their values.
fn operands(node: &Node) -> Vec<&Node> {
    match &node.kind {
        NodeKind::Paren(operand) | NodeKind::Unary { operand, .. } => vec![operand],
        NodeKind::Binary(binary) => vec![&binary.lhs, &binary.rhs],
        NodeKind::Aggregate(aggregate) => aggregate.param.iter().chain([&aggregate.expr]).collect(),
        NodeKind::Call { function, args } => {
            use FunctionId as F;
            // They read more of a selector than its values.
            match matches!(function.id, F::Timestamp | F::StartTimestamp | F::Info) {
                true => Vec::new(),
                false => args.iter().collect(),
            }
        }
        NodeKind::Number { .. }
        | NodeKind::String(_)
        | NodeKind::Selector(_)
        | NodeKind::Matrix(_)
        | NodeKind::Subquery(_) => Vec::new(),
    }
}

/// The expressions that parts connect, in the order of the first of each batch. O(uses).
fn batches(exprs: &[SharedExpr<Arc<Expr>>], parts: &[SharedPart]) -> Vec<Vec<usize>> {
    // A forest of expressions, then parts: the root of a tree is its smallest node, and a batch is
    // the expressions of a tree.
    let mut parents: Vec<usize> = (0..exprs.len() + parts.len()).collect();
    let users = exprs.iter().map(|expr| &expr.uses);
    let users = users.chain(parts.iter().map(|part| &part.part.uses));
    for (user, uses) in users.enumerate() {
        for one in uses {
            let (a, b) = (root(&mut parents, user), root(&mut parents, exprs.len() + one.part_idx));
            parents[a.max(b)] = a.min(b);
        }
    }
    let mut batches: Vec<Vec<usize>> = vec![Vec::new(); exprs.len()];
    for idx in 0..exprs.len() {
        batches[root(&mut parents, idx)].push(idx);
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// The root of the tree of `node`, which is nearer to it afterwards.
fn root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

/// The results of parts, each from its first use to its last one, while the expressions of a batch
/// are evaluated at one time.
#[derive(Debug)]
pub struct SharedResults<'a> {
    shared: &'a SharedExprs,
    parts: HashMap<usize, PartState>,
}

#[derive(Debug)]
struct PartState {
    /// `None` if it failed: each user then evaluates it, and has the error.
    result: Option<(Arc<Value>, HeldMemory)>,
    /// Uses of it that are still to come.
    use_count: usize,
}

impl<'a> SharedResults<'a> {
    /// No results yet.
    pub fn new(shared: &'a SharedExprs) -> SharedResults<'a> {
        SharedResults { shared, parts: HashMap::new() }
    }

    /// Evaluates the expression at `idx`; each once. `evaluate` is an instant query with results of
    /// parts, of the same view at the same time for all expressions; it is called for parts without
    /// a result, too. The annotations of parts are lost.
    ///
    /// A part has all members of an aggregation above it, which alone may need no memory for them.
    /// So an expression that is too large with its parts is evaluated without them.
    ///
    /// # Errors
    /// Those of the query.
    pub fn evaluate(
        &mut self,
        idx: usize,
        evaluate: &mut dyn FnMut(&Expr, &[PartResult]) -> Result<QueryOutput>,
    ) -> Result<QueryOutput> {
        let Some(shared) = self.shared.exprs.get(idx) else {
            return Err(Error::internal("there is no such expression"));
        };
        let known = self.take(&shared.uses, evaluate);
        match evaluate(&shared.expr, &known) {
            Err(error) if !known.is_empty() && is_over_memory(&error) => {
                drop(known);
                evaluate(&shared.expr, &[])
            }
            evaluated => evaluated,
        }
    }

    fn take(
        &mut self,
        uses: &[PartUse],
        evaluate: &mut dyn FnMut(&Expr, &[PartResult]) -> Result<QueryOutput>,
    ) -> Vec<PartResult> {
        let mut known = Vec::with_capacity(uses.len());
        for &PartUse { span, part_idx } in uses {
            let mut state = match self.parts.remove(&part_idx) {
                Some(state) => state,
                None => self.evaluate_part(part_idx, evaluate),
            };
            if let Some((value, held)) = &state.result {
                known.push(PartResult { span, value: Arc::clone(value), held: held.clone() });
            }
            state.use_count = state.use_count.saturating_sub(1);
            if state.use_count > 0 {
                self.parts.insert(part_idx, state);
            }
        }
        known
    }

    fn evaluate_part(
        &mut self,
        part_idx: usize,
        evaluate: &mut dyn FnMut(&Expr, &[PartResult]) -> Result<QueryOutput>,
    ) -> PartState {
        let shared: &'a SharedExprs = self.shared;
        let SharedPart { part, use_count } = &shared.parts[part_idx];
        let known = self.take(&part.uses, evaluate);
        let output = evaluate(&part.expr, &known).ok();
        let result = output.map(|output| (Arc::new(output.value), output.held));
        PartState { result, use_count: *use_count }
    }
}

fn is_over_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Busy { .. })
}

#[cfg(test)]
mod tests {
    use firn_model::{Labels, QueryContext};
    use firn_promqltest::MemorySelect;

    use super::*;
    use crate::{EvalOptions, eval_with_parts, parse};

    fn shared(texts: &[&str]) -> SharedExprs {
        SharedExprs::new(texts.iter().map(|text| Arc::new(parse(text).unwrap())).collect())
    }

    /// Before, each part that connects two batches renumbered all expressions: 10^10 steps here.
    #[test]
    fn very_many_expressions_are_batched_in_linear_time() {
        const COUNT: usize = 100_000;
        let texts: Vec<String> = (0..COUNT).map(|idx| format!("a{idx} + a{}", idx + 1)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(shared(&texts).batches(), [(0..COUNT).collect::<Vec<_>>()]);
    }

    #[test]
    fn parts_are_the_largest_nodes_that_occur_twice() {
        let parts = |texts: &[&str]| {
            let parts = shared(texts).parts.into_iter();
            parts.map(|one| (one.part.expr.to_string(), one.use_count)).collect::<Vec<_>>()
        };
        let part = |text: &str, use_count| (text.to_owned(), use_count);
        assert_eq!(parts(&["sum(rate(a[5m]))", "rate(a[5m]) > 5"]), [part("rate(a[5m])", 2)]);
        // Spelling does not matter; the inside of a repeated node does not count.
        let two = ["sum(rate(a[5m])) > 5", "sum (rate(a[300s])) > 10"];
        assert_eq!(parts(&two), [part("sum(rate(a[5m]))", 2)]);
        let three = ["sum(rate(a[5m])) > 5", "sum(rate(a[5m])) > 10", "max(rate(a[5m]))"];
        assert_eq!(parts(&three), [part("rate(a[5m])", 2), part("sum(rate(a[5m]))", 2)]);
        assert_eq!(parts(&["(a - b) / a"]), [part("a", 2)]);
        assert_eq!(parts(&["a / 0s", "a / -0s"]), [part("a", 2)]);
        for unshared in [
            &["rate(a[5m])", "rate(a[1m])", "rate(a{x=\"y\"}[5m])"] as &[&str],
            &["rate(a[5m])", "increase(a[5m])"],
            &["timestamp(a)", "a offset 1m", "start_timestamp(a)"],
            &["max_over_time(sum(a)[5m:1m])", "sum(a)"],
            &["1 + 2", "1 + 2", "time()", "time()", "vector(1)", "vector(1)"],
            &["{job=\"a\"}", "{job=\"a\"}"],
        ] {
            assert_eq!(parts(unshared), [], "{unshared:?}");
        }
    }

    #[test]
    fn expressions_of_different_batches_share_nothing() {
        let texts = ["a", "b + c", "sum(a)", "d", "b", "max(c) / sum(a)", "e"];
        assert_eq!(shared(&texts).batches(), [vec![0, 1, 2, 4, 5], vec![3], vec![6]]);
        assert!(shared(&[]).batches().is_empty() && shared(&[]).is_empty());
    }

    fn store() -> MemorySelect {
        let mut store = MemorySelect::new();
        for (name, host) in [("a", "x"), ("a", "y"), ("a", "z"), ("b", "x"), ("b", "y")] {
            let labels = Labels::from_pairs([("__name__", name), ("host", host)]).unwrap();
            let rise = 0.1 + name.len() as f64 / host.as_bytes()[0] as f64;
            (0..90).for_each(|n| store.push(&labels, n * 15_000, n as f64 * rise));
        }
        store
    }

    #[test]
    fn values_are_those_of_each_expression_alone_and_each_part_is_read_once() {
        let (store, context) = (store(), QueryContext::unbounded());
        let options = EvalOptions::instant(1_200_000);
        let texts = [
            "sum by (host) (rate(a[5m]))",
            "rate(a[5m]) > 0.001",
            "sum(rate(a[5m])) / sum(rate(b[5m]))",
            "sum(rate(a[5m])) > 1e9",
            "avg without (host) (a) - a",
            "topk(2, a)",
            "topk(2, a) * 2",
            "label_replace(rate(b[5m]), \"h\", \"$1\", \"host\", \"(.*)\")",
            "absent(b{host=\"none\"})",
            "b{host=\"none\"}",
            "quantile(0.3, rate(a[5m])) or scalar(sum(rate(b[5m]))) * a",
        ];
        let shared = shared(&texts);
        let (mut read_alone, mut read_shared) = (0, 0);
        for batch in shared.batches() {
            let mut results = SharedResults::new(&shared);
            for &idx in batch {
                let output = results.evaluate(idx, &mut |expr, parts| {
                    let output = eval_with_parts(expr, parts, &store, &options, &context)?;
                    read_shared += output.samples_read;
                    Ok(output)
                });
                let alone = crate::eval(&parse(texts[idx]).unwrap(), &store, &options, &context);
                let alone = alone.unwrap();
                read_alone += alone.samples_read;
                assert_eq!(output.unwrap().value, alone.value, "{}", texts[idx]);
            }
            assert!(results.parts.is_empty(), "results are kept until their last use only");
        }
        // Five minutes for the rates of a and b, and for a itself; nothing else.
        assert_eq!(read_shared, 20 * (3 + 2 + 3), "{read_alone} alone");
        assert!(read_alone > 4 * read_shared, "{read_alone} and {read_shared}");
    }

    #[test]
    fn a_part_that_fails_fails_for_each_of_its_users_alone() {
        let shared = shared(&["a + a", "sum(a)", "sum(b)", "max(b)"]);
        let (store, context) = (store(), QueryContext::unbounded());
        let options = EvalOptions::instant(1_200_000);
        for batch in shared.batches() {
            let mut results = SharedResults::new(&shared);
            for &idx in batch {
                let result = results.evaluate(idx, &mut |expr, parts| {
                    if expr.to_string().contains('a') && !expr.to_string().contains("max") {
                        assert!(parts.is_empty());
                        return Err(Error::invalid("no a"));
                    }
                    eval_with_parts(expr, parts, &store, &options, &context)
                });
                assert_eq!(result.is_err(), idx < 2, "{idx}");
            }
        }
    }

    #[test]
    fn an_expression_that_is_too_large_with_its_parts_is_evaluated_alone() {
        let (store, context) = (store(), QueryContext::unbounded());
        let options = EvalOptions::instant(1_200_000);
        let shared = shared(&["sum(a)", "count(a)"]);
        let outputs = shared.evaluate_all(&mut |expr, parts| {
            if !parts.is_empty() {
                return Err(Error::too_large("the members"));
            }
            eval_with_parts(expr, parts, &store, &options, &context)
        });
        assert!(outputs.iter().all(Result::is_ok), "{outputs:?}");
    }

    #[test]
    fn signs_of_zero_differ() {
        let texts = ["a / 0s", "a / -0s", "a / 0", "a / -0"];
        let forms = texts.map(|text| parse(text).unwrap().to_string());
        assert_eq!(forms.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{forms:?}");
    }
}
