//! The source `register`: ledgers, deeds and articles of invented offices.

use anyhow::Result;

use crate::{
    author::{Author, Cast, Style, close},
    grammar::World,
    lexicon,
    names::Names,
    random::Random,
    text::{End, Unit},
};

/// Starts a register: its office, parties, land, goods and folios.
pub(crate) fn author(random: &mut Random) -> Result<Author> {
    let mut names = Names::draw(random);
    let mut world = World::default();
    let families =
        [names.family(random), names.family(random), names.family(random), names.family(random)];
    let mut parties = Vec::new();
    for member in 0..7 {
        parties.push(format!("{} {}", names.person(random, member % 2), random.pick(&families)));
    }
    parties.push(format!("the House of {}", random.pick(&families)));
    world.set("party", parties);
    world.set("place", (0..4).map(|_| names.place(random)).collect());
    world.set("term", (0..4).map(|_| crate::names::capital(&names.word(random, ""))).collect());
    world.set("coin", vec![names.word(random, "")]);
    let letter = char::from(b'A' + random.below(26) as u8);
    world.set("folio", (0..6).map(|_| format!("{letter}{}", random.between(10, 480))).collect());
    let first = random.between(1600, 1890);
    world.set("year", (0..5).map(|_| (first + random.below(25)).to_string()).collect());
    world.set("month", random.sample(MONTHS, 5).iter().map(ToString::to_string).collect());
    world.choose(random, "goods", lexicon::GOODS, 9);
    world.choose(random, "deal", lexicon::DEALS, 8);
    world.choose(random, "land", lexicon::LANDS, 7);
    world.choose(random, "office", lexicon::OFFICES, 5);
    world.choose(random, "condition", lexicon::CONDITIONS, 6);
    world.choose(random, "adjective", lexicon::ADJECTIVES, 7);
    Author::new(random, &STYLE, CAST, world)
}

/// Writes the next passage: an article, a paragraph of clauses, or entries of the ledger.
pub(crate) fn passage(author: &mut Author, random: &mut Random) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    author.begin_passage(random)?;
    match author.passages {
        0 => {
            units.push(author.line(
                random,
                "REGISTER OF THE {office} OF {place}",
                End::Paragraph,
            )?);
            units[0].text = units[0].text.to_uppercase();
            for definition in DEFINITIONS {
                units.push(Unit::sentence(author.world.sentence(random, definition)?));
            }
            close(&mut units, End::Paragraph);
            units.extend(author.tell_facts(0));
            close(&mut units, End::Paragraph);
        }
        1 => {
            units.extend(author.tell_facts(1));
            close(&mut units, End::Paragraph);
        }
        passage if passage % 3 == 2 => {
            let number = passage / 3 + 1;
            let heading = author.line(
                random,
                "[On the {deal}|On {goods}|Of the {land} at {here}]",
                End::Paragraph,
            )?;
            units.push(Unit { text: format!("Article {number}. {}", heading.text), ..heading });
        }
        _ => {}
    }
    if random.chance(28) {
        for _ in 0..random.between(2, 5) {
            author.set_scene(random)?;
            units.push(author.pick(random, ENTRIES, End::Line)?);
        }
        close(&mut units, End::Paragraph);
    } else {
        let count = random.between(3, 6);
        units.extend(author.paragraph(random, count)?);
    }
    author.passages += 1;
    Ok(units)
}

/// Slots of a scene.
const CAST: Cast =
    &[("A", "party"), ("B", "party"), ("here", "place"), ("it", "land"), ("F", "folio")];

const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DEFINITIONS: &[&str] = &[
    "In this register \"the {term}\" means the {adjective} {land} at {place}, with all that stands on it.",
    "\"{term}\" means any {deal} of {goods} above {12-400} {coin}.",
    "All sums are in {coin}, of which {12-90} make a mark.",
];

const ENTRIES: &[&str] = &[
    "{F}. {1-28} {month} {year}. {A} to {B}: {goods}, {12-900} {coin}.",
    "{F}. {1-28} {month} {year}. {deal} of the {it} at {here}, {A}, {12-900} {coin}, paid.",
    "{F}. {1-28} {month} {year}. {B}, {deal}, {3-60} bales of {goods} at {2-30} {coin}.",
    "{F}. Carried from folio {folio}: {12-900} {coin}. {A}, {B}.",
];

static STYLE: Style = Style {
    sentences: &[
        "{A} grants to {B} the {it} at {here}, [free of|subject to] the {deal} of folio {F}.",
        "The {deal} of {goods} is due on the {1-28} of {month}, and after that day {A} pays {2-30} {coin} more.",
        "In the event of {condition}, the {it} returns to {A}.",
        "The {office} shall enter the {deal} in folio {F} and give {B} a copy.",
        "{B} declares that the {it} at {here} is {adjective} and that the {goods} in it are {adjective}.",
        "No {deal} is valid without the hand of the {office} and of {party}.",
        "What {A} has delivered in {goods} is counted at {2-30} {coin} the bale.",
        "The {term} may not be divided, let or sold before {month} {year}.",
        "Between the {it} and the {land} at {here} runs a(n) {adjective} wall, which both parties keep up.",
        "Should {B} suffer {condition}, the {deal} falls to {party}.",
        "The {office} of {here} has seen the {goods} and found them {adjective}.",
        "{A} holds the {it} for {2-30} years from {month} {year}.",
        "Any dispute over the {term} goes to the {office}, and from the {office} to {party}.",
        "For the {deal} of the {it}, {B} gives {3-60} bales of {goods} and {12-900} {coin}.",
        "This article does not apply to {goods} that come from {place}.",
        "The sum in folio {F} was paid by {A} and received by the {office}.",
        "{A} and {B} share the {it} at {here} in equal parts, {condition} excepted.",
        "A(n) {deal} that is not entered within {3-60} days is void.",
        "The {term} includes the {land}, the {land} and the path to {place}.",
        "Of the {goods} one part in {3-20} belongs to the {office}.",
        "{B} may store {goods} in the {it}, but neither {goods} nor anything {adjective}.",
        "After the {condition} of {year} the {deal} was lowered to {12-900} {coin}.",
        "The {office} keeps the key of the {it}; {A} keeps the other.",
        "Where this register is silent on {condition}, folio {F} decides.",
        "{A} has the first right to the {term} when {B} gives it up.",
        "The {deal} made at {here} in {year} stays in force until {party} ends it in writing.",
        "Neither {condition} nor {condition} frees {B} from the {deal}.",
        "In {month} {year} the {office} measured the {it} and entered {12-900} paces in folio {F}.",
        "{A} promises to deliver {3-60} bales of {goods} to the {land} at {place} each {month}.",
        "Before the {office} appeared {B}, who asked for the {deal} of the {adjective} {it}.",
        "The {goods} of {party} are weighed at {here} and nowhere else.",
        "If the {it} is let, {A} receives {2-30} {coin} in {month} and as much in {month}.",
    ],
    facts: &[
        "the {term} was bought by {party} in {year} for {120-980} {coin}",
        "{A} owes {B} {120-980} {coin} for {goods}, as entered in folio {folio}",
        "the {land} at {place} was pledged to {party} on the {1-28} of {month} {year}",
        "the {deal} of {year} was sealed by the {office} of {place} in folio {folio}",
        "{party} has held the {land} at {place} since {year}",
        "folio {folio} sets the {deal} of {goods} at {12-90} {coin}",
        "the {office} of {place} may not take {goods} as {deal}",
        "the {term} lies {120-980} paces from the {land} at {place}",
        "{party} lost the {land} at {place} through {condition} in {year}",
        "{A} stands surety for {B} up to {120-980} {coin}",
    ],
    recalls: &[
        "It is noted once more that {fact}.",
        "Whereas {fact}, {A} [may claim the {it}|pays nothing further|is heard first].",
        "The {office} confirmed that {fact}.",
        "This article holds only because {fact}.",
        "{B} disputes that {fact}; the {office} does not.",
        "As stated above, {fact}.",
    ],
};
