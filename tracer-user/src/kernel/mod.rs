//! One file a kernel fact: formats, BTF, symbols, syscalls, features.
