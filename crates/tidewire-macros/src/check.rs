//! The checks of a trait that is to be a service. Each error says what to do instead.

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    Error, GenericArgument, ItemTrait, Path, PathArguments, PathSegment, ReceiverKind, Result,
    Safety, TraitItem, TraitItemFn, Type,
};

/// All errors of a trait, combined into one error.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    first: Option<Error>,
}

impl Problems {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.first {
            Some(first) => first.combine(error),
            None => self.first = Some(error),
        }
    }

    pub(crate) fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Returns the value if there was no error, else the errors. The value may be missing only if there was an error.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T> {
        match (self.first, value) {
            (None, Some(value)) => Ok(value),
            (Some(error), _) => Err(error),
            (None, None) => unreachable!("a value is missing, and no problem was noted"),
        }
    }
}

/// Refuses a trait that cannot be a service, with any methods.
pub(crate) fn check_trait(item: &ItemTrait) -> Result<()> {
    if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
        return Err(Error::new_spanned(
            &item.ident,
            "a service cannot be generic: its payloads have one meaning; write a trait for each type",
        ));
    }
    if item.unsafety.is_some() {
        return Err(Error::new_spanned(
            item.unsafety,
            "a service cannot be unsafe",
        ));
    }
    if !item
        .items
        .iter()
        .any(|item| matches!(item, TraitItem::Fn(_)))
    {
        return Err(Error::new_spanned(
            &item.ident,
            "a service needs at least one method",
        ));
    }
    Ok(())
}

/// Refuses a method that not every client can call, or that a client can call only once.
pub(crate) fn check_signature(function: &TraitItemFn) -> Result<()> {
    let signature = &function.sig;
    let refuse = |tokens: &dyn ToTokens, text: &str| Err(Error::new_spanned(tokens, text));
    if let Some(attribute) = function
        .attrs
        .iter()
        .find(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr"))
    {
        return refuse(
            attribute,
            "a method cannot be conditional: both sides must have the same; put `cfg` on the trait, above \
             `#[tidewire::service]`",
        );
    }
    if signature.ident == "new" {
        return refuse(
            &signature.ident,
            "`new` makes a client; call the method something else, and keep `new` on the wire with \
             `#[method(name = \"new\")]`",
        );
    }
    if signature.asyncness.is_some() {
        return refuse(
            &signature.asyncness,
            "a lane runs no tasks: take a `DeferredReply` as the last parameter and send it from a task of yours; \
             the client's method can be awaited anyway",
        );
    }
    if signature.constness.is_some()
        || signature.abi.is_some()
        || matches!(signature.safety, Safety::Unsafe(_))
    {
        return refuse(signature, "a method of a service is a plain `fn`");
    }
    if !signature.generics.params.is_empty() || signature.generics.where_clause.is_some() {
        return refuse(
            &signature.generics,
            "a method of a service cannot be generic: its payload has one meaning",
        );
    }
    let by_reference = signature
        .receiver()
        .is_some_and(|receiver| matches!(receiver.kind, ReceiverKind::Reference(..)));
    if !by_reference {
        let place: &dyn ToTokens = match signature.receiver() {
            Some(receiver) => receiver,
            None => &signature.ident,
        };
        return refuse(
            place,
            "a method of a service must take `&mut self` or `&self`: it is called many times",
        );
    }
    Ok(())
}

pub(crate) fn is_context(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) if reference.mutability.is_some() => {
            last_segment(&reference.elem).is_some_and(|segment| segment.ident == "Context")
        }
        _ => false,
    }
}

/// Whether the type is `DeferredReply<R>`.
pub(crate) fn is_deferred_reply(segment: &PathSegment) -> bool {
    segment.ident == "DeferredReply"
}

pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        // A macro in the user's code inserted this group as a whole.
        Type::Group(group) => last_segment(&group.elem),
        _ => None,
    }
}

/// The type arguments of `Name<A, B>`, if the brackets contain nothing else.
pub(crate) fn type_arguments(segment: &PathSegment) -> Option<Vec<Type>> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    let types = arguments.args.iter().map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    });
    types.collect()
}

/// Refuses a type that borrows, or has another meaning in the client than in the server.
pub(crate) fn check_owned(ty: &Type) -> Result<()> {
    struct Finder(Problems);

    impl<'ast> Visit<'ast> for Finder {
        fn visit_type_reference(&mut self, reference: &'ast syn::TypeReference) {
            let text = if is_context(&Type::Reference(reference.clone())) {
                "the context comes first, right after `self`"
            } else {
                "arguments and results must be owned types: take `String` for `&str`, `Vec<T>` for `&[T]`, `T` for `&T`"
            };
            self.0.add(Error::new_spanned(reference, text));
        }

        fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
            self.0.add(Error::new_spanned(
                lifetime,
                "arguments and results must be owned types: a type with a lifetime borrows",
            ));
        }

        fn visit_type_impl_trait(&mut self, ty: &'ast syn::TypeImplTrait) {
            self.0.add(Error::new_spanned(
                ty,
                "name the type: the other side must know it",
            ));
        }

        fn visit_path(&mut self, path: &'ast Path) {
            if path
                .segments
                .first()
                .is_some_and(|first| first.ident == "Self")
            {
                self.0.add(Error::new_spanned(
                    path,
                    "`Self` is the server's own type, which the client does not have",
                ));
            }
            visit::visit_path(self, path);
        }
    }

    let mut finder = Finder(Problems::default());
    finder.visit_type(ty);
    finder.0.first.map_or(Ok(()), Err)
}
