//! Register names (`regs_query_register_offset()`: `arch/x86/kernel/ptrace.c`, `arch/arm64/kernel/ptrace.c`).

/// A supported architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// arm64.
    Arm64,
}

/// `struct pt_regs` of x86-64, in the order of `arch/x86/include/asm/ptrace.h`.
const X86_64: [&str; 21] = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "orig_ax", "ip", "cs", "flags", "sp", "ss",
];

impl Arch {
    /// The architecture of this build; all but arm64 count as x86-64.
    pub fn native() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 }
    }

    /// Names of all registers.
    pub fn registers(self) -> Vec<String> {
        match self {
            Self::X86_64 => X86_64.map(str::to_owned).to_vec(),
            Self::Arm64 => {
                let numbered = (0..31).map(|number| format!("x{number}"));
                numbered.chain(["lr", "sp", "pc", "pstate"].map(str::to_owned)).collect()
            }
        }
    }

    /// Byte offset in `struct pt_regs` of the register of this name.
    pub fn register(self, name: &str) -> Option<u32> {
        let at = self.registers().iter().position(|own| own == name)?;
        // On arm64 `lr` is another name of `x30`, the register before it.
        let aliases = usize::from(self == Self::Arm64 && at > 30);
        Some((at - aliases) as u32 * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers() {
        for (arch, name, place) in [
            (Arch::X86_64, "r15", Some(0)),
            (Arch::X86_64, "ax", Some(80)),
            (Arch::X86_64, "di", Some(112)),
            (Arch::X86_64, "orig_ax", Some(120)),
            (Arch::X86_64, "ss", Some(160)),
            (Arch::X86_64, "rax", None),
            (Arch::X86_64, "", None),
            (Arch::Arm64, "x0", Some(0)),
            (Arch::Arm64, "x30", Some(240)),
            (Arch::Arm64, "lr", Some(240)),
            (Arch::Arm64, "sp", Some(248)),
            (Arch::Arm64, "x31", None),
            (Arch::Arm64, "x01", None),
            (Arch::Arm64, "pstate", Some(264)),
        ] {
            assert_eq!(arch.register(name), place, "{name}");
        }
        for arch in [Arch::X86_64, Arch::Arm64] {
            assert!(arch.registers().iter().all(|name| arch.register(name).is_some()));
        }
    }
}
