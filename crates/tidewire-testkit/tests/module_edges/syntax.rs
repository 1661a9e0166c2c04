//! Two questions about syntax: which names a `use` imports, and which code exists only in tests.

use std::slice;

use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Ident, Item, ItemUse, Meta, Token, UseTree};

/// One name, or all names, that a `use` imports.
#[derive(Debug)]
pub(crate) struct Leaf {
    /// The path as it is written, without `*`.
    pub(crate) path: Vec<Ident>,
    /// The name under which it is imported; `None` for `*` and `_`.
    pub(crate) name: Option<String>,
}

/// Returns the names that an item imports; none if its path begins with `::`, because only paths of other crates do.
pub(crate) fn leaves(item: &ItemUse) -> Vec<Leaf> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        add_leaves(&item.tree, &[], &mut found);
    }
    found
}

/// Adds the names that a tree after `prefix` imports.
pub(crate) fn add_leaves(tree: &UseTree, prefix: &[Ident], found: &mut Vec<Leaf>) {
    let with = |name: &Ident| [prefix, slice::from_ref(name)].concat();
    let named = |name: &Ident| Some(name.unraw().to_string()).filter(|name| name != "_");
    match tree {
        UseTree::Path(path) => add_leaves(&path.tree, &with(&path.ident), found),
        UseTree::Group(group) => {
            for tree in &group.items {
                add_leaves(tree, prefix, found);
            }
        }
        UseTree::Name(name) if name.ident == "self" && !prefix.is_empty() => found.push(Leaf {
            path: prefix.to_vec(),
            name: prefix.last().and_then(named),
        }),
        UseTree::Name(name) => found.push(Leaf {
            path: with(&name.ident),
            name: named(&name.ident),
        }),
        UseTree::Rename(renamed) if renamed.ident == "self" && !prefix.is_empty() => {
            found.push(Leaf {
                path: prefix.to_vec(),
                name: named(&renamed.rename),
            });
        }
        UseTree::Rename(renamed) => found.push(Leaf {
            path: with(&renamed.ident),
            name: named(&renamed.rename),
        }),
        UseTree::Glob(_) => found.push(Leaf {
            path: prefix.to_vec(),
            name: None,
        }),
    }
}

/// Whether an item exists only in tests: it is a test, or its condition requires `test`.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args().is_ok_and(|meta| demands_test(&meta))
    })
}

fn demands_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return condition.path().is_ident("test");
    };
    let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
    let Ok(inner) = list.parse_args_with(parse) else {
        return false;
    };
    if list.path.is_ident("all") {
        inner.iter().any(demands_test)
    } else {
        list.path.is_ident("any") && !inner.is_empty() && inner.iter().all(demands_test)
    }
}

/// The attributes of an item of any kind.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
