//! Minimal reader of Thrift's compact protocol, for checking the structures of a Parquet file before a decoder builds
//! them. Reads or skips fields, allocates nothing, and limits nesting.

use std::io::Read;

/// Maximum nesting depth of structures. Parquet uses six levels.
const MAX_DEPTH: u8 = 32;

pub(super) struct ThriftReader<R> {
    input: R,
    pub(super) position: u64,
}

pub(super) type FieldType = u8;
pub(super) const INT32: FieldType = 5;
pub(super) const LIST: FieldType = 9;
pub(super) const STRUCT: FieldType = 12;

impl<R: Read> ThriftReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, position: 0 }
    }

    /// Returns number and type of the next field; `None` at the end. `last`: number of the previous field, 0 at first.
    pub(super) fn field(&mut self, last: &mut i64) -> Result<Option<(i64, FieldType)>, String> {
        let header = self.byte()?;
        let (delta, kind) = (header >> 4, header & 0xf);
        if kind == 0 {
            return Ok(None);
        }
        *last = if delta == 0 { self.integer()? } else { last.saturating_add(i64::from(delta)) };
        Ok(Some((*last, kind)))
    }

    pub(super) fn integer(&mut self) -> Result<i64, String> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// Reads the length of a list and the type of its items.
    pub(super) fn list(&mut self) -> Result<(u64, FieldType), String> {
        let header = self.byte()?;
        let short = u64::from(header >> 4);
        Ok((if short == 15 { self.varint()? } else { short }, header & 0xf))
    }

    pub(super) fn skip(&mut self, kind: FieldType) -> Result<(), String> {
        // A boolean's value is its type.
        if matches!(kind, 1 | 2) { Ok(()) } else { self.skip_value(kind, 0) }
    }

    fn skip_value(&mut self, kind: FieldType, depth: u8) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("structures nest deeper than {MAX_DEPTH} levels"));
        }
        match kind {
            1..=3 => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            7 => self.skip_bytes(8),
            8 => {
                let length = self.varint()?;
                self.skip_bytes(length)
            }
            9 | 10 => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_value(kind, depth + 1))
            }
            11 => self.skip_map(depth),
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    if !matches!(kind, 1 | 2) {
                        self.skip_value(kind, depth + 1)?;
                    }
                }
                Ok(())
            }
            13 => self.skip_bytes(16),
            other => Err(format!("type {other} does not exist")),
        }
    }

    fn skip_map(&mut self, depth: u8) -> Result<(), String> {
        let length = self.varint()?;
        if length == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        (0..length).try_for_each(|_| {
            self.skip_value(kinds >> 4, depth + 1)?;
            self.skip_value(kinds & 0xf, depth + 1)
        })
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("an integer has more than 64 bits".into())
    }

    fn byte(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.input.read_exact(&mut byte).map_err(|error| error.to_string())?;
        self.position += 1;
        Ok(byte[0])
    }

    fn skip_bytes(&mut self, length: u64) -> Result<(), String> {
        let passed = std::io::copy(&mut self.input.by_ref().take(length), &mut std::io::sink());
        self.position += passed.as_ref().copied().unwrap_or(0);
        match passed {
            Ok(passed) if passed == length => Ok(()),
            Ok(passed) => Err(format!("expected {length} bytes, got {passed}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_read_and_skipped() {
        // {1: i32 -3, 2: binary "ab", 5: list<i32> [1, 2], 6: {1: true}, 40: i64 300}
        let bytes =
            [0x15, 5, 0x18, 2, b'a', b'b', 0x39, 0x25, 2, 4, 0x1c, 0x11, 0, 0x06, 80, 0xd8, 4, 0];
        let mut thrift = ThriftReader::new(&bytes[..]);
        let mut last = 0;
        let mut fields = Vec::new();
        while let Some((field, kind)) = thrift.field(&mut last).unwrap() {
            match field {
                1 | 40 => fields.push((field, thrift.integer().unwrap())),
                _ => thrift.skip(kind).unwrap(),
            }
        }
        assert_eq!(fields, [(1, -3), (40, 300)]);
        assert_eq!(thrift.position, bytes.len() as u64);
    }

    #[test]
    fn false_lengths_and_depths_are_errors() {
        let skip = |bytes: &[u8]| ThriftReader::new(bytes).skip(STRUCT).unwrap_err();
        assert_eq!(
            skip(&[0x18, 0xff, 0xff, 0xff, 0xff, 0x0f, b'a']),
            "expected 4294967295 bytes, got 1"
        );
        assert!(skip(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]).contains("fill whole buffer"));
        assert!(skip(&[0x1c; 1000]).contains("deeper than 32"));
        assert!(
            skip(&[0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1])
                .contains("more than 64 bits")
        );
        assert_eq!(skip(&[0x1e]), "type 14 does not exist");
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut thrift = ThriftReader::new(&bytes[..]);
            let _ = thrift.skip(STRUCT);
            prop_assert!(thrift.position <= bytes.len() as u64);
        }
    }
}
