//! Generates both sides of a service from its model.
//!
//! Generated code has the hygiene of the macro: an argument called `cx` or `message` does not collide with a variable
//! of that name. The user's types are written out only in the client, which is not generic. In the server they follow
//! from the trait, so no user's type can be mistaken for the server's own parameter.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ItemTrait;

use crate::model::{Answer, Method, Outcome, Service};

/// Returns the trait and both sides of it, or the trait and its errors.
pub(crate) fn service(attribute: TokenStream, item: &TokenStream) -> TokenStream {
    let mut item: ItemTrait = match syn::parse2(item.clone()) {
        Ok(item) => item,
        Err(error) => {
            let what = syn::Error::new(
                error.span(),
                format!("`#[tidewire::service]` stands on a trait: {error}"),
            )
            .into_compile_error();
            return quote!(#what #item);
        }
    };
    match Service::read(attribute, &mut item) {
        Ok(service) => {
            let (server, client) = (server(&item, &service), client(&item, &service));
            // Most programs use one side only, and do not call every method.
            let allow = quote!(#[allow(dead_code)]);
            quote!(#allow #item #server #client)
        }
        Err(error) => {
            // The trait is still emitted, so that the compiler reports its own errors only, and not every use of it.
            let errors = error.into_compile_error();
            quote!(#errors #item)
        }
    }
}

fn server(item: &ItemTrait, service: &Service) -> TokenStream {
    let (vis, ident) = (&item.vis, &item.ident);
    let name = server_name(ident);
    let client = client_name(ident);
    let arms = service
        .methods
        .iter()
        .enumerate()
        .map(|(number, method)| server_arm(number, method, &service.format));
    let docs = format!(
        "Serves a [`{ident}`]: mount it on a [`Router`](::tidewire::Router). Made by `#[tidewire::service]`."
    );
    quote_spanned! {Span::mixed_site()=>
        #[doc = #docs]
        #[allow(dead_code)]
        #[derive(Clone, Debug)]
        #vis struct #name<Handlers> {
            handlers: Handlers,
        }

        #[allow(dead_code)]
        impl<Handlers: #ident> #name<Handlers> {
            /// Serves this value.
            #[must_use]
            pub fn new(handlers: Handlers) -> Self {
                Self { handlers }
            }
        }

        // Serving a deprecated method does not use it.
        #[allow(deprecated)]
        impl<Handlers: #ident + ::core::marker::Send + 'static> ::tidewire::Methods for #name<Handlers> {
            fn names(&self) -> &'static [&'static str] {
                #client::METHODS
            }

            fn call(
                &mut self,
                number: usize,
                cx: &mut ::tidewire::Context<'_>,
                message: ::tidewire::Message<'_>,
            ) -> ::tidewire::HandlerResult {
                match number {
                    #(#arms)*
                    _ => ::core::result::Result::Err(::tidewire::typed::generated::no_such_method()),
                }
            }
        }
    }
}

fn server_arm(number: usize, method: &Method, format: &TokenStream) -> TokenStream {
    let ident = &method.ident;
    let span = span_of(method);
    let arguments: Vec<&Ident> = method.arguments.iter().map(|(ident, _)| ident).collect();
    let context = method.takes_context.then(|| quote_spanned!(span=> cx,));
    let decode = quote_spanned! {span=>
        let (#(#arguments,)*) = ::tidewire::typed::generated::arguments::<#format, _>(cx, message)?;
    };
    let body = match method.answer {
        Answer::Returned(_) => quote_spanned! {span=>
            let outcome = self.handlers.#ident(#context #(#arguments),*);
            ::tidewire::typed::generated::answer::<#format, _>(cx, &outcome)
        },
        Answer::Deferred(_) => quote_spanned! {span=>
            let reply = ::tidewire::typed::generated::defer::<#format, _>(cx);
            self.handlers.#ident(#context #(#arguments,)* reply);
            ::core::result::Result::Ok(())
        },
        Answer::OneWay => quote_spanned! {span=>
            self.handlers.#ident(#context #(#arguments),*);
            ::tidewire::typed::generated::acknowledge::<#format>(cx)
        },
    };
    quote_spanned!(span=> #number => { #decode #body })
}

fn client(item: &ItemTrait, service: &Service) -> TokenStream {
    let (vis, ident) = (&item.vis, &item.ident);
    let name = client_name(ident);
    let wire_names = service.methods.iter().map(|method| &method.wire_name);
    let methods = service
        .methods
        .iter()
        .enumerate()
        .map(|(number, method)| client_method(ident, number, method, &service.format));
    let docs = format!("Calls a [`{ident}`] over the wire. Made by `#[tidewire::service]`.");
    quote_spanned! {Span::mixed_site()=>
        #[doc = #docs]
        #[allow(dead_code)]
        #[derive(Clone, Debug)]
        #vis struct #name {
            client: ::tidewire::Client,
        }

        #[allow(dead_code)]
        impl #name {
            /// The wire names of the methods, in the order of the trait.
            pub const METHODS: &'static [&'static str] = &[#(#wire_names),*];

            /// Makes calls over this client's connection. Other code may use the connection too.
            #[must_use]
            pub fn new(client: ::tidewire::Client) -> Self {
                Self { client }
            }

            #(#methods)*
        }

        impl ::core::convert::AsRef<::tidewire::Client> for #name {
            fn as_ref(&self) -> &::tidewire::Client {
                &self.client
            }
        }
    }
}

fn client_method(
    service: &Ident,
    number: usize,
    method: &Method,
    format: &TokenStream,
) -> TokenStream {
    let Method { ident, docs, .. } = method;
    let span = span_of(method);
    let said = format!("Calls `{service}::{ident}`.");
    let docs = if docs.is_empty() {
        quote!(#[doc = #said])
    } else {
        quote!(#(#docs)*)
    };
    let names: Vec<&Ident> = method.arguments.iter().map(|(ident, _)| ident).collect();
    let types = method.arguments.iter().map(|(_, ty)| ty);
    let travels = quote_spanned!(span=> &(#(#names,)*));
    match &method.answer {
        Answer::Returned(outcome) | Answer::Deferred(outcome) => {
            let Outcome { value, error } = outcome;
            let (kind, decode) = match error {
                Some(error) => (
                    quote!(#value, #error),
                    quote!(fallible::<#format, #value, #error>),
                ),
                None => (quote!(#value), quote!(infallible::<#format, #value>)),
            };
            quote_spanned! {span=>
                #docs
                pub fn #ident(&self, #(#names: #types),*) -> ::tidewire::typed::TypedCall<'_, #kind> {
                    ::tidewire::typed::generated::call::<#format, _, _>(
                        &self.client,
                        Self::METHODS[#number],
                        #travels,
                        ::tidewire::typed::generated::#decode,
                    )
                }
            }
        }
        Answer::OneWay => quote_spanned! {span=>
            #docs
            ///
            /// # Errors
            /// The arguments cannot be encoded, or the message cannot be enqueued. `Ok` means that the message is on
            /// its way to the socket. If the connection ends before that, the client gets an event.
            pub fn #ident(&self, #(#names: #types),*) -> ::core::result::Result<(), ::tidewire::typed::CallError> {
                ::tidewire::typed::generated::send_one_way::<#format>(
                    &self.client,
                    Self::METHODS[#number],
                    #travels,
                )
            }
        },
    }
}

/// Returns a span with the macro's hygiene at the method's position: the compiler then reports a type without serde's
/// traits there.
fn span_of(method: &Method) -> Span {
    Span::mixed_site().located_at(method.ident.span())
}

fn server_name(ident: &Ident) -> Ident {
    format_ident!("{ident}Server")
}

fn client_name(ident: &Ident) -> Ident {
    format_ident!("{ident}Client")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the generated code for this trait, without spaces.
    fn written(item: &TokenStream) -> String {
        let written = service(TokenStream::new(), item).to_string();
        written.split_whitespace().collect()
    }

    #[test]
    fn a_trait_becomes_itself_a_server_and_a_client() {
        let written = written(&quote! {
            /// Words.
            pub(crate) trait Store {
                #[method(one_way)]
                fn put(&mut self, cx: &mut Context<'_>, key: String);
            }
        });
        for part in [
            "pub(crate)traitStore{fnput(&mutself,cx:&mutContext<'_>,key:String);}",
            "pub(crate)structStoreServer<Handlers>",
            "pub(crate)structStoreClient",
            "self.handlers.put(cx,key)",
            "pubfnput(&self,key:String)",
        ] {
            assert!(written.contains(part), "{part}: {written}");
        }
        assert!(!written.contains("compile_error"), "{written}");
    }

    #[test]
    fn a_refused_trait_is_still_there_and_nothing_of_ours() {
        let written = written(&quote! {
            trait Store {
                #[method(one_way)]
                fn put(self);
            }
        });
        assert!(written.contains("compile_error!"), "{written}");
        assert!(written.ends_with("traitStore{fnput(self);}"), "{written}");
    }

    #[test]
    fn items_other_than_traits_stay_unchanged() {
        let written = written(&quote!(
            struct Store;
        ));
        assert!(written.contains("standsonatrait"), "{written}");
        assert!(written.ends_with("structStore;"), "{written}");
    }
}
