"""Hooks of mkdocs (mkdocs.yml): links out of docs/ lead to the repository."""

import posixpath
import re

REPOSITORY = "https://github.com/steerage/steerage/blob/main/"


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def outside(match):
        target = posixpath.normpath(posixpath.join(folder, match.group(1)))
        return match.group(0) if target.startswith("docs/") else f"]({REPOSITORY}{target}{match.group(2) or ''})"

    return re.sub(r"\]\((\.\./[^)#]*)(#[^)]*)?\)", outside, markdown)
