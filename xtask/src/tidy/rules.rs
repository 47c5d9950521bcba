//! The rules of prose and names, each with its reason. This file is the only list.
//!
//! Prose is every comment, every Markdown document, and every string literal with at least three
//! spaces: errors, help, descriptions of metrics. Text in `backticks`, in "quotes" and in fenced
//! blocks is exempt.

/// Columns of a line of Rust. `rustfmt` wraps code but not comments. Lines of code with a string
/// literal are exempt.
pub(crate) const CODE_COLUMNS_MAX: usize = 100;
/// Columns of a line of Markdown. Tables, fenced blocks and long addresses are exempt.
pub(crate) const MARKDOWN_COLUMNS_MAX: usize = 120;

/// Words or phrases that prose may not contain.
#[derive(Debug)]
pub(crate) struct PhraseRule {
    /// Lower case; the words of a phrase are separated by one space.
    pub(crate) phrases: &'static [&'static str],
    /// Why the phrase is banned and how to write instead.
    pub(crate) advice: &'static str,
    pub(crate) scope: Scope,
    /// The phrase is allowed if one of these words follows it.
    pub(crate) unless_next: &'static [&'static str],
}

/// The part of a text in which a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Anywhere,
    /// Anywhere except in a sentence that ends with a question mark.
    Statements,
    /// At the start of a sentence that is not a question.
    StatementStart,
    /// At the start of a sentence without a comma: "Where the bytes are." but not
    /// "Where disks are slow, it waits."
    WholeSentence,
    /// In lower case only: `Go` is also a language.
    LowerCase,
}

const fn rule(
    phrases: &'static [&'static str],
    scope: Scope,
    unless_next: &'static [&'static str],
    advice: &'static str,
) -> PhraseRule {
    PhraseRule { phrases, advice, scope, unless_next }
}

pub(crate) const PHRASES: &[PhraseRule] = &[
    rule(&["what"], Scope::Statements, &["to"], "free relative: name the thing"),
    rule(&["whatever"], Scope::StatementStart, &[], "free relative: name the thing"),
    rule(&["where"], Scope::WholeSentence, &[], "free relative: name the offset or path"),
    rule(
        &["who", "whom", "whoever"],
        Scope::Anywhere,
        &[],
        "machines are not people: caller, thread, writer, reader, server",
    ),
    rule(
        &["tell", "tells", "told", "telling"],
        Scope::Anywhere,
        &[],
        "machines do not talk: report, notify, announce, return",
    ),
    rule(
        &["lie", "lies", "lay", "lain", "lying"],
        Scope::Anywhere,
        &[],
        "data has no posture: is at, is stored in, is inside, overlaps",
    ),
    rule(
        &["stand", "stands", "stood", "standing"],
        Scope::Anywhere,
        &["alone", "for", "by"],
        "data has no posture: is, exists, is at",
    ),
    rule(
        &["ask", "asks", "asked", "asking"],
        Scope::Anywhere,
        &[],
        "machines do not talk: request, query, call",
    ),
    rule(
        &["say", "says", "said", "saying"],
        Scope::Anywhere,
        &[],
        "machines do not talk: states, contains, records, returns",
    ),
    rule(
        &["give", "gives", "gave", "giving"],
        Scope::Anywhere,
        &[],
        "vague: return, yield, release, assign",
    ),
    rule(
        &["given back", "given away", "given up", "given way", "given out"],
        Scope::Anywhere,
        &[],
        "vague: released, evicted, abandoned, issued",
    ),
    rule(
        &["go", "goes", "going", "went", "gone"],
        Scope::LowerCase,
        &[],
        "vague: move, proceed, leave, fail; is evicted",
    ),
    rule(
        &["so many", "so much", "so often", "so long"],
        Scope::Anywhere,
        &[],
        "state the number: only, at most, N times, up to",
    ),
    rule(&["of before"], Scope::Anywhere, &[], "not idiomatic: previous, earlier, older"),
    rule(&["anew"], Scope::Anywhere, &[], "archaic: again, from scratch; rewritten, rebuilt"),
    rule(&["all the same"], Scope::Anywhere, &[], "ambiguous: anyway, nevertheless"),
    rule(&["but for"], Scope::Anywhere, &[], "ambiguous: except for"),
    rule(
        &["anybody", "somebody", "everybody", "nobody"],
        Scope::Anywhere,
        &[],
        "machines are not people: no thread, any caller, every reader",
    ),
    rule(
        &["the design"],
        Scope::Anywhere,
        &[],
        "the repository stands alone: state the fact, or cite the public source",
    ),
    rule(
        &["by and by", "the like", "and the rest", "thereby", "thereof"],
        Scope::Anywhere,
        &[],
        "use plain words",
    ),
];

/// Folders outside the repository. Checked in backticks too.
pub(crate) const FOREIGN_PATHS: &[&str] = &["specs/", "research/"];
pub(crate) const FOREIGN_PATH_ADVICE: &str =
    "the repository stands alone: state the fact, or cite the public source";

/// Texts that break a rule of prose with good reason: file, part of the text, reason.
/// An empty part excepts the whole file.
pub(crate) const PROSE_EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("xtask/src/tidy/prose/tests.rs", "", "the cases of the checker's own tests"),
    (
        "crates/firn-server/src/wire/exposition/tests.rs",
        "anything { goes",
        "an input of the parser",
    ),
    (
        "crates/firn-rules/src/template/exec.rs",
        "argument to non-function",
        "an error of Go's templates, which users search for",
    ),
];

/// Type names that do not describe the value. A type name is a noun of the field.
pub(crate) const BANNED_TYPE_NAMES: &[&str] = &[
    "Asked",
    "Borders",
    "Found",
    "Given",
    "Known",
    "Left",
    "Moment",
    "Pace",
    "Place",
    "Questions",
    "Relief",
    "Said",
    "Spread",
    "State",
    "Thirds",
    "Told",
    "Wanted",
    "What",
    "Who",
];

/// First words of function names, tests included, that make a machine talk or a riddle of the name.
pub(crate) const BANNED_FUNCTION_PREFIXES: &[&str] = &[
    "ask_", "asked_", "asks_", "gave_", "give_", "gives_", "lie_", "lies_", "said_", "say_",
    "says_", "stand_", "stands_", "tell_", "tells_", "told_",
];

/// Type names that may occur twice in one crate: crate, name, reason.
pub(crate) const TYPE_NAME_EXCEPTIONS: &[(&str, &str, &str)] =
    &[("firn-log", "Condvar", "one of the standard library, one of the model checker")];

/// Words that `docs/glossary.md` must explain.
pub(crate) const GLOSSARY_WORDS: &[&str] = &[
    "series",
    "group",
    "row",
    "run",
    "chunk",
    "table",
    "partition",
    "patch",
    "stream",
    "floor",
    "mark",
    "slab",
    "extent",
    "marker",
];
