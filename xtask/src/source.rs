//! Reads a crate's modules, the names that they define, and the paths that they mention, without
//! code for tests. Only tokens are read, so method calls and names that a macro assembles are not
//! found.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Ident, UseTree};

/// The maximum number of steps in a chain of re-exports or globs. Longer chains are not followed,
/// because they may be circles.
const HOPS_MAX: usize = 8;
/// Each of these keywords is followed by the name of an item.
const KEYWORDS: &[&str] = &["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type", "union"];
/// With these words and [`KEYWORDS`], only items, and fields with `pub`, can begin.
const BEGINNINGS: &[&str] = &["async", "extern", "impl", "pub", "unsafe", "use"];

type Names = Vec<String>;

#[derive(Default)]
pub(crate) struct Crate {
    pub(crate) files: Vec<File>,
    /// The public names in the root of the crate. The name `*` stands for a glob.
    pub(crate) public: Names,
    modules: BTreeMap<Names, Module>,
    /// The paths that the code mentions. Each entry has the index of the file, the module, the
    /// path, and the line.
    mentions: Vec<(usize, Names, Names, usize)>,
    /// The module that is being read, and the folder of its child modules.
    module: Names,
    folder: PathBuf,
    /// The lines of the file that are only for tests.
    tests: BTreeSet<usize>,
    /// The files to read, without `.rs`, and their modules.
    waiting: Vec<(PathBuf, Names)>,
}

#[derive(Default)]
pub(crate) struct File {
    pub(crate) path: String,
    /// The number of lines without tests, comments and blank lines.
    pub(crate) lines: usize,
    module: Names,
}

#[derive(Default)]
struct Module {
    file: usize,
    /// The names in the module. A name that a `use` imports has the path of the imported item.
    names: BTreeMap<String, Option<Names>>,
    globs: Vec<Names>,
}

impl Crate {
    pub(crate) fn read(src: &Path) -> Result<Self, String> {
        let root = if src.join("lib.rs").exists() { "lib" } else { "main" };
        let mut krate = Self { waiting: vec![(src.join(root), Names::new())], ..Self::default() };
        while let Some((stem, module)) = krate.waiting.pop() {
            let paths = [stem.with_extension("rs"), stem.join("mod.rs")];
            let found = paths.iter().find_map(|path| Some((path.display(), fs::read_to_string(path).ok()?)));
            let (path, text) = found.ok_or_else(|| format!("no file for a module: {}", paths[0].display()))?;
            krate.folder = if module.is_empty() { src.to_owned() } else { stem };
            (krate.module, krate.tests) = (module.clone(), BTreeSet::new());
            krate.walk(text.parse().map_err(|error| format!("{path}: {error}"))?, true);
            let is_code = |line: &str| !line.is_empty() && !line.starts_with("//");
            let code = text.lines().zip(1..).filter(|(line, at)| is_code(line.trim()) && !krate.tests.contains(at));
            krate.files.push(File { path: path.to_string(), lines: code.count(), module });
        }
        Ok(krate)
    }

    /// An import counts as an import between the two sibling modules that contain the two files, so
    /// every circle of files is a circle of sibling modules.
    pub(crate) fn circles(&self) -> Vec<String> {
        let mut imports = BTreeMap::<&[String], BTreeMap<&[String], String>>::new();
        for (file, module, path, line) in &self.mentions {
            let Some(to) = self.file_of(module, path, 0) else { continue };
            let (from, to) = (&self.files[*file], &self.files[to]);
            let shared = from.module.iter().zip(&to.module).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.module.get(..=shared), to.module.get(..=shared)) {
                let text = format!("{}:{line} imports {}, and is part of a circle of imports", from.path, to.path);
                imports.entry(one).or_default().entry(other).or_insert(text);
            }
        }
        let reached = |start| {
            let (mut seen, mut waiting) = (BTreeSet::new(), vec![start]);
            while let Some(module) = waiting.pop() {
                waiting.extend(imports.get(module).iter().flat_map(|to| to.keys()).filter(|to| seen.insert(**to)));
            }
            seen
        };
        let all = imports.iter().flat_map(|(from, tos)| tos.iter().map(move |(to, text)| (from, to, text)));
        all.filter(|(from, to, _)| reached(**to).contains(*from)).map(|(_, _, text)| text.clone()).collect()
    }

    /// Returns the file of an item, or `None` for a whole module or an item of another crate.
    fn file_of(&self, module: &[String], path: &[String], hops: usize) -> Option<usize> {
        let mut at = module.to_vec();
        for (index, name) in path.iter().enumerate() {
            let here = self.modules.get(&at)?;
            let follow = |start: &[String], skip| self.file_of(&at, &[start, &path[skip..]].concat(), hops + 1);
            match (name.as_str(), here.names.get(name)) {
                ("crate", _) => at.clear(),
                ("self", _) => {}
                ("super", _) => drop(at.pop()),
                _ if hops == HOPS_MAX => return None,
                _ if self.modules.contains_key(&[&at[..], &path[index..=index]].concat()) => at.push(name.clone()),
                (_, Some(None)) => return Some(here.file),
                (_, Some(Some(start))) => return follow(start, index + 1),
                (_, None) => return here.globs.iter().find_map(|glob| follow(glob, index)),
            }
        }
        None
    }

    fn here(&mut self) -> &mut Module {
        self.modules.entry(self.module.clone()).or_insert(Module { file: self.files.len(), ..Module::default() })
    }

    fn mention(&mut self, path: Names, line: usize) {
        self.mentions.push((self.files.len(), self.module.clone(), path, line));
    }

    /// `is_item` is true at the top level of a file or of a module, where items begin.
    fn walk(&mut self, tokens: TokenStream, is_item: bool) {
        self.here();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut path, mut line, mut before, mut was_pub) = (Names::new(), 0, String::new(), false);
        let mut rest = &tokens[..];
        while let Some((token, after)) = rest.split_first() {
            rest = after;
            let (word, start) = (token.to_string(), token.span().start().line);
            let next = after.first().map(ToString::to_string).unwrap_or_default();
            let is_public = was_pub && is_item && self.module.is_empty();
            self.public.extend((is_public && KEYWORDS.contains(&word.as_str())).then(|| next.clone()));
            match token {
                TokenTree::Punct(_) if word == "#" && is_of_tests(&next) => {
                    let (part, others) = after.split_at(length_of_part(&after[1..]) + 1);
                    self.tests.extend(start..=part[part.len() - 1].span().end().line);
                    rest = others;
                }
                TokenTree::Ident(_) if word == "use" && next != "<" => {
                    let (part, others) =
                        after.split_at(after.iter().position(|token| token.to_string() == ";").unwrap_or(after.len()));
                    // Every `use` of the workspace parses as a `UseTree`, because none begins with
                    // `::`.
                    let tree = syn::parse2::<UseTree>(part.iter().cloned().collect());
                    for (name, path) in tree.iter().flat_map(|tree| leaves(tree, &[])) {
                        self.public.extend(is_public.then(|| name.clone()));
                        // A re-export counts as an import only if its file also uses the name.
                        if before != "pub" && !before.starts_with('(') {
                            self.mention(path.clone(), start);
                        }
                        match name.as_str() {
                            "*" => self.here().globs.push(path),
                            // An item takes precedence over an import of the same name.
                            _ => drop(self.here().names.entry(name).or_insert(Some(path))),
                        }
                    }
                    rest = others;
                }
                TokenTree::Ident(_) if word == "mod" && before != "::" => {
                    self.module.push(next.clone());
                    self.folder.push(&next);
                    match &after[1] {
                        TokenTree::Group(group) => self.walk(group.stream(), true),
                        _ => self.waiting.push((self.folder.clone(), self.module.clone())),
                    }
                    self.module.pop();
                    self.folder.pop();
                    rest = &after[2..];
                }
                TokenTree::Ident(_) if KEYWORDS.contains(&&*before) => {
                    drop(self.here().names.insert(word.clone(), None))
                }
                TokenTree::Ident(_) if before != "." => {
                    if before != "::" {
                        self.mention(mem::take(&mut path), line);
                    }
                    line = start;
                    path.push(word.clone());
                }
                TokenTree::Group(group) => self.walk(group.stream(), false),
                _ => {}
            }
            was_pub = word == "pub" && !next.starts_with('(');
            match (before.as_str(), word.as_str()) {
                (":", ":") | (".", ".") => before += &word,
                ("macro_rules", "!") => {}
                // The word after a lifetime, a raw pointer's `const`, or a module that was read is
                // not the name of an item.
                ("'", _) | ("*", "const") | (_, "mod") => before.clear(),
                _ => before = word,
            }
        }
        self.mention(path, line);
    }
}

fn is_of_tests(attribute: &str) -> bool {
    ["[cfg(test)]", "[cfg(all(test,"].iter().any(|start| attribute.replace(' ', "").starts_with(start))
}

/// Counts the tokens of the item, statement, field, variant or `match` arm at the start of
/// `tokens`.
fn length_of_part(tokens: &[TokenTree]) -> usize {
    let mut words = tokens.iter().filter(|token| matches!(token, TokenTree::Ident(_))).map(ToString::to_string);
    let is_item = words.next().is_some_and(|word| [KEYWORDS, BEGINNINGS].concat().contains(&word.as_str()));
    let is_last = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => token.to_string() == ";" || !is_item && token.to_string() == ",",
    };
    tokens.iter().position(is_last).map_or(tokens.len(), |last| last + 1)
}

fn leaves(tree: &UseTree, path: &[String]) -> Vec<(String, Names)> {
    let longer = |name: &Ident| [path, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(tree) => leaves(&tree.tree, &longer(&tree.ident)),
        UseTree::Group(group) => group.items.iter().flat_map(|tree| leaves(tree, path)).collect(),
        UseTree::Glob(_) => vec![("*".to_owned(), path.to_vec())],
        UseTree::Name(tree) if tree.ident == "self" => vec![(path.last().cloned().unwrap_or_default(), path.to_vec())],
        UseTree::Name(tree) => vec![(tree.ident.to_string(), longer(&tree.ident))],
        UseTree::Rename(tree) => vec![(tree.rename.to_string(), longer(&tree.ident))],
    }
}
