//! The pages of rustdoc: every public signature, and the types that a signature names and no page describes.
//!
//! rustdoc links each type that has a page. So a type of the library that a signature names without a link is a dead end: a
//! reader sees the name and cannot find out what it is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::steps::Failed;
use crate::tidy::gather;

/// Where the list of inherent methods ends on a page, and what comes by traits begins.
const TRAITS: [&str; 3] =
    ["<h2 id=\"trait-implementations\"", "<h2 id=\"synthetic-implementations\"", "<h2 id=\"blanket-implementations\""];
/// The elements that hold a signature: where one begins, and how it ends.
const SIGNATURES: [(&str, &str); 4] = [
    ("<pre class=\"rust item-decl\"><code>", "</code></pre>"),
    ("<h4 class=\"code-header\">", "</h4>"),
    ("<h3 class=\"code-header\">", "</h3>"),
    ("class=\"structfield section-header\">", "</code></span>"),
];
/// The members that a page describes, by how their anchors begin.
const MEMBERS: [&str; 6] =
    ["method.", "tymethod.", "structfield.", "variant.", "associatedconstant.", "associatedtype."];

/// One page: what it describes, its signatures as text, and the types of the library that they name without a link.
pub struct PublicPage {
    /// The members with their signatures, each a line.
    pub members: Vec<String>,
    /// Types that have no page.
    pub dead_ends: BTreeSet<String>,
}

/// Reads the page of an item, called `item` in lists. `own` are the names of all types of the library.
pub fn read(item: &str, html: &str, own: &BTreeSet<String>) -> PublicPage {
    let end = TRAITS.iter().filter_map(|mark| html.find(mark)).min().unwrap_or(html.len());
    let inherent = &html[..end];
    let variants: BTreeSet<&str> =
        inherent.split("id=\"variant.").skip(1).filter_map(|rest| rest.split(['"', '.']).next()).collect();
    let mut dead_ends = BTreeSet::new();
    for (begin, end) in SIGNATURES {
        for signature in inherent.split(begin).skip(1).filter_map(|rest| rest.split(end).next()) {
            // An associated type may be called as a type is.
            let unlinked = text(&without_links(signature)).replace("Output = ", "");
            for line in unlinked.lines() {
                let line = line.trim_start();
                // A variant begins its line, and may be called as a type is.
                let name = line.split(|letter: char| !is_of_word(letter)).next().unwrap_or_default();
                let rest = if variants.contains(name) { &line[name.len()..] } else { line };
                dead_ends.extend(words(rest).filter(|word| own.contains(*word)).map(str::to_owned));
            }
        }
    }
    let itself = item.rsplit([' ', ':']).next().unwrap_or_default();
    dead_ends.remove(itself);
    PublicPage { members: members(item, inherent), dead_ends }
}

/// The members of an item with their signatures.
fn members(item: &str, html: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    for kind in MEMBERS {
        let anchor = format!("id=\"{kind}");
        for (at, _) in html.match_indices(&anchor) {
            let rest = &html[at..];
            let Some(name) = rest[anchor.len()..].split('"').next().filter(|name| !name.contains(['.', '-'])) else {
                continue;
            };
            let signature = SIGNATURES[1..].iter().filter_map(|(begin, end)| {
                let begins = rest.find(begin)? + begin.len();
                Some((begins, &rest[begins..begins + rest[begins..].find(end)?]))
            });
            let Some((_, signature)) = signature.min_by_key(|(begins, _)| *begins) else { continue };
            let signature = text(signature).split_whitespace().collect::<Vec<_>>().join(" ");
            let signature = signature.strip_prefix("§").unwrap_or(&signature);
            if words(signature).any(|word| word == name) {
                found.insert(format!("{item}: {signature}"));
            }
        }
    }
    found.into_iter().collect()
}

/// The names of all types that the sources of a crate declare as public.
pub fn own_types(sources: &Path) -> Result<BTreeSet<String>, Failed> {
    let unreadable = |error| Failed(format!("the sources of the library cannot be read: {error}"));
    let mut files = Vec::new();
    gather(sources, &mut files).map_err(unreadable)?;
    let mut names = BTreeSet::new();
    for file in files {
        let source = std::fs::read_to_string(file).map_err(unreadable)?;
        for line in source.lines() {
            let declared =
                ["pub struct ", "pub enum ", "pub trait ", "pub type "].iter().find_map(|word| line.strip_prefix(word));
            names.extend(declared.and_then(|rest| words(rest).next()).map(str::to_owned));
        }
    }
    Ok(names)
}

/// HTML without its links and what they say.
fn without_links(html: &str) -> String {
    let mut parts = html.split("<a ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once("</a>").map_or("", |(_, rest)| rest);
    }
    text
}

/// HTML as text.
fn text(html: &str) -> String {
    let mut text = String::new();
    for (number, part) in html.split('<').enumerate() {
        text += if number == 0 { part } else { part.split_once('>').map_or("", |(_, rest)| rest) };
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&").replace("&nbsp;", " ")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !is_of_word(letter)).filter(|word| !word.is_empty())
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r##"<pre class="rust item-decl"><code>pub enum End {
    Failed(<a class="struct" href="struct.Failure.html">Failure</a>),
    Dead(Reap),
}</code></pre>
<section id="variant.Failed" class="variant"><a href="#variant.Failed" class="anchor">§</a><h3 class="code-header">Failed(<a href="struct.Failure.html">Failure</a>)</h3></section>
<section id="variant.Dead" class="variant"><h3 class="code-header">Dead(Reap)</h3></section>
<section id="method.name" class="method"><h4 class="code-header">pub fn <a href="#method.name" class="fn">name</a>(&amp;self) -&gt; Word</h4></section>
<h2 id="trait-implementations"></h2><section id="method.fmt"><h4 class="code-header">fn fmt(&amp;self, f: Formatter)</h4></section>"##;

    #[test]
    fn signatures_are_listed_and_types_without_a_page_found() {
        let own = ["Dead", "End", "Failed", "Failure", "Formatter", "Reap", "Word"].map(str::to_owned).into();
        let page = read("enum End", PAGE, &own);
        assert_eq!(page.dead_ends.into_iter().collect::<Vec<_>>(), ["Reap", "Word"]);
        let expected = ["enum End: Dead(Reap)", "enum End: Failed(Failure)", "enum End: pub fn name(&self) -> Word"];
        assert_eq!(page.members, expected);
    }
}
