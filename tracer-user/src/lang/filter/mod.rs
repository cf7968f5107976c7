//! The event filter language: lexer, parser, typed tree, errors with the kernel's wording.
