//! Replays the corpus of the fuzzers in `fuzz/` without a fuzzer: no input makes the parser or the
//! evaluator panic, or makes a range query differ from its steps.

use std::fs;
use std::path::Path;

use firn_promqltest::{check_evaluation, check_generated, check_text};

#[test]
fn kept_texts_parse_or_are_refused() {
    replay("parse", check_text);
}

#[test]
fn kept_texts_are_evaluated_within_limits() {
    replay("evaluate", check_evaluation);
}

#[test]
fn kept_queries_answer_ranges_as_their_steps() {
    replay("generate", check_generated);
}

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        // Shown only when the test fails: the last name is the failing input.
        println!("{}", path.display());
        check(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 50, "{} has {count} files", folder.display());
}
