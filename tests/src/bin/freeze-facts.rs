//! `freeze-facts TRACEFS FILE`: writes the running kernel's formats and facts, compressed, for `tests/facts`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use tracer_tests::facts::Facts;
use tracer_user::kernel::Btf;
use tracer_user::render::RunningFacts;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (tracefs, file) = args.next().zip(args.next()).context("usage: freeze-facts TRACEFS FILE")?;
    let btf = Btf::running()?.map(Arc::new);
    let text = Facts::freeze(Path::new(&tracefs), &RunningFacts::new(btf))?;
    std::fs::write(&file, zstd::encode_all(text.as_bytes(), 19)?).with_context(|| file)?;
    Ok(())
}
