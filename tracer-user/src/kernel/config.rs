//! The kernel's configuration, from `/proc/config.gz` (`CONFIG_IKCONFIG_PROC`) or `/boot/config-RELEASE`.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Error;

/// A kernel's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    source: PathBuf,
    settings: HashMap<String, String>,
}

impl Config {
    /// The running kernel's configuration; None if neither file exists.
    ///
    /// # Errors
    /// If a file exists but cannot be read.
    pub fn running() -> Result<Option<Self>, Error> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        for path in ["/proc/config.gz".to_owned(), format!("/boot/config-{release}")] {
            if let Some(config) = Self::read(Path::new(&path))? {
                return Ok(Some(config));
            }
        }
        Ok(None)
    }

    /// Reads a configuration, compressed if the name ends in `.gz`; None if the file does not exist.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        if !path.exists() {
            return Ok(None);
        }
        let fail = |error| Error::io(path.display().to_string(), error);
        let bytes = super::read_whole(path, 1 << 16).map_err(fail)?;
        let mut text = String::new();
        if path.extension().is_some_and(|end| end == "gz") {
            flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).map_err(fail)?;
        } else {
            text = String::from_utf8_lossy(&bytes).into_owned();
        }
        Ok(Some(Self { source: path.to_owned(), settings: parse(&text) }))
    }

    /// The file it was read from.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// The value of a setting, named without `CONFIG_`: `y`, `m`, a number or a text. None if it is off or unknown to
    /// this kernel.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Whether a setting is `y` or `m`.
    pub fn has(&self, name: &str) -> bool {
        matches!(self.get(name), Some("y" | "m"))
    }
}

fn parse(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_comments_are_distinguished() {
        let text =
            "# CONFIG_HIST_TRIGGERS is not set\nCONFIG_BPF=y\nCONFIG_FUSE_FS=m\nCONFIG_LSM=\"yama,bpf\"\n";
        let config = Config { source: PathBuf::new(), settings: parse(text) };
        assert_eq!(config.get("LSM"), Some("yama,bpf"));
        assert!(config.has("BPF") && config.has("FUSE_FS") && !config.has("HIST_TRIGGERS"));
    }

    #[test]
    fn compressed_and_plain_text_give_the_same_answers() {
        use std::io::Write;
        let dir = std::env::temp_dir().join(format!("tracer-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let text = "CONFIG_BPF=y\n";
        std::fs::write(dir.join("config"), text).unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(text.as_bytes()).unwrap();
        std::fs::write(dir.join("config.gz"), packed.finish().unwrap()).unwrap();
        let read = |name: &str| Config::read(&dir.join(name)).unwrap().unwrap().settings;
        assert_eq!(read("config"), read("config.gz"));
        assert_eq!(Config::read(&dir.join("none")).unwrap(), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
