//! Sets the shared library's soname, as cargo-c does.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsteerage.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
}
