//! Values on their way to a synthetic event, as a write to its `synth_event_trace` holds them: each a letter and, in the
//! machine's order of bytes, a number of eight bytes (`n`), a text behind its length of four (`t`), or addresses of eight
//! bytes each behind their count of four (`s`).

use crate::event::synthetic::Value;

/// Appends a value.
pub(super) fn encode(out: &mut Vec<u8>, value: &Value<'_>) {
    match *value {
        Value::Number(number) => {
            out.push(b'n');
            out.extend(number.to_ne_bytes());
        }
        Value::Text(text) => {
            out.push(b't');
            out.extend((text.len() as u32).to_ne_bytes());
            out.extend_from_slice(text);
        }
        Value::Stack(stack) => {
            out.push(b's');
            out.extend((stack.len() as u32).to_ne_bytes());
            out.extend(stack.iter().flat_map(|address| address.to_ne_bytes()));
        }
    }
}

/// A value that was read; addresses are not where eight bytes begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Read<'a> {
    Number(u64),
    Text(&'a [u8]),
    Stack(Vec<u64>),
}

/// The values of a write; None for what is none.
fn decode(mut bytes: &[u8]) -> Option<Vec<Read<'_>>> {
    let mut values = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let (value, rest) = if *kind == b'n' {
            let (number, rest) = rest.split_first_chunk()?;
            (Read::Number(u64::from_ne_bytes(*number)), rest)
        } else {
            let (length, rest) = rest.split_first_chunk()?;
            let length = u32::from_ne_bytes(*length) as usize;
            match kind {
                b't' => {
                    let (text, rest) = rest.split_at_checked(length)?;
                    (Read::Text(text), rest)
                }
                b's' => {
                    let (stack, rest) = rest.split_at_checked(length.checked_mul(8)?)?;
                    let (words, _) = stack.as_chunks();
                    (Read::Stack(words.iter().map(|word| u64::from_ne_bytes(*word)).collect()), rest)
                }
                _ => return None,
            }
        };
        values.push(value);
        bytes = rest;
    }
    Some(values)
}

/// Hands the values of a write on; None for what is none.
pub fn with_values<T>(bytes: &[u8], act: impl FnOnce(&[Value<'_>]) -> T) -> Option<T> {
    let read = decode(bytes)?;
    let values: Vec<Value<'_>> = read
        .iter()
        .map(|value| match value {
            Read::Number(number) => Value::Number(*number),
            Read::Text(text) => Value::Text(text),
            Read::Stack(stack) => Value::Stack(stack),
        })
        .collect();
    Some(act(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let values =
            [Value::Number(u64::MAX), Value::Text(b"a 'b\" \\"), Value::Stack(&[1, 2]), Value::Text(b"")];
        let mut bytes = Vec::new();
        let mut whole = vec![0];
        for value in &values {
            encode(&mut bytes, value);
            whole.push(bytes.len());
        }
        assert_eq!(with_values(&bytes, |read| read == values), Some(true));
        // What is cut off is nothing, but for between two values.
        for length in 0..=bytes.len() {
            assert_eq!(with_values(&bytes[..length], |_| ()).is_some(), whole.contains(&length), "{length}");
        }
        assert_eq!(with_values(b"x1234567890", |_| ()), None);
        assert_eq!(with_values(&[b's', 255, 255, 255, 255], |_| ()), None);
    }
}
