//! An event with a field of every kind, shared by several fuzz targets. Its fixed fields take 56 bytes.

use std::sync::LazyLock;

use tracer_user::event::Format;

/// The event's format file, with an empty print fmt.
pub const FORMAT: &str = "name: x\nID: 1\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char s[4];\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:u8 b;\toffset:12;\tsize:1;\tsigned:0;\n\
    \tfield:short h;\toffset:14;\tsize:2;\tsigned:1;\n\
    \tfield:u64 q;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:const char * p;\toffset:24;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] d;\toffset:32;\tsize:4;\tsigned:0;\n\
    \tfield:__rel_loc char[] r;\toffset:36;\tsize:4;\tsigned:0;\n\
    \tfield:__data_loc cpumask_t m;\toffset:40;\tsize:4;\tsigned:0;\n\
    \tfield:u8 a[6];\toffset:44;\tsize:6;\tsigned:0;\n\
    \tfield:__rel_loc u32[] w;\toffset:52;\tsize:4;\tsigned:0;\n\
    \tfield:char o[];\toffset:56;\tsize:0;\tsigned:0;\n\nprint fmt: \"\"\n";

/// The parsed [`FORMAT`].
pub static EVENT: LazyLock<Format> = LazyLock::new(|| Format::parse("x", FORMAT).expect("a format"));
