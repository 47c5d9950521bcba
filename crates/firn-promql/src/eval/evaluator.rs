//! The state of one evaluation. Its methods are beside the nodes that they evaluate.

use std::collections::{BTreeSet, HashMap};

use firn_model::{QueryContext, Select};

use super::detail::HistogramDetail;
use super::meter::Meter;
use super::notes::Notes;
use crate::EvalOptions;
use crate::histogram::Remark;
use crate::parts::PartResult;
use crate::syntax::Span;

/// The state of one evaluation.
pub(crate) struct Evaluator<'a> {
    pub(super) part_results: HashMap<Span, &'a PartResult>,
    pub(super) select: &'a dyn Select,
    pub(super) context: &'a QueryContext,
    pub(super) options: &'a EvalOptions,
    pub(super) meter: Meter,
    pub(super) notes: Notes,
    /// Remarks of the most recently read windows, by metric name.
    pub(super) remarks: BTreeSet<(String, Remark)>,
    /// The histogram detail that the current node needs.
    pub(super) detail: HistogramDetail,
}
