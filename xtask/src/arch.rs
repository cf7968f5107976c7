//! The architectures that tracer is built for.

use anyhow::{Result, bail};

use crate::host;

/// An architecture that tracer is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// 64-bit x86.
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    /// 64-bit Arm.
    #[value(name = "aarch64", alias = "arm64")]
    Aarch64,
}

impl Arch {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture of this machine.
    pub(crate) fn host() -> Result<Self> {
        match host::arch() {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            other => bail!("tracer does not know the architecture {other}"),
        }
    }

    /// The name in the kernel and in Rust.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in Debian.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The target triple of user space.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Whether this machine cannot run it natively.
    pub(crate) fn is_foreign(self) -> bool {
        host::arch() != self.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_their_names() {
        assert_eq!(Arch::Aarch64.triple(), "aarch64-unknown-linux-gnu");
        assert_eq!(Arch::Aarch64.debian(), "arm64");
        assert_eq!(Arch::X86_64.debian(), "amd64");
        assert!(!Arch::host().unwrap().is_foreign());
    }
}
