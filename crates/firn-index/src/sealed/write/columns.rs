//! Chooses the column order for sorting rows, which determines the length of runs and so the size
//! of rows and lists.
//!
//! A column changes about as often as there are distinct prefixes of rows up to it. Two orders are
//! compared on a sample, and the cheaper one is used. Either columns with few values are first; or
//! the column with the most values (a pod) follows the columns that depend on it (its node, its
//! namespace), and independent columns (its containers, the metric) come last.

// A sample of this size is accurate enough and takes a few ms.
const SAMPLE_ROWS: usize = 1 << 16;
// Sampled in stretches, since adjacent rows belong together.
const STRETCH_ROWS: usize = 2_048;

/// Counts distinct hashes, up to [`SAMPLE_ROWS`] of them, slightly below their true number.
#[derive(Debug)]
struct DistinctCounter {
    words: Vec<u64>,
    shift: u32,
}

/// All columns of `items` (label sets of one schema) in sorting order.
pub(crate) fn column_order<'i>(
    column_count: usize,
    items: &[u32],
    pairs: impl Fn(u32) -> &'i [u32],
) -> Vec<usize> {
    let sample: Vec<&[u32]> = sampled(items).map(pairs).collect();
    let mut distinct = DistinctCounter::new(sample.len());
    let start = vec![0u64; sample.len()];
    let counts: Vec<usize> =
        (0..column_count).map(|column_idx| distinct.count(&sample, &start, column_idx)).collect();
    let mut rising: Vec<usize> = (0..column_count).collect();
    rising.sort_by_key(|&column_idx| counts[column_idx]);
    let (constant, varying) = rising.split_at(rising.partition_point(|&idx| counts[idx] <= 1));
    let anchored = anchored(&sample, &mut distinct, varying, &counts);
    let mut cost = |order: &[usize]| {
        let (mut prefix, mut cost) = (start.clone(), 0);
        for &column_idx in order {
            let width = (usize::BITS - counts[column_idx].leading_zeros()) as usize;
            extend(&sample, &mut prefix, column_idx);
            // A change costs its rank in the rows and about the same in a list.
            cost += distinct.count_each(prefix.iter().copied()) * (2 * width + 6);
        }
        cost
    };
    let best = if cost(&anchored) < cost(varying) { &anchored } else { varying };
    constant.iter().chain(best).copied().collect()
}

/// First the columns that depend on the one with the most values, then that one, then repeatedly
/// the column that adds the fewest prefixes.
fn anchored(
    sample: &[&[u32]],
    distinct: &mut DistinctCounter,
    rising: &[usize],
    counts: &[usize],
) -> Vec<usize> {
    let Some((&anchor, others)) = rising.split_last() else { return Vec::new() };
    let mut prefix = vec![0u64; sample.len()];
    extend(sample, &mut prefix, anchor);
    // A pod may be rescheduled on another node: an approximate dependency is enough.
    let follows =
        |&column_idx: &usize| 4 * distinct.count(sample, &prefix, column_idx) <= 5 * counts[anchor];
    let (mut order, mut left): (Vec<usize>, Vec<usize>) = others.iter().copied().partition(follows);
    order.push(anchor);
    while !left.is_empty() {
        let counts = left.iter().map(|&column_idx| distinct.count(sample, &prefix, column_idx));
        let next = counts.enumerate().min_by_key(|count| count.1).map_or(0, |least| least.0);
        let column_idx = left.remove(next);
        extend(sample, &mut prefix, column_idx);
        order.push(column_idx);
    }
    order
}

fn sampled(items: &[u32]) -> impl Iterator<Item = u32> + '_ {
    let stretches = SAMPLE_ROWS / STRETCH_ROWS;
    let (step, len) = match items.len() {
        0..=SAMPLE_ROWS => (1, items.len()),
        count => (count / stretches, STRETCH_ROWS),
    };
    let count = if items.len() > SAMPLE_ROWS { stretches } else { 1 };
    (0..count).flat_map(move |stretch| items.iter().skip(stretch * step).take(len).copied())
}

fn extend(sample: &[&[u32]], prefix: &mut [u64], column_idx: usize) {
    for (hash, pairs) in prefix.iter_mut().zip(sample) {
        *hash = mixed(*hash, pairs[column_idx]);
    }
}

fn mixed(hash: u64, pair: u32) -> u64 {
    let product =
        u128::from(hash ^ u64::from(pair) ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

impl DistinctCounter {
    fn new(row_count: usize) -> DistinctCounter {
        // With 16 bits per row, about one in thirty collides.
        let bits = (16 * row_count).next_power_of_two().max(64);
        DistinctCounter { words: vec![0; bits / 64], shift: 64 - bits.trailing_zeros() }
    }

    /// Number of distinct prefixes with one more column.
    fn count(&mut self, sample: &[&[u32]], prefix: &[u64], column_idx: usize) -> usize {
        let hashes = prefix.iter().zip(sample).map(|(hash, pairs)| mixed(*hash, pairs[column_idx]));
        self.count_each(hashes)
    }

    fn count_each(&mut self, hashes: impl Iterator<Item = u64>) -> usize {
        self.words.fill(0);
        let mut count = 0;
        for hash in hashes {
            let bit = (hash >> self.shift) as usize;
            let (word, mask) = (&mut self.words[bit / 64], 1 << (bit % 64));
            count += usize::from(*word & mask == 0);
            *word |= mask;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependent_columns_are_adjacent() {
        // 300 pods with a node each, 20 metrics: (metric, pod, node), pairs numbered by column.
        let rows: Vec<[u32; 3]> =
            (0..6_000).map(|row| [row % 20, 100 + row / 20, 1_000 + row / 20 * 7 % 40]).collect();
        let items: Vec<u32> = (0..6_000).collect();
        assert_eq!(column_order(3, &items, |item| &rows[item as usize]), [2, 1, 0]);
        // Two containers per pod: they come before the metrics, although there are fewer metrics.
        let rows: Vec<[u32; 3]> =
            (0..6_000).map(|row| [row % 20, 100 + row / 40, 1_000 + row / 20 * 31 % 100]).collect();
        assert_eq!(column_order(3, &items, |item| &rows[item as usize]), [1, 2, 0]);
        // Every column occurs once, regardless of the sample.
        let many: Vec<u32> = (0..200_000).collect();
        let mut order = column_order(3, &many, |item| &rows[item as usize % 6_000]);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2]);
        assert!(column_order(0, &items, |_| &[]).is_empty());
    }
}
