//! Tests of the prose rules.

use super::*;
use crate::tidy::lexer::lex;

/// Line and phrase of each breach.
fn phrases(breaches: &[Breach]) -> Vec<(usize, String)> {
    let phrase = |message: &str| message.split('"').nth(1).unwrap_or(message).to_owned();
    breaches.iter().map(|breach| (breach.line, phrase(&breach.message))).collect()
}

fn rust(text: &str) -> Vec<(usize, String)> {
    let mut breaches = Vec::new();
    check_rust("a.rs", text, &lex(text), &mut breaches);
    phrases(&breaches)
}

fn markdown(text: &str) -> Vec<(usize, String)> {
    let mut breaches = Vec::new();
    check_markdown("a.md", text, &mut breaches);
    phrases(&breaches)
}

fn comment(text: &str) -> Vec<String> {
    rust(&format!("/// {text}")).into_iter().map(|(_, phrase)| phrase).collect()
}

#[test]
fn each_rule_has_an_advice_and_lower_case_phrases() {
    for rule in PHRASES {
        assert!(!rule.advice.is_empty());
        for phrase in rule.phrases {
            assert_eq!(*phrase, phrase.to_lowercase());
        }
    }
}

#[test]
fn free_relatives() {
    assert_eq!(comment("What is late waits."), ["What"]);
    assert_eq!(comment("Return what is late."), ["what"]);
    assert_eq!(comment("Knows what to do. What is late? Nothing."), [""; 0]);
    assert_eq!(comment("The caller, who waits, whose lock it is."), ["who"]);
    assert_eq!(comment("Full: whatever is older is dropped"), ["whatever"]);
    assert_eq!(comment("Returns 0, whatever the disk does."), [""; 0]);
}

#[test]
fn where_starts_no_noun() {
    assert_eq!(comment("Where the bytes are."), ["Where"]);
    assert_eq!(comment("Where the disk is slow, reads wait."), [""; 0]);
    assert_eq!(comment("The offset where the bytes are."), [""; 0]);
}

#[test]
fn exceptions_of_words() {
    assert_eq!(comment("Series that stand alone, stand-alone, stand for one."), [""; 0]);
    assert_eq!(comment("Two files stand there."), ["stand"]);
    assert_eq!(comment("Go's encoder; underlying; a given key; the slots go up."), ["go"]);
    assert_eq!(comment("Memory that is given back."), ["given back"]);
    assert_eq!(
        comment("Says so. Only so many, the values of before."),
        ["Says", "so many", "of before"]
    );
}

#[test]
fn code_quotations_and_addresses_are_exempt() {
    assert_eq!(comment("Calls `tell` with \"what he said\" of https://go.dev/what/is."), [""; 0]);
    assert_eq!(comment("As `research/x.md` has it."), ["research/"]);
    assert_eq!(rust("/// ```\n/// // what\n/// ```\n/// told"), [(4, "told".into())]);
}

#[test]
fn sentences_cross_lines() {
    assert_eq!(rust("// The values of\n// before are kept."), [(1, "of before".into())]);
    assert_eq!(rust("// Is it known what\n// is late? No."), []);
    assert_eq!(rust("let a = 1; // the values of\n// before"), []);
}

#[test]
fn strings_of_several_words_are_prose() {
    assert_eq!(rust("f(\"the log lies there now\")"), [(1, "lies".into())]);
    assert_eq!(rust("f(\"lies\"); g(\"tell {what} to stop it\")"), [(1, "tell".into())]);
    assert_eq!(rust("f(\"the log is full, \\\n   say more of it\")"), [(2, "say".into())]);
    assert_eq!(rust("f(\"a table of \\\"what\\\" and where\")"), []);
    assert_eq!(rust("f('\"'); // it is told\n"), [(1, "told".into())]);
}

#[test]
fn long_lines() {
    let long = "x".repeat(101);
    assert_eq!(rust(&format!("// {}", &long[..97])), []);
    assert_eq!(rust(&format!("// {}", &long[..98])).len(), 1);
    assert_eq!(rust(&format!("// https://{long}")), []);
    assert_eq!(rust(&format!("/// | {long} |")), []);
    assert_eq!(rust("// öööö").len(), 0);
    let words = "word ".repeat(25);
    assert_eq!(markdown(&words).len(), 1);
    assert_eq!(markdown(&format!("| {words} |")), []);
    assert_eq!(markdown(&format!("```\n{words}\n```\n")), []);
}

#[test]
fn markdown_lists_headings_and_tables() {
    let text =
        "# What is it?\n\n- What is late.\n- Fine\n| a | told |\n```\nwhat\n```\n1. Whoever\n";
    let want = [(3, "What"), (5, "told"), (9, "Whoever")];
    assert_eq!(markdown(text), want.map(|(line, phrase)| (line, phrase.to_owned())));
}

#[test]
fn hash_comments() {
    let mut breaches = Vec::new();
    check_hash_comments("Makefile", "#!/bin/sh\n# It is told.\nrun # said\n", &mut breaches);
    assert_eq!(phrases(&breaches), [(2, "told".to_owned())]);
}

#[test]
fn docstrings() {
    let mut breaches = Vec::new();
    let text =
        "\"\"\"It is told.\n\nSaid.\n\"\"\"\nx = \"lies\"\ndef f():\n    \"\"\"Asks.\"\"\"\n";
    check_hash_comments("a.py", text, &mut breaches);
    let want = [(1, "told"), (3, "Said"), (7, "Asks")];
    assert_eq!(phrases(&breaches), want.map(|(line, phrase)| (line, phrase.to_owned())));
}
