//! The walls between the types of the library: how many methods a type has, and how many fields others may reach.
//!
//! Problem: a type whose fields and methods are spread over a crate has no invariant that a reader can check by reading
//! one file. Approach: the sources are parsed, and two counts are compared with limits. The counts are symptoms: a
//! method that becomes a free function mends nothing.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Field, ImplItem, Item, ItemImpl, ItemStruct, Type, Visibility};

use crate::plain_data::{hides_nothing, reasons};
use crate::repository;
use crate::sources::Files;
use crate::syntax::is_for_tests;

/// Most methods of a type. A type with more is several, and a facade hands out its parts.
const METHODS_MAX: usize = 40;

/// Most fields that code outside their own module reaches, of some 2,200, without those of plain data: a tenth.
const OPEN_FIELDS_MAX: usize = 202;

/// The crates whose types are counted.
const CRATES: [&str; 2] = ["tidewire", "tidewire-proto"];

#[test]
fn no_type_has_more_methods_than_a_reader_can_know() {
    let counts = counts();
    let wide = counts
        .methods
        .iter()
        .filter(|(_, count)| **count > METHODS_MAX);
    let wide: Vec<_> = wide.collect();
    assert!(
        wide.is_empty(),
        "these types have more than {METHODS_MAX} methods: {wide:?}"
    );
}

#[test]
fn few_fields_are_open_to_other_modules() {
    let Counts { fields, open, .. } = counts();
    assert!(
        open == OPEN_FIELDS_MAX,
        "{open} of {fields} fields are open to other modules, and the number here is {OPEN_FIELDS_MAX}: make new ones \
         private, and let their type act, or lower the number"
    );
}

#[test]
fn every_type_of_the_list_of_plain_data_exists_and_hides_nothing() {
    let found = counts().plain_data;
    let wrong: Vec<_> = reasons()
        .into_iter()
        .filter(|((file, name), _)| found.get(&((*file).into(), (*name).into())) != Some(&true))
        .collect();
    assert!(
        wrong.is_empty(),
        "these types are gone, or have fields that are not public, so their reasons do not hold: {wrong:#?}"
    );
}

#[derive(Debug, Default)]
struct Counts {
    methods: BTreeMap<String, usize>,
    fields: usize,
    open: usize,
    /// The listed types, each with its file, and whether they hide nothing.
    plain_data: BTreeMap<(String, String), bool>,
    /// The file that is read now, as in the list of plain data.
    file: String,
}

fn counts() -> Counts {
    let mut counts = Counts::default();
    let crates = repository().join("crates");
    for name in CRATES {
        for source in &Files::of(&repository(), &format!("crates/{name}")).0 {
            let file = source
                .path
                .strip_prefix(&crates)
                .expect("a file of a crate");
            let file = file.with_extension("").display().to_string();
            counts.file = file.replace("/src/", "/");
            counts.visit_file(&source.syntax);
        }
    }
    counts
}

impl<'ast> Visit<'ast> for Counts {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Impl(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Struct(it) => &it.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        if let (None, Type::Path(path)) = (&block.trait_, &*block.self_ty) {
            let name = path.path.segments.last().expect("a name").ident.to_string();
            let methods = block.items.iter().filter(|item| match item {
                ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                _ => false,
            });
            *self.methods.entry(name).or_default() += methods.count();
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.fields += item.fields.len();
        let name = item.ident.to_string();
        if reasons().contains_key(&(self.file.as_str(), name.as_str())) {
            let place = (self.file.clone(), name);
            self.plain_data.insert(place, hides_nothing(item));
            return;
        }
        let is_open = |field: &&Field| !matches!(field.vis, Visibility::Inherited);
        self.open += item.fields.iter().filter(is_open).count();
    }
}
