//! Secret parts of addresses, which are never shown or stored: user and password before the `@`, the query after the `?` with the
//! fragment after the `#`.
//!
//! The spec removes them from the settings ([`split`], [`remember`]), so that nothing derived from a pipeline contains them;
//! only requests use them ([`recall`]). All text for people passes through [`shown`], which also hides values that secret
//! parts were composed of ([`hide`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::text;

/// Schemes of object stores. A `?` in their addresses may be a wildcard instead of the start of a query.
const STORES: [&str; 4] = ["s3", "gs", "az", "hf"];
/// Substrings of query parameters that sign a request to an object store.
const SIGNATURES: [&str; 6] = ["sig=", "signature=", "x-amz-", "x-goog-", "token=", "accesskey"];

pub(crate) const HIDDEN: &str = "***";
/// Minimum bytes of a hidden value: shorter ones are parts of ordinary text.
const MIN_HIDDEN_BYTES: usize = 6;

/// Secret parts of one address. Never printed, so it has no `Debug`.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// User and password as written, without the `@`.
    pub(crate) user: String,
    /// Query without its `?`, and the fragment with its `#`.
    pub(crate) query: String,
    /// Whether an address inside the address has a user, which nothing uses.
    pub(crate) has_inner_user: bool,
}

impl Secrets {
    pub(crate) fn is_empty(&self) -> bool {
        self.user.is_empty() && self.query.is_empty() && !self.has_inner_user
    }

    /// Hides the secret parts in answers of servers.
    pub(crate) fn hide_in_answers(&self) {
        let values = self.query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
        for part in self.user.split(':').chain(values).chain([&*self.query]) {
            hide_in_answers(&text::unescaped(part));
        }
    }

    /// Whether a value contains a secret part, or is contained in one.
    pub(crate) fn overlap(&self, value: &str) -> bool {
        let parts = [&self.user, &self.query].into_iter().filter(|part| !part.is_empty());
        !value.is_empty()
            && parts.into_iter().any(|part| part.contains(value) || value.contains(&**part))
    }
}

/// Splits an address into its public part and its secret parts.
pub(crate) fn split(address: &str) -> (String, Secrets) {
    let mut secrets = Secrets::default();
    let first = address.find("://").map_or(0, |at| at + 3);
    for range in ranges(address, |_, _| None) {
        let (start, part) = (range.start, &address[range]);
        if part.starts_with(['?', '#']) {
            part.trim_start_matches('?').clone_into(&mut secrets.query);
        } else if start == first {
            part.trim_end_matches('@').clone_into(&mut secrets.user);
        } else {
            secrets.has_inner_user = true;
        }
    }
    (without(address, |_, _| None).into_owned(), secrets)
}

static SECRETS: Mutex<BTreeMap<String, Secrets>> = Mutex::new(BTreeMap::new());

/// Stores the secret parts of an address for the requests of this process.
pub(crate) fn remember(public: &str, secrets: Secrets) {
    secrets.hide_in_answers();
    let mut all = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(public.trim_end_matches('/').to_owned(), secrets);
}

#[cfg(feature = "cloud")]
pub(crate) fn recall(public: &str) -> Secrets {
    let all = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(public.trim_end_matches('/')).cloned().unwrap_or_default()
}

static HIDDEN_VALUES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Hides a value wherever this process shows it as a word.
pub(crate) fn hide(value: &str) {
    if value.len() >= MIN_HIDDEN_BYTES {
        let mut values = HIDDEN_VALUES.lock().unwrap_or_else(PoisonError::into_inner);
        values.insert(value.to_owned());
    }
}

/// Credentials of requests, which servers may repeat.
static CREDENTIALS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Hides a credential in answers of servers.
pub(crate) fn hide_in_answers(value: &str) {
    let mut values = CREDENTIALS.lock().unwrap_or_else(PoisonError::into_inner);
    // Tokens are passed with every request.
    if value.len() >= MIN_HIDDEN_BYTES && !values.contains(value) {
        values.insert(value.to_owned());
    }
}

/// Replaces credentials in an answer of a server or an external program, verbatim or with escapes of addresses, JSON or XML.
pub(crate) fn without_credentials(answer: &str) -> String {
    let credentials = CREDENTIALS.lock().unwrap_or_else(PoisonError::into_inner);
    // Longer values first: one may contain another.
    let mut values: Vec<&String> = credentials.iter().collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    let (mut shown, mut rest) = (String::with_capacity(answer.len()), answer);
    while let Some(first) = rest.chars().next() {
        let found = values.iter().find_map(|value| spelled_length(rest, value));
        match found {
            Some(_) => shown.push_str(HIDDEN),
            None => shown.push(first),
        }
        rest = &rest[found.unwrap_or(first.len_utf8())..];
    }
    shown
}

/// Returns the number of bytes with which a text begins that spell `value`, with or without escapes.
fn spelled_length(text: &str, value: &str) -> Option<usize> {
    if text.starts_with(value) {
        return Some(value.len());
    }
    let (mut rest, mut wanted) = (text, value.as_bytes());
    while let [first, ..] = wanted {
        let escape = escape(rest).filter(|(bytes, _)| wanted.starts_with(bytes));
        let (bytes, length) = match escape {
            Some((bytes, length)) => (bytes.len(), length),
            None if rest.as_bytes().first() == Some(first) && first.is_ascii() => (1, 1),
            None => return None,
        };
        (wanted, rest) = (&wanted[bytes..], &rest[length..]);
    }
    Some(text.len() - rest.len())
}

/// Returns the bytes that the escape at the start of a text stands for, and its length; `None` without an escape.
fn escape(text: &str) -> Option<(Vec<u8>, usize)> {
    let code = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
    let of = |character: char, length| Some((character.to_string().into_bytes(), length));
    match text.as_bytes().first()? {
        b'%' => Some((vec![u8::from_str_radix(text.get(1..3)?, 16).ok()?], 3)),
        b'+' => of(' ', 1),
        b'\\' => backslash(text).and_then(|(character, length)| of(character, length)),
        b'&' => {
            let name = &text[1..text.bytes().take(10).position(|byte| byte == b';')?];
            let character = match (name.strip_prefix("#x"), name.strip_prefix('#')) {
                (Some(digits), _) => code(digits, 16)?,
                (None, Some(digits)) => code(digits, 10)?,
                (None, None) => match name {
                    "amp" => '&',
                    "lt" => '<',
                    "gt" => '>',
                    "quot" => '"',
                    "apos" => '\'',
                    _ => return None,
                },
            };
            of(character, name.len() + 2)
        }
        // Other characters than ASCII are compared as a whole.
        first if !first.is_ascii() => of(text.chars().next()?, text.chars().next()?.len_utf8()),
        _ => None,
    }
}

/// Replaces the texts that a message of a JSON parser quotes from its input.
#[cfg(feature = "cloud")]
pub(crate) fn without_quotes(message: &str) -> String {
    let mut shown = message.to_owned();
    for (start, end) in [
        ("invalid type: string \"", "\", expected"),
        ("invalid value: string \"", "\", expected"),
        ("unknown variant `", "`, expected"),
    ] {
        let range = shown.find(start).map(|at| at + start.len());
        let range = range.and_then(|from| Some(from..from + shown[from..].rfind(end)?));
        if let Some(range) = range {
            shown.replace_range(range, HIDDEN);
        }
    }
    shown
}

/// Removes the secret parts of all addresses in a text, and replaces hidden values.
pub fn shown(text: &str) -> Cow<'_, str> {
    let ends = |character: char| {
        character.is_whitespace() || matches!(character, '"' | '`' | '<' | '>' | '\\')
    };
    let mut text = without(text, |_, address| address.find(ends));
    for value in &*HIDDEN_VALUES.lock().unwrap_or_else(PoisonError::into_inner) {
        if text.contains(&**value) {
            text = without_word(&text, value).into();
        }
    }
    text
}

/// Replaces a value wherever no letter or digit precedes or follows it.
fn without_word(text: &str, value: &str) -> String {
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(value) {
        let end = at + value.len();
        let is_word = !text[..at].ends_with(char::is_alphanumeric)
            && !text[end..].starts_with(char::is_alphanumeric);
        shown.push_str(&text[from..at]);
        shown.push_str(if is_word { HIDDEN } else { value });
        from = end;
    }
    shown + &text[from..]
}

/// Replaces secret parts in a source line with asterisks, keeping the number of characters. Addresses may be written with the
/// escapes of JSON and YAML; a quoted one ends at its quote, another one before a comment or a comma.
pub(crate) fn masked(line: &str) -> Cow<'_, str> {
    let (text, starts) = without_escapes(line);
    let ranges = ranges(&text, |before, address| {
        let quote = before.trim_end().chars().next_back();
        if let Some(quote) = quote.filter(|quote| matches!(quote, '"' | '\'')) {
            return address.find(quote);
        }
        // A comma ends a value only inside brackets.
        let in_brackets = before.contains(['{', '[']);
        let ends = [" #", "\t#", ", "].into_iter().take(if in_brackets { 3 } else { 2 });
        ends.filter_map(|end| address.find(end)).min()
    });
    if ranges.is_empty() {
        return line.into();
    }
    let ranges = ranges.iter().map(|range| starts[range.start]..starts[range.end]);
    let ranges: Vec<Range<usize>> = ranges.collect();
    let is_secret = |at: usize| ranges.iter().any(|range| range.contains(&at));
    let masked = |(at, character): (usize, char)| if is_secret(at) { '*' } else { character };
    line.char_indices().map(masked).collect()
}

/// Decodes the escapes of a source line, and returns where each byte of the text starts in the line, and the line's end. A quote
/// with an escape becomes another character, as it ends nothing.
fn without_escapes(line: &str) -> (String, Vec<usize>) {
    let (mut text, mut starts) = (String::with_capacity(line.len()), Vec::new());
    let mut at = 0;
    while let Some(first) = line[at..].chars().next() {
        let (character, length) = match escaped(&line[at..]) {
            Some(('"' | '\'', length)) => (char::REPLACEMENT_CHARACTER, length),
            Some(found) => found,
            None => (first, first.len_utf8()),
        };
        text.push(character);
        starts.resize(text.len(), at);
        at += length;
    }
    starts.push(line.len());
    (text, starts)
}

/// Returns the character of a doubled quote or a backslash escape at the start of a source text, and the length of the escape.
fn escaped(text: &str) -> Option<(char, usize)> {
    match text.get(..2) {
        Some("''") => Some(('\'', 2)),
        // Single quotes know no escape with a backslash.
        Some("\\'") => None,
        _ => backslash(text),
    }
}

/// Returns the character of a backslash escape of JSON or YAML at the start of a text, and the length of the escape.
fn backslash(text: &str) -> Option<(char, usize)> {
    let kind = text.strip_prefix('\\')?.chars().next()?;
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        'n' => return Some(('\n', 2)),
        _ => return Some((kind, 1 + kind.len_utf8())),
    };
    let code = u32::from_str_radix(text.get(2..2 + digits)?, 16).ok()?;
    Some((char::from_u32(code)?, 2 + digits))
}

fn without(text: &str, address_length: impl Fn(&str, &str) -> Option<usize>) -> Cow<'_, str> {
    let ranges = ranges(text, address_length);
    if ranges.is_empty() {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for range in ranges {
        shown.push_str(&text[from..range.start]);
        from = range.end;
    }
    shown.push_str(&text[from..]);
    shown.into()
}

/// Returns the byte ranges of the secret parts of all addresses in a text, in order. `address_length` returns that of
/// an address, from the text before it and the text from its host on; `None` if it ends with the text.
fn ranges(text: &str, address_length: impl Fn(&str, &str) -> Option<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find("://") {
        let is_scheme =
            |character: &char| character.is_ascii_alphanumeric() || "+-.".contains(*character);
        let scheme: usize = text[from..from + at].chars().rev().take_while(is_scheme).count();
        let scheme = text[from + at - scheme..from + at].to_ascii_lowercase();
        let start = from + at + 3;
        let length = address_length(&text[..from + at - scheme.len()], &text[start..]);
        let end = length.map_or(text.len(), |length| start + length);
        let user = start + user_length(&text[start..end]);
        if user > start {
            found.push(start..user);
        }
        // Keys of stores may contain a number sign.
        let marks: &[char] = if STORES.contains(&&*scheme) { &['?'] } else { &['?', '#'] };
        let query = text[user..end].find(marks).map(|length| user + length);
        // The path may contain another address, as that of a proxy does.
        if text[user..query.unwrap_or(end)].contains("://") {
            from = user;
            continue;
        }
        let has_user = user > start;
        if let Some(query) = query.filter(|query| is_query(&scheme, has_user, &text[*query..end])) {
            found.push(query..end);
        }
        from = end;
    }
    found
}

/// Returns the number of bytes of user and password, including the `@`, in an address without scheme. Passwords may contain
/// characters that should have been encoded, so a port that is not a number is treated as a password.
fn user_length(address: &str) -> usize {
    let authority = &address[..address.find(['/', '?', '#']).unwrap_or(address.len())];
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let is_port = port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit());
    let searched = if authority.contains('@') || is_port { authority } else { address };
    searched.rfind('@').map_or(0, |at| at + 1)
}

/// Whether the text after a `?` is a query. In the address of a store, it is one if it signs the request, or if it has a value
/// and the address has a user, which such addresses cannot have.
fn is_query(scheme: &str, has_user: bool, query: &str) -> bool {
    let query = query.to_ascii_lowercase();
    !STORES.contains(&scheme)
        || has_user && query.contains('=')
        || SIGNATURES.iter().any(|signature| query.contains(signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_user_and_query() {
        for (address, public, user, query) in [
            ("https://bob:pw@host/x.parquet", "https://host/x.parquet", "bob:pw", ""),
            ("https://host/x?sig=a/b@c", "https://host/x", "", "sig=a/b@c"),
            ("http://tok@h:80/a/@b/x?y=1", "http://h:80/a/@b/x", "tok", "y=1"),
            ("http://bob:p/w?d#@host/x", "http://host/x", "bob:p/w?d#", ""),
            ("http://bob:p@w@host/x", "http://host/x", "bob:p@w", ""),
            ("s3://KEY:SE/CRET@bucket/x?.parquet", "s3://bucket/x?.parquet", "KEY:SE/CRET", ""),
            ("s3://KEY:PW@b/d?x=y", "s3://b/d", "KEY:PW", "x=y"),
            ("s3://b/d=202?/x=1", "s3://b/d=202?/x=1", "", ""),
            ("az://c/x?sv=1&sig=abc", "az://c/x", "", "sv=1&sig=abc"),
            ("hf://datasets/a/b@main/*.parquet", "hf://datasets/a/b@main/*.parquet", "", ""),
            ("data/what?.parquet", "data/what?.parquet", "", ""),
            ("https://host/x#part", "https://host/x", "", "#part"),
            ("https://host/x?a=1#part", "https://host/x", "", "a=1#part"),
            ("s3://bucket/a#token=1.parquet", "s3://bucket/a#token=1.parquet", "", ""),
            ("http://proxy/http://bob:pw@host/x?y=1", "http://proxy/http://host/x", "", "y=1"),
        ] {
            let (shown, secrets) = split(address);
            assert_eq!((shown.as_str(), &*secrets.user, &*secrets.query), (public, user, query));
        }
    }

    #[test]
    fn an_address_in_an_address_is_split_as_well() {
        for (address, inner) in
            [("http://proxy/http://bob:pw@host/x", true), ("http://proxy/http://host/x", false)]
        {
            let (public, secrets) = split(address);
            assert_eq!(public, "http://proxy/http://host/x");
            assert_eq!((secrets.has_inner_user, secrets.is_empty()), (inner, !inner));
        }
    }

    #[test]
    fn texts_keep_everything_but_the_secrets() {
        let text = "cannot read `https://a:b@h/x?q=1`: see \"http://h/y?z\" and data?";
        assert_eq!(shown(text), "cannot read `https://h/x`: see \"http://h/y\" and data?");
        assert_eq!(
            masked("  path: https://a:b@h/x?q=1 # why?"),
            "  path: https://****h/x**** # why?"
        );
        for (line, shown) in [
            (
                r#"{"path": "http:\/\/a:b\/@h\/x?q=1", "b": 2}"#,
                r#"{"path": "http:\/\/******h\/x****", "b": 2}"#,
            ),
            (r#"path: "http\x3a//a:b c@h/x?q= 1" # a"#, r#"path: "http\x3a//******h/x*****" # a"#),
            (r#"path: "\u0068ttp\u003A//a\"é@h/x""#, r#"path: "\u0068ttp\u003A//*****h/x""#),
            ("path: 'http://a b@h/x?q', more: 1", "path: 'http://****h/x**', more: 1"),
            (r#"path: " http://a\x22\u0022b@h/x""#, r#"path: " http://*************h/x""#),
            ("path: 'http://it''s@h/x?q' # a", "path: 'http://******h/x**' # a"),
            ("path: http://a, b@h/x?q, r # a", "path: http://*****h/x***** # a"),
            (r"path: 'http://a\''b@h/x'", r"path: 'http://******h/x'"),
            ("{path: http://a b@h/x?q r, b: 1}", "{path: http://****h/x****, b: 1}"),
            (r"path: C:\x\", r"path: C:\x\"),
        ] {
            assert_eq!(masked(line), shown, "{line}");
        }
        assert!(matches!(shown("what? @ `s3://b/a?.parquet`"), Cow::Borrowed(_)));
    }

    #[test]
    fn hidden_values_are_replaced_as_words() {
        for value in ["", "a", "correcthorse"] {
            hide(value);
        }
        let text = "--param pw=correcthorse, correcthorses and `https://correcthorse@h/a`";
        assert_eq!(shown(text), "--param pw=***, correcthorses and `https://h/a`");
    }

    #[test]
    fn credentials_are_hidden_with_any_escapes() {
        let value = "s3cr3t/~+\"é<=";
        hide_in_answers(value);
        for spelled in [
            value,
            "s3cr3t%2F~%2B%22%C3%A9%3C%3D",
            "s3cr3t%2f%7e%2b%22%c3%a9%3c%3d",
            "s3cr3t\\/~+\\\"\\u00e9\\u003c=",
            "s3cr3t/~+&quot;&#233;&lt;&#x3D;",
        ] {
            assert_eq!(without_credentials(&format!("a {spelled}.é")), "a ***.é", "{spelled}");
        }
        let start = std::time::Instant::now();
        assert_eq!(without_credentials(&"&".repeat(1 << 20)).len(), 1 << 20);
        assert!(start.elapsed().as_secs() < 30, "linear time");
        for other in ["s3cr3t/~+\"é<", "S3CR3T/~+\"é<=", "100% & \\ é &#x; %c3", "%", "\\", "&#x3D"]
        {
            assert_eq!(without_credentials(other), other);
        }
    }

    #[test]
    #[cfg(feature = "cloud")]
    fn quoted_input_is_not_shown() {
        let message = "invalid type: string \"a\\\"b\", expected struct Key at line 1 column 9";
        assert_eq!(
            without_quotes(message),
            "invalid type: string \"***\", expected struct Key at line 1 column 9"
        );
        let message = "unknown variant `key`, expected `a` or `b`";
        assert_eq!(without_quotes(message), "unknown variant `***`, expected `a` or `b`");
        for other in
            ["missing field `sha`", "Invalid query string \"a=b\": ask", "invalid type: string \""]
        {
            assert_eq!(without_quotes(other), other);
        }
    }

    #[test]
    fn a_value_overlaps_the_secret_parts_that_it_composes() {
        let (_, secrets) = split("https://bob:pw@host/x?sig=abc");
        for value in ["bob", "pw", "bob:pw", "abc", "sig=abc", "bob:pw@host"] {
            assert!(secrets.overlap(value), "{value}");
        }
        assert!(!secrets.overlap("") && !secrets.overlap("host") && !secrets.overlap("x"));
        assert!(!Secrets::default().overlap("x"));
    }
}
