//! Chat templates: the Jinja template of a tokenizer, rendered as transformers does. Templates are untrusted programs with
//! access to the messages and the special tokens only, and end after a bounded number of steps.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fancy_regex::Regex;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, context};
use serde::Serialize;
use serde_json::{Map, Value};

use super::chat_json::tojson;
use crate::model::folder_files::{MAX_CONFIG_BYTES, read_small_file, token_text, tokenizer_config};

/// Maximum number of steps: templates in use take some hundred per message.
const MAX_STEPS: u64 = 5_000_000;
/// File of the template in newer tokenizer folders.
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// File of the template in older folders, and of the special tokens.
const CONFIG_FILE: &str = "tokenizer_config.json";
const OLDER_TOKENS_FILE: &str = "special_tokens_map.json";
/// Objects with further tokens of any name, which override the tokens of the enclosing object.
const TOKEN_OBJECTS: [&str; 2] = ["model_specific_special_tokens", "extra_special_tokens"];

/// Roles of conversations in the form of `ShareGPT`, and their names in templates that do not use them.
const OTHER_ROLES: [(&str, &str); 2] = [("human", "user"), ("gpt", "assistant")];

/// The block that marks the text of the model in transformers. It is replaced by its content.
static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})").expect("a regular expression")
});

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Role of the speaker, such as `user` or `assistant`; empty if missing.
    pub role: String,
    pub content: String,
}

#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    source: String,
    /// `bos_token`, `eos_token` and others, as texts.
    special_tokens: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedConversation {
    pub text: String,
    /// `[messages]`: byte at which each message begins, ascending and on character boundaries; 0 for the first. Text
    /// that the template writes around a message belongs to it. `None` if the start is unknown: the template cannot render the
    /// conversation up to this message alone, or renders it in another way.
    pub starts: Vec<Option<usize>>,
    /// Special tokens that the template uses and the files do not name. Classes of transformers have defaults for some.
    pub unnamed_tokens: Vec<String>,
}

/// Character of no template.
const MARK: char = '\u{e000}';

impl ChatTemplate {
    /// Reads the template of a tokenizer: `chat_template.jinja` in its folder, or the one in `tokenizer_config.json`;
    /// if that has several, the one named `default`.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let config_path = folder.join(CONFIG_FILE);
        let config = tokenizer_config(folder).map_err(|problem| problem.message)?;
        // Older checkpoints have the tokens in a file of their own, which is read only without those of the newer form.
        let older = read_small_file(&folder.join(OLDER_TOKENS_FILE), MAX_CONFIG_BYTES).ok();
        let older = older.filter(|_| !config.contains_key("added_tokens_decoder"));
        let older: Option<Map<String, Value>> =
            older.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let files: Vec<&Map<String, Value>> =
            [Some(&config), older.as_ref()].into_iter().flatten().collect();
        let named = files.iter().flat_map(|settings| settings.iter());
        let named = named.filter(|(name, _)| name.ends_with("_token"));
        let objects = files.iter().flat_map(|settings| {
            TOKEN_OBJECTS.iter().filter_map(|name| settings.get(*name)?.as_object())
        });
        let mut special_tokens = Map::new();
        for (name, token) in named.chain(objects.flatten()) {
            match token_text(token) {
                Some(text) => special_tokens.insert(name.clone(), text.into()),
                // A later null removes a token.
                None => special_tokens.remove(name),
            };
        }
        let path = folder.join(TEMPLATE_FILE);
        if let Ok(bytes) = read_small_file(&path, MAX_CONFIG_BYTES) {
            let source = String::from_utf8(bytes)
                .map_err(|error| format!("`{}` is not UTF-8: {error}", path.display()))?;
            return Ok(Self { path, source, special_tokens });
        }
        let named = |templates: &Vec<Value>| {
            let default = templates.iter().find(|one| one["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        };
        let source = match config.get("chat_template") {
            Some(Value::String(source)) => Some(source.clone()),
            Some(Value::Array(templates)) => named(templates),
            _ => None,
        };
        let none = || {
            format!(
                "the tokenizer has no chat template: neither `{TEMPLATE_FILE}` nor a `chat_template` in `{CONFIG_FILE}` is in \
                 `{}`",
                folder.display()
            )
        };
        Ok(Self { path: config_path, source: source.ok_or_else(none)?, special_tokens })
    }

    /// Renders a conversation as in training, without a prompt for another message. Cost: the template is rendered
    /// once for each message, up to that message, and more often if that is not a prefix of the conversation.
    ///
    /// A message begins where the rendered conversation up to the message before it ends. A template may change its earlier
    /// output (it closes a conversation, or omits earlier thoughts); then the message begins at the first tag after the content
    /// before that begins a message, or where the two texts first differ.
    pub fn render(&self, messages: &[Message]) -> Result<RenderedConversation, String> {
        let wrong = |error: Error| {
            let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
            let why = match error.kind() {
                ErrorKind::OutOfFuel => format!("it does not end within {MAX_STEPS} steps"),
                _ => error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
            };
            format!(
                "the chat template in `{}`{line} cannot render the conversation: {why}",
                self.path.display()
            )
        };
        let mut environment = Environment::new();
        environment.set_fuel(Some(MAX_STEPS));
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(wrong)?);
        environment.set_unknown_method_callback(method);
        environment.add_test("iterable", |value: minijinja::Value| is_iterable(&value));
        environment.add_test("sequence", |value: minijinja::Value| {
            is_iterable(&value) && (value.is_undefined() || value.len().is_some())
        });
        environment.add_filter(
            "trim",
            |text: String, characters: Option<String>| match characters {
                Some(characters) => text.trim_matches(|one| characters.contains(one)).to_owned(),
                None => text.trim_matches(is_blank).to_owned(),
            },
        );
        // These write other texts than in Jinja, so that templates with them are refused.
        for filter in ["e", "escape", "indent"] {
            environment.remove_filter(filter);
        }
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_filter("tojson", tojson);
        // As Jinja reads line ends.
        let source = self.source.replace("\r\n", "\n").replace('\r', "\n");
        let source = GENERATION.replace_all(&source, "${1}${2}with${3}");
        let template = environment.template_from_str(&source).map_err(wrong)?;
        let special_tokens = minijinja::Value::from(Serde(&self.special_tokens));
        let rendered = |messages: &[Message]| {
            template.render(context! {
                messages => Serde(messages),
                tools => (),
                documents => (),
                add_generation_prompt => false,
                ..special_tokens.clone()
            })
        };
        let mut messages = messages.to_vec();
        let quoted = |role: &str| [format!("'{role}'"), format!("\"{role}\"")];
        for (from, name) in OTHER_ROLES {
            if !quoted(from).iter().any(|role| source.contains(role)) {
                let others = messages.iter_mut().filter(|message| message.role == from);
                others.for_each(|message| name.clone_into(&mut message.role));
            }
        }
        let messages = &messages[..];
        let text = rendered(messages).map_err(wrong)?;
        // Byte at which the conversation with a changed content first differs; `None` without a difference.
        let differs = |message: usize, change: &dyn Fn(&str) -> String| {
            let mut changed = messages.to_vec();
            changed[message].content = change(&changed[message].content);
            let other = rendered(&changed).ok().filter(|other| *other != text)?;
            Some(common_prefix(&other, &text))
        };
        let at_start = |content: &str| format!("{MARK}{content}");
        let at_end = |content: &str| format!("{content}{MARK}");
        let start = |index: usize| {
            let message = &messages[index];
            let before = rendered(&messages[..index]).ok();
            let alike = before.as_ref().map(|before| common_prefix(before, &text));
            let content = message.content.trim();
            // Without a text before its content, the end of the conversation before may be the prompt for an answer.
            let has_header =
                |at: usize| content.is_empty() || !text[at..].trim_start().starts_with(content);
            if alike.is_some_and(|at| before.is_some_and(|of| of.len() == at) && has_header(at)) {
                return alike;
            }
            // The end of a conversation can differ from that of a message before others, and so can the last answer.
            let content = differs(index, &at_start).or_else(|| differs(index, &at_end))?;
            // Templates leave out some messages.
            let ended = (0..index).rev().find_map(|index| differs(index, &at_end)).unwrap_or(0);
            let between = text.get(ended..content).unwrap_or_default();
            let mut places = between.match_indices('<').map(|(at, _)| ended + at);
            let header = places.find(|at| self.begins_message(&text, *at, &message.role));
            header.or_else(|| alike.filter(|at| *at >= ended))
        };
        let mut reached = 0;
        let starts = (0..messages.len()).map(|index| {
            let start = if index == 0 { 0 } else { start(index)? };
            reached = reached.max(start);
            Some(reached)
        });
        let starts = starts.collect();
        let mut unnamed: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        unnamed.retain(|name| name.ends_with("_token") && !self.special_tokens.contains_key(name));
        unnamed.sort_unstable();
        Ok(RenderedConversation { text, starts, unnamed_tokens: unnamed })
    }

    /// Whether the tag at a byte of a conversation begins a message: it names the role, or begins the conversation after the BOS.
    fn begins_message(&self, text: &str, at: usize, role: &str) -> bool {
        let Some(end) = text[at..].find('>') else { return false };
        let tag = &text[at..=at + end];
        let bos = self.special_tokens.get("bos_token").and_then(Value::as_str).unwrap_or_default();
        let first = text.strip_prefix(bos).unwrap_or(text).trim_start();
        let names_role = !role.is_empty() && tag.to_lowercase().contains(&role.to_lowercase());
        (names_role && !tag.starts_with("</") && !tag.contains(char::is_whitespace))
            || first.starts_with(tag)
    }
}

/// Whether a value can be iterated in Jinja: none cannot, and an undefined value can.
fn is_iterable(value: &minijinja::Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Iterable | Map | Seq | String | Undefined)
}

/// Whether Python counts a character as white space.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Calls a method of Python. Those of texts without arguments that minijinja implements in another way are implemented here.
fn method(
    state: &mut State<'_, '_>,
    value: &minijinja::Value,
    name: &str,
    arguments: &[minijinja::Value],
) -> Result<minijinja::Value, Error> {
    let text = value.as_str().filter(|_| arguments.is_empty());
    let changed = text.and_then(|text| match name {
        "strip" => Some(text.trim_matches(is_blank).into()),
        "lstrip" => Some(text.trim_start_matches(is_blank).into()),
        "rstrip" => Some(text.trim_end_matches(is_blank).into()),
        "split" => Some(text.split(is_blank).filter(|word| !word.is_empty()).collect()),
        "splitlines" => Some(lines(text).collect()),
        "title" => Some(title(text).into()),
        _ => None,
    });
    match changed {
        Some(changed) => Ok(changed),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Returns the lines of a text as Python splits them.
fn lines(text: &str) -> impl Iterator<Item = String> {
    let text = text.replace("\r\n", "\n");
    let is_end = |one: char| matches!(one, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines: Vec<String> = text.split(is_end).map(str::to_owned).collect();
    // The last line end ends a line.
    lines.pop_if(|last| last.is_empty());
    lines.into_iter()
}

/// Writes each sequence of letters with a capital, as Python does.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut follows_letter = false;
    for character in text.chars() {
        let mut upper = character.to_uppercase();
        match upper.next().filter(|_| !follows_letter) {
            Some(first) => {
                titled.push(first);
                titled.extend(upper.flat_map(char::to_lowercase));
            }
            None => titled.extend(character.to_lowercase()),
        }
        follows_letter = character.is_lowercase() || character.is_uppercase();
    }
    titled
}

/// Returns the length in bytes of the common beginning of two texts, up to a character boundary.
fn common_prefix(one: &str, other: &str) -> usize {
    let alike = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    other.floor_char_boundary(alike)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    const CHATML: &str = "{{ bos_token }}{% for message in messages %}\n  {% if message.role == 'system' and not loop.first %}\
        {{ raise_exception('system comes first') }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + \
        message['content'].strip() + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'no' }}{% endif %}";

    fn folder(config: &Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG_FILE), config.to_string()).unwrap();
        folder
    }

    fn rendered(template: &str, messages: &[(&str, &str)]) -> Result<RenderedConversation, String> {
        let config = json!({"bos_token": {"content": "<s>"}, "chat_template": template});
        let messages: Vec<Message> = messages
            .iter()
            .map(|(role, content)| Message { role: (*role).into(), content: (*content).into() })
            .collect();
        ChatTemplate::open(folder(&config).path()).unwrap().render(&messages)
    }

    #[test]
    fn messages_begin_at_the_end_of_the_previous_conversation() {
        let found =
            rendered(CHATML, &[("user", " Hé "), ("assistant", ""), ("user", "ü")]).unwrap();
        let pieces = [
            "<s><|im_start|>user\nHé<|im_end|>\n",
            "<|im_start|>assistant\n<|im_end|>\n",
            "<|im_start|>user\nü<|im_end|>\n",
        ];
        assert_eq!(found.text, pieces.concat());
        let first = pieces[0].len();
        assert_eq!(found.starts, [Some(0), Some(first), Some(first + pieces[1].len())]);
    }

    #[test]
    fn the_end_of_a_conversation_is_not_part_of_the_next_message() {
        let template = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\
            {% if loop.last %}<|endoftext|>{% endif %}{% endfor %}";
        let found = |eos: &str| {
            let config = json!({"eos_token": eos, "chat_template": template});
            let message = |role: &str| Message { role: role.into(), content: "a".into() };
            let messages = [message("user"), message("assistant")];
            ChatTemplate::open(folder(&config).path()).unwrap().render(&messages).unwrap().starts
        };
        for eos in ["<|endoftext|>", "</s>"] {
            assert_eq!(found(eos), [Some(0), Some("<|user|>a".len())]);
        }
        let template = "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}\
            {% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}";
        let config = json!({"eos_token": "<|return|>", "chat_template": template});
        let message = |role: &str| Message { role: role.into(), content: "a".into() };
        let messages = [message("user"), message("assistant")];
        let found = ChatTemplate::open(folder(&config).path()).unwrap().render(&messages).unwrap();
        assert_eq!(found.starts, [Some(0), Some("<|start|>user<|message|>a<|end|>".len())]);
    }

    #[test]
    fn roles_of_share_gpt_are_those_of_the_template() {
        let text = |template: &str| {
            rendered(template, &[("human", "a"), ("gpt", "b"), ("tool", "c")]).unwrap().text
        };
        let template =
            "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
        assert_eq!(text(template), "user: a\nassistant: b\ntool: c\n");
        let knows = format!("{{% set asks = 'human' %}}{template}");
        assert_eq!(text(&knows), "human: a\nassistant: b\ntool: c\n");
    }

    #[test]
    fn messages_may_be_written_in_another_way_at_the_end() {
        let template = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
            {% if loop.last and message.role == 'assistant' %}<think></think>{% endif %}\
            {{ message.content }}<|im_end|>\n{% endfor %}";
        let messages = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")];
        let found = rendered(template, &messages).unwrap();
        let starts = found.text.match_indices("<|im_start|>").map(|(at, _)| Some(at));
        assert_eq!(found.starts, starts.collect::<Vec<_>>());
        let template = template.replace("<|im_start|>", "[").replace("<|im_end|>", "]");
        let found = rendered(&template, &messages).unwrap();
        assert_eq!(found.starts[2], None, "{}", found.text);
    }

    #[test]
    fn messages_follow_one_that_the_template_leaves_out() {
        let template = "{% for message in messages if message.role != 'tool' %}<|{{ message.role }}|>{{ message.content }}\
            {% if loop.last %}<|endoftext|>{% endif %}{% endfor %}";
        let messages = [("user", "a"), ("tool", "b"), ("assistant", "c")];
        let found = rendered(template, &messages).unwrap();
        assert_eq!(found.starts, [Some(0), None, Some("<|user|>a".len())]);
    }

    #[test]
    fn a_prompt_for_an_answer_is_not_part_of_a_message() {
        let template = "{{ bos_token }}{% for message in messages %}<|header|>{{ message.role }}\n\
            {{ message.content }}<|eot|>{% endfor %}<|header|>assistant\n";
        let messages = [("user", "a"), ("assistant", "b"), ("user", "c")];
        let found = rendered(template, &messages).unwrap();
        let starts = found.text.match_indices("<|header|>").map(|(at, _)| Some(at));
        let mut expected: Vec<_> = starts.take(3).collect();
        expected[0] = Some(0);
        assert_eq!(found.starts, expected);
    }

    #[test]
    fn messages_that_cannot_be_rendered_alone_have_no_start() {
        let needs_two = "{% if messages|length < 2 %}{{ raise_exception('too few') }}{% endif %}\
            {% for message in messages %}[{{ message.content }}]{% endfor %}";
        let found = rendered(needs_two, &[("system", "a"), ("user", "b"), ("user", "c")]).unwrap();
        assert_eq!(
            (found.text.as_str(), found.starts),
            ("[a][b][c]", vec![Some(0), None, Some(6)])
        );
        let refused = rendered(CHATML, &[("user", "a"), ("system", "b")]).unwrap_err();
        assert!(
            refused.ends_with("cannot render the conversation: system comes first"),
            "{refused}"
        );
    }

    #[test]
    fn tools_are_none_and_line_ends_are_those_of_jinja() {
        let template = "{% if tools is not none or documents is not none %}no{% endif %}a\r\nb\rc";
        assert_eq!(rendered(template, &[("user", "a")]).unwrap().text, "a\nb\nc");
    }

    /// Expected texts are those of Jinja 3.1.
    #[test]
    fn values_and_texts_are_those_of_jinja() {
        for (template, expected) in [
            (
                "{{ tools is iterable }} {{ tools is iterable and tools | length > 0 }}",
                "False False",
            ),
            ("{{ nothing is iterable }} {{ nothing is sequence }}", "True True"),
            (
                "{{ 'a' is sequence }} {{ messages[0] is sequence }} {{ 1 is sequence }}",
                "True True False",
            ),
            ("{{ range(2) is sequence }} {{ messages is sequence }}", "True True"),
            (
                "{{ \"o'neil_x <b>3rd\".title() }} {{ 'ÉCOLE ßa'.title() }}",
                "O'Neil_X <B>3Rd École Ssa",
            ),
            ("[{{ '\\x1c a\\x1f'.strip() }}{{ '\\x1d b ' | trim }}]", "[ab]"),
            ("{{ '\\x1fa\\x1fb c'.split() | join(',') }} {{ 'xax' | trim('x') }}", "a,b,c a"),
            ("{{ 'a\\r\\n\\nb\\x0bc\\n'.splitlines() | join(',') }}", "a,,b,c"),
        ] {
            assert_eq!(rendered(template, &[("user", "a")]).unwrap().text, expected, "{template}");
        }
        for filter in ["indent", "e", "escape"] {
            let refused = rendered(&format!("{{{{ 'a' | {filter} }}}}"), &[]).unwrap_err();
            assert!(refused.contains(filter), "{refused}");
        }
    }

    #[test]
    fn special_tokens_of_older_files_are_read_as_in_transformers() {
        let config = json!({
            "chat_template": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ x_token }}{{ y_token }}{{ pad_token }}{{ z }}",
            "eos_token": "</s>", "pad_token": "no", "image_token": "no", "extra_special_tokens": {"image_token": "<img>"},
            "model_specific_special_tokens": {"x_token": "<x>", "z": "<z>"},
        });
        let older = json!({"bos_token": {"content": "<s>"}, "eos_token": "old", "pad_token": null, "image_token": "old",
                           "extra_special_tokens": {"y_token": "<y>"}})
        .to_string();
        for (newer_form, expected, unnamed) in [
            (false, "<s>old<img><x><y><z>", &["pad_token"][..]),
            (true, "</s><img><x>no<z>", &["bos_token", "y_token"]),
        ] {
            let mut config = config.clone();
            if newer_form {
                config["added_tokens_decoder"] = json!({});
            }
            let folder = folder(&config);
            fs::write(folder.path().join(OLDER_TOKENS_FILE), &older).unwrap();
            let template = ChatTemplate::open(folder.path()).unwrap();
            let rendered = template.render(&[]).unwrap();
            assert_eq!(rendered.text, expected);
            assert_eq!(rendered.unnamed_tokens, unnamed);
        }
    }

    /// Expected texts are those of transformers 5.23 with the same template and conversation.
    #[test]
    fn json_and_generation_blocks_match_transformers() {
        let text_of = |template: &str| {
            rendered(template, &[("user", "it's <a> & \"b\" \u{e9}\u{1f600}\u{7f}\n")])
                .unwrap()
                .text
        };
        assert_eq!(
            text_of("{{ messages[0].content | tojson }}"),
            "\"it's <a> & \\\"b\\\" \u{e9}\u{1f600}\u{7f}\\n\""
        );
        assert_eq!(
            text_of("{{ messages | tojson }}"),
            "[{\"role\": \"user\", \"content\": \"it's <a> & \\\"b\\\" \u{e9}\u{1f600}\u{7f}\\n\"}]"
        );
        assert_eq!(
            text_of("{{ messages[0] | tojson(indent=2) }}"),
            "{\n  \"role\": \"user\",\n  \"content\": \"it's <a> & \\\"b\\\" \u{e9}\u{1f600}\u{7f}\\n\"\n}"
        );
        assert_eq!(
            text_of(
                "{{ {'b': [1, 2.5, 1e-05, 1e+16, true, none], 'a': {}, 'c': []} | tojson(separators=(',', ':'), sort_keys=true) }}"
            ),
            "{\"a\":{},\"b\":[1,2.5,1e-05,1e+16,true,null],\"c\":[]}"
        );
        assert_eq!(
            text_of("{{ {'b': [[], [1]], 'a': {}} | tojson(indent=4) }}"),
            "{\n    \"b\": [\n        [],\n        [\n            1\n        ]\n    ],\n    \"a\": {}\n}"
        );
        assert_eq!(
            text_of("{{ messages[0].content | tojson(ensure_ascii=true) }}"),
            "\"it's <a> & \\\"b\\\" \\u00e9\\ud83d\\ude00\\u007f\\n\""
        );
        assert_eq!(
            text_of("{{ [1, {'a': 2}] | tojson(indent='\\t', separators=[';', '=']) }}"),
            "[\n\t1;\n\t{\n\t\t\"a\"=2\n\t}\n]"
        );
        assert_eq!(text_of("{{ 'a' | tojson(true) }}"), "\"a\"");
        assert_eq!(
            text_of(
                "{% for m in messages %}\n  {%- generation -%}\n [{{ m.role }}]\n  {%- endgeneration %}\n{% endfor %}."
            ),
            "[user]."
        );
        assert_eq!(
            text_of(
                "{% generation %}\n{% set x = 1 %}{{ x }}{% endgeneration %}{% if x is defined %}yes{% else %}no{% endif %}"
            ),
            "1no"
        );
        let error = rendered("{{ nothing | tojson }}", &[]).unwrap_err();
        assert!(error.contains("cannot convert an undefined value to JSON"), "{error}");
    }

    #[test]
    fn an_endless_template_is_stopped() {
        let endless =
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let problem = rendered(endless, &[("user", "a")]).unwrap_err();
        assert!(problem.contains("does not end within"), "{problem}");
        assert!(rendered("{% for %}", &[]).unwrap_err().contains("line 1"));
    }

    #[test]
    fn the_template_file_takes_precedence() {
        let several = json!({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]});
        let folder = folder(&several);
        let text = |folder: &Path| ChatTemplate::open(folder).unwrap().render(&[]).unwrap().text;
        assert_eq!(text(folder.path()), "yes");
        fs::write(folder.path().join(TEMPLATE_FILE), "newer").unwrap();
        assert_eq!(text(folder.path()), "newer");
        let none = tempfile::tempdir().unwrap();
        let problem = ChatTemplate::open(none.path()).unwrap_err();
        assert!(problem.starts_with("the tokenizer has no chat template"), "{problem}");
    }
}
