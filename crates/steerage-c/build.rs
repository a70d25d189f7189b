//! Sets the name under which programs load the shared library. The tool cargo-c sets the same name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsteerage.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
}
