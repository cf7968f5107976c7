//! The kernel's version, for what no other fact tells.

/// Major and minor number of the running kernel.
pub fn version() -> (u32, u32) {
    version_of(rustix::system::uname().release().to_str().unwrap_or_default())
}

/// Major and minor number of a release such as `6.12.9-cloud-amd64`; 0 for a part that is not a number.
pub fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        assert_eq!(version_of("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version_of("6.1.0-29-cloud-amd64"), (6, 1));
        assert_eq!(version_of("odd"), (0, 0));
    }
}
