//! An event's site in the program: an instruction without effect and two notes about it. At the instruction, a probe
//! finds the record's address and length in the first two argument registers.
//!
//! - `.note.stapsdt`, in the form of `sys/sdt.h`, so that tools with USDT support find the site. Provider and name
//!   are system and event. The two arguments are address and length of the record. The semaphore is the event's word.
//! - `.note.tracer`, from which a tracer creates an event: owner `tracer`, type 1; the addresses of the site and of the
//!   semaphore, eight bytes each; then system, name and description, each with a NUL. The description is the part of a
//!   format file after the common fields: the lines of the fields, an empty line and `print fmt: `.
//!
//! Notes use no memory in the running program. On x86-64 the instruction is the five-byte `nop` that kernels from 6.18
//! on replace with a call. The call is several times cheaper than a breakpoint. It pushes a word onto the stack, so the
//! `asm!` block does not declare `nostack`.

/// The body of an event's site; for the macros.
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($event:path, $record:ident, $length:ident, $system:literal, $name:literal, $note:literal, { $($constants:tt)* }) => {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        // SAFETY: an instruction without effect; the other directives emit into separate sections.
        unsafe {
            ::core::arch::asm!(
                "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                $crate::__notes!("8@%rdi 8@%rsi", $system, $name, $note),
                event = sym $event,
                $($constants)*
                in("rdi") $record,
                in("rsi") $length,
                options(att_syntax, preserves_flags),
            );
        }
        #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
        // SAFETY: as above.
        unsafe {
            ::core::arch::asm!(
                "990: nop",
                $crate::__notes!("8@x0 8@x1", $system, $name, $note),
                event = sym $event,
                $($constants)*
                in("x0") $record,
                in("x1") $length,
                options(preserves_flags),
            );
        }
        #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
        {
            let _ = ($record, $length);
            const _: &[i64] = &$crate::__values!($($constants)*);
        }
    };
}

/// The two notes of a site whose instruction is at label 990, as one assembler text: the argument locations in
/// SystemTap's format, and the description of the record.
#[doc(hidden)]
#[macro_export]
macro_rules! __notes {
    ($arguments:literal, $system:literal, $name:literal, $note:literal) => {
        ::core::concat!(
            ".pushsection .note.stapsdt, \"\", \"note\"\n",
            ".balign 4\n",
            ".4byte 992f - 991f, 994f - 993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b, 0, {event} + 8\n",
            $system,
            "\n",
            $name,
            "\n",
            ".asciz \"",
            $arguments,
            "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
            ".pushsection .note.tracer, \"\", \"note\"\n",
            ".balign 4\n",
            ".4byte 996f - 995f, 998f - 997f, 1\n",
            "995: .asciz \"tracer\"\n",
            "996: .balign 4\n",
            "997: .8byte 990b, {event} + 8\n",
            $system,
            "\n",
            $name,
            "\n",
            $note,
            "\n",
            "998: .balign 4\n",
            ".popsection\n",
        )
    };
}

/// Uses the constants of a site's description on targets without a site.
#[doc(hidden)]
#[macro_export]
macro_rules! __values {
    ($($name:ident = const $value:block,)*) => { [$($value),*] };
}
