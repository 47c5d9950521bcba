//! Relabelling rules of a section.

use crate::relabel::{NameScheme, RuleConfig, Rules};
use firn_yaml::{Decoder, Encoded, Failure, Field, Items, Node};

/// Rules as in the file, and compiled in a loaded configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleList {
    configs: Items<RuleConfig>,
    rules: Rules,
}

impl RuleList {
    /// The compiled rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.configs.is_empty() && !self.configs.has_null()
    }

    pub(super) fn has_null(&self) -> bool {
        self.configs.has_null()
    }

    pub(super) fn compile(&mut self, scheme: NameScheme) -> Result<(), String> {
        self.rules = Rules::new(&self.configs, scheme).map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl Field for RuleList {
    fn type_name() -> String {
        Items::<RuleConfig>::type_name()
    }

    fn zero() -> RuleList {
        RuleList::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.configs.read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        self.configs.encode()
    }

    fn is_zero(&self) -> bool {
        self.configs.is_zero()
    }
}
