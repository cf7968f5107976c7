//! This process and its helper processes: privileges, system call filters, inherited descriptors.

pub mod descriptors;
pub mod held;
pub mod landlock;
pub mod privileges;
pub mod seccomp;
pub mod user_namespace;
pub mod worker;
