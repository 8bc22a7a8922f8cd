//! The source `manual`: handbooks of invented software.

use anyhow::Result;

use crate::{
    author::{Author, Cast, Style, close},
    grammar::World,
    lexicon,
    names::Names,
    random::Random,
    text::{End, Unit},
};

/// Starts a manual: its product, modules, functions, parameters and errors.
pub(crate) fn author(random: &mut Random) -> Result<Author> {
    let mut names = Names::draw(random);
    let mut world = World::default();
    world.choose(random, "object", lexicon::OBJECTS, 11);
    world.choose(random, "verb", lexicon::VERBS, 8);
    world.choose(random, "quality", lexicon::QUALITIES, 11);
    let product = names.word(random, "");
    world.set("product", vec![crate::names::capital(&product)]);
    world.set("command", vec![product.clone()]);
    world.set("module", (0..3).map(|_| format!("{product}::{}", names.word(random, ""))).collect());
    world.set("coined", (0..4).map(|_| names.word(random, "")).collect());
    let functions = expand(&world, random, "{verb}_[{quality}_|{coined}_|]{object}", 10)?;
    world.set("function", functions);
    let parameters =
        expand(&world, random, "[max|min|{quality}|{coined}]_{object}[s|_bytes|_seconds|]", 7)?;
    world.set("parameter", parameters);
    let types = expand(&world, random, "{quality} {object}", 4)?;
    world.set(
        "type",
        types.iter().map(|name| name.split(' ').map(crate::names::capital).collect()).collect(),
    );
    let prefix: String = product.chars().take(3).collect::<String>().to_uppercase();
    world.set("code", (0..5).map(|_| format!("{prefix}-{}", random.between(100, 999))).collect());
    world.set("number", (0..5).map(|_| (random.between(1, 64) * 8).to_string()).collect());
    world.set(
        "version",
        (0..3).map(|_| format!("{}.{}", random.between(1, 9), random.below(20))).collect(),
    );
    Author::new(random, &STYLE, CAST, world)
}

/// Writes the next passage: a section's heading, a paragraph, a list of settings or an example.
pub(crate) fn passage(author: &mut Author, random: &mut Random) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    author.begin_passage(random)?;
    match author.passages {
        0 => {
            units.push(author.line(random, "# {product} {version}", End::Paragraph)?);
            for definition in DEFINITIONS {
                units.push(Unit::sentence(author.world.sentence(random, definition)?));
            }
            close(&mut units, End::Paragraph);
            units.extend(author.tell_facts(0));
            close(&mut units, End::Paragraph);
        }
        1 => {
            units.push(author.line(random, "## Limits", End::Paragraph)?);
            units.extend(author.tell_facts(1));
            close(&mut units, End::Paragraph);
        }
        passage if passage % 4 == 3 => {
            units.push(author.line(
                random,
                "## [`{f}`|The {quality} {object}|`{f}` and `{g}`|Errors of `{m}`]",
                End::Paragraph,
            )?);
        }
        _ => {}
    }
    match random.below(10) {
        0 | 1 => units.extend(example(author, random)?),
        2 => units.extend(list(author, random)?),
        _ => {
            let count = random.between(3, 6);
            units.extend(author.paragraph(random, count)?);
        }
    }
    author.passages += 1;
    Ok(units)
}

fn example(author: &mut Author, random: &mut Random) -> Result<Vec<Unit>> {
    let mut units = vec![author.line(random, "```", End::Line)?];
    for _ in 0..random.between(2, 5) {
        author.set_scene(random)?;
        units.push(author.pick(random, CODE, End::Line)?);
    }
    units.push(author.line(random, "```", End::Paragraph)?);
    Ok(units)
}

fn list(author: &mut Author, random: &mut Random) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    for _ in 0..random.between(2, 4) {
        author.set_scene(random)?;
        units.push(author.pick(random, ITEMS, End::Line)?);
    }
    close(&mut units, End::Paragraph);
    Ok(units)
}

/// Slots of a scene.
const CAST: Cast = &[
    ("f", "function"),
    ("g", "function"),
    ("h", "function"),
    ("p", "parameter"),
    ("m", "module"),
    ("e", "code"),
    ("T", "type"),
    ("U", "type"),
];

fn expand(world: &World, random: &mut Random, template: &str, count: usize) -> Result<Vec<String>> {
    (0..count).map(|_| world.phrase(random, template)).collect()
}

const DEFINITIONS: &[&str] = &[
    "{product} is a library for {quality} {object}s.",
    "A *{coined}* is a(n) {quality} {object} that no {object} refers to.",
    "By *{coined}* this manual means a(n) {object} whose {p} is {quality}.",
];

const CODE: &[&str] = &[
    "let {object} = {m}::{f}({p}, {number})?;",
    "{command} {verb} --{p}={number} {object}.{coined}",
    "let {object} = {object}.{g}().or_else(|{e}| {f}({object}))?;",
    "assert_eq!({g}(&{object}, {number}), {T}::default());",
    "// {quality} {object}s are never passed to {f}",
    "{m}::{g}(&mut {object}, {T}::with_{p}({number}));",
];

const ITEMS: &[&str] = &[
    "* `{p}`: the number of {quality} {object}s that `{f}` may {verb}. Default: {number}.",
    "* `{e}`: `{f}` found a(n) {object} that is not {quality}. Call `{g}` and try again.",
    "* `{f}({p})`: {verb}s the {object} and returns a(n) `{T}`.",
    "* `{T}`: what `{g}` returns for a(n) {quality} {object}; see `{m}`.",
];

static STYLE: Style = Style {
    sentences: &[
        "Call `{f}` before the {object} is {quality}; otherwise the {coined} is [lost|kept|read twice].",
        "`{f}` takes a(n) `{T}` and returns the {object} that `{g}` has left behind.",
        "The value of `{p}` is {number} unless `{m}` sets it.",
        "When the {object} is {quality}, `{f}` fails with `{e}`.",
        "A(n) {quality} {object} is not the same as a(n) {quality} {coined}.",
        "Do not {verb} the {object} while `{g}` is running.",
        "Since version {version} the {object} is {quality} by default, and `{p}` is ignored.",
        "The module `{m}` holds everything that has to do with {object}s, except `{f}`.",
        "Every {object} has [one|at least one|at most one] {coined}, and every {coined} has a(n) `{T}`.",
        "If `{p}` is larger than {number}, {product} writes a warning and goes on.",
        "To {verb} a(n) {object}, pass it to `{f}`; to {verb} all of them, use `{g}`.",
        "The error `{e}` means that the {coined} was {quality} when `{f}` tried to {verb} it.",
        "{product} never {verb}s a(n) {object} that a(n) `{T}` still refers to.",
        "It is safe to call `{f}` from several threads, but `{g}` needs the {object} for itself.",
        "The cost of `{f}` grows with the number of {quality} {object}s, not with `{p}`.",
        "An empty {object} is {quality}, and `{f}` returns it unchanged.",
        "Set `{p}` to {number} on machines where the {object} is {quality}.",
        "After `{g}`, the {object} is {quality} again and its {coined} can be {quality} too.",
        "Older versions of `{m}` had a function that could {verb} the {object}; use `{f}` instead.",
        "The {coined} is written [first|last|together with the {object}], so that `{g}` finds it after a crash.",
        "Nothing in `{m}` depends on the order in which {object}s are {quality}.",
        "A `{T}` without `{p}` is accepted, but `{f}` treats it as {quality}.",
        "Use `{command} {verb} --{p}` to see which {object}s are {quality}.",
        "When two {object}s have the same {coined}, the one that `{f}` saw first wins.",
        "The {object} keeps its {coined} until `{g}` returns or `{p}` seconds have passed.",
        "`{f}` and `{g}` differ in one point only: `{g}` does not {verb} the {quality} {object}.",
        "This {object} is {quality}: it can be {quality}, but never both at once.",
        "See `{m}` for how {quality} {object}s and {coined}s work together.",
        "For {object}s of more than {number} entries, `{f}` switches to a(n) {quality} {object}.",
        "In tests, replace `{f}` by `{g}` and set `{p}` to {number}.",
        "A program that only {verb}s {object}s can leave `{m}` out.",
        "The type `{T}` is {quality}, so it may be sent to another {object}.",
    ],
    facts: &[
        "`{f}` returns `{code}` when `{parameter}` is above {number}",
        "`{parameter}` is counted in {object}s, and its default is {number}",
        "a(n) `{type}` holds at most {number} {quality} {object}s",
        "`{module}` was {quality} before version {version}",
        "`{f}` must not be called between `{g}` and `{h}`",
        "every {coined} is {quality} for {number} seconds after `{f}`",
        "`{code}` is raised by `{f}` and by nothing else",
        "the {coined} of a(n) {object} is always {quality}",
        "`{f}` ignores `{parameter}` for {quality} {object}s",
        "`{T}` and `{U}` share the same {coined}",
    ],
    recalls: &[
        "Keep in mind that {fact}.",
        "As the beginning of this manual says, {fact}.",
        "This works because {fact}.",
        "`{f}` relies on one rule: {fact}.",
        "If you are surprised by `{e}`, remember that {fact}.",
        "Note that {fact}, also for {quality} {object}s.",
    ],
};
