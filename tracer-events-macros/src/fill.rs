//! Rust text with holes, as tokens: what `quote!` does, as far as it is needed here.

use proc_macro::{Group, Ident, Literal, TokenStream, TokenTree};

/// Reads text and puts tokens where a hole's name stands as a word.
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

/// A word made of another, at the same place.
pub(crate) fn named(prefix: &str, ident: &Ident, suffix: &str) -> Ident {
    Ident::new(&format!("{prefix}{}{suffix}", plain(ident)), ident.span())
}

/// A word without the mark that lets it be a keyword.
pub(crate) fn plain(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
}

/// A text literal.
pub(crate) fn text(text: &str) -> TokenStream {
    TokenTree::from(Literal::string(text)).into()
}

/// A number without a type.
pub(crate) fn number(number: usize) -> TokenStream {
    TokenTree::from(Literal::usize_unsuffixed(number)).into()
}
