//! The end of a chunked body.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

/// A longer size with its extensions is refused.
const SIZE_LINE_BYTES_MAX: u32 = 4 << 10;
/// Longer trailers are refused.
const TRAILER_BYTES_MAX: u32 = 16 << 10;
/// Sixteen digits would overflow.
const SIZE_MAX: u64 = 1 << 59;

/// The position in a chunked body (RFC 9112, 7.1), read in pieces of any size.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkedBody {
    at: At,
    /// Bytes of the present line, or of the trailers.
    line_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the digits of a size; none yet, or the number so far.
    Size(Option<u64>),
    /// Behind the digits, before the end of their line.
    Extension(u64),
    /// At the LF behind a size.
    SizeEnd(u64),
    /// In data, of which this many bytes are left.
    Data(u64),
    /// At the CR LF behind data.
    DataCr,
    DataLf,
    /// At the start of a line behind the last chunk.
    TrailerStart,
    /// In a line behind the last chunk.
    Trailer,
    /// At the LF of a trailer.
    TrailerLf,
    /// At the LF of the empty line.
    EndLf,
    End,
}

impl ChunkedBody {
    pub(super) fn new() -> ChunkedBody {
        ChunkedBody { at: At::Size(None), line_bytes: 0 }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == At::End
    }

    /// Steps over `bytes`, and returns how many of them belong to the body: fewer than all only at
    /// its end.
    ///
    /// # Errors
    /// The malformed part.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut rest = bytes;
        while let [byte, behind @ ..] = rest {
            if let At::Data(left) = self.at {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                let left = left.saturating_sub(here as u64);
                self.at = if left == 0 { At::DataCr } else { At::Data(left) };
                rest = rest.get(here..).unwrap_or_default();
                continue;
            }
            if self.at == At::End {
                break;
            }
            self.at = self.next(*byte)?;
            rest = behind;
        }
        Ok(bytes.len().saturating_sub(rest.len()))
    }

    fn next(&mut self, byte: u8) -> Result<At, &'static str> {
        self.line_bytes = self.line_bytes.saturating_add(1);
        let line_bytes_max = match self.at {
            At::Size(_) | At::Extension(_) | At::SizeEnd(_) => SIZE_LINE_BYTES_MAX,
            _ => TRAILER_BYTES_MAX,
        };
        if self.line_bytes > line_bytes_max {
            return Err("a line between two chunks is too long");
        }
        Ok(match (self.at, byte) {
            (At::Size(size), _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                let size = size.unwrap_or(0);
                if size > SIZE_MAX >> 4 {
                    return Err("the size of a chunk is too large");
                }
                At::Size(Some(size << 4 | digit))
            }
            (At::Size(Some(size)), b'\r') | (At::Extension(size), b'\r') => At::SizeEnd(size),
            (At::Size(Some(size)), b';') => At::Extension(size),
            (At::Size(_), _) => return Err("the size of a chunk is not a hexadecimal number"),
            (At::Extension(_), b'\n') => return Err("the line of a chunk's size ends without CR"),
            (At::Extension(size), _) => At::Extension(size),
            (At::SizeEnd(size), b'\n') => {
                self.line_bytes = 0;
                if size == 0 { At::TrailerStart } else { At::Data(size) }
            }
            (At::SizeEnd(_), _) => return Err("the line of a chunk's size ends without LF"),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.line_bytes = 0;
                At::Size(None)
            }
            (At::DataCr | At::DataLf, _) => return Err("a chunk is longer than its size"),
            (At::TrailerStart, b'\r') => At::EndLf,
            (At::TrailerStart | At::Trailer, b'\n') => {
                return Err("a trailer ends without CR");
            }
            (At::Trailer, b'\r') => At::TrailerLf,
            (At::TrailerStart | At::Trailer, _) => At::Trailer,
            (At::TrailerLf, b'\n') => At::TrailerStart,
            (At::TrailerLf, _) => return Err("a trailer ends without LF"),
            (At::EndLf, b'\n') => At::End,
            (At::EndLf, _) => return Err("the end of the body is malformed"),
            (At::Data(_) | At::End, _) => self.at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the body at the start of `bytes`, read in pieces of `piece` bytes.
    fn length(bytes: &[u8], piece: usize) -> Result<Option<usize>, &'static str> {
        let (mut body, mut length) = (ChunkedBody::new(), 0);
        for part in bytes.chunks(piece) {
            length += body.step(part)?;
            if body.is_at_end() {
                return Ok(Some(length));
            }
        }
        Ok(None)
    }

    #[test]
    fn the_end_is_found_in_pieces_of_any_size() {
        let f = |bytes: &[u8], want: Result<Option<usize>, &str>| {
            for piece in [1, 2, 3, 7, 1_000] {
                assert_eq!(length(bytes, piece), want, "{} by {piece}", bytes.escape_ascii());
            }
        };
        f(b"0\r\n\r\nGET /", Ok(Some(5)));
        f(b"3\r\nabc\r\n0\r\n\r\nGET /", Ok(Some(13)));
        f(b"00A;x=\"y\"\r\n0\r\n\r\n12345\r\n0\r\nA: b\r\nC: d\r\n\r\n!", Ok(Some(40)));
        f(b"3\r\nabc\r\n", Ok(None));
        f(b"3\r\nabcd\r\n", Err("a chunk is longer than its size"));
        f(b"\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"-1\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"0x3\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"3\nabc", Err("the size of a chunk is not a hexadecimal number"));
        // Other programs on the way may read another size, or none.
        f(b"3 \r\nabc\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"3\t\r\nabc\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"3 ;a\r\nabc\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b" 3\r\nabc\r\n", Err("the size of a chunk is not a hexadecimal number"));
        f(b"3;a\nabc", Err("the line of a chunk's size ends without CR"));
        f(b"fffffffffffffffff\r\n", Err("the size of a chunk is too large"));
        f(b"0\r\n\n", Err("a trailer ends without CR"));
    }

    #[test]
    fn lines_between_chunks_are_bounded() {
        let long = [b"1;", "x".repeat(5_000).as_bytes()].concat();
        assert!(length(&long, 100).is_err());
        let long = [b"0\r\n", "a: b\r\n".repeat(4_000).as_bytes()].concat();
        assert!(length(&long, 100).is_err());
    }
}
