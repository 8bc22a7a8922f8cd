//! References to the hub in a pipeline: `hf://owner/name@revision` and `hf://datasets/owner/name@revision/path`.

use std::fmt;

use longsift_stages::contract::{Address, Scheme};

const DATASETS: &str = "datasets/";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepositoryKind {
    Model,
    Dataset,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubReference {
    pub kind: RepositoryKind,
    pub owner: String,
    pub name: String,
    /// Commit (40 hexadecimal digits), branch or tag; `main` by default.
    pub revision: String,
}

impl HubReference {
    /// Parses a model reference, `hf://owner/name` with optional `@revision`.
    pub fn parse(path: &str) -> Result<Self, String> {
        let wrong = |why| {
            format!(
                "`{path}` is not a valid hf:// reference: {why}; write `hf://owner/name@commit`"
            )
        };
        let address = Address::parse(path);
        let rest = address.as_ref().map_or(path, Address::rest);
        if rest.starts_with(DATASETS) {
            return Err(wrong("it is a data set".to_owned()));
        }
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        Self::new(RepositoryKind::Model, repository.trim_end_matches('/'), revision).map_err(wrong)
    }

    /// Parses a data set reference, `hf://datasets/owner/name` with optional `@revision`, and a path: a folder, a file
    /// or a glob, possibly empty. A slash in the revision is written `%2F`, except in `refs/convert/…` and `refs/pr/…`.
    pub fn parse_dataset(path: &str) -> Result<(Self, String), String> {
        let wrong = |why| {
            format!(
                "`{path}` is not a valid hub data set: {why}; write `hf://datasets/owner/name@commit/path`"
            )
        };
        let address = Address::parse(path);
        let rest = address.as_ref().map_or(path, Address::rest);
        let Some(rest) = rest.strip_prefix(DATASETS) else {
            return Err(wrong("it does not begin with `hf://datasets/`".to_owned()));
        };
        let mut parts = rest.splitn(3, '/');
        let (owner, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let mut below = parts.next().unwrap_or("");
        let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
        let mut revision = revision.replace("%2F", "/");
        if revision == "refs" {
            for _ in 0..2 {
                let (part, rest) = below.split_once('/').unwrap_or((below, ""));
                revision = format!("{revision}/{part}");
                below = rest;
            }
        }
        let repository = if name.is_empty() { owner.to_owned() } else { format!("{owner}/{name}") };
        let reference =
            Self::new(RepositoryKind::Dataset, &repository, &revision).map_err(wrong)?;
        Ok((reference, below.trim_end_matches('/').to_owned()))
    }

    fn new(kind: RepositoryKind, repository: &str, revision: &str) -> Result<Self, String> {
        let Some((owner, name)) = repository.split_once('/') else {
            return Err("it has no owner".to_owned());
        };
        for part in [owner, name] {
            if !is_name(part) {
                return Err(format!("`{part}` is not a name"));
            }
        }
        if !revision.split('/').all(is_name) {
            return Err(format!("`{revision}` is not a revision"));
        }
        let [owner, name, revision] = [owner, name, revision].map(str::to_owned);
        Ok(Self { kind, owner, name, revision })
    }

    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }

    #[must_use]
    pub fn at_commit(&self, commit: &str) -> Self {
        Self { revision: commit.to_owned(), ..self.clone() }
    }

    pub fn repository(&self) -> String {
        match self.kind {
            RepositoryKind::Model => format!("{}/{}", self.owner, self.name),
            RepositoryKind::Dataset => format!("{DATASETS}{}/{}", self.owner, self.name),
        }
    }

    /// Returns the name of the repository's cache folder, as in the hub's own libraries.
    pub fn folder_name(&self) -> String {
        let kind = match self.kind {
            RepositoryKind::Model => "models",
            RepositoryKind::Dataset => "datasets",
        };
        format!("{kind}--{}--{}", self.owner, self.name)
    }

    pub fn download_command(&self) -> String {
        let kind = match self.kind {
            RepositoryKind::Model => "",
            RepositoryKind::Dataset => " --repo-type dataset",
        };
        format!("hf download {}/{}{kind} --revision {}", self.owner, self.name, self.revision)
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}@{}", Scheme::Hub, self.repository(), self.revision)
    }
}

pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text consists of letters, digits, `-`, `_` and `.`, without a leading `.`, which could leave the cache.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= 128 && !text.starts_with('.') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_a_commit_a_branch_or_main() {
        let parse = |path: &str| HubReference::parse(path).unwrap();
        let model = parse("hf://meta-llama/Llama-3.1-8B");
        assert_eq!(model.to_string(), "hf://meta-llama/Llama-3.1-8B@main");
        assert_eq!(model.folder_name(), "models--meta-llama--Llama-3.1-8B");
        assert!(!model.is_commit());
        assert!(parse(&format!("hf://a/b@{}", "0a".repeat(20))).is_commit());
        assert_eq!(parse("hf://a/b@refs/pr/3").revision, "refs/pr/3");
    }

    #[test]
    fn references_that_could_leave_the_cache_are_refused() {
        for rest in [
            "",
            "a",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/c",
            "a/b@",
            "a/b@../x",
            "a/b@x/../y",
            "a/b@x//y",
            "a b/c",
            "a/b?x",
            "a/b#x",
            "a/b%2f",
            "a/b@x@y",
            "ä/b",
        ] {
            let why = HubReference::parse(&format!("{}{rest}", Scheme::Hub)).unwrap_err();
            assert!(why.ends_with("write `hf://owner/name@commit`"), "{why}");
        }
    }

    #[test]
    fn a_data_set_has_a_path_after_its_revision() {
        let parse = |path: &str| {
            let (dataset, below) = HubReference::parse_dataset(path).unwrap();
            (dataset.to_string(), below)
        };
        let is = |repository: &str, below: &str| {
            (format!("hf://datasets/{repository}"), below.to_owned())
        };
        assert_eq!(parse("hf://datasets/a/b"), is("a/b@main", ""));
        assert_eq!(parse("hf://datasets/a/b/data/"), is("a/b@main", "data"));
        assert_eq!(parse("hf://datasets/a/b@v1/x/*.parquet"), is("a/b@v1", "x/*.parquet"));
        let converted = is("a/b@refs/convert/parquet", "default/*");
        assert_eq!(parse("hf://datasets/a/b@refs/convert/parquet/default/*"), converted);
        assert_eq!(parse("hf://datasets/a/b@refs%2Fpr%2F3"), is("a/b@refs/pr/3", ""));
        let (dataset, _) = HubReference::parse_dataset("hf://datasets/a/b@v1").unwrap();
        assert_eq!(dataset.folder_name(), "datasets--a--b");
        assert_eq!(dataset.download_command(), "hf download a/b --repo-type dataset --revision v1");
    }

    #[test]
    fn invalid_data_set_references_are_refused() {
        for (path, why) in [
            ("hf://a/b", "it does not begin with `hf://datasets/`"),
            ("hf://datasets/a", "it has no owner"),
            ("hf://datasets/", "it has no owner"),
            ("hf://datasets/a/..", "`..` is not a name"),
            ("hf://datasets/a/b@../x", "`..` is not a revision"),
            ("hf://datasets/a/b@x%2F..%2Fy/z", "`x/../y` is not a revision"),
            ("hf://datasets/a/b@", "`` is not a revision"),
            ("hf://datasets/a/b@refs", "`refs//` is not a revision"),
        ] {
            let message = HubReference::parse_dataset(path).unwrap_err();
            assert!(message.contains(why), "{message}");
            assert!(message.ends_with("write `hf://datasets/owner/name@commit/path`"), "{message}");
        }
        let message = HubReference::parse("hf://datasets/a/b").unwrap_err();
        assert!(message.contains("it is a data set"), "{message}");
    }
}
