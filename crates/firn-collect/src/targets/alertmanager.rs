//! From discovered labels to an Alertmanager.

use firn_model::{Error, Labels, Result};

use super::populate::{ADDRESS, SCHEME};
use crate::config::discovery::check_target_address;
use crate::config::{Alertmanagers, LabelSet};
use crate::relabel::LabelEditor;

const ALERTS_PATH: &str = "__alerts_path__";

/// The labels of an Alertmanager after relabelling; `None` if it is dropped. `__scheme__`,
/// `__address__` and `__alerts_path__` are its address.
///
/// # Errors
/// `Invalid` with Prometheus' text for an address with a slash; `TooLarge` for very long labels.
pub fn alertmanager_labels(
    settings: &Alertmanagers,
    target: &LabelSet,
    group: &LabelSet,
    editor: &mut LabelEditor,
) -> Result<Option<Labels>> {
    editor.reset(&Labels::empty());
    for (name, value) in target.iter() {
        editor.set(name, value)?;
    }
    editor.set(SCHEME, &settings.scheme)?;
    editor.set(ALERTS_PATH, &alerts_path(&settings.path_prefix))?;
    for (name, value) in group.iter().filter(|(name, _)| target.get(name).is_none()) {
        editor.set(name, value)?;
    }
    let discovered = editor.labels();
    editor.reset(&discovered);
    if !settings.relabel_configs.rules().apply(editor)? {
        return Ok(None);
    }
    check_target_address(editor.get(ADDRESS)).map_err(Error::invalid)?;
    Ok(Some(editor.labels()))
}

/// The path of alerts below `prefix`, without empty elements.
fn alerts_path(prefix: &str) -> String {
    let mut path = String::new();
    for element in prefix.split('/').filter(|element| !matches!(*element, "" | ".")) {
        path.push('/');
        path.push_str(element);
    }
    path + "/api/v2/alerts"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn alertmanagers_have_an_address() {
        let text = "alerting: {alertmanagers: [{scheme: https, path_prefix: //a/b/, \
                    relabel_configs: [{source_labels: [x], target_label: y}, \
                    {action: drop, source_labels: [x], regex: drop}]}]}";
        let loaded = Config::parse(text, &|_| None).unwrap();
        let settings = &loaded.config.alerting.alertmanagers[0];
        let mut editor = LabelEditor::default();
        let mut f = |address: &str, x: &str| {
            let target = LabelSet::from_iter([("__address__", address), ("__scheme__", "ftp")]);
            let group = LabelSet::from_iter([("x", x), ("__scheme__", "http")]);
            alertmanager_labels(settings, &target, &group, &mut editor)
        };
        let labels = f("h:1", "z").unwrap().unwrap();
        assert_eq!(labels.get("__scheme__"), Some("https"));
        assert_eq!(labels.get("__alerts_path__"), Some("/a/b/api/v2/alerts"));
        assert_eq!(labels.get("y"), Some("z"));
        assert_eq!(f("h:1", "drop").unwrap(), None);
        assert!(f("http://h", "").is_err());
    }
}
