//! Natural sort order: `host2` before `host10`.

use std::cmp::Ordering;

/// Compares runs of digits as numbers and everything between them as text.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while !left.is_empty() && !right.is_empty() {
        let (left_part, left_rest) = first_run(left);
        let (right_part, right_rest) = first_run(right);
        let order = match (digits(left_part), digits(right_part)) {
            // Numbers of any length: more digits, greater number.
            (Some(left), Some(right)) => left.len().cmp(&right.len()).then(left.cmp(right)),
            _ => left_part.cmp(right_part),
        };
        if order.is_ne() {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
    // Equal so far except for leading zeros: the text that ends first comes first.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The digits of a number without leading zeros.
fn digits(part: &str) -> Option<&str> {
    part.starts_with(|c: char| c.is_ascii_digit()).then(|| part.trim_start_matches('0'))
}

fn first_run(text: &str) -> (&str, &str) {
    let is_digit = |c: char| c.is_ascii_digit();
    let digits = text.starts_with(is_digit);
    let end = text.find(|c: char| is_digit(c) != digits).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_inside_texts_count() {
        let mut got = ["4m600", "4m5", "4m1000", "1.11.3", "1.2.3", "100", "20", "3", "a"];
        got.sort_by(|a, b| compare(a, b));
        assert_eq!(got, ["1.2.3", "1.11.3", "3", "4m5", "4m600", "4m1000", "20", "100", "a"]);
        assert_eq!(compare("5", "10000000000000000000000"), Ordering::Less);
        assert_eq!(compare("a01", "a1"), Ordering::Less);
    }

    proptest::proptest! {
        /// Sorting may panic on an inconsistent order.
        #[test]
        fn it_is_an_order(a in "[0-2-a]{0,4}", b in "[0-2-a]{0,4}", c in "[0-2-a]{0,4}") {
            let (ab, bc, ac) = (compare(&a, &b), compare(&b, &c), compare(&a, &c));
            proptest::prop_assert_eq!(ab, compare(&b, &a).reverse());
            if ab == bc {
                proptest::prop_assert_eq!(ab, ac);
            }
        }
    }
}
