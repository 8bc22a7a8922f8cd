//! Environment variables. Surrounding white space is removed: secrets often come from files that end with a line break.

use super::{secrets, text};

/// Returns the value of a variable; `None` if it is unset, blank or not UTF-8. A secret is hidden in answers of servers from then on.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?.trim().to_owned();
    if is_secret(name) {
        // A token for shared access is a query with a secret signature.
        let pairs = value.trim_start_matches('?').split('&');
        let mut pairs = pairs.map(|pair| pair.trim_start_matches("amp;"));
        let signature = pairs.find_map(|pair| pair.strip_prefix("sig="));
        secrets::hide_in_answers(&text::unescaped(signature.unwrap_or(&value)));
        secrets::hide_in_answers(signature.unwrap_or(&value));
    }
    (!value.is_empty()).then_some(value)
}

/// Whether a variable contains a secret, by the last word of its name.
fn is_secret(name: &str) -> bool {
    let last = name.rsplit('_').next().unwrap_or_default();
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "BASE64", "HEADER"].contains(&last)
}

/// Refuses a value that cannot be part of an HTTP header. The reason names the variable without its value.
pub(crate) fn check_header(name: &str, value: &str) -> Result<(), String> {
    match value.chars().find(|character| !(' '..='~').contains(character)) {
        Some(found) => Err(format!(
            "{name} has the character U+{:04X}, expected printable ASCII",
            found as u32
        )),
        None => Ok(()),
    }
}

/// Refuses an address with a user or a query. The reason names the variable without its value.
pub(crate) fn check_address(name: &str, value: &str) -> Result<(), String> {
    let (_, secrets) = secrets::split(value);
    let what = if secrets.query.is_empty() { "a user" } else { "a query" };
    if secrets.is_empty() { Ok(()) } else { Err(format!("{name} has {what}, which is not used")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_refused_by_the_name_of_their_variable() {
        assert_eq!(check_header("HF_TOKEN", "hf_abc 1~"), Ok(()));
        for value in ["a\nb: c", "a\tb", "a\u{e9}", "a\u{7f}"] {
            let why = check_header("HF_TOKEN", value).unwrap_err();
            assert!(why.starts_with("HF_TOKEN has the character U+00") && !why.contains(value));
        }
        assert_eq!(check_address("X", "http://host:1/a@b"), Ok(()));
        assert_eq!(
            check_address("X", "http://u:p@h"),
            Err("X has a user, which is not used".into())
        );
        assert_eq!(
            check_address("X", "http://h?k"),
            Err("X has a query, which is not used".into())
        );
    }
}
