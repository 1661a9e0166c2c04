//! Parses a trait into a service, or collects all its errors.
//!
//! Types are recognised by the last segment of their path, because an attribute sees tokens and not types. `Context`,
//! `DeferredReply` and `Result` have their usual meaning; an alias with another name is an ordinary type.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{
    Attribute, Error, FnArg, Ident, ItemTrait, LitInt, LitStr, Pat, PatIdent, PatType, Path,
    Result, ReturnType, TraitItem, TraitItemFn, Type,
};

use crate::check::{
    Problems, check_owned, check_signature, check_trait, is_context, is_deferred_reply,
    last_segment, type_arguments,
};
use crate::name::{Fingerprint, name_problem, snake_case, wire_name};

/// A service.
pub(crate) struct Service {
    pub(crate) format: TokenStream,
    pub(crate) methods: Vec<Method>,
}

/// A method of a service.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    /// Documentation and similar attributes, which the client's method gets too.
    pub(crate) docs: Vec<Attribute>,
    pub(crate) wire_name: String,
    pub(crate) takes_context: bool,
    pub(crate) arguments: Vec<(Ident, Type)>,
    pub(crate) answer: Answer,
}

/// The answer of a method.
pub(crate) enum Answer {
    /// The return value.
    Returned(Outcome),
    /// A value that a token sends later.
    Deferred(Outcome),
    /// No answer.
    OneWay,
}

/// The type of an answer.
pub(crate) struct Outcome {
    pub(crate) value: Type,
    /// The method's own error, if the type is written as a `Result`.
    pub(crate) error: Option<Type>,
}

/// The settings in `#[tidewire::service(..)]`.
struct Settings {
    name: String,
    version: u32,
    format: TokenStream,
    /// The format as it was written, for the fingerprint.
    format_word: TokenStream,
}

/// The settings in `#[method(..)]`.
#[derive(Debug, Default)]
struct MethodSettings {
    one_way: bool,
    name: Option<String>,
}

impl Service {
    /// Parses a trait. It removes this macro's attributes from the trait, even if the trait is refused.
    pub(crate) fn read(attribute: TokenStream, item: &mut ItemTrait) -> Result<Self> {
        let mut problems = Problems::default();
        let settings = problems.note(Settings::read(attribute, &item.ident));
        problems.note(check_trait(item));
        let mut methods = Vec::new();
        for item in &mut item.items {
            match item {
                TraitItem::Fn(function) => {
                    let own = problems.note(MethodSettings::take(&mut function.attrs));
                    if let (Some(own), Some(settings)) = (own, &settings) {
                        methods.extend(problems.note(Method::read(function, own, settings)));
                    }
                }
                other => problems.add(Error::new_spanned(
                    other,
                    "a service can have methods only; move other items to the type that implements it",
                )),
            }
        }
        check_duplicates(&methods, &mut problems);
        let Settings { format, .. } = problems.finish(settings)?;
        Ok(Self { format, methods })
    }
}

impl Settings {
    fn read(attribute: TokenStream, ident: &Ident) -> Result<Self> {
        let mut settings = Self {
            name: snake_case(&ident.unraw().to_string()),
            version: 1,
            format: quote!(::tidewire::typed::Postcard),
            format_word: quote!(Postcard),
        };
        let parser = syn::meta::parser(|meta| {
            if meta.path.is_ident("version") {
                let version: LitInt = meta.value()?.parse()?;
                settings.version = version.base10_parse()?;
            } else if meta.path.is_ident("name") {
                settings.name = parse_name(&meta.value()?.parse()?)?;
            } else if meta.path.is_ident("format") {
                let path: Path = meta.value()?.parse()?;
                let word = path.segments.last().map(|segment| &segment.ident);
                settings.format_word = quote!(#word);
                settings.format = quote!(#path);
            } else {
                return Err(meta.error("a service has `version`, `name` and `format`"));
            }
            Ok(())
        });
        parser.parse2(attribute)?;
        Ok(settings)
    }
}

impl MethodSettings {
    fn take(attributes: &mut Vec<Attribute>) -> Result<Self> {
        let mut settings = Self::default();
        let (own, others) = std::mem::take(attributes)
            .into_iter()
            .partition(|attribute| attribute.path().is_ident("method"));
        *attributes = others;
        let own: Vec<Attribute> = own;
        for attribute in own {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("one_way") {
                    settings.one_way = true;
                } else if meta.path.is_ident("name") {
                    settings.name = Some(parse_name(&meta.value()?.parse()?)?);
                } else {
                    return Err(meta.error("a method has `one_way` and `name`"));
                }
                Ok(())
            })?;
        }
        Ok(settings)
    }
}

impl Method {
    fn read(function: &TraitItemFn, own: MethodSettings, settings: &Settings) -> Result<Self> {
        let mut problems = Problems::default();
        problems.note(check_signature(function));
        let mut inputs = function
            .sig
            .inputs
            .iter()
            .filter_map(|input| match input {
                FnArg::Typed(input) => Some(input),
                FnArg::Receiver(_) => None,
            })
            .peekable();
        let takes_context = inputs.next_if(|input| is_context(&input.ty)).is_some();
        let mut arguments = Vec::new();
        let mut deferred = None;
        while let Some(input) = inputs.next() {
            if inputs.peek().is_none() && last_segment(&input.ty).is_some_and(is_deferred_reply) {
                deferred = Some(&*input.ty);
            } else {
                arguments.extend(problems.note(read_argument(input)));
            }
        }
        let answer = read_answer(&function.sig.output, deferred, own.one_way);
        let answer = problems.note(answer);
        if arguments.len() > ARGUMENTS_MAX {
            problems.add(Error::new_spanned(
                &function.sig.ident,
                format!("a method has at most {ARGUMENTS_MAX} arguments; put them into a type"),
            ));
        }
        let mut method = Self {
            ident: function.sig.ident.clone(),
            docs: passed_on(&function.attrs),
            wire_name: String::new(),
            takes_context,
            arguments,
            answer: problems.finish(answer)?,
        };
        method.wire_name = own.name.unwrap_or_else(|| method.default_name(settings));
        match name_problem(&method.wire_name) {
            Some(problem) => Err(Error::new_spanned(
                &method.ident,
                format!("{problem}; choose another with `#[method(name = \"..\")]`"),
            )),
            None => Ok(method),
        }
    }

    fn default_name(&self, settings: &Settings) -> String {
        let mut fingerprint = Fingerprint::new();
        fingerprint.add(&settings.format_word);
        for (ident, ty) in &self.arguments {
            fingerprint.add(&ident.unraw());
            fingerprint.add(ty);
        }
        match &self.answer {
            Answer::OneWay => fingerprint.add_word("one_way"),
            Answer::Returned(outcome) | Answer::Deferred(outcome) => {
                fingerprint.add_word("answer");
                fingerprint.add(&outcome.value);
                if let Some(error) = &outcome.error {
                    fingerprint.add(error);
                }
            }
        }
        let method = self.ident.unraw().to_string();
        wire_name(&settings.name, &method, settings.version, &fingerprint)
    }
}

fn check_duplicates(methods: &[Method], problems: &mut Problems) {
    let mut names: HashMap<String, &Ident> = HashMap::new();
    for method in methods {
        // Some codecs do not distinguish upper and lower case.
        let name = method.wire_name.to_ascii_lowercase();
        if let Some(first) = names.insert(name, &method.ident) {
            problems.add(Error::new(
                method.ident.span(),
                format!(
                    "`{}` has the name of `{first}` on the wire, `{}` (some codecs ignore upper and lower case)",
                    method.ident, method.wire_name
                ),
            ));
        }
    }
}

fn read_argument(input: &PatType) -> Result<(Ident, Type)> {
    let ident = match &*input.pat {
        Pat::Ident(PatIdent {
            by_ref: None,
            subpat: None,
            ident,
            ..
        }) => ident.clone(),
        other => {
            return Err(Error::new_spanned(
                other,
                "an argument needs a plain name: it is part of what both sides agree on",
            ));
        }
    };
    if last_segment(&input.ty).is_some_and(is_deferred_reply) {
        return Err(Error::new_spanned(
            &input.ty,
            "`DeferredReply` is the last parameter",
        ));
    }
    check_owned(&input.ty)?;
    Ok((ident, (*input.ty).clone()))
}

fn read_answer(output: &ReturnType, deferred: Option<&Type>, one_way: bool) -> Result<Answer> {
    let returned = match output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(&**ty),
    };
    match (deferred, returned, one_way) {
        (None, returned, false) => {
            let unit: Type = syn::parse_quote!(());
            Outcome::read(returned.unwrap_or(&unit)).map(Answer::Returned)
        }
        (Some(token), None, false) => {
            let kinds = last_segment(token).and_then(type_arguments);
            match kinds.as_deref() {
                Some([outcome]) => Outcome::read(outcome).map(Answer::Deferred),
                _ => Err(Error::new_spanned(
                    token,
                    "name the type of the answer: `DeferredReply<T>` or `DeferredReply<Result<T, E>>`",
                )),
            }
        }
        (Some(_), Some(returned), _) => Err(Error::new_spanned(
            returned,
            "a method answers through its `DeferredReply` or by its return value, not both",
        )),
        (None, None, true) => Ok(Answer::OneWay),
        (Some(place), None, true) | (None, Some(place), true) => Err(Error::new_spanned(
            place,
            "a one-way method has no answer: it returns nothing and takes no `DeferredReply`",
        )),
    }
}

impl Outcome {
    fn read(ty: &Type) -> Result<Self> {
        check_owned(ty)?;
        let Some(segment) = last_segment(ty).filter(|segment| segment.ident == "Result") else {
            return Ok(Self {
                value: ty.clone(),
                error: None,
            });
        };
        match type_arguments(segment).as_deref() {
            Some([value, error]) => Ok(Self {
                value: value.clone(),
                error: Some(error.clone()),
            }),
            _ => Err(Error::new_spanned(
                ty,
                "write both types, `Result<T, E>`: the client needs to know the error, and an alias hides it",
            )),
        }
    }
}

/// Returns the attributes of a method that the client's method gets too.
fn passed_on(attributes: &[Attribute]) -> Vec<Attribute> {
    let is_passed_on = |attribute: &&Attribute| {
        attribute.path().is_ident("doc") || attribute.path().is_ident("deprecated")
    };
    attributes.iter().filter(is_passed_on).cloned().collect()
}

fn parse_name(literal: &LitStr) -> Result<String> {
    let name = literal.value();
    match name_problem(&name) {
        Some(problem) => Err(Error::new(literal.span(), problem)),
        None => Ok(name),
    }
}

/// serde has tuples of at most this many values.
const ARGUMENTS_MAX: usize = 16;

#[cfg(test)]
mod tests;
