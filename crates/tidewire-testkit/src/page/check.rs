//! The rules for every page: it is whole, fetches nothing, and every chart has its table.

use roxmltree::{Document, Node, ParsingOptions};

/// The page is written so that the stricter parser of XML reads it too: a letter that was not escaped is an error.
#[must_use]
pub fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).expect("the page is well-formed XML")
}

/// The only element with this id.
pub fn by_id<'d>(document: &'d Document<'_>, id: &str) -> Node<'d, 'd> {
    let mut found = document
        .descendants()
        .filter(|node| node.attribute("id") == Some(id));
    let node = found
        .next()
        .unwrap_or_else(|| panic!("nothing has the id {id}"));
    assert!(found.next().is_none(), "two have the id {id}");
    node
}

/// How many elements below a node have this tag.
#[must_use]
pub fn count(node: Node<'_, '_>, tag: &str) -> usize {
    node.descendants()
        .filter(|node| node.has_tag_name(tag))
        .count()
}

/// All text below a node.
#[must_use]
pub fn text(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(|node| node.is_text());
    texts.filter_map(|node| node.text()).collect()
}

/// Checks the rules that hold for every page.
pub fn check(page: &str) {
    let document = parse(page);
    for forbidden in ["http:", "https:", "//cdn", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!(count(document.root(), "script"), 1);
    for node in document.descendants().filter(Node::is_element) {
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on") && name != "src", "{name}={value}");
            let is_place = [
                "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "points",
                "viewBox",
            ];
            if is_place.contains(&name) {
                for number in value.split([' ', ',']) {
                    let place: f64 = number.parse().unwrap_or_else(|_| panic!("{name}={value}"));
                    assert!((-1.0..=20_000.0).contains(&place), "{name}={value}");
                }
            }
            if name == "href" && value.starts_with('#') {
                by_id(&document, &value[1..]);
            }
        }
    }
    for figure in document
        .descendants()
        .filter(|node| node.has_tag_name("figure"))
    {
        assert_eq!((count(figure, "svg"), count(figure, "table")), (2, 1));
        let columns = count(
            figure
                .descendants()
                .find(|node| node.has_tag_name("thead"))
                .expect("a table has a head"),
            "th",
        );
        let body = figure
            .descendants()
            .find(|node| node.has_tag_name("tbody"))
            .expect("a table has a body");
        for row in body.children().filter(|node| node.has_tag_name("tr")) {
            assert_eq!(count(row, "th") + count(row, "td"), columns);
        }
        assert!(count(body, "tr") > 0);
    }
    for wrong in ["NaN", ">inf/s", "-inf"] {
        assert!(!page.contains(wrong), "{wrong}");
    }
}
