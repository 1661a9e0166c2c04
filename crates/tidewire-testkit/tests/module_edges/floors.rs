//! The floors in docs/tree.md, and their violations by a crate.

use std::collections::BTreeMap;

use crate::sources::{Sources, Target};

/// The floors of a crate from the ground up, each with the modules that stand on it.
#[derive(Debug, Default)]
pub(crate) struct Floors(Vec<Vec<String>>);

impl Floors {
    /// The floors of all crates, by the crate's name: each block that begins with ```` ```floors ````. Its first line
    /// is the name, every further line one floor.
    pub(crate) fn of_all_crates(document: &str) -> BTreeMap<String, Self> {
        let mut all = BTreeMap::new();
        let mut lines = document.lines();
        while let Some(line) = lines.next() {
            if line != "```floors" {
                continue;
            }
            let mut block = lines.by_ref().take_while(|line| *line != "```");
            let name = block.next().expect("a crate's name in a block of floors");
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            let floors = Self(block.map(words).collect());
            let earlier = all.insert(name.trim().to_owned(), floors);
            assert!(earlier.is_none(), "two blocks of floors for {name}");
        }
        all
    }

    fn floor_of(&self, module: &str) -> Option<usize> {
        let stands_on = |floor: &Vec<String>| floor.iter().any(|name| name == module);
        self.0.iter().position(stands_on)
    }
}

/// Returns the violations of a crate, a sentence for each.
pub(crate) fn violations(sources: &Sources, floors: &Floors) -> Vec<String> {
    let mut found = Vec::new();
    let directory = &sources.directory;
    let mut listed: Vec<&String> = floors.0.iter().flatten().collect();
    listed.sort();
    for pair in listed.windows(2).filter(|pair| pair[0] == pair[1]) {
        found.push(format!(
            "docs/tree.md lists `{}` of {directory} twice",
            pair[0]
        ));
    }
    listed.dedup();
    for name in &listed {
        if !sources.modules.contains(*name) {
            found.push(format!(
                "docs/tree.md lists `{name}`, which is no module of {directory}"
            ));
        }
    }
    for module in &sources.modules {
        if !listed.contains(&module) {
            found.push(format!(
                "docs/tree.md lists no floor for `{module}` of {directory}; add it above all that it uses"
            ));
        }
    }
    for edge in &sources.edges {
        let at = format!("{}:{}", edge.file, edge.line);
        match &edge.target {
            Target::Root(name) => found.push(format!(
                "{at} uses `{name}` of the crate's root, which stands above all modules; move it into a module"
            )),
            Target::Module(module) => {
                let own = floors.floor_of(&edge.module);
                let used = floors.floor_of(module);
                let (Some(own), Some(used)) = (own, used) else {
                    continue; // The module is not listed, which is told above.
                };
                if used >= own {
                    let stands = if used > own { "above it" } else { "beside it" };
                    found.push(format!(
                        "{at} uses `{module}`, which stands {stands} in docs/tree.md; move what both need down"
                    ));
                }
            }
        }
    }
    found
}
