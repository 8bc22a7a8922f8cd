//! Locations of files, parsed once, when the pipeline is read: a local path, or an address (`s3://bucket/folder`).

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Separator between a scheme and the rest of an address. No other code distinguishes addresses from paths.
const MARK: &str = "://";

/// Protocol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// The Hugging Face hub.
    Hub,
    /// Amazon S3 and compatible stores.
    S3,
    Gs,
    Az,
    Http,
    Https,
}

impl Scheme {
    pub const ALL: [Self; 6] = [Self::Hub, Self::S3, Self::Gs, Self::Az, Self::Http, Self::Https];

    /// Returns the scheme without the separator: `s3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hub => "hf",
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    /// Returns whether the scheme is that of a web server: single files by name, without listings.
    pub fn is_web(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// Formats the scheme as addresses start with it: `s3` and the separator.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{MARK}", self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub scheme: Scheme,
    rest: String,
}

impl Address {
    /// Parses an address; `None` for a path and for an unknown scheme.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = split(text)?;
        Some(Self { scheme: Scheme::from_name(scheme)?, rest: rest.to_owned() })
    }

    /// Returns the part after the scheme: `bucket/folder`, `owner/name@commit`.
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Returns the bucket or the server.
    pub fn authority(&self) -> &str {
        self.rest.split('/').next().unwrap_or("")
    }

    /// Returns the part after the bucket or the server, without the slash between them.
    pub fn name(&self) -> &str {
        self.rest.split_once('/').map_or("", |(_, name)| name)
    }

    /// Returns the address of the bucket or the server itself.
    #[must_use]
    pub fn root(&self) -> Self {
        Self { scheme: self.scheme, rest: self.authority().to_owned() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scheme, self.rest)
    }
}

/// Splits a text that has the form of an address at the separator; the scheme may be unknown.
pub fn split(text: &str) -> Option<(&str, &str)> {
    text.split_once(MARK)
}

/// Returns the scheme of an address with one slash instead of two, as Python's `pathlib` writes it.
pub fn scheme_with_one_slash(text: &str) -> Option<Scheme> {
    if split(text).is_some() {
        return None;
    }
    text.split('/').find_map(|part| Scheme::from_name(part.strip_suffix(':')?))
}

// In schemas a string; the schemes that a setting allows are listed at the setting, as `x-schemes`.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(inline)]
pub enum Location {
    /// Local path, perhaps relative.
    Path(PathBuf),
    Address(Address),
}

impl Location {
    /// Parses a path or an address.
    pub fn parse(text: &str) -> Self {
        Address::parse(text).map_or_else(|| Self::Path(PathBuf::from(text)), Self::Address)
    }

    /// Parses a path that may hold an address, as on the command line.
    pub fn from_path(path: &Path) -> Self {
        path.to_str().map_or_else(|| Self::Path(path.to_owned()), Self::parse)
    }

    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        match self {
            Self::Path(path) => Self::Path(path.join(name)),
            Self::Address(Address { scheme, rest }) => {
                let rest = format!("{}/{name}", rest.trim_end_matches('/'));
                Self::Address(Address { scheme: *scheme, rest })
            }
        }
    }

    pub fn is_address(&self) -> bool {
        self.address().is_some()
    }

    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::Path(_) => None,
        }
    }

    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Address(_) => None,
        }
    }

    /// Returns the location as a path, which [`Location::from_path`] parses back.
    pub fn to_path_buf(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Address(address) => address.to_string().into(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl From<String> for Location {
    fn from(text: String) -> Self {
        Self::parse(&text)
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_known_scheme_and_everything_else_is_a_path() {
        for scheme in Scheme::ALL {
            let text = format!("{scheme}a/b/c");
            let location = Location::parse(&text);
            let address = location.address().unwrap_or_else(|| panic!("{text}"));
            assert_eq!((address.scheme, address.rest()), (scheme, "a/b/c"));
            assert_eq!((address.authority(), address.name()), ("a", "b/c"));
            assert_eq!(address.root().to_string(), format!("{scheme}a"));
            assert_eq!(location.to_string(), text);
            assert_eq!(Location::from_path(&location.to_path_buf()), location);
        }
        for path in ["a/b", "/a", "ftp://host/a", "C:/a", "s3:/a", "a://s3", ""] {
            assert_eq!(Location::parse(path).path(), Some(Path::new(path)));
        }
        assert_eq!(split("ftp://host/a"), Some(("ftp", "host/a")));
    }

    #[test]
    fn joining_adds_one_slash() {
        for text in ["s3://bucket/folder", "s3://bucket/folder/"] {
            assert_eq!(Location::parse(text).join("x").to_string(), "s3://bucket/folder/x");
        }
        assert_eq!(Location::parse("folder").join("x"), Location::Path("folder/x".into()));
    }

    #[test]
    fn a_location_round_trips() {
        for text in ["../data/*.parquet", "hf://datasets/a/b@main/x/*.parquet", "s3://b/x/"] {
            let json = serde_json::Value::from(text);
            let location: Location = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(serde_json::to_value(&location).unwrap(), json);
        }
    }
}
