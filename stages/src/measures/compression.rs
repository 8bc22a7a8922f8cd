//! Compression measure: how far a general compressor shrinks the text of a window.

use std::io::{self, Write};

use flate2::Compression as Level;
use flate2::write::ZlibEncoder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::{
    Column, Measure, Merge, Needs, Orientation, RowError, StatisticValues, Value, Window,
};

/// Measures how far DEFLATE shrinks the text of a window: a baseline for scores, and a guard against text that
/// repeats itself, or does not repeat at all. It needs no model. DEFLATE searches only the last 32 KiB of text, and
/// duplicated halves have the highest `deflate_gain`: do not rank by it alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Distinguishes this stage from another `compression` of the pipeline: its statistics become `NAME_gzip_ratio`
    /// and so on. Lower case letters, digits and `_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z][a-z0-9_]{0,31}$"))]
    pub name: Option<String>,
    /// Text that `gzip_ratio` is computed from: the `window` (default, like every other statistic), or its whole
    /// `document`, as in the filter of `OLMo` 3. `deflate_gain` is always that of the window.
    #[serde(default)]
    pub scope: Scope,
}

/// Text that a ratio is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The window.
    #[default]
    Window,
    /// The document; all its windows have the same value.
    Document,
}

impl Measure for Compression {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn columns(&self) -> Vec<Column> {
        let (merge, scope) = match self.scope {
            Scope::Window => (Merge::Mean, "window"),
            Scope::Document => (Merge::First, "document"),
        };
        vec![
            Column {
                merge,
                orientation: Orientation::Lower,
                ..Column::number(
                    "gzip_ratio",
                    "compressed bytes per byte",
                    format!(
                        "size of the {scope} as a gzip file of zlib-rs at level 6, relative to its text"
                    ),
                )
            },
            Column::number(
                "deflate_gain",
                "share of the second half's compressed bytes",
                "bytes saved when the second half of the window is compressed after the first; detects nothing beyond 32 KiB, and is highest for duplicated halves",
            ),
        ]
    }

    fn needs(&self) -> Needs {
        let document_text = self.scope == Scope::Document;
        Needs { window_text: true, document_text, ..Needs::default() }
    }

    fn version(&self) -> u32 {
        1
    }

    fn facts(&self) -> serde_json::Value {
        // The name is not part of the identity: it only changes the names of statistics.
        let Self { name: _, scope } = self;
        json!({ "scope": scope })
    }

    fn document(&self, text: &[u8]) -> Vec<Value> {
        vec![Value::number(gzip_ratio(text.len(), zlib_bytes(text)))]
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        let text = window.text.expect("the measure requests the window's text");
        let half = window.text_half.expect("a window with text has `text_half`");
        let whole = zlib_bytes(text);
        let ratio = match self.scope {
            Scope::Window => Value::number(gzip_ratio(text.len(), whole)),
            Scope::Document => window.document[0].clone(),
        };
        Ok(StatisticValues(vec![ratio, Value::number(deflate_gain(text, half, whole))]))
    }
}

/// Header and trailer of a zlib stream and of a gzip file; the data between is the same.
const ZLIB_FRAME: u64 = 2 + 4;
const GZIP_FRAME: u64 = 10 + 8;

/// Returns the size of a text's gzip file, given that of its zlib stream, over that of the text; `None` if it is empty.
/// As the annotator of `OLMo` 3 for documents, except that zlib-rs chooses other matches than other libraries.
fn gzip_ratio(text_bytes: usize, zlib_bytes: u64) -> Option<f64> {
    let compressed = zlib_bytes - ZLIB_FRAME + GZIP_FRAME;
    (text_bytes > 0).then(|| compressed as f64 / text_bytes as f64)
}

/// Returns `1 - (C(AB) - C(A)) / C(B)`, where C is the length of a zlib stream of level 6, A the text before `half`
/// and B the rest; `None` if either is empty. `whole`: C(AB).
fn deflate_gain(text: &[u8], half: usize, whole: u64) -> Option<f64> {
    let (first, second) = text.split_at_checked(half)?;
    if first.is_empty() || second.is_empty() {
        return None;
    }
    let (first, second) = (zlib_bytes(first) as f64, zlib_bytes(second) as f64);
    Some(1.0 - (whole as f64 - first) / second)
}

/// Compression level of all streams: the default of flate2.
pub const LEVEL: u32 = 6;

/// Returns the size of `text` as a zlib stream of level 6.
pub fn zlib_bytes(text: &[u8]) -> u64 {
    let mut stream = ZlibEncoder::new(io::sink(), Level::new(LEVEL));
    stream.write_all(text).and_then(|()| stream.try_finish()).expect("a sink accepts all bytes");
    stream.total_out()
}

#[cfg(test)]
mod tests {
    use flate2::write::GzEncoder;

    use super::*;

    /// Constant text that resembles English: words of a small vocabulary, drawn by a linear congruence.
    fn text(sentences: usize, seed: u32) -> Vec<u8> {
        const WORDS: &str = "the of and to in that which was river house evening letter walked stood old answer light \
                             through window never before between garden table morning voice remember across";
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut state = seed;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        let mut text = String::new();
        for _ in 0..sentences {
            let chosen: Vec<&str> = (0..5 + next(9)).map(|_| words[next(words.len())]).collect();
            text += &chosen.join(" ");
            text += ". ";
        }
        text.into_bytes()
    }

    fn values(settings: &Compression, text: &[u8], half: usize, document: &[Value]) -> Vec<Value> {
        let ids = [0; 4];
        let window =
            Window { ids: &ids, text: Some(text), text_half: Some(half), document, evidence: &[] };
        settings.statistics(&window).unwrap().0
    }

    /// Fails when an update of the compressor changes sizes. Raise [`Compression::version`] then, because old and new
    /// statistics are not comparable.
    #[test]
    fn sizes_are_those_of_version_1() {
        let settings = Compression::default();
        assert_eq!(settings.version(), 1);
        let sizes = |text: &[u8]| (text.len(), zlib_bytes(text));
        let (short, long) = (text(3, 1), text(4000, 2));
        let repeated = short.repeat(500);
        let noise: Vec<u8> =
            text(600, 3).iter().enumerate().map(|(i, b)| b.wrapping_mul(i as u8 | 1)).collect();
        assert_eq!(
            [sizes(b"a"), sizes(&short), sizes(&long), sizes(&repeated), sizes(&noise)],
            [(1, 9), (201, 117), (219_812, 41_821), (100_500, 892), (33_001, 25_846)]
        );
    }

    #[test]
    fn the_ratio_equals_that_of_a_gzip_file() {
        for text in [text(1, 4), text(100, 4), text(9000, 4), vec![b'.'; 1 << 17]] {
            let mut file = GzEncoder::new(Vec::new(), Level::default());
            file.write_all(&text).unwrap();
            let expected = file.finish().unwrap().len() as f64 / text.len() as f64;
            let ratio = values(&Compression::default(), &text, 0, &[])[0].clone();
            assert_eq!(ratio, Value::Number(expected));
        }
    }

    #[test]
    fn deflate_gain_measures_repetition_in_the_second_half() {
        let (a, b) = (text(60, 5), text(60, 6));
        let halves = |first: &[u8], second: &[u8]| {
            let both = [first, second].concat();
            deflate_gain(&both, first.len(), zlib_bytes(&both)).unwrap()
        };
        let (duplicated, other) = (halves(&a, &a), halves(&a, &b));
        assert!(duplicated > 0.9, "{duplicated}");
        assert!(other > 0.0 && other < 0.5, "{other}: the shared vocabulary alone");
        let a_window = [vec![b'.'; 1 << 15], b].concat();
        assert!(halves(&a, &a_window) < 0.1, "text 32 KiB back saves nothing");
    }

    #[test]
    fn an_empty_text_or_half_has_nulls() {
        let settings = Compression::default();
        assert_eq!(values(&settings, b"", 0, &[]), [Value::Null, Value::Null]);
        for half in [0, 4, 5] {
            assert_eq!(values(&settings, b"text", half, &[])[1], Value::Null);
        }
        assert_eq!(settings.document(b""), [Value::Null]);
    }

    #[test]
    fn the_scope_affects_only_the_ratio() {
        let (window, document) = (text(50, 7), text(500, 8));
        let settings = |scope| Compression { scope, ..Compression::default() };
        let of_window = values(&settings(Scope::Window), &window, 900, &[]);
        let shared = settings(Scope::Document).document(&document);
        let of_document = values(&settings(Scope::Document), &window, 900, &shared);
        assert_eq!(of_document[0], values(&settings(Scope::Window), &document, 900, &[])[0]);
        assert_ne!(of_document[0], of_window[0]);
        assert_eq!(of_document[1], of_window[1]);
        let merges = |scope| settings(scope).columns()[0].merge.clone();
        assert_eq!((merges(Scope::Window), merges(Scope::Document)), (Merge::Mean, Merge::First));
        let needs = |scope| settings(scope).needs().document_text;
        assert_eq!((needs(Scope::Window), needs(Scope::Document)), (false, true));
    }

    #[test]
    fn the_identity_includes_the_scope_but_not_the_name() {
        let settings = |text| serde_json::from_str::<Compression>(text).unwrap();
        assert_eq!(
            settings("{}").facts(),
            settings(r#"{"scope": "window", "name": "own"}"#).facts()
        );
        assert_ne!(settings("{}").facts(), settings(r#"{"scope": "document"}"#).facts());
    }
}
