//! The `printk` part: checks the format against its arguments, and writes both as text of a format file.

use proc_macro::{Group, TokenStream};

use crate::{
    conversion::{self, Width},
    cursor::{Cursor, Error, Result},
    expr::{Expr, Piece, Reader, quoted},
    fill,
    item::{Field, Shape},
};

/// A print format.
#[derive(Debug, Default)]
pub(crate) struct Printk {
    /// Its text.
    pub(crate) pieces: Vec<Piece>,
    /// Items with the checks that only the compiler can do.
    pub(crate) checks: TokenStream,
}

/// Parses the part.
pub(crate) fn read(group: &Group, fields: &[Field]) -> Result<Printk> {
    let mut from = Cursor::of_group(group);
    let (format, format_span) = from.text("a format in quotation marks")?;
    let reader = Reader { fields };
    let mut args = Vec::new();
    while from.take_punct(',') {
        if from.is_empty() {
            break;
        }
        args.push(reader.expr(&mut from)?);
    }
    if !from.is_empty() {
        return from.fail("`,` is expected between arguments");
    }
    let wanted =
        conversion::conversions(&format).map_err(|message| Error::new(format_span, message.to_string()))?;
    if let Some(extra) = args.get(wanted.len()) {
        return Err(Error::new(
            extra.span,
            format!("the format has only {}", counted(wanted.len(), "conversion")),
        ));
    }
    if let Some(missing) = wanted.get(args.len()) {
        let message = format!(
            "`{}` has no argument: the format has {}, and there {} {}",
            missing.text,
            counted(wanted.len(), "conversion"),
            if args.len() == 1 { "is" } else { "are" },
            counted(args.len(), "argument"),
        );
        return Err(Error::new(format_span, message));
    }
    let mut printk = Printk { pieces: vec![Piece::Text(quoted(&format))], checks: TokenStream::new() };
    for (conversion, arg) in wanted.iter().zip(args) {
        let width = conversion
            .takes(arg.kind)
            .map_err(|why| Error::new(arg.span, format!("`{}`: {} {why}", conversion.text, named(&arg))))?;
        if let Some(width) = width {
            printk.checks.extend(check(&arg, width, &conversion.text, fields));
        }
        printk.pieces.push(Piece::Text(", ".to_owned()));
        printk.pieces.extend(arg.pieces);
    }
    Ok(printk)
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}"),
        1 => format!("one {what}"),
        count => format!("{count} {what}s"),
    }
}

fn named(arg: &Expr) -> String {
    arg.field.as_ref().map_or_else(|| "this".to_owned(), |name| format!("`entry.{name}`"))
}

/// A check by the compiler of a field's size, for a type that only the program defines.
fn check(arg: &Expr, width: Width, conversion: &str, fields: &[Field]) -> TokenStream {
    let field = arg.field.as_ref().and_then(|name| fields.iter().find(|field| field.name() == *name));
    let Some(field) = field.filter(|field| matches!(field.shape, Shape::Field)) else {
        return TokenStream::new();
    };
    let (test, wants) = match width {
        Width::FourAtMost => ("<= 4", "at most four bytes"),
        Width::Eight => ("== 8", "eight bytes"),
    };
    let message =
        format!("`{conversion}` requires a number of {wants}, and `entry.{}` has another size", field.name());
    fill::fill(
        &format!("const _: () = ::core::assert!(::core::mem::size_of::<TYPE>() {test}, MESSAGE);"),
        &[("TYPE", field.ty.clone()), ("MESSAGE", fill::text(&message))],
    )
}
