//! The top-level modules of a crate, and every path from one of them to another.
//!
//! The files are found like the compiler finds them, by their `mod` declarations from the crate's root on, so that
//! modules for tests are left out together with their files. The root itself is no module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use syn::ext::IdentExt;
use syn::visit::Visit;
use syn::{Attribute, File, Item, ItemMacro};

use crate::finder::Finder;
use crate::syntax::{Leaf, is_for_tests, leaves};

/// A crate in the form that the check uses.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The crate's directory below the repository's.
    pub(crate) directory: String,
    /// The modules that the root declares, without those for tests.
    pub(crate) modules: BTreeSet<String>,
    pub(crate) edges: BTreeSet<Edge>,
}

/// A use of another top-level module, or of the root, by a top-level module.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    /// The file below the repository's directory.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// The module that the file belongs to.
    pub(crate) module: String,
    pub(crate) target: Target,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Another top-level module.
    Module(String),
    /// An item of the crate's root, or all of them.
    Root(String),
}

impl Sources {
    /// Reads the crate in the directory `directory` below `repository`.
    pub(crate) fn read(repository: &Path, directory: &str) -> Self {
        let files = Files::of(repository, directory);
        let names = RootNames::of(&files.0);
        let mut edges = BTreeSet::new();
        for source in &files.0 {
            let file = source.path.strip_prefix(repository);
            let file = file.expect("a file of the repository").display();
            let mut finder = Finder::new(file.to_string(), source.module.clone(), &names);
            finder.visit_file(&source.syntax);
            edges.append(&mut finder.edges);
        }
        Self {
            directory: directory.to_owned(),
            modules: names.modules,
            edges,
        }
    }
}

/// The files of a crate without those for tests.
pub(crate) struct Files(pub(crate) Vec<Source>);

pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The names of the modules from the root down to this file's.
    pub(crate) module: Vec<String>,
    pub(crate) syntax: File,
}

impl Files {
    /// Reads the crate in the directory `directory` below `repository`.
    pub(crate) fn of(repository: &Path, directory: &str) -> Self {
        let src = repository.join(directory).join("src");
        let mut root = src.join("lib.rs");
        if !root.is_file() {
            root = src.join("main.rs");
        }
        let mut files = Self(Vec::new());
        files.add(root, &src, Vec::new());
        files
    }

    /// Adds a file, and the files of the modules that it declares, which are in `directory`.
    fn add(&mut self, path: PathBuf, directory: &Path, module: Vec<String>) {
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let syntax = syn::parse_file(&text)
            .unwrap_or_else(|error| panic!("cannot parse {}: {error}", path.display()));
        if is_for_tests(&syntax.attrs) {
            return;
        }
        self.add_modules(&syntax.items, directory, &module);
        self.0.push(Source {
            path,
            module,
            syntax,
        });
    }

    fn add_modules(&mut self, items: &[Item], directory: &Path, module: &[String]) {
        let declared = items.iter().filter_map(|item| match item {
            Item::Mod(declared) if !is_for_tests(&declared.attrs) => Some(declared),
            _ => None,
        });
        for declared in declared {
            let name = declared.ident.unraw().to_string();
            let has_path = |attribute: &Attribute| attribute.path().is_ident("path");
            assert!(
                !declared.attrs.iter().any(has_path),
                "the check does not follow `#[path]` of `mod {name}`; name the file like the module"
            );
            let inner = directory.join(&name);
            let mut module = module.to_vec();
            module.push(name.clone());
            match &declared.content {
                Some((_, items)) => self.add_modules(items, &inner, &module),
                None if inner.join("mod.rs").is_file() => {
                    self.add(inner.join("mod.rs"), &inner, module);
                }
                None => self.add(directory.join(format!("{name}.rs")), &inner, module),
            }
        }
    }
}

/// The names that may follow `crate::`.
#[derive(Debug, Default)]
pub(crate) struct RootNames {
    modules: BTreeSet<String>,
    /// The names that the root imports, each with the first name of its path, and the macros that modules export, each
    /// with its module.
    imported: BTreeMap<String, String>,
}

impl RootNames {
    pub(crate) fn of(files: &[Source]) -> Self {
        let mut names = Self::default();
        let (roots, others): (Vec<&Source>, _) =
            files.iter().partition(|source| source.module.is_empty());
        let items = || roots.iter().flat_map(|source| &source.syntax.items);
        for item in items() {
            if let Item::Mod(declared) = item
                && !is_for_tests(&declared.attrs)
            {
                names.modules.insert(declared.ident.unraw().to_string());
            }
        }
        for item in items() {
            if let Item::Use(used) = item
                && !is_for_tests(&used.attrs)
            {
                for leaf in leaves(used) {
                    names.import(&leaf);
                }
            }
        }
        for source in others {
            let mut exported = ExportedMacros(Vec::new());
            exported.visit_file(&source.syntax);
            let module = &source.module[0];
            let with_module = |name: String| (name, module.clone());
            names
                .imported
                .extend(exported.0.into_iter().map(with_module));
        }
        names
    }

    fn import(&mut self, leaf: &Leaf) {
        let mut path = leaf.path.iter().map(|name| name.unraw().to_string());
        let first = path.find(|name| name != "self" && name != "crate");
        if let (Some(first), Some(name)) = (first, &leaf.name) {
            self.imported.insert(name.clone(), first);
        }
    }

    /// Returns the target of a name after `crate::`, if it is in this crate.
    pub(crate) fn target(&self, name: &str) -> Option<Target> {
        if !self.modules.contains(name) && !self.imported.contains_key(name) {
            return Some(Target::Root(name.to_owned()));
        }
        let import = |name: &&str| self.imported.get(*name).map(String::as_str);
        // An import may begin with the name of another one, so there are at most as many steps as imports.
        iter::successors(Some(name), import)
            .take(self.imported.len() + 1)
            .find(|name| self.modules.contains(*name))
            .map(|module| Target::Module(module.to_owned()))
    }
}

/// The macros that a file exports, which are names of the crate's root.
struct ExportedMacros(Vec<String>);

impl<'ast> Visit<'ast> for ExportedMacros {
    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        let is_export = |attribute: &Attribute| attribute.path().is_ident("macro_export");
        if let Some(name) = &item.ident
            && item.attrs.iter().any(is_export)
        {
            self.0.push(name.unraw().to_string());
        }
    }
}
