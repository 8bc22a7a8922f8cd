//! Where something lies: a path of this machine, or an address (`s3://bucket/folder`).
//!
//! Settings that name files have this type, so a text is told apart once, where the pipeline is read.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What stands between a scheme and the rest of an address. Nothing else in the program tells addresses from paths.
const MARK: &str = "://";

/// Who serves an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `hf`: the Hugging Face hub.
    Hub,
    /// `s3`: Amazon's store and those that speak its language.
    S3,
    /// `gs`: Google's store.
    Gs,
    /// `az`: Azure's store.
    Az,
    /// `http`: a web server.
    Http,
    /// `https`: a web server.
    Https,
}

impl Scheme {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Hub, Self::S3, Self::Gs, Self::Az, Self::Http, Self::Https];

    /// What an address begins with, without the mark: `s3`.
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

    /// The scheme of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    /// Whether web servers serve it: single files by name, without lists.
    pub fn is_web(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// The scheme as addresses begin with it: `s3` and the mark.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{MARK}", self.name())
    }
}

/// An address: a scheme and what it means there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Who serves it.
    pub scheme: Scheme,
    rest: String,
}

impl Address {
    /// The address that a text is; none of a path, and of a scheme that is not known.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = split(text)?;
        Some(Self { scheme: Scheme::from_name(scheme)?, rest: rest.to_owned() })
    }

    /// What stands behind the scheme: `bucket/folder`, `owner/name@commit`.
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// The bucket or the server.
    pub fn authority(&self) -> &str {
        self.rest.split('/').next().unwrap_or("")
    }

    /// What stands behind the bucket or the server, without the slash between them.
    pub fn name(&self) -> &str {
        self.rest.split_once('/').map_or("", |(_, name)| name)
    }

    /// The address of the bucket or the server itself.
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

/// A text that looks like an address, as what stands before the mark and behind it; the scheme need not be known.
pub fn split(text: &str) -> Option<(&str, &str)> {
    text.split_once(MARK)
}

/// Where something lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// A path of this machine, perhaps relative.
    Path(PathBuf),
    /// Elsewhere.
    Address(Address),
}

impl Location {
    /// What a text means.
    pub fn parse(text: &str) -> Self {
        Address::parse(text).map_or_else(|| Self::Path(PathBuf::from(text)), Self::Address)
    }

    /// What a path means in which an address may stand, as of the command line.
    pub fn of(path: &Path) -> Self {
        path.to_str().map_or_else(|| Self::Path(path.to_owned()), Self::parse)
    }

    /// A name below it.
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

    /// Whether it is elsewhere.
    pub fn is_address(&self) -> bool {
        self.address().is_some()
    }

    /// The address, if it is one.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::Path(_) => None,
        }
    }

    /// The path, if it is one of this machine.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Address(_) => None,
        }
    }

    /// As a path in which an address may stand: what [`Location::of`] reads.
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

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

/// A text. Which schemes a setting takes stands at the setting, as `x-schemes`.
impl JsonSchema for Location {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Location".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
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
            assert_eq!(Location::of(&location.to_path_buf()), location);
        }
        for path in ["a/b", "/a", "ftp://host/a", "C:/a", "s3:/a", "a://s3", ""] {
            assert_eq!(Location::parse(path).path(), Some(Path::new(path)));
        }
        assert_eq!(split("ftp://host/a"), Some(("ftp", "host/a")));
    }

    #[test]
    fn a_name_below_an_address_is_behind_one_slash() {
        for text in ["s3://bucket/folder", "s3://bucket/folder/"] {
            assert_eq!(Location::parse(text).join("x").to_string(), "s3://bucket/folder/x");
        }
        assert_eq!(Location::parse("folder").join("x"), Location::Path("folder/x".into()));
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        for text in ["../data/*.parquet", "hf://datasets/a/b@main/x/*.parquet", "s3://b/x/"] {
            let json = serde_json::Value::from(text);
            let location: Location = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(serde_json::to_value(&location).unwrap(), json);
        }
    }
}
