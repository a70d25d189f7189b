//! The pages of the guide are built into the program, because docs/ is not installed with it.

use crate::usage;

macro_rules! pages {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../guide/", $name, ".md")))),*]
    };
}

const PAGES: &[(&str, &str)] = &pages! {
    "install" "first-capture" "first-interface" "write-an-ids"
    "parallel" "cpu-0" "tune" "tunnels" "meter" "explain" "interfaces" "af_xdp" "captures" "filters" "synthetic" "outputs" "forward" "top" "dump" "control"
    "run-files" "doctor" "python" "cluster" "devices" "functions" "c"
    "options" "report" "metrics" "flows" "privileges" "memory" "glossary" "faq"
    "steering" "topology" "performance" "scale"
};

pub(crate) fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

pub(crate) fn titles() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().map(|(name, text)| (*name, text.lines().next().unwrap_or_default().trim_start_matches("# ")))
}

pub(crate) fn nearest(words: &[String]) -> Option<&'static str> {
    usage::nearest(&words.join("-"), PAGES.iter().map(|(name, _)| *name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_is_built_in() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let names = fs::read_dir(docs).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".md").filter(|name| *name != "README").map(str::to_owned)
        });
        let mut names: Vec<String> = names.collect();
        let mut built_in: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
        names.sort();
        built_in.sort_unstable();
        assert_eq!(built_in, names);
        assert!(titles().all(|(_, title)| !title.is_empty()));
    }
}
