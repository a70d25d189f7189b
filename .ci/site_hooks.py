"""Hooks of mkdocs (mkdocs.yml): links out of docs/ lead to the repository, where their files must exist.

mkdocs checks the links between pages of docs/. The pages beside docs/ are checked here.
"""

import glob
import logging
import os
import posixpath
import re

REPOSITORY = "https://github.com/steerage/steerage/blob/main/"
log = logging.getLogger("mkdocs.site_hooks")  # a warning ends a strict build


def on_pre_build(config):
    for page in glob.glob("*.md") + glob.glob("crates/*/README.md"):
        text = re.sub(r"```.*?```", "", open(page, encoding="utf-8").read(), flags=re.S)
        for target in re.findall(r"\]\(([^):#]+)[^):]*\)", text):
            if not os.path.exists(os.path.join(os.path.dirname(page), target)):
                log.warning("%s links to %s, which does not exist", page, target)


def on_nav(nav, config, files):
    for page in {file.src_uri for file in files.documentation_pages()} - {page.file.src_uri for page in nav.pages}:
        log.warning("mkdocs.yml does not name %s", page)


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def outside(match):
        target = posixpath.normpath(posixpath.join(folder, match.group(1)))
        if target.startswith("docs/"):
            return match.group(0)
        if not os.path.exists(target):
            log.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        return f"]({REPOSITORY}{target}{match.group(2) or ''})"

    markdown = re.sub(r"\]\((\.\./[^)#]*)(#[^)]*)?\)", outside, markdown)
    # rustdoc's words after the language (`rust,ignore`) would make mkdocs take the block for text.
    return re.sub(r"^( *```\w+),.*$", r"\1", markdown, flags=re.M)


def on_page_content(html, page, config, files):
    if "```" in html:
        log.warning("%s has a block of code that mkdocs does not recognise", page.file.src_uri)
