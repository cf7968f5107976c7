//! The expansion of an event: its word and its site in the program, the note that describes it, and the function that
//! traces it.

use std::fmt::Write as _;

use proc_macro::{Ident, Span, TokenStream, TokenTree};

use crate::{
    class,
    expr::Piece,
    fill::{fill, named, plain, text, word},
    item::{Class, Head, Shape},
    printk::Printk,
};

/// The items of an event of the class at `path`.
pub(crate) fn items(
    head: &Head,
    system: &str,
    path: &[TokenTree],
    class: &Class,
    printk: &Printk,
) -> TokenStream {
    let Some(TokenTree::Ident(of)) = path.last() else { return TokenStream::new() };
    let fields = class::with_last_word(path, class::fields_type(of));
    let name = plain(&head.name);
    let mut note = Note { text: String::new(), constants: TokenStream::new(), count: 0 };
    for (at, field) in class.fields.iter().enumerate() {
        let of = |what: usize| {
            Piece::Value(fill(&format!("FIELDS::LAYOUT[{at}][{what}]"), &[("FIELDS", fields.clone())]))
        };
        let (ty, brackets) = match field.shape {
            Shape::Field | Shape::Array { .. } => {
                (field.c.clone(), matches!(field.shape, Shape::Array { .. }))
            }
            Shape::String { .. } | Shape::Dynamic { .. } => (format!("__data_loc {}[]", field.c), false),
        };
        note.push(&Piece::Text(format!("\tfield:{ty} {}", field.name())));
        if brackets {
            note.push(&Piece::Text("[".to_owned()));
            note.push(&of(3));
            note.push(&Piece::Text("]".to_owned()));
        }
        for (word, what) in [("offset", 0), ("size", 1), ("signed", 2)] {
            note.push(&Piece::Text(format!(";\t{word}:")));
            note.push(&of(what));
        }
        note.push(&Piece::Text(";\n".to_owned()));
    }
    note.push(&Piece::Text("\nprint fmt: ".to_owned()));
    for piece in &printk.pieces {
        note.push(piece);
    }
    note.push(&Piece::Text("\n".to_owned()));

    let holes = [
        ("VIS", head.visibility.clone()),
        ("ATTRIBUTES", head.attributes.clone()),
        ("EVENT", word(&named("__TRACE_EVENT_", &head.name, ""))),
        ("TRACE", word(&named("trace_", &head.name, ""))),
        ("ENABLED", word(&named("trace_", &head.name, "_enabled"))),
        ("NAME", text(&name)),
        ("SYSTEM", text(system)),
        ("NAME_LINE", text(&format!(".asciz \"{name}\""))),
        ("SYSTEM_LINE", text(&format!(".asciz \"{system}\""))),
        ("NOTE_LINE", text(&format!(".asciz \"{}\"", note.text))),
        ("CONSTANTS", note.constants),
        ("CHECKS", printk.checks.clone()),
        ("KNOWN", class::with_last_word(path, class::known(of))),
        ("FUNCTION", class::with_last_word(path, class::function(of))),
        ("PARAMS", class::params(&class.params)),
        ("ARGUMENTS", class::arguments(&class.params)),
        (
            "ENABLED_DOC",
            text(&format!(
                "Whether `{system}:{name}` is traced. Check it before computing expensive arguments."
            )),
        ),
    ];
    fill(
        "#[doc(hidden)]
        #[allow(non_upper_case_globals, unsafe_code, unreachable_pub)]
        #[used]
        #[unsafe(link_section = \"tracer_events\")]
        VIS static EVENT: ::tracer_events::Event = {
            CHECKS
            #[inline(never)]
            extern \"C\" fn site(record: *const u8, length: usize) {
                ::tracer_events::__site! {
                    EVENT, record, length, SYSTEM_LINE, NAME_LINE, NOTE_LINE, { CONSTANTS }
                }
            }
            ::tracer_events::Event::new(NAME, SYSTEM, &KNOWN, site)
        };

        ATTRIBUTES
        #[inline(always)]
        #[allow(dead_code, unreachable_pub, clippy::inline_always, clippy::too_many_arguments, clippy::needless_pass_by_value)]
        VIS fn TRACE(PARAMS) {
            if EVENT.is_enabled() {
                FUNCTION(&EVENT, ARGUMENTS);
            }
        }

        #[doc = ENABLED_DOC]
        #[inline(always)]
        #[allow(dead_code, unreachable_pub, clippy::inline_always)]
        #[must_use]
        VIS fn ENABLED() -> bool {
            EVENT.is_enabled()
        }",
        &holes,
    )
}

/// The text of a note, escaped for `.asciz \"...\"` in an assembler template.
struct Note {
    text: String,
    constants: TokenStream,
    count: usize,
}

impl Note {
    fn push(&mut self, piece: &Piece) {
        match piece {
            Piece::Text(text) => {
                for c in text.chars() {
                    match c {
                        '"' => self.text.push_str("\\\""),
                        '\\' => self.text.push_str("\\\\"),
                        '\n' => self.text.push_str("\\n"),
                        '\t' => self.text.push_str("\\t"),
                        '{' => self.text.push_str("{{"),
                        '}' => self.text.push_str("}}"),
                        c => self.text.push(c),
                    }
                }
            }
            Piece::Value(tokens) => {
                let name = format!("c{}", self.count);
                self.count += 1;
                let _ = write!(self.text, "{{{name}}}");
                self.constants.extend(fill(
                    "OPERAND = const { (VALUE) as i64 },",
                    &[("OPERAND", word(&Ident::new(&name, Span::call_site()))), ("VALUE", tokens.clone())],
                ));
            }
        }
    }
}
