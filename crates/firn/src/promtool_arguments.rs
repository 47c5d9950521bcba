//! Arguments in the order of promtool, which accepts the flags of all commands anywhere.
//!
//! The parser of arguments knows flags behind the words of their command. Flags of promtool that
//! have no effect here are left out.

use std::ffi::OsString;

/// The commands of promtool.
const COMMANDS: [&str; 7] = ["check", "debug", "promql", "push", "query", "test", "tsdb"];
/// Flags of `check`, and the subject that has them. The others ignore them.
const CHECK_FLAGS: [(&str, bool, &str); 2] =
    [("--query.lookback-delta", true, "config"), ("--extended", false, "metrics")];
/// Flags of all commands, and whether they have a value. All features are always enabled.
const COMMON_FLAGS: [(&str, bool); 2] = [("--enable-feature", true), ("--experimental", false)];
/// Flags with a negation, `--no-NAME`, which is their default.
const SWITCHES: [&str; 8] = [
    "agent",
    "debug",
    "diff",
    "experimental",
    "extended",
    "ignore-unknown-fields",
    "lint-fatal",
    "syntax-only",
];

/// The arguments as the parser expects them.
pub(crate) fn given_arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let all: Vec<OsString> = all.collect();
    let mut kept = Vec::with_capacity(all.len());
    let mut moved = Vec::new();
    let mut rest = all.iter();
    let mut words = 0;
    let mut command = None;
    // Of `kept`, before the flags of the subject.
    let mut subject = None;
    kept.extend(rest.next().cloned());
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or("");
        if text == "--" {
            kept.push(argument.clone());
            break;
        }
        let flag = text.split_once('=').map_or(text, |(flag, _)| flag);
        let has_value = flag.len() < text.len();
        let is_common = COMMON_FLAGS.iter().find(|common| common.0 == flag);
        let of_check = CHECK_FLAGS.iter().find(|of_check| of_check.0 == flag);
        let is_check = command == Some("check");
        if let Some((_, takes_value)) = is_common {
            if *takes_value && !has_value {
                rest.next();
            }
        } else if let Some((_, takes_value, of_subject)) = of_check.filter(|_| is_check) {
            let value = if *takes_value && !has_value { rest.next() } else { None };
            moved.push((*of_subject, argument.clone(), value.cloned()));
        } else if text.strip_prefix("--no-").is_some_and(|name| SWITCHES.contains(&name)) {
        } else {
            kept.push(argument.clone());
            if !text.starts_with('-') {
                words += 1;
                match words {
                    1 => command = COMMANDS.into_iter().find(|command| *command == text),
                    2 => subject = Some((text, kept.len())),
                    _ => {}
                }
                if command.is_none() {
                    return all;
                }
            }
        }
    }
    kept.extend(rest.cloned());
    let Some((subject, at)) = subject else { return all };
    let flags = moved.into_iter().filter(|flag| flag.0 == subject);
    let flags: Vec<OsString> =
        flags.flat_map(|(_, flag, value)| std::iter::once(flag).chain(value)).collect();
    kept.splice(at..at, flags);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_promtool_may_be_anywhere() {
        let f = |given: &str, want: &str| {
            let given = given.split(' ').map(OsString::from);
            let got = given_arguments(given);
            let got: Vec<&str> = got.iter().filter_map(|argument| argument.to_str()).collect();
            assert_eq!(got.join(" "), want);
        };
        f(
            "firn check --query.lookback-delta=11m config --lint=all f",
            "firn check config --query.lookback-delta=11m --lint=all f",
        );
        f(
            "firn check --query.lookback-delta 11m config f",
            "firn check config --query.lookback-delta 11m f",
        );
        f("firn check --query.lookback-delta=11m rules f", "firn check rules f");
        f("firn check --extended metrics", "firn check metrics --extended");
        f("firn check metrics --extended", "firn check metrics --extended");
        f("firn --enable-feature x test --enable-feature=y rules f", "firn test rules f");
        f("firn promql --experimental format up", "firn promql format up");
        f("firn check config --no-lint-fatal f", "firn check config f");
        f("firn check config -- --experimental", "firn check config -- --experimental");
        f("firn serve --experimental", "firn serve --experimental");
        f("firn check --repair --extended", "firn check --repair --extended");
        f("firn", "firn");
    }
}
