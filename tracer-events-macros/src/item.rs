//! The input of the macros: events, classes, fields.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::{
    cursor::{Cursor, Error, Result},
    expr::Kind,
    fill, types,
    types::Primitive,
};

/// The start of an item: attributes, visibility and name.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) attributes: TokenStream,
    pub(crate) visibility: TokenStream,
    pub(crate) name: Ident,
}

/// A parameter of the trace function.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub(crate) name: Ident,
    pub(crate) ty: TokenStream,
}

/// A field's representation in the record.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A value.
    Field,
    /// A fixed number of values.
    Array { length: TokenStream },
    /// A string after the record's fixed part.
    String { source: TokenStream },
    /// Values after the fixed part; the expression determines their number at each hit.
    Dynamic { length: TokenStream },
}

/// A field.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: Ident,
    pub(crate) shape: Shape,
    /// The Rust type; of an element if there are several.
    pub(crate) ty: TokenStream,
    /// The C type.
    pub(crate) c: String,
    /// The primitive type, if it is known by name.
    pub(crate) primitive: Option<Primitive>,
    pub(crate) pointer: bool,
}

/// The common part of the events of a class.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) params: Vec<Param>,
    pub(crate) params_group: Group,
    pub(crate) fields: Vec<Field>,
    pub(crate) assign: TokenStream,
    pub(crate) printk: Group,
}

impl Field {
    pub(crate) fn name(&self) -> String {
        fill::plain(&self.name)
    }

    pub(crate) fn is_pointer(&self) -> bool {
        self.pointer
    }

    pub(crate) fn is_char(&self) -> bool {
        self.c == "char"
    }

    /// The type of one value of the field.
    pub(crate) fn number(&self) -> Kind {
        Kind::Number { bytes: self.primitive.map(|ty| ty.bytes), constant: false }
    }

    /// Whether its data is after the fixed part.
    pub(crate) fn is_dynamic(&self) -> bool {
        matches!(self.shape, Shape::String { .. } | Shape::Dynamic { .. })
    }
}

impl Head {
    pub(crate) fn read(from: &mut Cursor, what: &str) -> Result<Self> {
        Ok(Self { attributes: from.attributes(), visibility: from.visibility(), name: from.ident(what)? })
    }
}

/// `system = "name"`
pub(crate) fn system(from: &mut Cursor) -> Result<String> {
    from.word("system")?;
    from.punct('=')?;
    let (system, span) = from.text("the system's name in quotation marks")?;
    from.take_punct(',');
    check_name(&system, span)?;
    Ok(system)
}

/// Checks a name, which serves as a directory name and as a C identifier.
pub(crate) fn check_name(name: &str, span: Span) -> Result<()> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && name.len() < 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        Ok(())
    } else {
        Err(Error::new(span, "a name has at most 63 of the characters a to z, A to Z, 0 to 9 and _"))
    }
}

impl Class {
    /// Parses the part after the head.
    pub(crate) fn read(from: &mut Cursor, params_group: Group) -> Result<Self> {
        let params = params(&params_group)?;
        from.take_punct(',');
        from.word("entry")?;
        let entry = from.group(Delimiter::Brace, "the fields in braces")?;
        let fields = fields(&entry)?;
        from.take_punct(',');
        let assign = if from.take_word("assign") {
            from.group(Delimiter::Brace, "statements in braces")?.stream()
        } else {
            TokenStream::new()
        };
        from.take_punct(',');
        from.word("printk")?;
        let printk = from.group(Delimiter::Parenthesis, "the format and its arguments in parentheses")?;
        from.take_punct(',');
        if !from.is_empty() {
            return from.fail("nothing more is expected here");
        }
        Ok(Self { params, params_group, fields, assign, printk })
    }
}

fn params(group: &Group) -> Result<Vec<Param>> {
    let mut from = Cursor::of_group(group);
    let mut params = Vec::new();
    while !from.is_empty() {
        let name = from.ident("a parameter's name")?;
        from.punct(':')?;
        let at = from.span();
        let ty = from.until_comma();
        if ty.is_empty() {
            return Err(Error::new(at, "a type is expected here"));
        }
        params.push(Param { name, ty });
    }
    Ok(params)
}

fn fields(group: &Group) -> Result<Vec<Field>> {
    let mut from = Cursor::of_group(group);
    let mut fields: Vec<Field> = Vec::new();
    while !from.is_empty() {
        let kind = from.ident("`field`, `field_ext`, `array`, `string` or `dynamic_array`")?;
        let inside = from.group(Delimiter::Parenthesis, "a field's type and name in parentheses")?;
        let field = field(&kind, &inside)?;
        check_name(&field.name(), field.name.span())?;
        if field.name().starts_with("common_") {
            return Err(Error::new(field.name.span(), "names that start with `common_` are the kernel's"));
        }
        if fields.iter().any(|other| other.name() == field.name()) {
            return Err(Error::new(
                field.name.span(),
                format!("there is a field `{}` already", field.name()),
            ));
        }
        fields.push(field);
        if !from.is_empty() && !from.take_punct(',') && !from.take_punct(';') {
            return from.fail("`,` is expected between fields");
        }
    }
    Ok(fields)
}

fn field(kind: &Ident, inside: &Group) -> Result<Field> {
    let mut from = Cursor::of_group(inside);
    let word = kind.to_string();
    if word == "string" {
        let name = from.ident("the field's name")?;
        from.punct(',')?;
        let source = rest(&mut from, "what the text is, at the hit")?;
        let ty = fill::fill("u8", &[]);
        let shape = Shape::String { source };
        return Ok(Field {
            name,
            shape,
            ty,
            c: "char".into(),
            primitive: types::find("char"),
            pointer: false,
        });
    }
    let at = from.span();
    let (mut ty, c) = split_type(from.until_comma())?;
    let text = ty.to_string();
    let pointer = types::is_pointer(&text);
    let primitive = types::find(&text);
    let c = match (c, primitive) {
        (Some(c), _) => c,
        (None, Some(ty)) => ty.c.to_owned(),
        (None, None) if pointer && text.contains("c_char") => "const char *".to_owned(),
        (None, None) if pointer => "const void *".to_owned(),
        (None, None) => {
            let message = format!(
                "`{text}` has no name in C that is known here: give it one, as in `{text} as \"pid_t\"`; known are u8 to u64, i8 to \
                 i64, usize, isize, bool, char and pointers"
            );
            return Err(Error::new(at, message));
        }
    };
    if primitive.is_some_and(|ty| ty.rust == "char") {
        ty = fill::fill("u8", &[]);
    }
    let name = from.ident("the field's name")?;
    let shape = match word.as_str() {
        "field" => Shape::Field,
        "field_ext" => {
            from.punct(',')?;
            let filter = from.ident("`FILTER_PTR_STRING` or `FILTER_OTHER`")?;
            match filter.to_string().as_str() {
                // As in the kernel, the type alone determines the filter.
                "FILTER_PTR_STRING" if c == "const char *" || c == "char *" => {}
                "FILTER_PTR_STRING" => {
                    let message = "a pointer to text has the type `*const c_char`, in C `const char *`";
                    return Err(Error::new(filter.span(), message));
                }
                "FILTER_OTHER" => {}
                _ => {
                    return Err(Error::new(
                        filter.span(),
                        "`FILTER_PTR_STRING` or `FILTER_OTHER` is expected here",
                    ));
                }
            }
            Shape::Field
        }
        "array" => {
            from.punct(',')?;
            Shape::Array { length: rest(&mut from, "how many there are")? }
        }
        "dynamic_array" => {
            from.punct(',')?;
            Shape::Dynamic { length: rest(&mut from, "how many there are at the hit")? }
        }
        _ => {
            let message = format!(
                "`{word}` is no kind of field; there are `field`, `field_ext`, `array`, `string` and `dynamic_array`"
            );
            return Err(Error::new(kind.span(), message));
        }
    };
    from.take_punct(',');
    if !from.is_empty() {
        return from.fail("nothing more is expected here");
    }
    if pointer && !matches!(shape, Shape::Field) {
        return Err(Error::new(at, "an array has numbers in it, no pointers"));
    }
    Ok(Field { name, shape, ty, c, primitive, pointer })
}

/// Splits a type from its C name after `as`.
fn split_type(tokens: TokenStream) -> Result<(TokenStream, Option<String>)> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let is_as = |tree: &TokenTree| matches!(tree, TokenTree::Ident(ident) if ident.to_string() == "as");
    match trees.iter().position(is_as) {
        None => Ok((trees.into_iter().collect(), None)),
        Some(at) => {
            let end = trees[at].span();
            let mut from = Cursor::new(trees[at + 1..].iter().cloned().collect(), end);
            let (c, span) = from.text("the type's name in C in quotation marks")?;
            let valid = |c: char| c.is_ascii_alphanumeric() || "_ *".contains(c);
            if c.is_empty() || !c.chars().all(valid) || !from.is_empty() {
                return Err(Error::new(span, "a type in C has letters, digits, `_`, blanks and `*`"));
            }
            Ok((trees[..at].iter().cloned().collect(), Some(c)))
        }
    }
}

fn rest(from: &mut Cursor, what: &str) -> Result<TokenStream> {
    let at = from.span();
    let tokens = from.until_comma();
    if tokens.is_empty() {
        return Err(Error::new(at, format!("{what} is expected here")));
    }
    if !from.is_empty() {
        return from.fail("nothing more is expected here");
    }
    Ok(tokens)
}
