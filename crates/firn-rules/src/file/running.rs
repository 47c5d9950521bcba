//! The expressions of running rules, which a reload uses again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use firn_promql::Expr;

/// Expressions by text. A reload takes those that it reads again from here: old and new ones would
/// not fit into the memory of rules together, and regular expressions are compiled already.
#[derive(Debug, Default)]
pub struct RunningExprs(Mutex<HashMap<Arc<str>, Vec<Arc<Expr>>>>);

impl RunningExprs {
    /// Memory of one expression here, beside the expression.
    pub const EXPR_BYTES: u64 = 96;

    /// The memory of the expressions that have not been taken.
    pub fn held_bytes(&self) -> u64 {
        let by_text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        by_text.values().flatten().map(|expr| expr.held_bytes()).sum()
    }

    /// Takes an expression with this text. Each is taken once: rules of different groups would
    /// wait for each other's regular expressions.
    pub(super) fn take(&self, text: &str) -> Option<Arc<Expr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(text)?.pop()
    }
}

impl<'e> FromIterator<&'e Arc<Expr>> for RunningExprs {
    fn from_iter<I: IntoIterator<Item = &'e Arc<Expr>>>(exprs: I) -> RunningExprs {
        let mut by_text: HashMap<Arc<str>, Vec<Arc<Expr>>> = HashMap::new();
        for expr in exprs {
            by_text.entry(expr.shared_text()).or_default().push(Arc::clone(expr));
        }
        RunningExprs(Mutex::new(by_text))
    }
}
