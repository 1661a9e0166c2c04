//! Comments name their subject first.

use std::process::Command;
use std::{fs, iter};

use crate::repository;

/// A comment that begins with one of these words is a riddle, because its reader does not know its subject yet.
const RIDDLES: [&str; 9] = [
    "What", "Who", "Whom", "Whose", "Nobody", "Those", "That", "Which", "None",
];

#[test]
fn no_comment_begins_with_a_riddle() {
    let root = repository();
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(&root)
        .output()
        .expect("git lists the files of the repository");
    let listed = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let files: Vec<&str> = listed
        .split_terminator('\0')
        .filter(|file| !file.ends_with(".md"))
        .collect();
    assert!(files.contains(&"deny.toml"), "{} files", files.len());
    let mut riddles = Vec::new();
    for file in files {
        // A file that is not text has no comments. A removed file that is not yet committed cannot be read.
        let Ok(text) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        let beginnings = beginnings(&text).filter(|(_, word)| RIDDLES.contains(word));
        riddles.extend(beginnings.map(|(line, word)| format!("{file}:{line}: {word}")));
    }
    assert!(
        riddles.is_empty(),
        "comments that do not name their subject first:\n{}",
        riddles.join("\n")
    );
}

#[test]
fn the_first_word_of_each_comment_is_found() {
    // The escapes keep this text from being found itself.
    let text = "/// What is it?\n/// Who knows.\nlet one = 1; /\u{2f} Nobody\n\n  \u{23} Whose\n\
        //!\n//! What\n#[test]\n//x.org\n\n/*\u{2a} Those. *\u{2f}\n/*\u{2a}\n \u{2a} Which\n \u{2a} That\n";
    let found: Vec<_> = beginnings(text).collect();
    let all = [
        (1, "What"),
        (3, "Nobody"),
        (5, "Whose"),
        (7, "What"),
        (11, "Those"),
        (13, "Which"),
    ];
    assert_eq!(found, all);
}

/// The first word of each comment, with the number of its line. Further lines of a comment begin nothing.
fn beginnings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let before = iter::once("").chain(text.lines());
    let lines = text.lines().zip(before).zip(1..);
    lines.filter_map(|((line, before), number)| {
        let goes_on = comment(line).is_some_and(|(is_whole_line, _)| is_whole_line)
            && !line.trim_start().starts_with("/**")
            && comment(before).is_some_and(|(_, words)| !words.is_empty());
        let (_, words) = comment(line).filter(|_| !goes_on)?;
        let word = words.split(|letter: char| !letter.is_alphanumeric()).next();
        word.filter(|word| !word.is_empty())
            .map(|word| (number, word))
    })
}

/// The words of a line's comment, and whether the line has nothing else.
fn comment(line: &str) -> Option<(bool, &str)> {
    let text = line.trim();
    let marks = ["//!", "///", "//", "/**", "#", "*"];
    let Some(words) = marks.iter().find_map(|mark| text.strip_prefix(mark)) else {
        let behind = text.split_once(" // ").or_else(|| text.split_once(" # "));
        return behind.map(|(_, words)| (false, words));
    };
    (words.is_empty() || words.starts_with(' ')).then(|| (true, words.trim()))
}
