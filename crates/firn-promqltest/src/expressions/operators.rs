//! Binary operators and their precedence.

pub(super) const ARITHMETIC: [&str; 7] = ["+", "-", "*", "/", "%", "^", "atan2"];
pub(super) const COMPARISONS: [&str; 6] = ["==", "!=", "<", "<=", ">", ">="];

/// The precedence of an operator.
pub(super) fn level(op: &str) -> u8 {
    match op {
        "or" => 1,
        "and" | "unless" => 2,
        "==" | "!=" | "<" | "<=" | ">" | ">=" => 3,
        "+" | "-" => 4,
        "*" | "/" | "%" | "atan2" => 5,
        _ => 6,
    }
}
