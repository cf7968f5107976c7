//! Operations that need several components of the engine: each calls them in sequence and applies the consequences.

mod definitions;
mod emission;
mod marks;
mod modules;
