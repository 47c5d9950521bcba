//! Label names and values of the matched series that a caller declares present.
//!
//! A value costs the lookup of one series that is present, whatever the number of series with it.
//! Values are visited in order, so that a caller may stop. If too many lookups find nothing, the
//! selection is narrowed to the groups with a present member, as after churn: the rest then costs
//! nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use firn_model::{GroupId, QueryContext, Result};

use crate::matched::MatchedSeries;
use crate::memory::listing::{self, MemoryNames, MemoryValues};
use crate::presence::{LookupOutcome, Presence};
use crate::sealed::{SealedNames, SealedValues};

const TEXTS_PER_CHECK: u32 = 64;

/// Names, or the values of one name, of one segment: ascending texts with a lookup of the matched
/// series that have each.
#[derive(Debug)]
enum TextSource<'a> {
    MemoryNames(MemoryNames<'a>),
    MemoryValues(MemoryValues<'a>),
    SealedNames(SealedNames<'a>),
    SealedValues(SealedValues<'a>),
}

impl MatchedSeries {
    /// Calls `each` with every value of `name` that a present series has, ascending, until it
    /// breaks.
    ///
    /// # Errors
    /// As [`crate::IndexView::select`]; `Busy` without memory; those of the callbacks.
    pub fn each_value(
        &self,
        name: &str,
        context: &QueryContext,
        present: &mut dyn Presence,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut value = String::new();
        if self.each_value_from(&mut value, name, context, present, each)?
            == LookupOutcome::TooManyAbsent
        {
            let narrowed = self.within(&present.groups()?, context)?;
            narrowed.each_value_from(&mut value, name, context, present, each)?;
        }
        Ok(())
    }

    /// As [`MatchedSeries::each_value`] from `value` on, which is the last visited one on return.
    fn each_value_from(
        &self,
        value: &mut String,
        name: &str,
        context: &QueryContext,
        present: &mut dyn Presence,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<LookupOutcome> {
        let mut sources = Vec::new();
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            let values = MemoryValues::open(&layer.memory, mark, classes, name, context)?;
            sources.extend(values.map(TextSource::MemoryValues));
        }
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed).rev() {
            let values = SealedValues::open(&segment.sealed, found, name, context)?;
            sources.extend(values.map(TextSource::SealedValues));
        }
        each_text_from(value, sources, context, present, each)
    }

    /// Calls `each` with every label name that a present series has, ascending, until it breaks.
    ///
    /// # Errors
    /// As [`MatchedSeries::each_value`].
    pub fn each_name(
        &self,
        context: &QueryContext,
        present: &mut dyn Presence,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut name = String::new();
        if self.each_name_from(&mut name, context, present, each)? == LookupOutcome::TooManyAbsent {
            let narrowed = self.within(&present.groups()?, context)?;
            narrowed.each_name_from(&mut name, context, present, each)?;
        }
        Ok(())
    }

    /// As [`MatchedSeries::each_name`] from `name` on, which is the last visited one on return.
    fn each_name_from(
        &self,
        name: &mut String,
        context: &QueryContext,
        present: &mut dyn Presence,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<LookupOutcome> {
        let mut sources = Vec::new();
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            let batches = MemoryNames::open(&layer.memory, mark, classes, context)?;
            sources.extend(batches.into_iter().map(TextSource::MemoryNames));
        }
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed).rev() {
            let names = SealedNames::open(&segment.sealed, found, context)?;
            sources.push(TextSource::SealedNames(names));
        }
        each_text_from(name, sources, context, present, each)
    }

    /// The matched series of some groups.
    fn within(&self, groups: &[GroupId], context: &QueryContext) -> Result<MatchedSeries> {
        let sealed = self.version.sealed.iter().zip(&self.sealed);
        let sealed =
            sealed.map(|(segment, found)| segment.sealed.keep_groups(found, groups, context));
        let sealed = sealed.collect::<Result<_>>()?;
        let in_memory = self.version.layers(self.mark).zip(&self.in_memory);
        let in_memory = in_memory.map(|((layer, _), classes)| {
            listing::keep_groups(&layer.memory, classes, groups, context)
        });
        let in_memory = in_memory.collect::<Result<_>>()?;
        Ok(MatchedSeries::new(Arc::clone(&self.version), self.mark, sealed, in_memory))
    }
}

/// Calls `each` with every text of `sources` from `text` on that a present series has, ascending,
/// until it breaks. On return `text` is the last visited one.
fn each_text_from(
    text: &mut String,
    mut sources: Vec<TextSource<'_>>,
    context: &QueryContext,
    present: &mut dyn Presence,
    each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
) -> Result<LookupOutcome> {
    let start = text.clone();
    for idx in 0u32.. {
        if idx.is_multiple_of(TEXTS_PER_CHECK) {
            context.cancel.check()?;
        }
        let Some(least) = sources.iter().filter_map(TextSource::text).min() else { break };
        let is_before = least < start.as_str();
        text.replace_range(.., least);
        let mut found = LookupOutcome::Absent;
        for source in sources.iter_mut().filter(|source| source.text() == Some(text)) {
            if !is_before && found == LookupOutcome::Absent {
                found = source.find_present(context, present)?;
            }
            source.advance()?;
        }
        let is_last = match found {
            LookupOutcome::Present => each(text)?.is_break(),
            LookupOutcome::Absent => false,
            LookupOutcome::TooManyAbsent => return Ok(found),
        };
        if is_last {
            break;
        }
    }
    Ok(LookupOutcome::Absent)
}

impl TextSource<'_> {
    /// The current text; `None` after the last.
    fn text(&self) -> Option<&str> {
        match self {
            TextSource::MemoryNames(names) => names.text(),
            TextSource::MemoryValues(values) => values.text(),
            TextSource::SealedNames(names) => names.text(),
            TextSource::SealedValues(values) => values.text(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            TextSource::MemoryNames(names) => names.advance(),
            TextSource::MemoryValues(values) => {
                values.advance();
                Ok(())
            }
            TextSource::SealedNames(names) => names.advance(),
            TextSource::SealedValues(values) => values.advance(),
        }
    }

    fn find_present(
        &mut self,
        context: &QueryContext,
        present: &mut dyn Presence,
    ) -> Result<LookupOutcome> {
        match self {
            TextSource::MemoryNames(names) => names.find_present(context, present),
            TextSource::MemoryValues(values) => values.find_present(context, present),
            TextSource::SealedNames(names) => names.find_present(context, present),
            TextSource::SealedValues(values) => values.find_present(context, present),
        }
    }
}
