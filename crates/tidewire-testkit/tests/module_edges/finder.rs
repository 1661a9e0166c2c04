//! Finds every path of a file that leads to another top-level module, in any position: in a `use`, an expression, a
//! type, a pattern, a visibility, a macro or an attribute.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, Field, FieldValue, Ident, ImplItem, Item, ItemMod, ItemUse, Lit, Local, Macro,
    Meta, Path, TraitItem, UseTree, Variant,
};

use crate::sources::{Edge, RootNames, Target};
use crate::syntax::{Leaf, add_leaves, attributes, is_for_tests, leaves};

/// Finds the edges of one file.
#[derive(Debug)]
pub(crate) struct Finder<'a> {
    file: String,
    /// The names of the modules from the root down to the present position.
    module: Vec<String>,
    names: &'a RootNames,
    pub(crate) edges: BTreeSet<Edge>,
    /// Every path that the file uses, by its names from the root on.
    pub(crate) paths: BTreeSet<Vec<String>>,
}

impl<'a> Finder<'a> {
    /// Creates a finder for a file of a module, given by the names from the root down to it.
    pub(crate) fn new(file: String, module: Vec<String>, names: &'a RootNames) -> Self {
        Self {
            file,
            module,
            names,
            edges: BTreeSet::new(),
            paths: BTreeSet::new(),
        }
    }

    /// Notes the module, or the item of the root, that a path uses.
    fn follow(&mut self, path: &[Ident]) {
        self.paths.extend(self.rooted(path));
        if let Some((name, span)) = self.name_at_root(path)
            && let Some(target) = self.names.target(&name)
        {
            self.note(target, span);
        }
    }

    fn follow_use(&mut self, leaf: &Leaf) {
        match leaf.path.last() {
            Some(last) if self.depth(&leaf.path) == Some((0, leaf.path.len())) => {
                self.note(Target::Root("*".to_owned()), last.span());
            }
            _ => self.follow(&leaf.path),
        }
    }

    /// Returns the names of a path from the root on.
    pub(crate) fn rooted(&self, path: &[Ident]) -> Option<Vec<String>> {
        let (depth, used) = self.depth(path)?;
        let own = path[used..].iter().map(|name| name.unraw().to_string());
        Some(self.module[..depth].iter().cloned().chain(own).collect())
    }

    /// Returns the first name of a path that is looked up in the crate's root.
    fn name_at_root(&self, path: &[Ident]) -> Option<(String, Span)> {
        let (depth, used) = self.depth(path)?;
        let name = path.get(used).filter(|_| depth == 0)?;
        Some((name.unraw().to_string(), name.span()))
    }

    /// Returns the depth below the root at which a path begins, and how many of its names determine it.
    fn depth(&self, path: &[Ident]) -> Option<(usize, usize)> {
        let mut depth = match path.first()? {
            first if first == "crate" => 0,
            first if first == "self" => self.module.len(),
            first if first == "super" => self.module.len().checked_sub(1)?,
            _ => return None,
        };
        let mut used = 1;
        while path.get(used).is_some_and(|name| name == "super") {
            depth = depth.checked_sub(1)?;
            used += 1;
        }
        Some((depth, used))
    }

    fn note(&mut self, target: Target, span: Span) {
        if let Some(module) = self.module.first()
            && target != Target::Module(module.clone())
        {
            self.edges.insert(Edge {
                file: self.file.clone(),
                line: span.start().line,
                module: module.clone(),
                target,
            });
        }
    }

    /// Follows the paths among the tokens of a macro, which are not parsed.
    fn follow_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let [first, after @ ..] = rest {
            rest = after;
            let TokenTree::Ident(first) = first else {
                if let TokenTree::Group(group) = first {
                    self.follow_tokens(group.stream());
                }
                continue;
            };
            let mut path = vec![first.clone()];
            while let [
                TokenTree::Punct(one),
                TokenTree::Punct(two),
                next,
                after @ ..,
            ] = rest
                && (one.as_char(), two.as_char()) == (':', ':')
            {
                match next {
                    TokenTree::Ident(name) => path.push(name.clone()),
                    TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                        self.follow_group(&path, next);
                        path.clear();
                    }
                    TokenTree::Punct(star) if star.as_char() == '*' => {
                        let name = None;
                        let path = std::mem::take(&mut path);
                        self.follow_use(&Leaf { path, name });
                    }
                    _ => break,
                }
                rest = after;
            }
            self.follow(&path);
        }
    }

    /// Follows the names between the braces of a `use` among a macro's tokens.
    fn follow_group(&mut self, prefix: &[Ident], group: &TokenTree) {
        if let Ok(tree) = syn::parse2::<UseTree>(group.clone().into()) {
            let mut found = Vec::new();
            add_leaves(&tree, prefix, &mut found);
            for leaf in &found {
                self.follow_use(leaf);
            }
        }
    }

    /// Follows the paths that attributes have in strings, as `#[serde(with = "crate::format")]`.
    fn follow_strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.follow_strings(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal)
                        && let Ok(path) = text.parse::<Path>()
                    {
                        let names: Vec<Ident> =
                            path.segments.into_iter().map(|part| part.ident).collect();
                        self.follow(&names);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let names: Vec<Ident> = path
                .segments
                .iter()
                .map(|part| part.ident.clone())
                .collect();
            self.follow(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for leaf in leaves(item) {
            self.follow_use(&leaf);
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.follow_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.visit_path(attribute.path());
        if let Meta::List(list) = &attribute.meta {
            self.follow_tokens(list.tokens.clone());
            self.follow_strings(list.tokens.clone());
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.unraw().to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    // The methods below leave out code that exists only in tests.

    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast FieldValue) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        if !is_for_tests(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if !is_for_tests(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }
}
