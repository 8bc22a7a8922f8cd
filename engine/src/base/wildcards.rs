//! Wildcards in paths: detects them, and finds the fixed part of a glob.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn has_wildcard(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Splits a glob into its longest fixed prefix, unescaped, and the rest. An escaped wildcard (`run[[]1]`, as written by
/// [`glob::Pattern::escape`]) counts as fixed.
pub fn split(glob: &Path) -> (PathBuf, PathBuf) {
    let mut parts = glob.components().peekable();
    let mut fixed = PathBuf::new();
    while let Some(name) = parts.peek().and_then(|part| literal(part.as_os_str())) {
        fixed.push(name);
        parts.next();
    }
    (fixed, parts.collect())
}

/// Extends the fixed part by the longest prefix of `rest` that `exists` literally: `run[1]/*.parquet` means the folder `run[1]`
/// if it exists.
pub fn extended(fixed: PathBuf, rest: &Path, exists: impl Fn(&Path) -> bool) -> (PathBuf, PathBuf) {
    let parts: Vec<_> = rest.components().collect();
    let literal = |count: &usize| fixed.join(parts[..*count].iter().collect::<PathBuf>());
    match (1..parts.len()).rev().find(|count| exists(&literal(count))) {
        Some(count) => (literal(&count), parts[count..].iter().collect()),
        None => (fixed, rest.to_owned()),
    }
}

/// Returns the name that a part of a glob matches, if it matches only one.
fn literal(part: &std::ffi::OsStr) -> Option<OsString> {
    if !has_wildcard(Path::new(part)) {
        return Some(part.to_owned());
    }
    let mut name = String::new();
    let mut rest = part.to_str()?;
    while let Some(first) = rest.chars().next() {
        let escaped = ["[*]", "[?]", "[[]", "[]]"].into_iter().find(|four| rest.starts_with(four));
        match escaped {
            Some(escaped) => {
                name.push_str(&escaped[1..2]);
                rest = &rest[escaped.len()..];
            }
            None if matches!(first, '*' | '?' | '[') => return None,
            None => {
                name.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(glob: &str) -> (String, String) {
        let (fixed, rest) = split(Path::new(glob));
        (fixed.display().to_string(), rest.display().to_string())
    }

    #[test]
    fn the_fixed_part_ends_before_the_first_wildcard() {
        let is = |fixed: &str, rest: &str| (fixed.to_owned(), rest.to_owned());
        assert_eq!(parts("/a/b/*.parquet"), is("/a/b", "*.parquet"));
        assert_eq!(parts("../a/**/b/?.parquet"), is("../a", "**/b/?.parquet"));
        assert_eq!(parts("*"), is("", "*"));
        assert_eq!(parts("a/b"), is("a/b", ""));
        assert_eq!(parts("a[12]/b"), is("", "a[12]/b"));
    }

    #[test]
    fn an_escaped_wildcard_stands_for_itself() {
        for name in ["run[1]", "a*b", "?", "[", "]", "grüße[*]", "a"] {
            let escaped = glob::Pattern::escape(name);
            assert_eq!(parts(&format!("{escaped}/*")), (name.to_owned(), "*".to_owned()));
        }
    }
}
