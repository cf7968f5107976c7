//! Encoding of values in a write to `synth_event_trace`. Each value has a letter and a body in native byte order: a
//! number of eight bytes (`n`), a text after its length of four bytes (`t`), or addresses of eight bytes each after
//! their count of four bytes (`s`).

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

/// A decoded value. Addresses are copied, because they are unaligned in the write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DecodedValue<'a> {
    Number(u64),
    Text(&'a [u8]),
    Stack(Vec<u64>),
}

/// Decodes the values of a write; `None` if the write is malformed.
fn decode(mut bytes: &[u8]) -> Option<Vec<DecodedValue<'_>>> {
    let mut values = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        let (value, rest) = if *kind == b'n' {
            let (number, rest) = rest.split_first_chunk()?;
            (DecodedValue::Number(u64::from_ne_bytes(*number)), rest)
        } else {
            let (length, rest) = rest.split_first_chunk()?;
            let length = u32::from_ne_bytes(*length) as usize;
            match kind {
                b't' => {
                    let (text, rest) = rest.split_at_checked(length)?;
                    (DecodedValue::Text(text), rest)
                }
                b's' => {
                    let (stack, rest) = rest.split_at_checked(length.checked_mul(8)?)?;
                    let (words, _) = stack.as_chunks();
                    (DecodedValue::Stack(words.iter().map(|word| u64::from_ne_bytes(*word)).collect()), rest)
                }
                _ => return None,
            }
        };
        values.push(value);
        bytes = rest;
    }
    Some(values)
}

/// Calls `act` with the values of a write; returns `None` if the write is malformed.
pub fn with_values<T>(bytes: &[u8], act: impl FnOnce(&[Value<'_>]) -> T) -> Option<T> {
    let read = decode(bytes)?;
    let values: Vec<Value<'_>> = read
        .iter()
        .map(|value| match value {
            DecodedValue::Number(number) => Value::Number(*number),
            DecodedValue::Text(text) => Value::Text(text),
            DecodedValue::Stack(stack) => Value::Stack(stack),
        })
        .collect();
    Some(act(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_encoding_and_decoding() {
        let values =
            [Value::Number(u64::MAX), Value::Text(b"a 'b\" \\"), Value::Stack(&[1, 2]), Value::Text(b"")];
        let mut bytes = Vec::new();
        let mut whole = vec![0];
        for value in &values {
            encode(&mut bytes, value);
            whole.push(bytes.len());
        }
        assert_eq!(with_values(&bytes, |read| read == values), Some(true));
        // A truncated write is invalid, except between two values.
        for length in 0..=bytes.len() {
            assert_eq!(with_values(&bytes[..length], |_| ()).is_some(), whole.contains(&length), "{length}");
        }
        assert_eq!(with_values(b"x1234567890", |_| ()), None);
        assert_eq!(with_values(&[b's', 255, 255, 255, 255], |_| ()), None);
    }
}
