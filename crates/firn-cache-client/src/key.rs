//! The key of a statement, and the server of a key.

use crate::error::{Error, Result};

/// Servers refuse longer keys.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// The key of a query's statement: its text without surrounding blanks, with `%XX` for each blank,
/// `%` and byte that is not printable ASCII.
///
/// The statement must not contain its own times, or every range would have a key of its own: write
/// `{start}` and `{end}` in their positions, and fill them in for the database. Nothing else is
/// normalised, because blanks may be significant, for example in a regular expression.
///
/// ```
/// let key = firn_cache_client::key_of("SELECT load FROM cpu WHERE time >= {start}")?;
/// assert_eq!(key, "SELECT%20load%20FROM%20cpu%20WHERE%20time%20>=%20{start}");
/// # Ok::<(), firn_cache_client::Error>(())
/// ```
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
            "cannot make a key of the statement: expected 1 to {KEY_BYTES_MAX} bytes, got {bytes}"
        )));
    }
    Ok(key)
}

/// The index of a key's server in `servers`: the one with the highest score for it (rendezvous
/// hashing). An added server takes its share of keys from all others; the keys of a removed one are
/// shared among the others; no other key moves.
///
/// ```
/// let servers = ["10.0.0.1:9421", "10.0.0.2:9421"];
/// let server = firn_cache_client::server_of("SELECT%20load", &servers);
/// assert!(server < servers.len());
/// // The order of the servers does not matter.
/// let reversed = ["10.0.0.2:9421", "10.0.0.1:9421"];
/// assert_eq!(reversed[firn_cache_client::server_of("SELECT%20load", &reversed)], servers[server]);
/// ```
///
/// # Panics
/// Without servers.
pub fn server_of(key: &str, servers: &[impl AsRef<str>]) -> usize {
    let key_crc = u64::from(crc32fast::hash(key.as_bytes()));
    let score = |server: &str| mixed(u64::from(crc32fast::hash(server.as_bytes())) << 32 | key_crc);
    // Of servers with the same score the first by name is chosen, in any order of `servers`.
    let best = servers.iter().enumerate().max_by(|(_, a), (_, b)| {
        let (a, b) = (a.as_ref(), b.as_ref());
        (score(a), b).cmp(&(score(b), a))
    });
    best.expect("at least one server").0
}

/// The last step of SplitMix64: every bit of the result depends on every input bit.
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
                _ => panic!("{line:?} is not a vector"),
            }
            count += 1;
        }
        assert!(count >= 20, "{count} vectors");
        assert!(key_of(" \n").is_err() && key_of(&"x".repeat(KEY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn an_added_server_takes_its_share_and_no_other_key_moves() {
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
