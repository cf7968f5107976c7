//! An event's place in the program: an instruction that does nothing, where a probe finds the record's address and length in the
//! first two argument registers, and two notes about it.
//!
//! - `.note.stapsdt`, as `sys/sdt.h` writes it, so that everything that knows USDT finds the place: provider and name are
//!   system and event, the two arguments address and length of the record, the semaphore is the event's word.
//! - `.note.tracer`, which lets a tracer make an event of it: owner `tracer`, type 1; the addresses of the place and of the
//!   semaphore, eight bytes each; then system, name and description, each with a NUL. The description is what a format file
//!   has behind the common fields: the lines of the fields, an empty line and `print fmt: `.
//!
//! Notes take no memory in the running program. On x86-64 the instruction is the five-byte `nop` that kernels from 6.18 on
//! replace by a call, which is several times cheaper than a breakpoint. The call pushes a word onto the stack, so the
//! compiler is not told that the stack is left alone.

/// The body of an event's place; for the macros.
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($event:path, $record:ident, $length:ident, $system:literal, $name:literal, $note:literal, { $($constants:tt)* }) => {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        // SAFETY: an instruction without effect; the rest goes into sections of its own.
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

/// The two notes of a place whose instruction is at label 990, as one text for the assembler: where values are, in the way
/// of SystemTap, and what the record looks like.
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

/// Uses what a place's description would, where there is none.
#[doc(hidden)]
#[macro_export]
macro_rules! __values {
    ($($name:ident = const $value:block,)*) => { [$($value),*] };
}
