//! `--set stages.filter.keep_fraction=0.25`: applies settings of the command line to the tree before it is checked.

use super::check::unknown_stage;
use super::node::{Entry, Node, YamlValue};
use super::schema::stage_names;
use super::source::{Problems, Span};
use super::yaml::{self, Origin};
use crate::base::text::quoted;

/// Option name, as messages show it before its argument.
pub(crate) const SET: &str = "--set ";
pub(crate) const PARAM: &str = "--param ";

struct PathStep<'a> {
    name: &'a str,
    span: Span,
}

/// Applies `argument` (`PATH=VALUE`, the text of `source` after [`SET`]) to the tree. Reports a path that does not fit; values
/// of the wrong type and unknown keys are left to the checker.
pub(crate) fn apply(root: &mut Node, argument: &str, source: usize, problems: &mut Problems) {
    let column = SET.chars().count() + 1;
    let whole = Span { source, line: 1, column, length: argument.chars().count() };
    let Some((path, value)) = argument.split_once('=') else {
        let hint = "write `--set PATH=VALUE`, for example `--set stages.filter.keep_fraction=0.25`";
        problems.error(whole, format!("{} has no `=`", quoted(argument))).hint(hint);
        return;
    };
    let steps = steps(path, source, column);
    if let Some(empty) = steps.iter().find(|step| step.name.is_empty()) {
        let hint = "write for example `--set stages.filter.keep_fraction=0.25`";
        problems
            .error(empty.span, format!("a name is missing in the path {}", quoted(path)))
            .hint(hint);
        return;
    }
    let origin = Origin { source, column: column + path.chars().count() + 1 };
    let before = problems.error_count();
    let empty = Span { source, line: 1, column: origin.column, length: 0 };
    let Some(value) = yaml::read(value, origin, problems).or_else(|| {
        let nothing_wrong = problems.error_count() == before;
        nothing_wrong.then(|| Node { value: YamlValue::Null, ..Node::string(empty, "") })
    }) else {
        return;
    };
    match steps.split_first() {
        Some((first, rest)) if first.name == "stages" => {
            set_in_stage(root, first, rest, value, problems);
        }
        Some((first, rest)) if stage_names().contains(&first.name) && !rest.is_empty() => {
            let message = format!("{} is not a section of the pipeline", quoted(first.name));
            problems.error(first.span, message).hint(format!("write `--set stages.{argument}`"));
        }
        _ => set(root, &steps, value, problems),
    }
}

fn steps(path: &str, source: usize, mut column: usize) -> Vec<PathStep<'_>> {
    let mut steps = Vec::new();
    for name in path.split('.') {
        let length = name.chars().count();
        steps.push(PathStep { name, span: Span { source, line: 1, column, length } });
        column += length + 1;
    }
    steps
}

fn set_in_stage(
    root: &mut Node,
    stages: &PathStep,
    rest: &[PathStep],
    value: Node,
    problems: &mut Problems,
) {
    let Some((stage, keys)) = rest.split_first().filter(|(_, keys)| !keys.is_empty()) else {
        let span = rest.first().map_or(stages.span, |step| step.span);
        let hint = "write `--set stages.STAGE.KEY=VALUE`, for example `--set stages.filter.keep_fraction=0.25`";
        problems.error(span, "a stage can only be changed key by key").hint(hint);
        return;
    };
    if !stage_names().contains(&stage.name) {
        return unknown_stage(stage.name, stage.span, problems);
    }
    if keys[0].name == "stage" {
        problems
            .error(keys[0].span, "the name of a stage cannot be changed")
            .hint("change the pipeline file");
        return;
    }
    if let Some(mapping) = stage_of(root, stage) {
        set(mapping, keys, value, problems);
    }
}

/// Returns the mapping of a stage, inserting it at its usual position if it is absent; `None` without a list of stages.
fn stage_of<'r>(root: &'r mut Node, stage: &PathStep) -> Option<&'r mut Node> {
    let YamlValue::Mapping(entries) = &mut root.value else { return None };
    let list = entries.iter_mut().find(|entry| entry.key == "stages")?;
    let YamlValue::List(items) = &mut list.value.value else { return None };
    let name_of = |item: &Node| item.get("stage").and_then(Node::as_str).map(str::to_string);
    let index = items
        .iter()
        .position(|item| name_of(item).as_deref() == Some(stage.name))
        .unwrap_or_else(|| {
            let rank = |name: &str| stage_names().iter().position(|known| *known == name);
            let later = |item: &Node| name_of(item).and_then(|name| rank(&name)) > rank(stage.name);
            let index = items.iter().position(later).unwrap_or(items.len());
            let name = Node::string(stage.span, stage.name);
            let entry = Entry { key: "stage".to_string(), span: stage.span, value: name };
            let value = YamlValue::Mapping(vec![entry]);
            items.insert(index, Node { value, ..Node::mapping(stage.span) });
            index
        });
    items.get_mut(index)
}

/// Sets a value below `node`, creating missing mappings. Items of a list are addressed by index, from 0.
fn set(node: &mut Node, steps: &[PathStep], value: Node, problems: &mut Problems) {
    let Some((step, rest)) = steps.split_first() else {
        *node = value;
        return;
    };
    if let YamlValue::List(items) = &mut node.value {
        let count = items.len();
        if let Some(item) = step.name.parse().ok().and_then(|index: usize| items.get_mut(index)) {
            return set(item, rest, value, problems);
        }
        let message = format!("the list has no item {}", quoted(step.name));
        let hint = match count {
            0 => "it is empty: set the whole list".to_owned(),
            1 => "it has one, number 0; or set the whole list".to_owned(),
            _ => format!("its items are 0 to {}; or set the whole list", count - 1),
        };
        problems.error(step.span, message).hint(hint);
        return;
    }
    if !matches!(node.value, YamlValue::Mapping(_)) {
        *node = Node::mapping(step.span);
    }
    let YamlValue::Mapping(entries) = &mut node.value else { return };
    let index = entries.iter().position(|entry| entry.key == step.name).unwrap_or_else(|| {
        let entry =
            Entry { key: step.name.to_string(), span: step.span, value: Node::mapping(step.span) };
        entries.push(entry);
        entries.len() - 1
    });
    set(&mut entries[index].value, rest, value, problems);
}

#[cfg(test)]
mod tests {
    use crate::spec::{Overrides, Spec, init};

    fn read(set: &[&str]) -> Result<Spec, String> {
        let set = set.iter().map(|set| (*set).to_owned()).collect();
        let overrides = Overrides { set, param: Vec::new() };
        let read = Spec::parse("p.yaml", &init::Starter::example(None).yaml(), &overrides);
        read.map(|(spec, _)| spec).map_err(|problems| problems[0].message.clone())
    }

    #[test]
    fn an_item_of_a_list_is_named_by_its_number() {
        let guards = "stages.filter.guards=[{statistic: copy_share, max: 0.5}, {statistic: far_recurrence, min: 0.1}]";
        let spec = read(&[guards, "stages.filter.guards.1.min=0.2"]).unwrap();
        assert_eq!(spec.filter().guards[1].min, Some(0.2));
        assert_eq!(spec.filter().guards[0].max, Some(0.5));
        for wrong in ["stages.filter.guards.2.min=0.2", "stages.filter.guards.min=0.2"] {
            let why = read(&[guards, wrong]).unwrap_err();
            assert!(why.starts_with("the list has no item `"), "{why}");
        }
    }
}
