use proptest::prelude::*;

use super::*;

use super::decoder::decode;

fn encode(samples: &[(Timestamp, f64)]) -> Vec<u8> {
    let mut chunk = XorChunk::default();
    // A reused chunk encodes the same bytes.
    chunk.push(77, 7.0);
    chunk.push(78, 1e300);
    chunk.clear();
    samples.iter().for_each(|&(ts, value)| chunk.push(ts, value));
    let (first, last) = chunk.span();
    assert_eq!((samples[0].0, samples[samples.len() - 1].0), (first, last));
    assert_eq!(usize::from(chunk.sample_count()), samples.len());
    chunk.bytes().to_vec()
}

/// Bits as text, made by hand from the description; spaces are for readers.
#[track_caller]
fn check(samples: &[(Timestamp, f64)], wanted: &str) {
    let bits: Vec<u8> = wanted.bytes().filter(|b| *b != b' ').map(|b| b - b'0').collect();
    let bytes = bits
        .chunks(8)
        .map(|byte| byte.iter().enumerate().fold(0, |byte, (idx, bit)| byte | bit << (7 - idx)));
    assert_eq!(encode(samples), bytes.collect::<Vec<u8>>());
}

// 1.0 is 0x3ff0 and zeros; 2.0 is 0x4000 and zeros.
const ONE: &str = "0011111111110000 000000000000000000000000000000000000000000000000";

#[test]
fn one_sample() {
    // -1 in zigzag is 1, 64 is 128: two bytes of varint.
    check(&[(-1, 1.0)], &format!("0000000000000001 00000001 {ONE}"));
    check(&[(64, 1.0)], &format!("0000000000000001 10000000 00000001 {ONE}"));
}

#[test]
fn steps_and_their_changes() {
    let start = format!("00000001 {ONE} 10010110 00000001");
    let head = |count: &str| format!("00000000{count} {start}");
    // From -1 on by steps of 150 (a varint of two bytes), values the same (a bit each).
    check(&[(-1, 1.0), (149, 1.0)], &format!("{} 0", head("00000010")));
    let f = |change: i64, bits: &str| {
        let samples = [(-1, 1.0), (149, 1.0), (149 + 150 + change, 1.0)];
        check(&samples, &format!("{} 0 {bits} 0", head("00000011")));
    };
    f(0, "0");
    f(1, "10 00000000000001");
    f(-1, "10 11111111111111");
    // The ends of each width, and one beyond.
    f(8_192, "10 10000000000000");
    f(-8_191, "10 10000000000001");
    f(8_193, "110 00010000000000001");
    f(-8_192, "110 11110000000000000");
    f(65_536, "110 10000000000000000");
    f(-65_535, "110 10000000000000001");
    f(65_537, "1110 00010000000000000001");
    f(524_288, "1110 10000000000000000000");
    f(-524_287, "1110 10000000000000000001");
    let wide = |change: i64| format!("1111 {change:064b}");
    f(524_289, &wide(524_289));
    f(-524_288, &wide(-524_288));
}

#[test]
fn windows_of_values() {
    let start = format!("00000000 {ONE} 00000001");
    // 1.0 xor 2.0 = 0x7ff0...: 1 leading zero, 11 bits, 52 trailing zeros.
    let first = "11 00001 001011 11111111111";
    check(&[(0, 1.0), (1, 2.0)], &format!("0000000000000010 {start} {first}"));
    // 2.0 xor 1.5 (0x3ff8...) = 0x7ff8...: one bit more to the right, so a new window.
    let second = "0 11 00001 001100 111111111111";
    let samples = [(0, 1.0), (1, 2.0), (2, 1.5)];
    check(&samples, &format!("0000000000000011 {start} {first} {second}"));
    // 1.5 xor 2.0 again, inside the previous window; then nothing changes.
    let third = "0 10 111111111111 0 0";
    let samples = [(0, 1.0), (1, 2.0), (2, 1.5), (3, 2.0), (4, 2.0)];
    check(&samples, &format!("0000000000000101 {start} {first} {second} {third}"));
    // All 64 bits change: their number is written as 0.
    let all = f64::from_bits(!1.0f64.to_bits() | 1);
    let xor = 1.0f64.to_bits() ^ all.to_bits();
    let bits = format!("11 00000 000000 {xor:064b}");
    check(&[(0, 1.0), (1, all)], &format!("0000000000000010 {start} {bits}"));
    // Over 31 leading zeros count as 31: 33 bits of the lowest bit's change.
    let next = f64::from_bits(1.0f64.to_bits() + 1);
    let bits = format!("11 11111 100001 {:033b}", 1);
    check(&[(0, 1.0), (1, next)], &format!("0000000000000010 {start} {bits}"));
}

proptest! {
    #[test]
    fn written_values_are_read(
        start: i64,
        steps in prop::collection::vec(
            prop_oneof![
                4 => Just(15_000i64),
                2 => 14_900..15_100i64,
                1 => -1_000_000..1_000_000i64,
                1 => any::<i64>(),
            ],
            0..300,
        ),
        values in prop::collection::vec(
            prop_oneof![
                3 => Just(1.5f64.to_bits()),
                3 => (0..1_000i32).prop_map(|n| f64::from(n).to_bits()),
                1 => any::<u64>(),
                1 => Just(firn_model::STALE_NAN_BITS),
            ],
            301,
        ),
    ) {
        let times = std::iter::once(start).chain(steps.iter().scan(start, |ts, step| {
            *ts = ts.wrapping_add(*step);
            Some(*ts)
        }));
        let samples: Vec<(Timestamp, u64)> = times.zip(values).collect();
        let floats: Vec<(Timestamp, f64)> =
            samples.iter().map(|&(ts, bits)| (ts, f64::from_bits(bits))).collect();
        prop_assert_eq!(decode(&encode(&floats)), samples);
    }
}
