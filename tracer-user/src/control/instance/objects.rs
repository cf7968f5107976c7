//! The files that a process has mapped, for addresses of its stack.

/// Mappings in order of their addresses.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: Vec<Mapping>,
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// Empty for memory without a file.
    path: Vec<u8>,
}

impl Objects {
    /// Those of a process; none for one that has ended.
    pub(super) fn of(process: u32) -> Self {
        Self::parse(&std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default())
    }

    /// Reads the text of `maps` (proc(5)).
    fn parse(text: &[u8]) -> Self {
        let mapping = |line: &[u8]| {
            let mut words = line.splitn(6, |byte| *byte == b' ');
            let range = std::str::from_utf8(words.next()?).ok()?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let path = words.nth(4).unwrap_or_default().trim_ascii_start();
            let path = if path.starts_with(b"/") { path.to_vec() } else { Vec::new() };
            Some(Mapping { start: number(start)?, end: number(end)?, path })
        };
        Self { all: text.split(|byte| *byte == b'\n').filter_map(mapping).collect() }
    }

    /// The file at an address or above, as `find_vma()` has it, and the distance from the mapping's start.
    pub(super) fn find(&self, address: u64) -> Option<(Vec<u8>, u64)> {
        let found = self.all.iter().find(|mapping| address < mapping.end)?;
        (!found.path.is_empty()).then(|| (found.path.clone(), address.wrapping_sub(found.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_an_address_inside() {
        let objects = Objects::parse(
            b"1000-2000 r-xp 00000000 fe:00 12                         /usr/bin/a b\n\
              3000-4000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0                [stack]\n",
        );
        assert_eq!(objects.find(0x1010), Some((b"/usr/bin/a b".to_vec(), 0x10)));
        assert_eq!(objects.find(0x3010), None);
        assert_eq!(objects.find(0x5010), None);
        assert_eq!(objects.find(0x9000), None);
        assert_eq!(objects.all.len(), 3);
    }
}
