//! Rules: their form in a file, their validation, and their actions.

use std::sync::Arc;

use firn_model::{Budget, Error, Labels, Result};

use super::LabelEditor;
use super::md5_mod::hash_mod;
use super::pattern::{Pattern, PatternAllowance};
use super::template::Template;
use firn_yaml::quoted;
use firn_yaml::{
    Checked, Decoder, Encoded, Failure, Field, Node, NodeValue, RawText, from_document_within,
    section, text_of, words,
};

words! {
    /// The action of a rule.
    pub enum Action: "relabel.Action" {
        Replace = "replace",
        Keep = "keep",
        Drop = "drop",
        KeepEqual = "keepequal",
        DropEqual = "dropequal",
        HashMod = "hashmod",
        LabelMap = "labelmap",
        LabelDrop = "labeldrop",
        LabelKeep = "labelkeep",
        Lowercase = "lowercase",
        Uppercase = "uppercase",
    }
    fold |text| text.to_lowercase();
    unknown |text| format!("unknown relabel action {}", quoted(text.as_bytes()));
}

words! {
    /// The names that metrics and labels may have.
    pub enum NameScheme: "model.ValidationScheme" {
        /// Any text that is not empty.
        Utf8 = "utf8",
        /// `[a-zA-Z_][a-zA-Z0-9_]*`; metrics may have colons too.
        Legacy = "legacy",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unrecognized ValidationScheme: {}", quoted(text.as_bytes()));
    empty Unset;
}

impl NameScheme {
    /// Whether `name` is a name of a label.
    pub fn is_label_name(self, name: &str) -> bool {
        match self {
            NameScheme::Legacy => {
                let is_first = |c: char| c == '_' || c.is_ascii_alphabetic();
                name.starts_with(is_first)
                    && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
            }
            NameScheme::Utf8 | NameScheme::Unset => !name.is_empty(),
        }
    }

    /// Whether `name` is a name of a label in which variables such as `${1}` are replaced.
    fn is_label_template(self, name: &str) -> bool {
        match self {
            NameScheme::Legacy => is_legacy_template(name),
            NameScheme::Utf8 | NameScheme::Unset => !name.is_empty(),
        }
    }
}

/// `(([a-zA-Z_]|\$(\{\w+\}|\w+))+\w*)+`
fn is_legacy_template(name: &str) -> bool {
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_start = rest.len() == name.len();
        if let Some(after) = rest.strip_prefix('$') {
            let (inside, is_braced) = match after.strip_prefix('{') {
                Some(inside) => (inside, true),
                None => (after, false),
            };
            let behind = inside.trim_start_matches(is_word);
            if behind.len() == inside.len() {
                return false;
            }
            let Some(behind) = (if is_braced { behind.strip_prefix('}') } else { Some(behind) })
            else {
                return false;
            };
            rest = behind;
        } else if is_word(first) && !(is_start && first.is_ascii_digit()) {
            rest = rest.get(1..).unwrap_or("");
        } else {
            return false;
        }
    }
    !name.is_empty()
}

/// The regular expression of a rule as it was typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegexText {
    /// `None` for the default, which a rule may distinguish from the same text.
    typed: Option<String>,
}

impl RegexText {
    /// The expression `text`.
    pub fn new(text: impl Into<String>) -> RegexText {
        RegexText { typed: Some(text.into()) }
    }

    /// The expression.
    pub fn as_str(&self) -> &str {
        self.typed.as_deref().unwrap_or("(.*)")
    }

    /// Whether the key is absent.
    pub fn is_default(&self) -> bool {
        self.typed.is_none()
    }
}

impl Field for RegexText {
    fn type_name() -> String {
        "relabel.Regexp".to_owned()
    }

    fn zero() -> RegexText {
        RegexText::new("")
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        *self = RegexText::new(text);
        Pattern::check_syntax(text)
            .map_err(|error| Failure::new(error.to_string()).at(node.line))?;
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.as_str().to_owned())
    }

    fn is_zero(&self) -> bool {
        self.is_default()
    }
}

/// The name of a label in a file: not empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelName(String);

impl LabelName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for LabelName {
    fn from(name: &str) -> LabelName {
        LabelName(name.to_owned())
    }
}

impl Field for LabelName {
    fn type_name() -> String {
        "model.LabelName".to_owned()
    }

    fn zero() -> LabelName {
        LabelName(String::new())
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let wrong = |name: &[u8]| {
            Failure::new(format!("{} is not a valid label name", quoted(name))).at(node.line)
        };
        if let NodeValue::Bytes(bytes) = &node.value {
            return Err(wrong(bytes));
        }
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        if text.is_empty() {
            return Err(wrong(b""));
        }
        text.clone_into(&mut self.0);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.0.clone())
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

section! {
    /// A rule as in a file. A key that is absent has its default, a null is empty.
    pub struct RuleConfig: "relabel.plain" {
        /// The values of these labels, joined by the separator, are the value of the rule.
        source_labels: Option<Vec<LabelName>> = "source_labels" omit,
        separator: RawText = "separator",
        regex: RegexText = "regex" omit,
        modulus: u64 = "modulus" omit,
        target_label: RawText = "target_label" omit,
        replacement: RawText = "replacement",
        action: Action = "action" omit,
    }
}

impl Default for RuleConfig {
    fn default() -> RuleConfig {
        RuleConfig {
            source_labels: None,
            separator: ";".into(),
            regex: RegexText::default(),
            modulus: 0,
            target_label: RawText::default(),
            replacement: "$1".into(),
            action: Action::Replace,
        }
    }
}

impl Checked for RuleConfig {
    fn start(&mut self) {
        *self = RuleConfig::default();
    }
}

impl RuleConfig {
    /// Checks the rule for names of `scheme`, in Prometheus' order.
    fn check_for(&self, scheme: NameScheme) -> Result<(), String> {
        use Action::{
            DropEqual, HashMod, KeepEqual, LabelDrop, LabelKeep, LabelMap, Lowercase, Replace,
            Uppercase,
        };
        let action = self.action;
        let default = RuleConfig::default();
        let target = &self.target_label;
        let wrong_target = || {
            let target = quoted(target.as_bytes());
            Err(format!("{target} is invalid 'target_label' for {action} action"))
        };
        if action == Action::Unset {
            return Err("relabel action cannot be empty".to_owned());
        }
        if action == HashMod && self.modulus == 0 {
            return Err("relabel configuration for hashmod requires non-zero modulus".to_owned());
        }
        let has_target =
            matches!(action, Replace | HashMod | Lowercase | Uppercase | KeepEqual | DropEqual);
        if has_target && target.is_empty() {
            let text =
                format!("relabel configuration for {action} action requires 'target_label' value");
            return Err(text);
        }
        let is_template = action == Replace && target.as_str().contains('$');
        let is_valid_target = target.is_utf8()
            && match is_template {
                true => scheme.is_label_template(target.as_str()),
                false => scheme.is_label_name(target.as_str()),
            };
        if action == Replace && !is_valid_target {
            return wrong_target();
        }
        if matches!(action, Lowercase | Uppercase | KeepEqual | DropEqual) {
            if !is_valid_target {
                return wrong_target();
            }
            if self.replacement != default.replacement {
                return Err(format!("'replacement' can not be set for {action} action"));
            }
        }
        let replacement = &self.replacement;
        let is_valid_replacement =
            replacement.is_utf8() && scheme.is_label_template(replacement.as_str());
        if action == LabelMap && !is_valid_replacement {
            let replacement = quoted(replacement.as_bytes());
            return Err(format!("{replacement} is invalid 'replacement' for {action} action"));
        }
        if action == HashMod && !is_valid_target {
            return wrong_target();
        }
        let has_other_keys = self.modulus != default.modulus
            || self.separator != default.separator
            || self.replacement != default.replacement;
        if matches!(action, DropEqual | KeepEqual) && (has_other_keys || !self.regex.is_default()) {
            return Err(format!(
                "{action} action requires only 'source_labels' and `target_label`, and no other \
                 fields"
            ));
        }
        let has_labels = self.source_labels.is_some() || !target.is_empty();
        if matches!(action, LabelDrop | LabelKeep) && (has_other_keys || has_labels) {
            return Err(format!("{action} action requires only 'regex', and no other fields"));
        }
        // Labels are UTF-8. Prometheus accepts these and fails, or has another hash, later.
        for (key, text, user) in
            [("replacement", replacement, Replace), ("separator", &self.separator, HashMod)]
        {
            if action == user && !text.is_utf8() {
                let text = quoted(text.as_bytes());
                return Err(format!("'{key}' {text} is not UTF-8, in a {action} action"));
            }
        }
        Ok(())
    }
}

/// A compiled list of rules. Clones share it.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Arc<[Rule]>,
}

#[derive(Clone, Debug)]
struct Rule {
    config: RuleConfig,
    scheme: NameScheme,
    pattern: Pattern,
    target: Template,
    replacement: Template,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { rules: Arc::from([]) }
    }
}

/// Rules with equal texts are equal.
impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        let key = |rule: &Rule| (rule.config.clone(), rule.scheme);
        self.rules.len() == other.rules.len()
            && self.rules.iter().zip(&*other.rules).all(|(a, b)| key(a) == key(b))
    }
}

impl Rules {
    /// Checks and compiles rules for names of `scheme`.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text for the first rule that is wrong or too large.
    pub fn new(configs: &[RuleConfig], scheme: NameScheme) -> Result<Rules> {
        let mut allowance = PatternAllowance::default();
        let compile = |config: &RuleConfig| {
            config.check_for(scheme).map_err(Error::invalid)?;
            let pattern = Pattern::new(config.regex.as_str(), &mut allowance)?;
            let target = Template::new(config.target_label.as_str(), &pattern);
            let replacement = Template::new(config.replacement.as_str(), &pattern);
            Ok(Rule { config: config.clone(), scheme, pattern, target, replacement })
        };
        Ok(Rules { rules: configs.iter().map(compile).collect::<Result<_>>()? })
    }

    /// Reads a list of rules in YAML or JSON.
    ///
    /// # Errors
    /// `Invalid` if `text` is no list of rules, or as [`Rules::new`].
    pub fn parse(text: &str, scheme: NameScheme) -> Result<Rules> {
        Rules::parse_within(text, scheme, &Budget::unlimited())
    }

    /// The same within the memory of `budget`.
    ///
    /// # Errors
    /// As [`Rules::parse`]; `Busy` if reading takes more memory than `budget` has.
    pub fn parse_within(text: &str, scheme: NameScheme, budget: &Budget) -> Result<Rules> {
        let mut configs = Vec::<RuleConfig>::new();
        // Compiling takes more, within an allowance of its own.
        let _held =
            from_document_within(text, &mut configs, budget).map_err(Failure::into_error)?;
        Rules::new(&configs, scheme)
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules as in a file.
    pub fn configs(&self) -> impl Iterator<Item = &RuleConfig> {
        self.rules.iter().map(|rule| &rule.config)
    }

    /// Applies the rules in order. `false` if one dropped the label set. Allocates nothing once the
    /// buffers of `editor` are large enough, except for rules over all labels that rules before
    /// them have changed.
    ///
    /// # Errors
    /// `TooLarge` if the rules make too long texts.
    pub fn apply(&self, editor: &mut LabelEditor) -> Result<bool> {
        for rule in &*self.rules {
            if !rule.apply(editor)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The labels that the rules make of `labels`; `None` if they are dropped.
    ///
    /// # Errors
    /// As [`Rules::apply`].
    pub fn relabel(&self, labels: &Labels, editor: &mut LabelEditor) -> Result<Option<Labels>> {
        editor.reset(labels);
        Ok(self.apply(editor)?.then(|| editor.labels()))
    }

    /// Calls `each` with each rule and the labels after it: `None` once a rule has dropped them.
    ///
    /// # Errors
    /// As [`Rules::apply`], and those of `each`.
    pub fn for_each_step(
        &self,
        labels: &Labels,
        mut each: impl FnMut(&RuleConfig, Option<&Labels>) -> Result<()>,
    ) -> Result<()> {
        let mut editor = LabelEditor::default();
        editor.reset(labels);
        let mut is_kept = true;
        for rule in &*self.rules {
            is_kept = is_kept && rule.apply(&mut editor)?;
            let labels = is_kept.then(|| editor.labels());
            each(&rule.config, labels.as_ref())?;
        }
        Ok(())
    }
}

impl Rule {
    fn apply(&self, editor: &mut LabelEditor) -> Result<bool> {
        // The buffers leave the editor while it is borrowed.
        let mut source = std::mem::take(&mut editor.source);
        let mut made = std::mem::take(&mut editor.target);
        let result = self.apply_with(editor, &mut source, &mut made);
        editor.source = source;
        editor.target = made;
        result
    }

    fn apply_with(
        &self,
        editor: &mut LabelEditor,
        source: &mut String,
        made: &mut String,
    ) -> Result<bool> {
        let target = self.config.target_label.as_str();
        self.join_source(editor, source)?;
        made.clear();
        match self.config.action {
            Action::Keep => return Ok(self.pattern.is_match(source)),
            Action::Drop => return Ok(!self.pattern.is_match(source)),
            Action::KeepEqual => return Ok(editor.get(target) == source),
            Action::DropEqual => return Ok(editor.get(target) != source),
            Action::Replace => self.replace(editor, source, made)?,
            Action::HashMod => {
                let hash = hash_mod(source, self.config.modulus);
                std::fmt::Write::write_fmt(made, format_args!("{hash}"))
                    .map_err(|_| Error::internal("formatting of a number"))?;
                editor.set(target, made)?;
            }
            Action::Lowercase => {
                made.extend(source.chars().map(lower));
                editor.set(target, made)?;
            }
            Action::Uppercase => {
                made.extend(source.chars().map(upper));
                editor.set(target, made)?;
            }
            Action::LabelMap => editor.for_each(|editor, name, value| {
                let mut slots = std::mem::take(&mut editor.slots);
                made.clear();
                let is_match = self.pattern.find(name, &mut slots);
                let expanded = match is_match {
                    true => self.replacement.expand(name, &slots, (made, editor.bytes_max())),
                    false => Ok(()),
                };
                editor.slots = slots;
                expanded?;
                if is_match { editor.set(made, value) } else { Ok(()) }
            })?,
            Action::LabelDrop => editor.for_each(|editor, name, _| {
                if self.pattern.is_match(name) { editor.delete_known(name) } else { Ok(()) }
            })?,
            Action::LabelKeep => editor.for_each(|editor, name, _| {
                if self.pattern.is_match(name) { Ok(()) } else { editor.delete_known(name) }
            })?,
            Action::Unset => {}
        }
        Ok(true)
    }

    fn join_source(&self, editor: &LabelEditor, source: &mut String) -> Result<()> {
        source.clear();
        for (idx, name) in self.config.source_labels.iter().flatten().enumerate() {
            if idx > 0 {
                source.push_str(self.config.separator.as_str());
            }
            source.push_str(editor.get(name.as_str()));
            super::editor::check_bytes(source.len(), editor.bytes_max())?;
        }
        Ok(())
    }

    /// Without a match, and for a target that is no name of a label, nothing changes.
    fn replace(&self, editor: &mut LabelEditor, source: &str, made: &mut String) -> Result<()> {
        let (mut slots, bytes_max) = (std::mem::take(&mut editor.slots), editor.bytes_max());
        let result = (|| {
            if !self.pattern.find(source, &mut slots) {
                return Ok(());
            }
            self.target.expand(source, &slots, (made, bytes_max))?;
            let target_end = made.len();
            self.replacement.expand(source, &slots, (made, bytes_max))?;
            let (target, value) = made.split_at_checked(target_end).unwrap_or(("", ""));
            match self.scheme.is_label_name(target) {
                true => editor.set(target, value),
                false => Ok(()),
            }
        })();
        editor.slots = slots;
        result
    }
}

/// The lower case of one character by one character, as in Go.
fn lower(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(one), None) => one,
        // Only U+0130 becomes two.
        _ if c == '\u{130}' => 'i',
        _ => c,
    }
}

/// The upper case of one character by one character, as in Go: `ß` stays.
fn upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    if let (Some(one), None) = (upper.next(), upper.next()) {
        return one;
    }
    // Greek with iota subscript: its title case is one character.
    let offset = match c {
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => 8,
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => 9,
        _ => 0,
    };
    u32::from(c).checked_add(offset).and_then(char::from_u32).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relabel(rules: &str, labels: &[(&str, &str)]) -> Option<String> {
        let rules = Rules::parse(rules, NameScheme::Utf8).unwrap();
        let labels = Labels::from_pairs(labels.iter().copied()).unwrap();
        let relabelled = rules.relabel(&labels, &mut LabelEditor::default()).unwrap();
        assert_eq!(relabelled, after_steps(&rules, &labels));
        relabelled.map(|labels| labels.to_string())
    }

    /// The labels after the last step.
    fn after_steps(rules: &Rules, labels: &Labels) -> Option<Labels> {
        let mut last = Some(labels.clone());
        let keep = |_: &RuleConfig, labels: Option<&Labels>| {
            last = labels.cloned();
            Ok(())
        };
        rules.for_each_step(labels, keep).unwrap();
        last
    }

    #[test]
    fn after_a_drop_each_step_has_no_labels() {
        let text = "[{target_label: a, replacement: b}, {action: drop, source_labels: [a]}, \
                    {target_label: c, replacement: d}]";
        let rules = Rules::parse(text, NameScheme::Utf8).unwrap();
        let mut steps = Vec::new();
        let push = |rule: &RuleConfig, labels: Option<&Labels>| {
            steps.push((rule.action, labels.map(ToString::to_string)));
            Ok(())
        };
        rules.for_each_step(&Labels::empty(), push).unwrap();
        let first = (Action::Replace, Some(r#"{a="b"}"#.to_owned()));
        assert_eq!(steps, [first, (Action::Drop, None), (Action::Replace, None)]);
    }

    #[test]
    fn rules_act_as_in_prometheus() {
        for (rules, labels, want) in [
            ("[]", &[("a", "1")][..], Some(r#"{a="1"}"#)),
            // An empty result deletes the target.
            ("[{target_label: a, replacement: ''}]", &[("a", "1"), ("b", "2")], Some(r#"{b="2"}"#)),
            ("[{source_labels: [b], target_label: a}]", &[("a", "1")], Some("{}")),
            // Null is empty, not the default.
            (
                "[{regex: , target_label: b, replacement: x}]",
                &[("a", "1")],
                Some(r#"{a="1",b="x"}"#),
            ),
            (
                "[{source_labels: [a, a], separator: , target_label: b}]",
                &[("a", "1")],
                Some(r#"{a="1",b="11"}"#),
            ),
            // A number is a text.
            ("[{target_label: b, replacement: 0x10}]", &[("a", "1")], Some(r#"{a="1",b="0x10"}"#)),
            // Patterns see bytes that are no UTF-8 as U+FFFD, as in Prometheus.
            (
                "[{source_labels: [a, a], separator: !!binary /w==, regex: '1.1', \
                 target_label: b, replacement: x}]",
                &[("a", "1")],
                Some(r#"{a="1",b="x"}"#),
            ),
            (
                "[{action: keep, source_labels: [a], regex: 1, target_label: !!binary /w==}]",
                &[("a", "1")],
                Some(r#"{a="1"}"#),
            ),
            // A target that is no name: nothing.
            (
                "[{source_labels: [a], target_label: '$2', regex: '(.)', replacement: x}]",
                &[("a", "1")],
                Some(r#"{a="1"}"#),
            ),
            (
                "[{source_labels: [a], regex: (1), target_label: b, replacement: '$1x${1}$$'}]",
                &[("a", "1")],
                Some(r#"{a="1",b="1$"}"#),
            ),
            ("[{action: KEEP, source_labels: [a], regex: 1}]", &[("a", "1")], Some(r#"{a="1"}"#)),
            ("[{action: drop, source_labels: [b], regex: ''}]", &[("a", "1")], None),
            (
                "[{action: keepequal, source_labels: [a], target_label: b}]",
                &[("c", "1")],
                Some(r#"{c="1"}"#),
            ),
            ("[{action: dropequal, source_labels: [a], target_label: b}]", &[("c", "1")], None),
            (
                "[{action: hashmod, source_labels: [a], modulus: 8, target_label: m}]",
                &[("a", "x")],
                Some(r#"{a="x",m="6"}"#),
            ),
            // Over a snapshot; the last one wins.
            (
                "[{action: labelmap, regex: '(.)', replacement: 'x'}]",
                &[("a", "1"), ("b", "2")],
                Some(r#"{a="1",b="2",x="2"}"#),
            ),
            (
                "[{action: labelmap, regex: '(.)', replacement: '$1$1'}]",
                &[("a", "1")],
                Some(r#"{a="1",aa="1"}"#),
            ),
            (
                "[{action: labelmap, regex: '(a)(b)?', replacement: '$2'}]",
                &[("a", "1")],
                Some(r#"{a="1"}"#),
            ),
            (
                "[{target_label: ab, replacement: x}, {action: labeldrop, regex: a.*}]",
                &[("a", "1"), ("c", "2")],
                Some(r#"{c="2"}"#),
            ),
            (
                "[{target_label: ab, replacement: x}, {action: labelkeep, regex: a.}]",
                &[("a", "1"), ("c", "2")],
                Some(r#"{ab="x"}"#),
            ),
            (
                "[{action: uppercase, source_labels: [a], target_label: b}]",
                &[("a", "ßᾀéŉ")],
                Some(r#"{a="ßᾀéŉ",b="ßᾈÉŉ"}"#),
            ),
            (
                "[{action: lowercase, source_labels: [a], target_label: b}]",
                &[("a", "İẞÉ")],
                Some(r#"{a="İẞÉ",b="ißé"}"#),
            ),
        ] {
            assert_eq!(relabel(rules, labels).as_deref(), want, "{rules}");
        }
    }

    /// As in Prometheus, the names that `labelmap` makes are not checked: a scrape refuses them.
    #[test]
    fn mapped_names_may_be_beyond_the_scheme() {
        let text = "[{action: labelmap, regex: 'b(.*)'}]";
        let rules = Rules::parse(text, NameScheme::Legacy).unwrap();
        let labels = Labels::from_pairs([("b1c", "x"), ("b", "y")]).unwrap();
        let mapped = rules.relabel(&labels, &mut LabelEditor::default()).unwrap().unwrap();
        assert_eq!((mapped.count(), mapped.get("1c"), mapped.get("")), (3, Some("x"), None));
    }

    /// Before, 10 MB of such a list took more than 1 GiB.
    #[test]
    fn rules_are_read_within_memory() {
        let text = format!("- {{{}}}", "a,".repeat(100_000));
        let budget = Budget::unlimited().part(8 << 20);
        let error = Rules::parse_within(&text, NameScheme::Utf8, &budget).unwrap_err();
        assert!(error.to_string().contains("takes more than 8388608 bytes"), "{error:?}");
        let held = Rules::parse_within("[{target_label: a}]", NameScheme::Utf8, &budget);
        assert_eq!((held.is_ok(), budget.usage().used_bytes), (true, 0));
    }

    #[test]
    fn wrong_rules_are_refused() {
        for (rule, want) in [
            ("{action: null}", "relabel action cannot be empty"),
            ("{action: jump}", "unknown relabel action \"jump\""),
            ("{action: hashmod, target_label: a}", "requires non-zero modulus"),
            ("{action: keepequal, target_label: a, regex: (.*)}", "requires only 'source_labels'"),
            ("{action: labeldrop, source_labels: []}", "requires only 'regex'"),
            ("{action: labelmap, replacement: ''}", "\"\" is invalid 'replacement' for labelmap"),
            ("{source_labels: ['']}", "\"\" is not a valid label name"),
            (
                "{action: lowercase, target_label: !!binary /w==}",
                r#""\xff" is invalid 'target_label' for lowercase action"#,
            ),
            ("{target_label: !!binary /w==}", r#""\xff" is invalid 'target_label' for replace"#),
            (
                "{action: hashmod, modulus: 2, target_label: !!binary /w==}",
                r#""\xff" is invalid 'target_label' for hashmod action"#,
            ),
            (
                "{action: labelmap, replacement: !!binary /w==}",
                r#""\xff" is invalid 'replacement' for labelmap action"#,
            ),
            (
                "{target_label: a, replacement: !!binary /w==}",
                r#"'replacement' "\xff" is not UTF-8"#,
            ),
            (
                "{action: hashmod, modulus: 2, target_label: a, separator: !!binary /w==}",
                r#"'separator' "\xff" is not UTF-8"#,
            ),
            ("{regex: '('}", "error parsing regexp: missing closing )"),
            ("{target: a}", "line 1: field target not found in type relabel.plain"),
            ("{modulus: -1}", "line 1: cannot unmarshal !!int `-1` into uint"),
        ] {
            let error = Rules::parse(&format!("[{rule}]"), NameScheme::Utf8).unwrap_err();
            assert!(error.to_string().contains(want), "{rule}: {error}");
        }
        let legacy = |rule: &str| Rules::parse(&format!("[{rule}]"), NameScheme::Legacy);
        assert!(legacy("{target_label: a.b}").is_err());
        assert!(legacy("{action: hashmod, modulus: 2, target_label: '$1'}").is_err());
        assert!(legacy("{target_label: 'a${1}'}").is_ok());
        assert!(legacy("{target_label: '1a'}").is_err());
        assert!(legacy("{target_label: '$1-'}").is_err());
    }

    #[test]
    fn values_that_grow_are_refused() {
        let rule = "{source_labels: [a], target_label: a, replacement: '$1$1$1$1'}";
        let rules = format!("[{}]", [rule; 20].join(", "));
        let rules = Rules::parse(&rules.replace("$1$1$1$1", "${1}${1}${1}${1}"), NameScheme::Utf8);
        let labels = Labels::from_pairs([("a", "x")]).unwrap();
        let error = rules.unwrap().relabel(&labels, &mut LabelEditor::default()).unwrap_err();
        assert!(error.to_string().contains("over 1048576 bytes"), "{error}");
    }
}
