//! `freeze-facts TRACEFS FILE`: writes the running kernel's formats and facts, compressed, for `tests/facts`.

use std::path::Path;

use anyhow::{Context, Result};
use tracer_tests::frozen::facts::Facts;
use tracer_user::engine::facts::Facts as Running;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (tracefs, file) = args.next().zip(args.next()).context("usage: freeze-facts TRACEFS FILE")?;
    let text = Facts::freeze(Path::new(&tracefs), &Running::running()?)?;
    std::fs::write(&file, zstd::encode_all(text.as_bytes(), 19)?).with_context(|| file)?;
    Ok(())
}
