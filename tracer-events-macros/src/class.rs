//! The expansion of a class: the record's type, the function that its events share, and the description of its fields.

use std::fmt::Write as _;

use proc_macro::{Ident, Span, TokenStream, TokenTree};

use crate::{
    fill::{fill, named, number, text, word},
    item::{Class, Field, Head, Param, Shape},
};

/// Names of the items of a class.
pub(crate) fn fields_type(name: &Ident) -> Ident {
    named("__TraceFields_", name, "")
}
pub(crate) fn function(name: &Ident) -> Ident {
    named("__trace_class_", name, "")
}
pub(crate) fn known(name: &Ident) -> Ident {
    named("__TRACE_CLASS_", name, "")
}

/// The items of a class.
pub(crate) fn items(head: &Head, class: &Class) -> TokenStream {
    let mut members = TokenStream::new();
    let mut layout = TokenStream::new();
    let mut infos = TokenStream::new();
    let mut methods = TokenStream::new();
    let mut dynamic = TokenStream::new();
    for field in &class.fields {
        let name = ("NAME", word(&field.name));
        let ty = ("TYPE", field.ty.clone());
        members.extend(fill("pub(crate) NAME: MEMBER,", &[name.clone(), ("MEMBER", member(field))]));
        layout.extend(fill(
            "[
                ::core::mem::offset_of!(FIELDS, NAME),
                ::core::mem::size_of::<MEMBER>(),
                <TYPE as ::tracer_events::Value>::SIGNED as usize,
                ::core::mem::size_of::<MEMBER>() / ::core::mem::size_of::<TYPE>(),
            ],",
            &[
                name.clone(),
                ty.clone(),
                ("MEMBER", member(field)),
                ("FIELDS", word(&fields_type(&head.name))),
            ],
        ));
        let kind = match field.shape {
            Shape::Field => "Value",
            Shape::Array { .. } => "Array",
            Shape::String { .. } | Shape::Dynamic { .. } => "Dynamic",
        };
        infos.extend(fill(
            "::tracer_events::Field { name: TEXT, ty: C, kind: ::tracer_events::Kind::KIND },",
            &[
                ("TEXT", text(&field.name())),
                ("C", text(&field.c)),
                ("KIND", word(&Ident::new(kind, Span::call_site()))),
            ],
        ));
        match &field.shape {
            Shape::String { source } => dynamic.extend(fill(
                "{
                    let __at = entry.0.string(::core::convert::AsRef::<[u8]>::as_ref(&(SOURCE)));
                    entry.0.fields().NAME = __at;
                }",
                &[name, ("SOURCE", source.clone())],
            )),
            Shape::Dynamic { length } => {
                dynamic.extend(fill(
                    "{
                        let __at = entry.0.array::<TYPE>(LENGTH);
                        entry.0.fields().NAME = __at;
                    }",
                    &[name.clone(), ty.clone(), ("LENGTH", length.clone())],
                ));
                methods.extend(fill(
                    "fn NAME(&mut self) -> &mut [TYPE] {
                        let __at = self.0.fields().NAME;
                        self.0.slice::<TYPE>(__at)
                    }",
                    &[name, ty],
                ));
            }
            Shape::Field | Shape::Array { .. } => {}
        }
    }
    let space = if class.fields.iter().any(Field::is_dynamic) {
        "+ ::tracer_events::__private::DATA_MAX"
    } else {
        ""
    };
    let last = match class.fields.len() {
        0 => "8".to_owned(),
        fields => format!("FIELDS::LAYOUT[{0}][0] + FIELDS::LAYOUT[{0}][1]", fields - 1),
    };
    let mut code = String::from(
        "#[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, unreachable_pub, missing_docs)]
        #[repr(C)]
        #[derive(Clone, Copy)]
        VIS struct FIELDS { __common: [u32; 2], MEMBERS }

        impl FIELDS {
            #[doc(hidden)]
            #[allow(dead_code, unreachable_pub)]
            pub const LAYOUT: [[usize; 4]; COUNT] = [LAYOUT_OF_FIELDS];
        }

        #[allow(unsafe_code)]
        unsafe impl ::tracer_events::__private::Fields for FIELDS {
            const END: usize = LAST;
        }

        #[doc(hidden)]
        #[allow(non_upper_case_globals, unreachable_pub)]
        VIS static KNOWN: ::tracer_events::Class = ::tracer_events::Class::new(&[INFOS], &FIELDS::LAYOUT);
        ",
    );
    let _ = write!(
        code,
        "#[doc(hidden)]
        #[allow(non_snake_case, unreachable_pub, clippy::too_many_arguments, clippy::needless_pass_by_value, clippy::items_after_statements)]
        #[cold]
        #[inline(never)]
        VIS fn FUNCTION(__event: &'static ::tracer_events::Event, PARAMS) {{
            struct Entry(::tracer_events::__private::Record<FIELDS, {{ ::core::mem::size_of::<FIELDS>() {space} }}>);
            impl ::core::ops::Deref for Entry {{
                type Target = FIELDS;
                #[inline]
                fn deref(&self) -> &FIELDS {{ self.0.read() }}
            }}
            impl ::core::ops::DerefMut for Entry {{
                #[inline]
                fn deref_mut(&mut self) -> &mut FIELDS {{ self.0.fields() }}
            }}
            #[allow(dead_code)]
            impl Entry {{ METHODS }}
            #[allow(unused_mut)]
            let mut entry = Entry(::tracer_events::__private::Record::new());
            DYNAMIC
            {{
                #[allow(unused_imports)]
                use ::tracer_events::Text as _;
                ASSIGN
            }}
            ::tracer_events::__private::submit(__event, &entry.0);
        }}"
    );
    let code = code.replace("LAST", &last);
    fill(
        &code,
        &[
            ("VIS", head.visibility.clone()),
            ("FIELDS", word(&fields_type(&head.name))),
            ("FUNCTION", word(&function(&head.name))),
            ("KNOWN", word(&known(&head.name))),
            ("COUNT", number(class.fields.len())),
            ("MEMBERS", members),
            ("LAYOUT_OF_FIELDS", layout),
            ("INFOS", infos),
            ("PARAMS", params(&class.params)),
            ("METHODS", methods),
            ("DYNAMIC", dynamic),
            ("ASSIGN", class.assign.clone()),
        ],
    )
}

/// The type of a field in the record.
fn member(field: &Field) -> TokenStream {
    match &field.shape {
        Shape::Field => field.ty.clone(),
        Shape::Array { length } => {
            fill("[TYPE; LENGTH]", &[("TYPE", field.ty.clone()), ("LENGTH", length.clone())])
        }
        Shape::String { .. } | Shape::Dynamic { .. } => fill("::tracer_events::DataLoc", &[]),
    }
}

/// The parameter list of a function.
pub(crate) fn params(params: &[Param]) -> TokenStream {
    params
        .iter()
        .flat_map(|param| fill("NAME: TYPE,", &[("NAME", word(&param.name)), ("TYPE", param.ty.clone())]))
        .collect()
}

/// The argument list that passes a function's parameters on.
pub(crate) fn arguments(params: &[Param]) -> TokenStream {
    params.iter().flat_map(|param| fill("NAME,", &[("NAME", word(&param.name))])).collect()
}

/// A path with its last word replaced.
pub(crate) fn with_last_word(path: &[TokenTree], last: Ident) -> TokenStream {
    let (_, front) = path.split_last().expect("a path has a word");
    front.iter().cloned().chain([TokenTree::Ident(last)]).collect()
}
