//! Fuzzes program files: whatever an ELF file contains, its notes and symbols refer only to places inside its
//! segments.
//!
//! The first byte chooses what the remaining bytes are: a whole file, or the section `.note.tracer` of a generated
//! file.

use object::write::{self, StandardSegment, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, Object as _, ObjectSegment as _, SectionKind, SymbolFlags,
    SymbolKind, SymbolScope,
};
use tracer_user::event::program;
use tracer_user::lang::facts::{function_names, symbol_offset};
use tracer_user::render::Printer;

use super::frozen;

/// Owner name of tracer's notes, with padding.
const OWNER: &[u8; 8] = b"tracer\0\0";

/// Address and file offset of the function in a generated file.
const FUNCTION: u64 = 16;

/// Reads the input as a program's file.
pub fn run(data: &[u8]) {
    described(data);
}

/// Does the same as [`run`] and returns how many events the file describes.
pub fn described(data: &[u8]) -> u64 {
    let Some((how, rest)) = data.split_first() else { return 0 };
    let made = match how % 4 {
        0 => return file(rest),
        1 => with_section(rest),
        _ => with_section(&notes(rest)),
    };
    assert_eq!(symbol_offset(&*made, "f"), Some(FUNCTION), "a file that is made is read");
    file(&made)
}

/// Puts valid note headers around the texts, so that an input need not get lengths right. A byte of 0xff ends a text;
/// each text is a place, a semaphore and the event's strings.
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

/// Builds a file with this note section, a function and some text. Its one segment maps the whole file from address
/// 0.
fn with_section(notes: &[u8]) -> Vec<u8> {
    let mut object = write::Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.section_id(write::StandardSection::Text);
    object.append_section_data(text, &[0x90; 64], 16);
    object.add_symbol(Symbol {
        name: b"f".to_vec(),
        value: FUNCTION,
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
    loaded(object.write().expect("a file"))
}

/// Appends a program header to an object file and thereby gives the file a place in memory. Without a segment the
/// parser refuses the file's events (`Elf64_Ehdr` and `Elf64_Phdr`, `include/uapi/linux/elf.h`).
fn loaded(mut file: Vec<u8>) -> Vec<u8> {
    file.resize(file.len().next_multiple_of(8), 0);
    let (at, size) = (file.len() as u64, file.len() as u64 + 56);
    // PT_LOAD, PF_R | PF_X, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    file.extend([1_u32, 5].map(u32::to_le_bytes).as_flattened());
    file.extend([0, 0, 0, size, size, 4096].map(u64::to_le_bytes).as_flattened());
    // e_phoff, e_phentsize, e_phnum.
    file[32..40].copy_from_slice(&at.to_le_bytes());
    file[54..58].copy_from_slice([56_u16, 1].map(u16::to_le_bytes).as_flattened());
    file
}

/// Whether these bytes lie in the file range of one segment. A segment may end past the file itself: the parser
/// accepts that, and the kernel refuses a probe there.
fn in_a_segment(bytes: &[u8], offset: u64, size: u64) -> bool {
    let Ok(file) = object::File::parse(bytes) else { return false };
    let ranges = file.segments().map(|segment| segment.file_range());
    let end = offset.checked_add(size);
    ranges.into_iter().any(|(start, length)| start <= offset && end.is_some_and(|end| end - start <= length))
}

fn file(bytes: &[u8]) -> u64 {
    for name in function_names(bytes).iter().take(16).map(String::as_str).chain(["f"]) {
        if let Some(offset) = symbol_offset(bytes, name) {
            assert!(in_a_segment(bytes, offset, 1), "{name} at {offset:#x}");
        }
    }
    let events = match program::events(bytes) {
        Ok(events) => events,
        Err(error) => {
            let _ = error.to_string();
            return 0;
        }
    };
    for event in &events {
        let name = event.format.full_name();
        assert!(in_a_segment(bytes, event.offset, 1), "{name} at {:#x}", event.offset);
        assert!(in_a_segment(bytes, event.reference, 2), "{name} counts at {:#x}", event.reference);
    }
    let facts = frozen::facts();
    for event in events.iter().take(8) {
        let _ = event.format.text_with_lengths();
        let printer = Printer::compile(&event.format, facts.as_ref());
        for length in [0, 8, event.format.fixed_size(), bytes.len().min(8192)] {
            let record: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
            let mut out = Vec::new();
            printer.text(&record, facts.as_ref(), &mut out);
            printer.event(&record, facts.as_ref(), true, &mut out);
            printer.event_fields(&record, facts.as_ref(), &mut out);
        }
    }
    events.len() as u64
}
