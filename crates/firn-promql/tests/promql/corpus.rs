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
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{target}.pack"));
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let inputs = inputs(&bytes);
    for input in &inputs {
        // Shown only when the test fails: the last input is the one that failed.
        println!("{:?}", String::from_utf8_lossy(input));
        check(input);
    }
    assert!(inputs.len() >= 50, "{} has {} inputs", path.display(), inputs.len());
}

/// The inputs of a pack; `xtask/src/corpus.rs` describes its layout.
fn inputs(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = bytes.strip_prefix(b"firn-corpus-1\n").expect("the first bytes of a pack");
    let mut inputs = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (input, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        inputs.push(input);
        rest = behind;
    }
    inputs
}
