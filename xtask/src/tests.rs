use std::path::PathBuf;
use std::{env, fs, process};

use super::{CORE_LINES_MAX, FACADE_NAMES_MAX, check, read};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = env::temp_dir().join(format!("xtask-{}-{name}", process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn check(&self) -> Result<String, String> {
        read(&self.0).and_then(|crates| check(&crates))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check_crate(name: &str, files: &[(&str, &str)]) -> Result<String, String> {
    let paths: Vec<String> = files.iter().map(|(path, _)| format!("crates/steerage-a/src/{path}")).collect();
    let mut all = vec![("crates/steerage-a/Cargo.toml", "[package]\nname = \"steerage-a\"\n")];
    all.extend(paths.iter().map(String::as_str).zip(files.iter().map(|(_, text)| *text)));
    Folder::new(name, &all).check()
}

#[test]
fn files_that_import_each_other_are_a_circle() {
    let files = [
        ("lib.rs", "mod folder;"),
        ("folder.rs", "mod one;\nmod other;"),
        ("folder/one.rs", "use super::other::B;\npub struct A(B);"),
        ("folder/other.rs", "pub struct B;\nfn f() {\n    g!(super::one::A);\n}"),
    ];
    let fault = check_crate("circle", &files).unwrap_err();
    for (line, to) in [("folder/one.rs:1", "folder/other.rs"), ("folder/other.rs:3", "folder/one.rs")] {
        let (line, to) = (format!("{line} imports "), format!("{to}, and is part of a circle"));
        assert!(fault.lines().any(|text| text.contains(&line) && text.contains(&to)), "{fault}");
    }
}

/// The circle of this test leads through a re-export of a third file, and through files inside of
/// `a` and `b`.
#[test]
fn re_exports_and_folders_hide_no_circle() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub use a::inner::A;"),
        ("a/mod.rs", "pub mod inner;"),
        ("a/inner.rs", "use crate::b::*;\npub struct A(B);"),
        ("b.rs", "mod inner;\npub struct B;"),
        ("b/inner.rs", "fn f(_: crate::A) {}"),
    ];
    let fault = check_crate("through", &files).unwrap_err();
    assert_eq!(fault.matches("circle of imports").count(), 2, "{fault}");
}

#[test]
fn lifetimes_and_pointers_hide_no_path() {
    for path in ["&'static crate::b::B", "*const crate::b::B"] {
        let a = format!("pub struct A;\nfn f(_: {path}) {{}}");
        let files = [("lib.rs", "mod a;\nmod b;"), ("a.rs", a.as_str()), ("b.rs", "pub struct B(crate::a::A);")];
        let fault = check_crate("hidden", &files).unwrap_err();
        assert_eq!(fault.matches("circle of imports").count(), 2, "{fault}");
    }
}

#[test]
fn tests_comments_and_parents_are_free() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub struct Root;"),
        (
            "a.rs",
            "//! crate::b::B\n#[derive(Debug)]\n#[cfg(test)]\nuse crate::b::{B};\n/// [`B`](crate::b::B)\npub struct A(crate::Root);",
        ),
        ("b.rs", "use crate::a::A;\npub struct B(A);\n#[cfg(all(test, not(loom)))]\nmod tests;"),
    ];
    check_crate("free", &files).unwrap();
}

#[test]
fn the_core_and_the_facade_have_limits() {
    let check = |name: &str, text: &str| {
        let (manifest, lib) = (format!("crates/{name}/Cargo.toml"), format!("crates/{name}/src/lib.rs"));
        Folder::new(name, &[(manifest.as_str(), ""), (lib.as_str(), text)]).check()
    };
    let code = "fn f() {}\n// A comment, and a blank line.\n\n".repeat(CORE_LINES_MAX);
    check("steerage-core", &code).unwrap();
    let fault = check("steerage-core", &format!("{code}fn g() {{}}")).unwrap_err();
    assert!(fault.contains(&format!("{} lines of steerage-core", CORE_LINES_MAX + 1)), "{fault}");

    let names: String = (0..FACADE_NAMES_MAX).map(|n| format!("pub struct N{n};\npub(crate) struct P{n};")).collect();
    check("steerage", &names).unwrap();
    assert!(check("steerage", &format!("{names} pub use x::{{A as B}};")).unwrap_err().contains("41 names"));
    assert!(check("steerage", "pub use x::*;").unwrap_err().contains("globs"));
}
