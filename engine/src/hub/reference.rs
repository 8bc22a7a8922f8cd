//! `hf://owner/name@revision`, as a pipeline names a model of the hub.

use std::fmt;

/// What a path begins with that means the hub.
const SCHEME: &str = "hf://";

/// A repository of the hub at a revision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The user or organisation.
    pub owner: String,
    /// The repository's name.
    pub name: String,
    /// A commit (40 hexadecimal digits), a branch or a tag; `main` where none is given.
    pub revision: String,
}

impl Reference {
    /// Whether a path of a pipeline means the hub.
    pub fn is(path: &str) -> bool {
        path.starts_with(SCHEME)
    }

    /// Reads `hf://owner/name`, with `@revision` or without.
    ///
    /// # Errors
    /// What is wrong with it, and what it should look like.
    pub fn parse(path: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            Err(format!("`{path}` is no model of the hub: {why}; write `hf://owner/name@commit`"))
        };
        let rest = path.strip_prefix(SCHEME).unwrap_or(path);
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let Some((owner, name)) = repository.trim_end_matches('/').split_once('/') else {
            return wrong("it has no owner".to_owned());
        };
        for part in [owner, name] {
            if !is_name(part) {
                return wrong(format!("`{part}` is not a name"));
            }
        }
        if !revision.split('/').all(is_name) {
            return wrong(format!("`{revision}` is not a revision"));
        }
        let [owner, name, revision] = [owner, name, revision].map(str::to_owned);
        Ok(Self { owner, name, revision })
    }

    /// Whether the revision is a commit, which never means anything else later.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }

    /// `owner/name`
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The folder of the repository in a cache, as the hub's own libraries name it.
    pub fn folder_name(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

/// `hf://owner/name@revision`
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}@{}", self.owner, self.name, self.revision)
    }
}

/// Whether a revision is a commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Letters, digits, `-`, `_` and `.`; not `.` or `..`, which would leave the cache.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= 128 && !text.starts_with('.') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_a_commit_a_branch_or_main() {
        let parse = |path: &str| Reference::parse(path).unwrap();
        let model = parse("hf://meta-llama/Llama-3.1-8B");
        assert_eq!(model.to_string(), "hf://meta-llama/Llama-3.1-8B@main");
        assert_eq!(model.folder_name(), "models--meta-llama--Llama-3.1-8B");
        assert!(!model.is_commit());
        assert!(parse(&format!("hf://a/b@{}", "0a".repeat(20))).is_commit());
        assert_eq!(parse("hf://a/b@refs/pr/3").revision, "refs/pr/3");
    }

    #[test]
    fn what_could_leave_the_cache_is_refused() {
        for path in [
            "hf://",
            "hf://a",
            "hf://a/",
            "hf:///b",
            "hf://../b",
            "hf://a/..",
            "hf://a/b/c",
            "hf://a/b@",
            "hf://a/b@../x",
            "hf://a/b@x/../y",
            "hf://a/b@x//y",
            "hf://a b/c",
            "hf://a/b?x",
            "hf://a/b#x",
            "hf://a/b%2f",
            "hf://a/b@x@y",
            "hf://ä/b",
        ] {
            let why = Reference::parse(path).unwrap_err();
            assert!(why.ends_with("write `hf://owner/name@commit`"), "{why}");
        }
    }
}
