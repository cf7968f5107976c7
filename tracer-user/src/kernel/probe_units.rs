//! The perf units for probes: `kprobe` and `uprobe` in `/sys/bus/event_source/devices`.
//!
//! A kernel built without a unit has no directory for it.

use std::path::Path;

/// The parameters for requests to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeUnit {
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// The bit of `config` that requests a return probe.
    pub exit: u64,
    /// The lowest bit of the reference counter's offset in `config`; None if the unit does not support one.
    pub reference: Option<u32>,
}

impl ProbeUnit {
    /// The unit for kernel probes.
    pub fn kprobe() -> Option<Self> {
        Self::read(Path::new("/sys/bus/event_source/devices/kprobe"))
    }

    /// The unit for probes in files.
    pub fn uprobe() -> Option<Self> {
        Self::read(Path::new("/sys/bus/event_source/devices/uprobe"))
    }

    fn read(directory: &Path) -> Option<Self> {
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let bit = |name: &str| low_bit(text(name)?.trim());
        Some(Self {
            kind: text("type")?.trim().parse().ok()?,
            exit: 1 << bit("format/retprobe")?,
            reference: bit("format/ref_ctr_offset"),
        })
    }

    /// `perf_event_attr.config`; None if the offset of the reference counter cannot be encoded.
    pub fn config(&self, exit: bool, reference: u64) -> Option<u64> {
        let reference = match self.reference {
            _ if reference == 0 => 0,
            Some(bit) if reference < 1 << (64 - bit) => reference << bit,
            _ => return None,
        };
        Some(reference | if exit { self.exit } else { 0 })
    }
}

/// The lowest bit of a format file such as `config:32-63`.
fn low_bit(format: &str) -> Option<u32> {
    format.strip_prefix("config:")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        assert_eq!(low_bit("config:0"), Some(0));
        assert_eq!(low_bit("config:32-63"), Some(32));
        assert_eq!(low_bit("config1:0"), None);
        let unit = ProbeUnit { kind: 9, exit: 1, reference: Some(32) };
        assert_eq!(unit.config(true, 0x10), Some(0x10_0000_0001));
        assert_eq!(unit.config(false, 1 << 32), None);
    }
}
