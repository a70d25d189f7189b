//! Reads the sources of a crate: its modules, the names that each defines, and the paths that each mentions. Code that
//! only tests see is left out.
//!
//! This is text, not what the compiler makes of it: calls of methods are not seen, and neither are names that a macro
//! puts together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::{mem, slice};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Ident, ItemUse, UseTree};

/// A chain of re-exports or globs that is longer than this goes in a circle.
const HOPS_MAX: usize = 8;
/// The word after one of these is the name of an item.
const KEYWORDS: &[&str] = &["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type", "union"];
/// With one of these, an item begins. A field, a variant or an arm of a `match` begins otherwise.
const BEGINNINGS: &[&str] = &["async", "extern", "impl", "pub", "unsafe", "use"];

#[derive(Default)]
pub(crate) struct Crate {
    pub(crate) files: Vec<File>,
    modules: BTreeMap<Vec<String>, Module>,
    mentions: Vec<Mention>,
}

pub(crate) struct File {
    pub(crate) path: String,
    /// Lines of code, without tests, comments and blank lines.
    pub(crate) lines: usize,
    module: Vec<String>,
}

#[derive(Default)]
struct Module {
    file: usize,
    items: BTreeSet<String>,
    /// What `use` brings in, by the name that it has here.
    aliases: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

struct Mention {
    file: usize,
    module: Vec<String>,
    path: Vec<String>,
    line: usize,
}

impl Crate {
    pub(crate) fn read(root: PathBuf) -> Result<Self, String> {
        let mut krate = Self::default();
        let mut waiting = vec![(vec![root], Vec::new())];
        while let Some((candidates, module)) = waiting.pop() {
            let found = candidates.iter().find_map(|path| Some((path, fs::read_to_string(path).ok()?)));
            let (path, text) = found.ok_or_else(|| format!("no file for a module: {}", candidates[0].display()))?;
            let tokens = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
            let file = krate.files.len();
            krate.files.push(File { path: path.display().to_string(), lines: 0, module: module.clone() });
            let mut reader = Reader {
                krate: &mut krate,
                file,
                module: module.clone(),
                children: Vec::new(),
                tests: BTreeSet::new(),
            };
            reader.module().file = file;
            reader.walk(tokens);
            let Reader { children, tests, .. } = reader;
            let code = text
                .lines()
                .map(str::trim)
                .zip(1..)
                .filter(|(line, number)| !line.is_empty() && !line.starts_with("//") && !tests.contains(number));
            krate.files[file].lines = code.count();
            let owns_folder = module.is_empty() || path.ends_with("mod.rs");
            let folder = if owns_folder { path.with_file_name("") } else { path.with_extension("") };
            for child in children {
                let stem = folder.join(child[module.len()..].join("/"));
                waiting.push((vec![stem.with_extension("rs"), stem.join("mod.rs")], child));
            }
        }
        Ok(krate)
    }

    pub(crate) fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// Groups of neighbours, which are modules of one parent, that import each other: their names, and a line of text for
    /// each import between them. A file imports for all modules around it. A circle of files is always one of neighbours.
    pub(crate) fn circles(&self) -> Vec<(String, String)> {
        let mut imports = BTreeMap::<&[String], BTreeMap<&[String], String>>::new();
        for mention in &self.mentions {
            let Some(to) = self.file_of(&mention.module, &mention.path, 0) else { continue };
            let (one, other) = (&self.files[mention.file].module, &self.files[to].module);
            let shared = one.iter().zip(other).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(into)) = (one.get(..=shared), other.get(..=shared)) {
                let text =
                    format!("{}:{} imports {}", self.files[mention.file].path, mention.line, self.files[to].path);
                imports.entry(from).or_default().entry(into).or_insert(text);
            }
        }
        let from = |module| imports.get(module).into_iter().flatten();
        let reached = |start| {
            let (mut seen, mut waiting) = (BTreeSet::new(), vec![start]);
            while let Some(module) = waiting.pop() {
                waiting.extend(from(module).map(|(to, _)| *to).filter(|to| seen.insert(*to)));
            }
            seen
        };
        let mut circles = BTreeMap::new();
        for module in imports.keys() {
            let group: Vec<_> = reached(module).into_iter().filter(|other| reached(other).contains(module)).collect();
            let inside = group.iter().flat_map(|one| from(one).filter(|(to, _)| group.contains(to)));
            let text = inside.map(|(_, text)| format!("    {text}\n")).collect::<String>();
            if !group.is_empty() {
                circles.insert(group.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" "), text);
            }
        }
        circles.into_iter().collect()
    }

    /// The file that defines what this path, read in this module, leads to. `None` for a module as a whole, and for what
    /// another crate defines.
    fn file_of(&self, module: &[String], path: &[String], hops: usize) -> Option<usize> {
        let mut at = module.to_vec();
        for (index, name) in path.iter().enumerate() {
            let here = self.modules.get(&at)?;
            let goes_on = |start: &[String]| self.file_of(&at, &[start, &path[index + 1..]].concat(), hops + 1);
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ if hops == HOPS_MAX => return None,
                _ if self.modules.contains_key(&[&at[..], slice::from_ref(name)].concat()) => at.push(name.clone()),
                _ if here.items.contains(name) => return Some(here.file),
                _ if here.aliases.contains_key(name) => return goes_on(&here.aliases[name]),
                _ => return here.globs.iter().find_map(|glob| goes_on(&[&glob[..], slice::from_ref(name)].concat())),
            }
        }
        None
    }
}

struct Reader<'a> {
    krate: &'a mut Crate,
    file: usize,
    module: Vec<String>,
    /// Modules in files of their own.
    children: Vec<Vec<String>>,
    /// Lines of code that only tests see.
    tests: BTreeSet<usize>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.krate.modules.entry(self.module.clone()).or_default()
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.krate.mentions.push(Mention { file: self.file, module: self.module.clone(), path, line });
    }

    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut path, mut line, mut before) = (Vec::new(), 0, String::new());
        let mut rest = &tokens[..];
        while let Some((token, after)) = rest.split_first() {
            rest = after;
            let next = after.first().map(ToString::to_string).unwrap_or_default();
            let word = token.to_string();
            match token {
                TokenTree::Punct(_) if word == "#" && is_of_tests(&next) => {
                    let (part, others) = after.split_at(length_of_part(&after[1..]) + 1);
                    let last = part.last().unwrap_or(token);
                    self.tests.extend(token.span().start().line..=last.span().end().line);
                    rest = others;
                }
                TokenTree::Ident(_) if word == "use" && next != "<" => {
                    let length = 1 + after.iter().position(|token| is_sign(token, ";")).unwrap_or(after.len() - 1);
                    let (part, others) = after.split_at(length);
                    let item = [slice::from_ref(token), part].concat().into_iter().collect();
                    self.import(item, before != "pub" && !before.starts_with('('), token.span().start().line);
                    rest = others;
                }
                TokenTree::Ident(_) if word == "mod" && before != "::" => {
                    self.module.push(next);
                    match after.get(1) {
                        Some(TokenTree::Group(group)) => {
                            self.module().file = self.file;
                            self.walk(group.stream());
                        }
                        _ => self.children.push(self.module.clone()),
                    }
                    self.module.pop();
                    rest = &after[2..];
                }
                TokenTree::Ident(_) => {
                    if KEYWORDS.contains(&before.as_str()) {
                        self.module().items.insert(word.clone());
                    } else if before != "." {
                        if before != "::" {
                            self.mention(mem::take(&mut path), line);
                        }
                        line = token.span().start().line;
                        path.push(word.clone());
                    }
                }
                TokenTree::Group(group) => self.walk(group.stream()),
                _ => {}
            }
            match (before.as_str(), word.as_str()) {
                (":", ":") | (".", ".") => before += &word,
                ("macro_rules", "!") => {}
                // A lifetime, a raw pointer, and a module that was read declare nothing more.
                ("'", _) | ("*", "const") | (_, "mod") => before.clear(),
                _ => before = word,
            }
        }
        self.mention(path, line);
    }

    fn import(&mut self, item: TokenStream, is_private: bool, line: usize) {
        let Ok(item) = syn::parse2::<ItemUse>(item) else { return };
        for (name, path) in leaves(&item.tree, &[]) {
            // A re-export passes the name on. It is an import only if this file uses the name as well.
            if is_private {
                self.mention(path.clone(), line);
            }
            if name == "*" {
                self.module().globs.push(path);
            } else {
                self.module().aliases.insert(name, path);
            }
        }
    }
}

fn is_sign(token: &TokenTree, sign: &str) -> bool {
    matches!(token, TokenTree::Punct(_)) && token.to_string() == sign
}

fn is_of_tests(attribute: &str) -> bool {
    let text = attribute.replace(' ', "");
    text == "[cfg(test)]" || text.starts_with("[cfg(all(test,")
}

/// How many tokens the item, statement, field, variant or arm has that stands first.
fn length_of_part(tokens: &[TokenTree]) -> usize {
    let mut words = tokens.iter().filter(|token| matches!(token, TokenTree::Ident(_))).map(ToString::to_string);
    let is_item = words.next().is_some_and(|word| [KEYWORDS, BEGINNINGS].concat().contains(&word.as_str()));
    let is_last = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_sign(token, ";") || !is_item && is_sign(token, ","),
    };
    tokens.iter().position(is_last).map_or(tokens.len(), |last| last + 1)
}

/// What a `use` brings in: each name, and its path.
pub(crate) fn leaves(tree: &UseTree, path: &[String]) -> Vec<(String, Vec<String>)> {
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
