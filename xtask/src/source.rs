//! Reads the sources of a crate: its modules, the names that each defines, and the paths that each mentions. Code that
//! only tests see is left out.
//!
//! This is text, not what the compiler makes of it: calls of methods are not seen, and neither are names that a macro
//! puts together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::slice;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, UseTree, Visibility};

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
            let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            let file = krate.files.len();
            krate.files.push(File { path: path.display().to_string(), lines: 0, module: module.clone() });
            let (children, tests) = (Vec::new(), BTreeSet::new());
            let mut reader = Reader { krate: &mut krate, file, module: module.clone(), children, tests };
            reader.module().file = file;
            reader.visit_file(&syntax);
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

    /// Returns true if only tests see this part, and then keeps its lines.
    fn is_test(&mut self, part: &impl ToTokens) -> bool {
        let attributes = |input: ParseStream<'_>| {
            let attributes = input.call(Attribute::parse_outer);
            input.parse::<TokenStream>().and(attributes)
        };
        let attributes = attributes.parse2(part.to_token_stream()).unwrap_or_default();
        let is_test = attributes.iter().any(|attribute| {
            let text = attribute.to_token_stream().to_string().replace(' ', "");
            text == "#[cfg(test)]" || text.starts_with("#[cfg(all(test,")
        });
        if is_test {
            self.tests.extend(part.span().start().line..=part.span().end().line);
        }
        is_test
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

/// Visits these parts of an item, unless only tests see them.
macro_rules! visit_code {
    ($($visit:ident: $Part:ident)*) => {
        $(fn $visit(&mut self, part: &syn::$Part) {
            if !self.is_test(part) {
                visit::$visit(self, part);
            }
        })*
    };
}

impl Visit<'_> for Reader<'_> {
    visit_code! {
        visit_arm: Arm visit_field: Field visit_field_value: FieldValue visit_impl_item: ImplItem visit_stmt: Stmt
        visit_trait_item: TraitItem visit_variant: Variant
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.mention(names, path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.paths_in(call.tokens.clone());
    }

    fn visit_item(&mut self, item: &Item) {
        if self.is_test(item) {
            return;
        }
        let (visibility, name) = match item {
            Item::Const(item) => (&item.vis, Some(&item.ident)),
            Item::Enum(item) => (&item.vis, Some(&item.ident)),
            Item::Fn(item) => (&item.vis, Some(&item.sig.ident)),
            Item::Macro(item) => (&Visibility::Inherited, item.ident.as_ref()),
            Item::Mod(item) => (&item.vis, Some(&item.ident)),
            Item::Static(item) => (&item.vis, Some(&item.ident)),
            Item::Struct(item) => (&item.vis, Some(&item.ident)),
            Item::Trait(item) => (&item.vis, Some(&item.ident)),
            Item::Type(item) => (&item.vis, Some(&item.ident)),
            Item::Union(item) => (&item.vis, Some(&item.ident)),
            Item::Use(item) => (&item.vis, None),
            _ => (&Visibility::Inherited, None),
        };
        let mut names: Vec<String> = name.iter().map(ToString::to_string).collect();
        match item {
            Item::Use(item) => {
                for (name, path) in leaves(&item.tree, &[]) {
                    // A re-export passes the name on. It is an import only if this file uses the name as well.
                    if matches!(visibility, Visibility::Inherited) {
                        self.mention(path.clone(), item.span().start().line);
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
                self.module.extend(names.iter().cloned());
                match &item.content {
                    None => self.children.push(self.module.clone()),
                    Some((_, items)) => {
                        self.module().file = self.file;
                        items.iter().for_each(|item| self.visit_item(item));
                    }
                }
                self.module.pop();
            }
            _ => {
                self.module().items.extend(names.iter().cloned());
                visit::visit_item(self, item);
            }
        }
        if matches!(visibility, Visibility::Public(_)) {
            self.module().public.extend(names);
        }
    }
}

/// What a `use` brings in: each name, and its path.
fn leaves(tree: &UseTree, path: &[String]) -> Vec<(String, Vec<String>)> {
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
