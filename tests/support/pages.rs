//! Requirements of every HTML page.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Checks that a page loads nothing, has exactly its own scripts, and escapes all text.
pub(crate) fn check_harmless(page: &str, scripts: usize) {
    assert_eq!(page.matches("<script").count(), scripts, "a foreign script");
    // Text contains no `<`.
    for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name: String = tag.chars().take_while(char::is_ascii_alphanumeric).collect();
        assert!(!["img", "iframe", "object", "link", "base", "form"].contains(&&*name), "{tag}");
        // Attribute values contain no quotes.
        let names: String = tag.split('"').step_by(2).collect();
        assert!(!names.contains(" on") && !names.contains("src="), "{tag}");
    }
    let letters = page.chars().filter(|letter| letter.is_control() && !"\n\t".contains(*letter));
    assert_eq!(letters.count(), 0, "control characters");
    assert!(!page.contains(['\u{202e}', '\u{2066}', '\u{200f}', '\u{feff}', '\u{2028}']));
}

/// Documents and ids with hostile content, one of each kind.
pub(crate) fn hostile() -> Vec<(&'static str, String)> {
    let filler = "words that come back and words that go on ".repeat(40);
    let each = |start: &str| format!("{start} {filler}{start}");
    vec![
        ("script", each("<script>alert(1)</script><img src=x onerror=alert(2)>")),
        ("attribute", each("\"><svg onload=alert(3)> ' & &amp; &#60;script&#62;")),
        ("closing", each("</blockquote></article></main></body><!-- ]]> --></title></style>")),
        ("template", each("{{ 7 * 7 }} {% include \"/etc/passwd\" %} ${name}")),
        ("control", each("\u{0}\u{7}\u{1b}[2J\u{9b}31m\u{8}\u{c}\r")),
        (
            "bidirectional",
            each("\u{202e}gnp.exe\u{202c} \u{2066}x\u{2069} \u{200f}\u{feff}\u{2028}"),
        ),
        ("long line", "x".repeat(1_000_000)),
        ("marks", each(&format!("a{}", "\u{301}".repeat(2_000)))),
        ("wide", each("\u{1f600}\u{200d}\u{1f525}\u{ffff}\u{10ffff}")),
    ]
}

/// Opens a page in a browser without network: its elements as HTML, and its console output.
pub(crate) fn opened(page: &Path, folder: &Path) -> (String, Vec<String>) {
    let answer = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9"])
        .args([
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&answer.stderr);
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
    (String::from_utf8_lossy(&answer.stdout).into_owned(), console.collect())
}

/// Value of an expression in a page that is open in a frame of this width; `frame` is its window.
pub(crate) fn in_a_frame(page: &Path, pixels: u32, expression: &str) -> String {
    let name = page.file_name().unwrap().to_str().unwrap();
    let frame = format!(
        "<iframe src=\"{name}\" width={pixels} height=2000></iframe><pre></pre><script>onload = () => {{\
           const frame = document.querySelector('iframe').contentWindow;\
           document.querySelector('pre').textContent = {expression};\
         }}</script>"
    );
    let path = page.with_extension("frame.html");
    fs::write(&path, frame).unwrap();
    let (elements, _) = opened(&path, &page.with_extension("browser"));
    let found = elements.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next());
    found.unwrap().to_owned()
}

/// Number of elements of these names, and the texts of those that extend beyond a screen of so many pixels.
pub(crate) fn beyond_a_screen(page: &Path, pixels: u32, names: &str) -> String {
    let expression = format!(
        "(all => 'of ' + all.length + ':' + all.filter(element => element.getBoundingClientRect().right > {pixels} || \
         element.scrollWidth > {pixels}).map(element => element.textContent))([...frame.document.querySelectorAll('{names}')])"
    );
    in_a_frame(page, pixels, &expression)
}

/// Checks that a browser reports no problem and finds the named sections and a drawing. Returns the elements.
pub(crate) fn check_opened(page: &Path, sections: &[&str]) -> String {
    let (elements, console) = opened(page, &page.with_extension("browser"));
    assert_eq!(console, Vec::<String>::new());
    for id in sections {
        assert!(elements.contains(&format!("<h2 id=\"{id}\"")), "{id}");
    }
    assert!(elements.contains("<svg"), "nothing is drawn");
    assert!(elements.trim_end().ends_with("</main></body></html>"));
    elements
}
