//! The source `chronicle`: stories of invented towns.

use anyhow::Result;

use crate::{
    author::{Author, Cast, Style},
    grammar::World,
    lexicon,
    names::Names,
    random::Random,
    text::{End, Unit},
};

/// Starts a chronicle: its people, places, things and moods.
pub(crate) fn author(random: &mut Random) -> Result<Author> {
    let mut names = Names::draw(random);
    let mut world = World::default();
    let (mut people, mut full) = (Vec::new(), Vec::new());
    let families = [names.family(random), names.family(random), names.family(random)];
    for member in 0..random.between(6, 9) {
        let name = names.person(random, member % 2);
        full.push(format!("{name} {}", random.pick(&families)));
        people.push(name);
    }
    world.set("person", people);
    world.set("fullname", full);
    world.set("place", (0..random.between(4, 6)).map(|_| names.place(random)).collect());
    world.set("word", (0..4).map(|_| names.word(random, "")).collect());
    world.set("ship", vec![names.family(random)]);
    let first = random.between(1640, 1860);
    world.set("year", (0..6).map(|_| (first + random.below(60)).to_string()).collect());
    world.choose(random, "thing", lexicon::THINGS, 12);
    world.choose(random, "trade", lexicon::TRADES, 8);
    world.choose(random, "adjective", lexicon::ADJECTIVES, 14);
    world.choose(random, "did", lexicon::DEEDS, 11);
    world.choose(random, "feature", lexicon::FEATURES, 6);
    world.choose(random, "mood", lexicon::MOODS, 7);
    Author::new(random, &STYLE, CAST, world)
}

/// Writes the next passage: a chapter's heading and opening, or a paragraph of a scene.
pub(crate) fn passage(author: &mut Author, random: &mut Random) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    author.begin_passage(random)?;
    match author.passages {
        0 => {
            units.push(author.line(random, "The Chronicle of {place}", End::Paragraph)?);
            units.extend(author.tell_facts(0));
            crate::author::close(&mut units, End::Paragraph);
            for definition in DEFINITIONS {
                units.push(Unit::sentence(author.world.sentence(random, definition)?));
            }
            crate::author::close(&mut units, End::Paragraph);
        }
        1 => {
            units.extend(author.tell_facts(1));
            crate::author::close(&mut units, End::Paragraph);
        }
        passage if passage % 9 == 8 => {
            units.push(author.line(
                random,
                "[Of {A} and the {it}|The {adjective} {it}|{here}, {year}]",
                End::Paragraph,
            )?);
        }
        _ => {}
    }
    if random.chance(22) {
        for _ in 0..random.between(2, 4) {
            let mut unit = author.pick(random, SPEECH, End::Paragraph)?;
            unit.text = crate::names::capital(&unit.text);
            units.push(unit);
        }
    } else {
        let count = random.between(4, 8);
        units.extend(author.paragraph(random, count)?);
    }
    author.passages += 1;
    Ok(units)
}

/// Slots of a scene.
const CAST: Cast = &[
    ("A", "person"),
    ("B", "person"),
    ("X", "fullname"),
    ("Y", "fullname"),
    ("here", "place"),
    ("it", "thing"),
];

const DEFINITIONS: &[&str] = &[
    "In that country a {word} [is|was] what others call a(n) {adjective} {thing}, and the people of {here} still use the word.",
    "Whoever keeps the {thing} of the {feature} is called the {word}, and no {trade} may hold the office twice.",
];

const SPEECH: &[&str] = &[
    "\"[You never told me|I have always said|Nobody believes] that {fact},\" said {A}.",
    "\"And the {it}?\" asked {B}. \"Who {did} the {it}?\"",
    "\"It was {person},\" {A} [answered|replied] after a while, \"and it was {adjective} of {person} to say so.\"",
    "\"If {person} comes back from {place}, [tell nobody|say nothing of the {it}|give {B} the {thing}],\" said {A}.",
    "\"The {trade} of {here} {did} it for {3-90} crowns,\" said {B}, \"and in {year} that was a(n) {adjective} price.\"",
    "\"I do not understand your {mood},\" said {A}, and put the {it} back beside the {thing}.",
    "{B} [laughed|said nothing|looked away]. \"The {feature} of {place} was not always so {adjective},\" {A} went on.",
];

static STYLE: Style = Style {
    sentences: &[
        "{A} had {did} the {it} [before the winter|in the spring of {year}|on the way to {place}], and {B} knew it.",
        "At {here} the {feature} lay {adjective} and {adjective} under the rain.",
        "{B} went down to the {feature} with the {it} under one arm and found {person} waiting there.",
        "It was the {trade} who first {did} the {it}, and the {trade} who paid for it.",
        "For {3-40} days nobody in {here} spoke of {A} without {mood}.",
        "The {it} stood [behind the door|in the yard|beside the {thing}] as it had stood since {year}.",
        "{A} wrote to {B} that the {thing} was safe and that the {trade} had gone to {place}.",
        "When the {word} was called, {person} came, and after {person} came the {trade} with a(n) {adjective} {it}.",
        "There was more {mood} than {mood} in the house of {fullname}.",
        "{A} counted {3-90} steps from the {feature} to the {thing} and wrote the number down.",
        "In {here} they said that {A} {did} what {B} had {did}, and that both were {adjective}.",
        "The ship {ship} lay off {here} with {3-60} men and the {it} on board.",
        "Neither {A} nor {B} could have said why the {adjective} {it} mattered so much.",
        "On the road from {place} to {here} a(n) {trade} {did} a(n) {adjective} {thing} and asked for {fullname}.",
        "The {adjective} {trade} laughed, {did} the {it}, and [walked away|went home|sat down again].",
        "\"{A} {did} it,\" the {trade} would say, and the whole {feature} believed it.",
        "By {year} the {thing} had been {did} twice, once by {person} and once by a(n) {trade} from {place}.",
        "{B} thought of the {it} with {mood} and of {here} with {mood}.",
        "What {A} wanted was not the {thing} but the {word}, and {B} had never seen one.",
        "The {feature} was {adjective} that year, and the {trade} kept the {it} indoors.",
        "After supper {A} {did} the {thing} once more, and once more it was {adjective}.",
        "Then the {trade} of {place}, a(n) {adjective} man, {did} the {thing} in front of everyone.",
        "A letter from {fullname} came to {here} with {3-30} crowns and a(n) {adjective} {thing} in it.",
        "No one had {did} the {word} since {year}, and {A} was the last who knew how.",
        "It rained on {here}, on the {feature}, and on the {adjective} {it} that {B} had left outside.",
        "They sat by the {thing}, {A} and {B}, and talked of {place} until the lamp went out.",
        "{person} was a(n) {trade} by trade and {adjective} by nature.",
        "With {mood}, and with the help of the {trade}, {A} carried the {it} as far as the {feature}.",
        "Everything in that room was {adjective}: the {thing}, the {thing}, even the voice of {B}.",
        "So the {it} came back to {here}, {adjective} as ever, and {A} {did} it again.",
        "{A} asked the {trade} for a(n) {thing}, and the {trade} asked {A} for the truth.",
        "Years later {B} remembered the {feature} of {place} and the {adjective} {thing} there.",
        "Between {place} and {place} there is nothing but the {feature} and a(n) {adjective} {thing}.",
        "{person} did not believe in the {word}, but {person} did, and so did the {trade}.",
        "The {mood} of {A} did not last; the {mood} of {B} did.",
        "Early in {year} the {trade}s of {here} met at the {feature} and {did} the old {it}.",
        "[Slowly|At last|Against all advice], {A} {did} the {thing} and handed it to {person}.",
        "Of the {3-20} {thing}s in the chest only one was {adjective}, and {B} took that one.",
        "The {trade} had a daughter named {person}, who {did} the {it} when no one was looking.",
        "Some said {year}, others said {year}, but all agreed that the {word} had been {adjective}.",
    ],
    facts: &[
        "the {adjective} {thing} of {place} was made in {year} by the {trade} {X}",
        "{X} {did} the {thing} for {12-400} crowns in {year}",
        "{X} was born at {place} in {year}, the child of a(n) {trade}",
        "the {feature} of {place} burned down in {year} and was never rebuilt",
        "{X} owed the {trade} {12-400} crowns and a(n) {adjective} {thing}",
        "the ship {ship} sank off {place} in {year} with {12-90} people on board",
        "{X} kept the only {word} of {place} in a(n) {adjective} {thing}",
        "nobody but {X} knew the way from {place} to the {feature}",
        "a(n) {trade} of {place} swore in {year} that the {thing} weighed {12-400} pounds",
        "{X} and {Y} had {did} the same {thing}",
        "the {word} stood {12-90} paces from the {feature} of {place}",
        "{X} left {place} in {year} and took nothing but a(n) {adjective} {thing}",
    ],
    recalls: &[
        "Nobody had forgotten that {fact}.",
        "{A} told the {trade} again that {fact}.",
        "It was written in the book of the {feature} that {fact}.",
        "{B} denied that {fact}, but [the {trade} had seen the papers|few believed it|not for long].",
        "Because {fact}, {A} would not enter {here}.",
        "One had to remember, said {person}, that {fact}.",
        "The children of {here} still sing that {fact}.",
    ],
};
