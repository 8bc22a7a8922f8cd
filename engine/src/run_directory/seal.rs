//! Records that contain a digest of their content.

use memchr::memmem;
use serde::Serialize;
use serde_json::{Value, json};

use crate::base::text::sha256_hex;

/// Key of a sealed record with the digest of its other keys.
const SEAL: &str = "sha256";

/// Returns a record with a digest of its content.
pub fn sealed(record: &impl Serialize) -> Value {
    let mut record = json!(record);
    record[SEAL] = json!(sha256_hex(record.to_string().as_bytes()));
    record
}

/// Whether a record matches its digest, its last key. The JSON is not parsed: that of a large run takes a multiple of its size.
pub fn is_intact(bytes: &[u8]) -> bool {
    let mut compact = without_spaces(bytes);
    let start = format!(",\"{SEAL}\":\"");
    let Some(at) = memmem::rfind(&compact, start.as_bytes()) else { return false };
    let seal = compact.split_off(at);
    compact.push(b'}');
    seal == format!("{start}{}\"}}", sha256_hex(&compact)).as_bytes()
}

/// Removes the white space between the elements of JSON.
fn without_spaces(json: &[u8]) -> Vec<u8> {
    let (mut is_text, mut is_escaped) = (false, false);
    let keeps = |byte: &u8| {
        let keeps = is_text || !byte.is_ascii_whitespace();
        (is_text, is_escaped) = match byte {
            _ if is_escaped => (is_text, false),
            b'\\' => (is_text, true),
            b'"' => (!is_text, false),
            _ => (is_text, false),
        };
        keeps
    };
    json.iter().copied().filter(keeps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_matches_its_digest_in_any_layout_until_it_is_changed() {
        let record =
            json!({ "text": "a \" b\\\\", "numbers": [1.5, -0.0, {}], "sha256": "of a part" });
        let record = json!({ "part": record, "empty": [] });
        let record = sealed(&record);
        let pretty = serde_json::to_vec_pretty(&record).unwrap();
        assert!(is_intact(&pretty) && is_intact(record.to_string().as_bytes()));
        for at in 0..pretty.len() {
            let mut changed = pretty.clone();
            changed[at] ^= 1;
            assert!(!is_intact(&changed) || changed[at].is_ascii_whitespace(), "byte {at}");
        }
        for broken in [&b""[..], b"{}", b"{\"a\":1}", &pretty[..pretty.len() - 1]] {
            assert!(!is_intact(broken));
        }
    }
}
