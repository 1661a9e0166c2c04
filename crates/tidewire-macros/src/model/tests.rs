//! Tests that each misuse is refused with its remedy, and that the signature determines the names.

use quote::quote;

use super::*;

fn tokens(text: &str) -> TokenStream {
    text.parse().unwrap()
}

fn read_with(attribute: TokenStream, item: TokenStream) -> Result<Service> {
    let mut item = syn::parse2(item).unwrap();
    Service::read(attribute, &mut item)
}

fn read(item: TokenStream) -> Result<Service> {
    read_with(TokenStream::new(), item)
}

/// Returns the wire name of the first method.
fn name_with(attribute: TokenStream, item: TokenStream) -> String {
    let service = read_with(attribute, item).unwrap();
    service.methods[0].wire_name.clone()
}

/// Returns the wire name of a method of the trait `Store`.
fn name(method: &TokenStream) -> String {
    name_with(TokenStream::new(), quote!(trait Store { #method }))
}

/// Returns every error of one method, joined.
fn refusal(method: &TokenStream) -> String {
    match read(quote!(trait Store { #method })) {
        Ok(_) => panic!("accepted: {method}"),
        Err(error) => {
            let texts: Vec<String> = error.into_iter().map(|error| error.to_string()).collect();
            texts.join(" | ")
        }
    }
}

#[test]
fn every_misuse_of_a_method_has_its_words() {
    for (method, expected) in MISUSED_METHODS {
        let words = refusal(&tokens(method));
        assert!(words.contains(expected), "{method}: {words}");
    }
}

#[test]
fn every_misuse_of_a_trait_has_its_words() {
    for (attribute, item, expected) in MISUSED_TRAITS {
        let error = read_with(tokens(attribute), tokens(item)).err();
        let words = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(words.contains(expected), "{item}: {words}");
    }
}

#[test]
fn several_mistakes_are_reported_at_once() {
    let words = refusal(&quote!(
        fn a(self, name: &str);
        fn b(&self, (c, d): (u8, u8));
    ));
    assert_eq!(words.matches(" | ").count(), 2, "{words}");
}

#[test]
fn a_name_has_service_method_version_and_fingerprint() {
    let item = quote!(
        trait MarketData {
            fn r#type(&self, symbol: String) -> u8;
        }
    );
    let first = name_with(quote!(), item.clone());
    let (front, fingerprint) = first.rsplit_once('.').unwrap();
    assert_eq!(front, "market_data.type.v1");
    assert_eq!(fingerprint.len(), 8);
    let second = name_with(quote!(version = 2, name = "data"), item);
    assert_eq!(second, format!("data.type.v2.{fingerprint}"));
}

#[test]
fn every_part_of_a_signature_changes_the_name() {
    let different = [
        quote!(
            fn a(&self, b: u8, c: u16) -> u8;
        ),
        quote!(
            fn a(&self, c: u16, b: u8) -> u8;
        ),
        quote!(
            fn a(&self, b: u16, c: u8) -> u8;
        ),
        quote!(
            fn a(&self, b: u8) -> u8;
        ),
        quote!(
            fn a(&self, b: u8, c: u16) -> u16;
        ),
        quote!(
            fn a(&self, b: u8, c: u16) -> Result<u8, u8>;
        ),
        quote!(
            fn a(&self, b: u8, c: u16) -> (u8, u8);
        ),
        quote!(
            fn a(&self, b: u8, c: u16);
        ),
        quote!(
            #[method(one_way)]
            fn a(&self, b: u8, c: u16);
        ),
    ];
    let mut names: Vec<String> = different.iter().map(name).collect();
    let item = quote!(
        trait Store {
            fn a(&self, b: u8, c: u16) -> u8;
        }
    );
    names.push(name_with(quote!(format = Json), item));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), different.len() + 1);
}

#[test]
fn how_the_server_does_it_does_not_change_the_name() {
    let same = [
        quote!(
            fn a(&self, b: u8) -> Result<u8, u16>;
        ),
        quote!(
            fn a(&mut self, b: u8) -> Result<u8, u16>;
        ),
        quote!(
            fn a(&mut self, cx: &mut tidewire::Context<'_>, b: u8) -> Result<u8, u16>;
        ),
        quote!(
            fn a(&mut self, b: u8, reply: DeferredReply<Result<u8, u16>>);
        ),
        quote!(
            fn a(&mut self, mut b: u8) -> std::result::Result<u8, u16>;
        ),
        quote!(
            /** Words. */
            fn a(&self, b: u8) -> Result<u8, u16> {
                Ok(b)
            }
        ),
    ];
    for method in &same {
        assert_eq!(name(method), name(&same[0]), "{method}");
    }
    assert_eq!(
        name(&quote!(
            fn a(&self);
        )),
        name(&quote!(
            fn a(&self) -> ();
        ))
    );
}

#[test]
fn a_chosen_name_is_taken_as_it_is() {
    let method = quote!(
        #[method(name = "Login")]
        fn a(&self);
    );
    assert_eq!(name(&method), "Login");
}

#[test]
fn our_attributes_are_taken_out_also_when_the_trait_is_refused() {
    let mut item = syn::parse_quote! {
        trait Store { /** Words. */ #[method(one_way)] fn a(self); }
    };
    assert!(Service::read(TokenStream::new(), &mut item).is_err());
    let TraitItem::Fn(function) = &item.items[0] else {
        panic!("not a method");
    };
    assert_eq!(function.attrs.len(), 1);
}

/// A method, and a part of the error that refuses it.
const MISUSED_METHODS: &[(&str, &str)] = &[
    ("fn a(&self, b: &str);", "take `String` for `&str`"),
    ("fn a(&self) -> &'static str;", "must be owned types"),
    ("fn a(&self, b: Vec<&u8>);", "must be owned types"),
    (
        "fn a(&self, b: Cow<'static, str>);",
        "a type with a lifetime",
    ),
    ("fn a(&self, b: DeferredReply<&u8>);", "must be owned types"),
    (
        "fn a(&self, b: u8, cx: &mut Context<'_>);",
        "the context comes first",
    ),
    ("fn a(self);", "must take `&mut self` or `&self`"),
    ("fn a(self: Box<Self>);", "must take `&mut self` or `&self`"),
    ("fn a(b: u8);", "must take `&mut self` or `&self`"),
    ("fn a<T>(&self, b: T);", "cannot be generic"),
    ("fn a(&self) where u8: Copy;", "cannot be generic"),
    ("fn a(&self, b: impl Copy);", "name the type"),
    ("fn a(&self) -> Self;", "`Self` is the server's own type"),
    (
        "fn a(&self) -> Option<Self::Item>;",
        "`Self` is the server's own",
    ),
    ("async fn a(&self);", "take a `DeferredReply`"),
    ("unsafe fn a(&self);", "a plain `fn`"),
    ("extern \"C\" fn a(&self);", "a plain `fn`"),
    ("fn new(&self);", "`new` makes a client"),
    ("fn a(&self, (b, c): (u8, u8));", "needs a plain name"),
    ("fn a(&self, _: u8);", "needs a plain name"),
    ("fn a(&self) -> Result<u8>;", "write both types"),
    (
        "fn a(&self, b: DeferredReply<Result<u8>>);",
        "write both types",
    ),
    (
        "fn a(&self, b: DeferredReply);",
        "name the type of the answer",
    ),
    (
        "fn a(&self, b: DeferredReply<u8>, c: u8);",
        "is the last parameter",
    ),
    ("fn a(&self, b: DeferredReply<u8>) -> u8;", "not both"),
    ("#[method(one_way)] fn a(&self) -> u8;", "has no answer"),
    (
        "#[method(one_way)] fn a(&self, b: DeferredReply<u8>);",
        "has no answer",
    ),
    (
        "#[method(two_way)] fn a(&self);",
        "a method has `one_way` and `name`",
    ),
    ("#[method(name = \"\")] fn a(&self);", "cannot be empty"),
    ("#[method(name = \"a b\")] fn a(&self);", "' ' is none"),
    ("fn größe(&self);", "'ö' is none; choose another"),
    ("#[cfg(test)] fn a(&self);", "cannot be conditional"),
    (
        "fn a(&self); fn a(&self);",
        "`a` has the name of `a` on the wire",
    ),
    (
        "#[method(name = \"Same\")] fn a(&self); #[method(name = \"same\")] fn b(&self);",
        "`b` has the name of `a` on the wire, `same`",
    ),
    (
        "fn z(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, \
         k: u8, l: u8, m: u8, n: u8, o: u8, p: u8, q: u8);",
        "at most 16 arguments",
    ),
];

/// An attribute, a trait, and a part of the error that refuses them.
const MISUSED_TRAITS: &[(&str, &str, &str)] = &[
    ("", "trait A<T> { fn a(&self, t: T); }", "cannot be generic"),
    (
        "",
        "trait A where u8: Copy { fn a(&self); }",
        "cannot be generic",
    ),
    ("", "unsafe trait A { fn a(&self); }", "cannot be unsafe"),
    ("", "trait A {}", "at least one method"),
    (
        "",
        "trait A { type B; fn a(&self); }",
        "can have methods only",
    ),
    (
        "",
        "trait A { const B: u8; fn a(&self); }",
        "can have methods only",
    ),
    (
        "colour = 1",
        "trait A { fn a(&self); }",
        "`version`, `name` and `format`",
    ),
    (
        "version = \"1\"",
        "trait A { fn a(&self); }",
        "integer literal",
    ),
    (
        "version = 5000000000",
        "trait A { fn a(&self); }",
        "too large",
    ),
    (
        "name = \"a b\"",
        "trait A { fn a(&self); }",
        "visible ASCII",
    ),
];
