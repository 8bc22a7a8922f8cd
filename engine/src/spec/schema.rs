//! JSON Schema of a pipeline, and its interpretation for the checker and the reference pages.
//!
//! Editors and the engine use the same document, so that an editor marks exactly what the engine refuses.

pub(crate) mod words;

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::pipeline::Pipeline;

pub fn pipeline() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let mut schema = polished(&schemars::schema_for!(Pipeline));
        let param = schema["$defs"]["Param"].take();
        forbid_empty_strings(&mut schema);
        schema["$defs"]["Param"] = param;
        schema
    })
}

/// Prepares a generated schema for publication: replaces integer formats by explicit bounds, which every validator understands,
/// and removes source line breaks from descriptions.
pub fn polished(schema: &schemars::Schema) -> Value {
    // Serialised, a schema has its keywords in the usual order.
    let mut schema = serde_json::to_value(schema).expect("a schema is JSON");
    visit(&mut schema, &mut |object| {
        let format = object.get("format").and_then(Value::as_str).unwrap_or_default();
        let bounds = bounds(format);
        if bounds.is_some() || matches!(format, "float" | "double") {
            object.shift_remove("format");
        }
        if let Some((minimum, maximum)) = bounds {
            object.entry("minimum").or_insert(minimum);
            object.entry("maximum").or_insert(maximum);
        }
        if let Some(Value::String(text)) = object.get_mut("description") {
            let paragraphs: Vec<String> =
                text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect();
            *text = paragraphs.join("\n\n");
        }
    });
    schema
}

fn bounds(format: &str) -> Option<(Value, Value)> {
    Some(match format {
        "uint8" => (json!(0), json!(u8::MAX)),
        "uint16" => (json!(0), json!(u16::MAX)),
        "uint32" => (json!(0), json!(u32::MAX)),
        "uint64" | "uint" => (json!(0), json!(u64::MAX)),
        "int32" => (json!(i32::MIN), json!(i32::MAX)),
        "int64" | "int" => (json!(i64::MIN), json!(i64::MAX)),
        _ => return None,
    })
}

/// Forbids empty strings, which are not valid as paths, columns or names.
fn forbid_empty_strings(schema: &mut Value) {
    visit(schema, &mut |object| {
        if types(object.get("type")).contains(&"string") && !object.contains_key("const") {
            object.entry("minLength").or_insert(json!(1));
        }
    });
}

/// Applies `change` to every object that could be a schema, including the document itself. Skips containers of named schemas
/// (`properties`, `$defs`) but visits their values.
fn visit(schema: &mut Value, change: &mut impl FnMut(&mut serde_json::Map<String, Value>)) {
    match schema {
        Value::Object(object) => {
            change(object);
            for (key, value) in object.iter_mut() {
                match (key.as_str(), value) {
                    ("default" | "const" | "enum" | "examples", _) => {}
                    ("properties" | "$defs", Value::Object(named)) => {
                        named.values_mut().for_each(|value| visit(value, change));
                    }
                    (_, value) => visit(value, change),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| visit(value, change)),
        _ => {}
    }
}

fn types(keyword: Option<&Value>) -> Vec<&str> {
    match keyword {
        Some(Value::String(word)) => vec![word],
        Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[derive(Clone, Debug)]
pub(crate) enum ValueKind<'s> {
    Null,
    Boolean,
    Integer {
        minimum: i128,
        maximum: i128,
    },
    Number {
        minimum: f64,
        maximum: f64,
    },
    String,
    Names(Vec<(&'s str, &'s str)>),
    List {
        items: &'s Value,
        minimum: u64,
    },
    /// Named properties, or arbitrary names with values of one schema.
    Mapping(&'s Value),
    /// One of several mappings, distinguished by their `stage` key.
    Stage(Vec<(&'s str, &'s Value)>),
}

/// Lists the kinds that `schema` accepts: resolves references, `anyOf` and type lists. No two kinds accept the same JSON type,
/// so a value matches at most one.
pub(crate) fn kinds<'s>(root: &'s Value, schema: &'s Value) -> Vec<ValueKind<'s>> {
    let schema = resolved(root, schema);
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().flat_map(|choice| kinds(root, choice)).collect();
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let names: Vec<_> = choices
            .iter()
            .filter_map(|choice| Some((choice["const"].as_str()?, description(choice))))
            .collect();
        if names.len() == choices.len() {
            return vec![ValueKind::Names(names)];
        }
        let stages = choices.iter().map(|choice| resolved(root, choice));
        let named =
            |stage: &'s Value| Some((stage["properties"]["stage"]["const"].as_str()?, stage));
        return vec![ValueKind::Stage(stages.filter_map(named).collect())];
    }
    if let Some(name) = schema["const"].as_str() {
        return vec![ValueKind::Names(vec![(name, description(schema))])];
    }
    if let Some(names) = schema["enum"].as_array() {
        let names = names.iter().filter_map(|name| Some((name.as_str()?, "")));
        return vec![ValueKind::Names(names.collect())];
    }
    types(schema.get("type")).into_iter().filter_map(|word| kind(word, schema)).collect()
}

fn kind<'s>(word: &str, schema: &'s Value) -> Option<ValueKind<'s>> {
    Some(match word {
        "null" => ValueKind::Null,
        "boolean" => ValueKind::Boolean,
        "integer" => ValueKind::Integer {
            minimum: whole(&schema["minimum"]).unwrap_or(i128::MIN),
            maximum: whole(&schema["maximum"]).unwrap_or(i128::MAX),
        },
        "number" => ValueKind::Number {
            minimum: schema["minimum"].as_f64().unwrap_or(f64::NEG_INFINITY),
            maximum: schema["maximum"].as_f64().unwrap_or(f64::INFINITY),
        },
        "string" => ValueKind::String,
        "array" => ValueKind::List {
            items: &schema["items"],
            minimum: schema["minItems"].as_u64().unwrap_or(0),
        },
        "object" => ValueKind::Mapping(schema),
        _ => return None,
    })
}

fn whole(bound: &Value) -> Option<i128> {
    bound.as_u64().map(i128::from).or_else(|| bound.as_i64().map(i128::from))
}

pub(crate) fn resolved<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
        Some(name) => resolved(root, &root["$defs"][name]),
        None => schema,
    }
}

pub(crate) fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or("")
}

/// Keys of a mapping with their schemas, in the order of the file.
pub(crate) fn properties(mapping: &Value) -> impl Iterator<Item = (&str, &Value)> {
    mapping["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, schema)| (key.as_str(), schema))
}

pub(crate) fn is_required(mapping: &Value, key: &str) -> bool {
    mapping["required"].as_array().is_some_and(|keys| keys.iter().any(|required| required == key))
}

/// Names of all stages, in the order in which a pipeline lists them.
pub fn stage_names() -> &'static [&'static str] {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMES.get_or_init(|| stages(pipeline()).into_iter().map(|(name, _)| name).collect())
}

/// Sections with settings: input, output and all stages.
pub(crate) fn sections(root: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let around = ["input", "output"].map(|name| (name, resolved(root, &root["properties"][name])));
    around.into_iter().chain(stages(root))
}

pub(crate) fn stages(root: &Value) -> Vec<(&str, &Value)> {
    match kinds(root, &root["properties"]["stages"]["items"]).pop() {
        Some(ValueKind::Stage(stages)) => stages,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use longsift_stages::StageSettings;

    use super::words::{grouped, in_words};
    use super::*;

    fn stage(name: &str) -> &'static Value {
        stages(pipeline()).into_iter().find(|(stage, _)| *stage == name).expect("a stage").1
    }

    fn words(name: &str, key: &str) -> String {
        in_words(pipeline(), &stage(name)["properties"][key])
    }

    #[test]
    fn every_documented_range_reaches_the_schema() {
        assert_eq!(words("tokenize", "window_tokens"), "an integer from 2 to 16,777,216");
        assert_eq!(words("tokenize", "bos"), "an integer from 0 to 2");
        assert_eq!(words("filter", "keep_fraction"), "a number from 0 to 1");
        assert_eq!(words("filter", "keep_tokens"), "an integer from 0 or a mapping");
        assert_eq!(words("filter", "min_score"), "a number");
        assert_eq!(words("score", "alpha"), "a number from 0 to 100");
        assert_eq!(
            words("first-layer-attention", "min_distance_fraction"),
            "a number from 0.000001 to 0.999999"
        );
        assert_eq!(words("shard-across-devices", "headroom_fraction"), "a number from 0 to 0.9");
        assert_eq!(
            words("shard-across-devices", "devices"),
            "`auto`, `cpu`, an integer from 1 to 64 or a list of strings"
        );
        assert_eq!(words("load-partial-model", "rope_theta"), "a number from 1");
        assert_eq!(in_words(pipeline(), &pipeline()["properties"]["version"]), "1");
    }

    #[test]
    fn the_stages_of_the_schema_have_the_names_of_their_settings() {
        assert_eq!(stage_names().len(), 11);
        for name in stage_names() {
            let required = json!({
                "stage": name, "model": "model", "window_tokens": 2, "name": "own", "command": ["program"],
                "version": "1",
            });
            let known = stage(name)["properties"].as_object().unwrap();
            let given = required.as_object().unwrap().iter();
            let given: serde_json::Map<String, Value> = given
                .filter(|(key, _)| known.contains_key(*key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let settings: StageSettings = serde_json::from_value(given.into()).unwrap();
            assert_eq!(settings.name(), *name);
        }
    }

    #[test]
    fn the_schema_has_no_format_and_no_empty_string() {
        let text = pipeline().to_string();
        // The keyword has a string value; `input.format` is a setting.
        assert!(!text.contains("\"format\":\""));
        assert_eq!(stage("score")["properties"]["within"]["minLength"], 1);
        assert_eq!(pipeline()["$defs"]["Param"]["properties"]["default"].get("minLength"), None);
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(
            (grouped(1024), grouped(16_777_216), grouped(-12_345)),
            ("1024".into(), "16,777,216".into(), "-12,345".into())
        );
    }
}
