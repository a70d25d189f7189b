//! Reads the sources of a crate: its modules, the names that each defines, and the paths that each mentions. Code that
//! only tests see is left out.
//!
//! This is text, not what the compiler makes of it: calls of methods are not seen, and neither are names that a macro
//! puts together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::slice;

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

/// The word after the last of these is the name of an item.
const KEYWORDS: &[&str] = &[
    "async",
    "auto",
    "const",
    "enum",
    "extern",
    "fn",
    "macro_rules",
    "mod",
    "mut",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
];
/// A chain of re-exports or globs that is longer than this goes in a circle.
const HOPS_MAX: usize = 8;

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
    public: BTreeSet<String>,
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
            let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let code = code_of(text.parse().map_err(|error: LexError| fault(&error))?);
            let syntax = syn::parse2::<syn::File>(code.clone()).map_err(|error| fault(&error))?;
            let (mut lines, file) = (BTreeSet::new(), krate.files.len());
            lines_of(code, &mut lines);
            krate.files.push(File { path: path.display().to_string(), lines: lines.len(), module: module.clone() });
            let mut reader = Reader { krate: &mut krate, file, module: module.clone(), children: Vec::new() };
            reader.module().file = file;
            reader.visit_file(&syntax);
            let owns_folder = module.is_empty() || path.ends_with("mod.rs");
            let folder = if owns_folder { path.with_file_name("") } else { path.with_extension("") };
            for child in reader.children {
                let stem = folder.join(child[module.len()..].join("/"));
                waiting.push((vec![stem.with_extension("rs"), stem.join("mod.rs")], child));
            }
        }
        Ok(krate)
    }

    pub(crate) fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }

    /// The names that the root offers; `*` stands for those of a glob.
    pub(crate) fn root_names(&self) -> BTreeSet<String> {
        self.modules[&Vec::new()].public.clone()
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
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        self.krate.modules.entry(self.module.clone()).or_default()
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.krate.mentions.push(Mention { file: self.file, module: self.module.clone(), path, line });
    }

    fn paths_in(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Punct(sign) if sign.as_char() == ':' => colons += 1,
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        self.mention(std::mem::take(&mut path), line);
                    }
                    (line, colons) = (word.span().start().line, 0);
                    path.push(word.to_string());
                }
                TokenTree::Group(group) => self.paths_in(group.stream()),
                _ => colons = 0,
            }
        }
        self.mention(path, line);
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &Item) {
        let tokens: Vec<_> = item.to_token_stream().into_iter().collect();
        let line = tokens[0].span().start().line;
        let mut shown = tokens.iter().skip_while(|token| !is(token, "pub")).skip(1);
        let (is_shown, is_public) = match shown.next() {
            None => (false, false),
            Some(next) => (true, !matches!(next, TokenTree::Group(_))),
        };
        let words = tokens.iter().filter(|token| matches!(token, TokenTree::Ident(_))).map(ToString::to_string);
        let is_keyword = |word: &String| KEYWORDS.contains(&word.as_str());
        let mut names: Vec<_> = words.skip_while(|word| !is_keyword(word)).skip_while(is_keyword).take(1).collect();
        match item {
            Item::Use(item) => {
                names.clear();
                for (name, path) in leaves(&item.tree, &[]) {
                    // A re-export passes the name on. It is an import only if this file uses the name as well.
                    if !is_shown {
                        self.mention(path.clone(), line);
                    }
                    if name == "*" {
                        self.module().globs.push(path);
                    } else {
                        self.module().aliases.insert(name.clone(), path);
                    }
                    names.push(name);
                }
            }
            Item::Mod(item) => {
                self.module.push(item.ident.to_string());
                match &item.content {
                    None => self.children.push(self.module.clone()),
                    Some((_, items)) => {
                        self.module().file = self.file;
                        items.iter().for_each(|item| self.visit_item(item));
                    }
                }
                self.module.pop();
            }
            Item::Impl(_) => names.clear(),
            _ => self.module().items.extend(names.iter().cloned()),
        }
        if is_public {
            self.module().public.extend(names);
        }
        if !matches!(item, Item::Use(_) | Item::Mod(_)) {
            self.paths_in(tokens.into_iter().collect());
            visit::visit_item(self, item);
        }
    }
}

/// What a `use` brings in: each name, and its path.
fn leaves(tree: &UseTree, path: &[String]) -> Vec<(String, Vec<String>)> {
    let longer = |name: &syn::Ident| [path, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(tree) => leaves(&tree.tree, &longer(&tree.ident)),
        UseTree::Group(group) => group.items.iter().flat_map(|tree| leaves(tree, path)).collect(),
        UseTree::Glob(_) => vec![("*".to_owned(), path.to_vec())],
        UseTree::Name(tree) if tree.ident == "self" => vec![(path.last().cloned().unwrap_or_default(), path.to_vec())],
        UseTree::Name(tree) => vec![(tree.ident.to_string(), longer(&tree.ident))],
        UseTree::Rename(tree) => vec![(tree.rename.to_string(), longer(&tree.ident))],
    }
}

fn is(token: &TokenTree, text: &str) -> bool {
    !matches!(token, TokenTree::Group(_)) && token.to_string() == text
}

/// The tokens without documentation, and without what only tests see.
fn code_of(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let (mut code, mut at, mut item) = (Vec::new(), 0, 0);
    while let Some(token) = tokens.get(at) {
        let inner = usize::from(tokens.get(at + 1).is_some_and(|next| is(next, "!")));
        match (token, tokens.get(at + 1 + inner)) {
            (hash, Some(TokenTree::Group(attribute))) if is(hash, "#") => {
                let text = attribute.stream().to_string().replace(' ', "");
                at += 2 + inner;
                if text == "cfg(test)" || text.starts_with("cfg(all(test,") {
                    code.truncate(item); // with the attributes before this one
                    at = end_of_item(&tokens, at);
                } else if !text.starts_with("doc=") {
                    code.extend_from_slice(&tokens[at - 2 - inner..at]);
                }
                continue;
            }
            (TokenTree::Group(group), _) => {
                let mut inside = Group::new(group.delimiter(), code_of(group.stream()));
                inside.set_span(group.span());
                code.push(inside.into());
            }
            _ => code.push(token.clone()),
        }
        at += 1;
        if is(token, ";") || is(token, ",") || matches!(token, TokenTree::Group(_)) {
            item = code.len();
        }
    }
    code.into_iter().collect()
}

/// The index after the item, field, arm or statement that begins at `at`.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    let mut angles = 0;
    while let Some(token) = tokens.get(at) {
        let braces = matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        at += 1;
        match token {
            _ if is(token, "<") => angles += 1,
            _ if is(token, ">") && !is(&tokens[at - 2], "-") && !is(&tokens[at - 2], "=") => angles -= 1,
            _ if is(token, ";") || is(token, ",") && angles == 0 => break,
            _ if braces && !tokens.get(at).is_some_and(|next| is(next, ";") || is(next, ",") || is(next, "else")) => {
                break;
            }
            _ => {}
        }
    }
    at
}

/// Adds the lines that have tokens.
fn lines_of(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            lines.extend([group.span_open().start().line, group.span_close().end().line]);
            lines_of(group.stream(), lines);
        } else {
            lines.extend(token.span().start().line..=token.span().end().line);
        }
    }
}
