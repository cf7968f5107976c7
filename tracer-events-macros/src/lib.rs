//! Macros of `tracer-events`; that crate documents them. This crate has no dependencies: it parses tokens by hand
//! ([`cursor`]), generates code from templates with holes ([`fill`]), and reports errors at the span of the wrong
//! token.
//!
//! A class expands to a type, a function and a `macro_rules!` with the text of the class ([`class`]). An event expands
//! to a word, a site and a note ([`event`]). `define_event!` cannot see another macro's input. It therefore calls the
//! class's `macro_rules!`, which passes the text of the class to [`__event!`](macro@__event).

mod class;
mod conversion;
mod cursor;
mod event;
mod expr;
mod fill;
mod item;
mod printk;
mod types;

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

use cursor::{Cursor, Error, Result};
use fill::{fill, named, word};
use item::{Class, Head};
use printk::Printk;

/// Defines an event with its own class.
#[proc_macro]
pub fn trace_event(input: TokenStream) -> TokenStream {
    expanded(trace_event_of(input))
}

/// Defines a class: the common part of several events.
#[proc_macro]
pub fn declare_event_class(input: TokenStream) -> TokenStream {
    expanded(class_of(input))
}

/// Defines an event of a class.
#[proc_macro]
pub fn define_event(input: TokenStream) -> TokenStream {
    expanded(event_of(input, false))
}

/// Defines an event of a class with its own print format.
#[proc_macro]
pub fn define_event_print(input: TokenStream) -> TokenStream {
    expanded(event_of(input, true))
}

/// Called by a class's `macro_rules!`.
#[doc(hidden)]
#[proc_macro]
pub fn __event(input: TokenStream) -> TokenStream {
    expanded(event_with_class(input))
}

fn expanded(made: Result<TokenStream>) -> TokenStream {
    made.unwrap_or_else(Error::into_tokens)
}

/// Parses the head and the parameters.
fn start(from: &mut Cursor) -> Result<(Head, Group)> {
    let head = Head::read(from, "the event's name")?;
    item::check_name(&fill::plain(&head.name), head.name.span())?;
    let params = from.group(Delimiter::Parenthesis, "the parameters in parentheses")?;
    from.take_punct(',');
    Ok((head, params))
}

/// Parses a print format. On an error, returns an empty one and the tokens that report the error.
fn printk(group: &Group, class: &Class) -> (Printk, TokenStream) {
    match printk::read(group, &class.fields) {
        Ok(printk) => (printk, TokenStream::new()),
        Err(error) => (Printk::default(), error.into_tokens()),
    }
}

fn trace_event_of(input: TokenStream) -> Result<TokenStream> {
    let mut from = Cursor::new(input, Span::call_site());
    let (head, params) = start(&mut from)?;
    let system = item::system(&mut from)?;
    let class = Class::read(&mut from, params)?;
    let (printk, mut items) = printk(&class.printk, &class);
    items.extend(class::items(&head, &class));
    let path = [TokenTree::Ident(head.name.clone())];
    items.extend(event::items(&head, &system, &path, &class, &printk));
    Ok(items)
}

fn class_of(input: TokenStream) -> Result<TokenStream> {
    let mut from = Cursor::new(input, Span::call_site());
    let (head, params) = start(&mut from)?;
    let class = Class::read(&mut from, params)?;
    // Report errors here, not at each event.
    let (_, mut items) = printk(&class.printk, &class);
    let broken = !items.is_empty();
    items.extend(class::items(&head, &class));
    let mut text = class_text(&class);
    if broken {
        let empty = fill("printk(\"\")", &[]);
        text = class_text_with(&class, empty);
    }
    items.extend(fill(
        "#[doc(hidden)]
        #[allow(unused_macros)]
        macro_rules! MACRO {
            ({ $($head:tt)* }) => { ::tracer_events::__event! { { $($head)* } { CLASS } } };
        }
        #[doc(hidden)]
        #[allow(unused_imports)]
        pub(crate) use MACRO;",
        &[("MACRO", word(&named("__trace_class_macro_", &head.name, ""))), ("CLASS", text)],
    ));
    Ok(items)
}

/// The parts of a class that its events need.
fn class_text(class: &Class) -> TokenStream {
    let group = TokenTree::Group(class.printk.clone());
    class_text_with(class, fill("printk GROUP", &[("GROUP", group.into())]))
}

fn class_text_with(class: &Class, printk: TokenStream) -> TokenStream {
    let mut fields = TokenStream::new();
    for field in &class.fields {
        use item::Shape;
        let c = fill::text(&field.c);
        // Lengths and sources belong to the class; an event needs only the kinds.
        let one = match &field.shape {
            Shape::Field if field.pointer => "field(*const () as C, NAME),",
            Shape::Field => "field(TYPE as C, NAME),",
            Shape::Array { .. } => "array(TYPE as C, NAME, 0),",
            Shape::String { .. } => "string(NAME, 0),",
            Shape::Dynamic { .. } => "dynamic_array(TYPE as C, NAME, 0),",
        };
        fields.extend(fill(one, &[("TYPE", field.ty.clone()), ("C", c), ("NAME", word(&field.name))]));
    }
    let params = TokenTree::Group(class.params_group.clone());
    fill(
        "PARAMS, entry { FIELDS }, PRINTK",
        &[("PARAMS", params.into()), ("FIELDS", fields), ("PRINTK", printk)],
    )
}

/// `NAME, class = PATH, system = "..." [, printk(...)]`
fn event_of(input: TokenStream, prints: bool) -> Result<TokenStream> {
    let mut from = Cursor::new(input, Span::call_site());
    let head = Head::read(&mut from, "the event's name")?;
    item::check_name(&fill::plain(&head.name), head.name.span())?;
    from.punct(',')?;
    from.word("class")?;
    from.punct('=')?;
    let at = from.span();
    let path: Vec<TokenTree> = from.until_comma().into_iter().collect();
    let Some(TokenTree::Ident(last)) = path.last() else {
        return Err(Error::new(at, "the path of a class is expected here"));
    };
    let called = class::with_last_word(&path, named("__trace_class_macro_", last, ""));
    let system_at = from.span();
    let system = item::system(&mut from)?;
    let mut printk = TokenStream::new();
    if prints {
        from.word("printk")?;
        let group = from.group(Delimiter::Parenthesis, "the format and its arguments in parentheses")?;
        printk = fill("printk GROUP", &[("GROUP", TokenTree::Group(group).into())]);
        from.take_punct(',');
    }
    if !from.is_empty() {
        return from.fail("nothing more is expected here; `define_event_print!` takes a `printk`");
    }
    let mut system = proc_macro::Literal::string(&system);
    system.set_span(system_at);
    Ok(fill(
        "CALLED! { { ATTRIBUTES VIS NAME, PATH, system = SYSTEM, PRINTK } }",
        &[
            ("CALLED", called),
            ("ATTRIBUTES", head.attributes),
            ("VIS", head.visibility),
            ("NAME", word(&head.name)),
            ("PATH", path.into_iter().collect()),
            ("SYSTEM", TokenTree::from(system).into()),
            ("PRINTK", printk),
        ],
    ))
}

/// `{ head } { class }`
fn event_with_class(input: TokenStream) -> Result<TokenStream> {
    let mut both = Cursor::new(input, Span::call_site());
    let own = both.group(Delimiter::Brace, "an event")?;
    let class = both.group(Delimiter::Brace, "a class")?;

    let mut from = Cursor::of_group(&class);
    let params = from.group(Delimiter::Parenthesis, "parameters")?;
    let mut class = Class::read(&mut from, params)?;

    let mut from = Cursor::of_group(&own);
    let head = Head::read(&mut from, "the event's name")?;
    from.punct(',')?;
    let path: Vec<TokenTree> = from.until_comma().into_iter().collect();
    let system = item::system(&mut from)?;
    if from.take_word("printk") {
        class.printk = from.group(Delimiter::Parenthesis, "the format and its arguments in parentheses")?;
    }
    let (printk, mut items) = printk(&class.printk, &class);
    items.extend(event::items(&head, &system, &path, &class, &printk));
    Ok(items)
}
