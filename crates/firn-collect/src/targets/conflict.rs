//! Labels that a sample and its target both have.

use firn_model::{Labels, Result};

use crate::relabel::{LabelEditor, Rules};

/// The labels of an exposed sample after those of its target and after `rules`; `None` if the rules
/// drop it.
///
/// `exposed` has the pairs of the line with `__name__`, each name once. Without `honor_labels` an
/// exposed label that the target has too becomes `exported_NAME`, with the prefix repeated while
/// the name is taken, shorter names first. With it the exposed value wins: an empty one keeps the
/// label of the target off. Labels of the target that begin with `__` are not used.
///
/// # Errors
/// `TooLarge` if the labels are too large together; `Invalid` for a name that is exposed twice.
pub fn sample_labels(
    exposed: &[(&str, &str)],
    target: &Labels,
    honor_labels: bool,
    rules: &Rules,
    editor: &mut LabelEditor,
) -> Result<Option<Labels>> {
    let base = Labels::from_pairs(exposed.iter().copied())?;
    editor.reset(&base);
    let target = || target.iter().filter(|(name, _)| !name.starts_with("__"));
    if honor_labels {
        for (name, value) in target() {
            if !exposed.iter().any(|(own, _)| *own == name) {
                editor.set(name, value)?;
            }
        }
    } else {
        let mut conflicts: Vec<(&str, &str)> = Vec::new();
        for (name, value) in target() {
            if let Some(own) = base.get(name) {
                conflicts.push((name, own));
            }
            editor.set(name, value)?;
        }
        conflicts.sort_by_key(|(name, _)| name.len());
        for (name, value) in conflicts {
            let mut exported = format!("exported_{name}");
            while !editor.get(&exported).is_empty() {
                exported.insert_str(0, "exported_");
            }
            editor.set(&exported, value)?;
        }
    }
    Ok(rules.apply(editor)?.then(|| editor.labels()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relabel::NameScheme;

    fn merged(exposed: &[(&str, &str)], honor_labels: bool, rules: &str) -> Option<String> {
        let target = Labels::from_pairs([("a", "t"), ("b", "u"), ("__x", "v")]).unwrap();
        let rules = Rules::parse(rules, NameScheme::Utf8).unwrap();
        let mut editor = LabelEditor::default();
        let labels = sample_labels(exposed, &target, honor_labels, &rules, &mut editor).unwrap();
        labels.map(|labels| labels.to_string())
    }

    #[test]
    fn exposed_labels_win_or_are_renamed() {
        let exposed = [("__name__", "m"), ("a", ""), ("b", "1"), ("exported_b", "2")];
        let want = r#"m{a="t",b="u",exported_b="2",exported_exported_b="1"}"#;
        assert_eq!(merged(&exposed, false, "[]").as_deref(), Some(want));
        let want = r#"m{b="1",exported_b="2"}"#;
        assert_eq!(merged(&exposed, true, "[]").as_deref(), Some(want));
    }

    #[test]
    fn rules_see_the_labels_of_the_target() {
        let rules = "[{source_labels: [a, __x, __name__], target_label: c}]";
        let want = r#"m{a="t",b="u",c="t;;m"}"#;
        assert_eq!(merged(&[("__name__", "m")], false, rules).as_deref(), Some(want));
        let rules = "[{source_labels: [a], regex: t, action: drop}]";
        assert_eq!(merged(&[("__name__", "m")], false, rules), None);
    }
}
