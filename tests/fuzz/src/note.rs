//! Files of programs: whatever an ELF file says, its notes and symbols lead nowhere outside of it.
//!
//! The first byte says what the rest is: a whole file, or the section `.note.tracer` of one that is made around it.

use object::write::{Object, StandardSegment, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use tracer_user::event::program;
use tracer_user::lang::facts::{function_names, symbol_offset};
use tracer_user::render::Printer;

use super::frozen;

/// Owner and type of a note of ours.
const OWNER: &[u8; 8] = b"tracer\0\0";

/// Reads any bytes as a program's file.
pub fn run(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    match how % 4 {
        0 => file(rest),
        1 => file(&with_section(rest)),
        _ => file(&with_section(&notes(rest))),
    }
}

/// Notes of ours around texts, so that an input need not get lengths right: each is a place, a semaphore and texts up to two
/// bytes of 0xff.
fn notes(data: &[u8]) -> Vec<u8> {
    let mut section = Vec::new();
    for body in data.split(|byte| *byte == 0xff) {
        section.extend(7_u32.to_le_bytes());
        section.extend((body.len() as u32).to_le_bytes());
        section.extend(1_u32.to_le_bytes());
        section.extend(OWNER);
        section.extend(body);
        section.resize(section.len().next_multiple_of(4), 0);
    }
    section
}

/// A file with such a section, a function and some text.
fn with_section(notes: &[u8]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.section_id(object::write::StandardSection::Text);
    object.append_section_data(text, &[0x90; 64], 16);
    object.add_symbol(Symbol {
        name: b"f".to_vec(),
        value: 16,
        size: 8,
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(text),
        flags: SymbolFlags::None,
    });
    let segment = object.segment_name(StandardSegment::Data).to_vec();
    let section = object.add_section(segment, b".note.tracer".to_vec(), SectionKind::Note);
    object.append_section_data(section, notes, 4);
    object.write().unwrap_or_default()
}

fn file(bytes: &[u8]) {
    for name in function_names(bytes).iter().take(16).map(String::as_str).chain(["f"]) {
        if let Some(offset) = symbol_offset(bytes, name) {
            assert!(offset <= u64::MAX / 2 || bytes.len() < 64, "{name} at {offset:#x}");
        }
    }
    let events = match program::events(bytes) {
        Ok(events) => events,
        Err(error) => {
            let _ = error.to_string();
            return;
        }
    };
    let facts = frozen::facts();
    for event in events.iter().take(8) {
        let _ = program::format_text(&event.format);
        let printer = Printer::compile(&event.format, facts.as_ref());
        for length in [0, 8, event.format.fixed_size(), bytes.len().min(8192)] {
            let record: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
            let mut out = Vec::new();
            printer.text(&record, facts.as_ref(), &mut out);
            printer.event(&record, facts.as_ref(), true, &mut out);
            printer.event_fields(&record, facts.as_ref(), &mut out);
        }
    }
}
