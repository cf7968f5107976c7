//! Rust text with placeholders ("holes"), as tokens: the part of `quote!` that this crate needs.

use proc_macro::{Group, Ident, Literal, TokenStream, TokenTree};

/// Parses text and replaces each hole's name with its tokens.
pub(crate) fn fill(text: &str, holes: &[(&str, TokenStream)]) -> TokenStream {
    replaced(text.parse().expect("the text is Rust"), holes)
}

fn replaced(tokens: TokenStream, holes: &[(&str, TokenStream)]) -> TokenStream {
    let mut out = TokenStream::new();
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), replaced(group.stream(), holes));
                inner.set_span(group.span());
                out.extend([TokenTree::Group(inner)]);
            }
            TokenTree::Ident(ident) => {
                let word = ident.to_string();
                match holes.iter().find(|(name, _)| *name == word) {
                    Some((_, tokens)) => out.extend(tokens.clone()),
                    None => out.extend([TokenTree::Ident(ident)]),
                }
            }
            other => out.extend([other]),
        }
    }
    out
}

/// One word as tokens.
pub(crate) fn word(ident: &Ident) -> TokenStream {
    TokenTree::from(ident.clone()).into()
}

/// An identifier derived from another, with the same span.
pub(crate) fn named(prefix: &str, ident: &Ident, suffix: &str) -> Ident {
    Ident::new(&format!("{prefix}{}{suffix}", plain(ident)), ident.span())
}

/// An identifier without the `r#` prefix.
pub(crate) fn plain(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
}

/// A string literal.
pub(crate) fn text(text: &str) -> TokenStream {
    TokenTree::from(Literal::string(text)).into()
}

/// A number literal without a type suffix.
pub(crate) fn number(number: usize) -> TokenStream {
    TokenTree::from(Literal::usize_unsuffixed(number)).into()
}
