//! Which key a statement has, and which server a key.

use crate::{Error, Result};

/// A key that is longer is refused by servers.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// The key of a query's statement: its text without blanks around it, and each byte that is not printable ASCII,
/// a blank or `%` as `%XX`.
///
/// The statement must not have its own times in it, or no two ranges have one key: write `{start}` and `{end}` where
/// they belong, and fill them in for the database. Nothing else is made equal: blanks may mean something, in a regular
/// expression for one.
///
/// # Errors
/// `Invalid` for an empty statement or one whose key would be longer than [`KEY_BYTES_MAX`].
pub fn key_of(statement: &str) -> Result<String> {
    let mut key = String::new();
    for byte in statement.trim_matches([' ', '\t', '\r', '\n']).bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            key.push(char::from(byte));
        } else {
            key.push_str(&format!("%{byte:02X}"));
        }
    }
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let bytes = key.len();
        return Err(Error::Invalid(format!(
            "a statement whose key has {bytes} bytes; wanted are 1 to {KEY_BYTES_MAX}"
        )));
    }
    Ok(key)
}

/// The server of a key, by its place in `servers`: the one with the highest score for it (rendezvous hashing). A
/// server that comes takes its share from all others, one that goes leaves it to them; no other key moves.
///
/// # Panics
/// Without servers.
pub fn server_of(key: &str, servers: &[impl AsRef<str>]) -> usize {
    let key_crc = u64::from(crc32fast::hash(key.as_bytes()));
    let score = |server: &str| mixed(u64::from(crc32fast::hash(server.as_bytes())) << 32 | key_crc);
    // Two of one score: the first by name, in whatever order they are given.
    let best = servers.iter().enumerate().max_by(|(_, a), (_, b)| {
        let (a, b) = (a.as_ref(), b.as_ref());
        (score(a), b).cmp(&(score(b), a))
    });
    best.expect("at least one server").0
}

/// The last step of SplitMix64: every bit of the result depends on every bit given.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_servers_are_those_of_the_other_clients() {
        let vectors = include_str!("../../../clients/vectors.txt");
        let mut count = 0;
        for line in vectors.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            match cells.as_slice() {
                ["key", statement, key] => {
                    let statement = statement.replace("\\n", "\n");
                    assert_eq!(key_of(&statement).unwrap(), *key, "{statement}");
                }
                ["server", servers, key, server] => {
                    let servers: Vec<&str> = servers.split(',').collect();
                    assert_eq!(servers[server_of(key, &servers)], *server, "{key} of {servers:?}");
                }
                _ => panic!("{line:?} is no vector"),
            }
            count += 1;
        }
        assert!(count >= 20, "{count} vectors");
        assert!(key_of(" \n").is_err() && key_of(&"x".repeat(KEY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_server_that_comes_takes_its_share_and_no_other_key_moves() {
        let four = ["a:1", "b:1", "c:1", "d:1"];
        let five = ["e:1", "d:1", "c:1", "b:1", "a:1"];
        let (mut counts, mut moved) = ([0; 5], 0);
        for number in 0..10_000 {
            let key = format!("SELECT%20{number}");
            let (before, after) = (four[server_of(&key, &four)], five[server_of(&key, &five)]);
            counts[server_of(&key, &five)] += 1;
            if before != after {
                assert_eq!(after, "e:1", "{key} moved between servers that stayed");
                moved += 1;
            }
        }
        assert!((1_800..2_200).contains(&moved), "{moved} of 10000 keys moved");
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }
}
