"""The documentation as a site: Sphinx reads the Markdown pages where they lie, without a second copy of them.

Links to files of the tree that are no pages become downloads, links to folders plain text; the navigation follows the
headings of docs/README.md, so that a page needs no second list. `docs/site/build` calls this.
"""

import os
import re

project = "Nereid"
author = "the Nereid authors"
copyright = author

extensions = ["myst_parser"]
root_doc = "docs/README"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/*.md", "docs/contract/*.md", "benches/results/*.md"]
include_patterns += ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
exclude_patterns = ["target", "fuzz", "src", "tests"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Nereid"
html_show_sphinx = False
# Code blocks without a language, and those whose text is no valid code of theirs, are no mistakes.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)#\s]+)((?:#[^)]*)?)\)")
ROW = re.compile(r"^\| \[[^\]]*\]\(([^)]+)\.md\)")


def navigation(index):
    """The hidden tables of contents that stand for the tables of the index: one for each heading."""
    tables, caption, pages = [], None, []

    def close():
        if pages:
            tables.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))

    for line in index.splitlines():
        if line.startswith("## "):
            close()
            caption, pages = line[3:].split(":")[0], []
        elif row := ROW.match(line):
            pages.append(os.path.normpath(os.path.join("/docs", row[1])))
    close()
    more = ["/README", "/SECURITY", "/CHANGELOG"]
    tables.append("\n".join(["```{toctree}", ":hidden:", ":caption: Project", "", *more, "```"]))
    return "\n\n".join(tables)


def local_links(app, page, text):
    """Links to folders become text: a site has no pages for them."""
    folder = os.path.dirname(os.path.join(app.srcdir, page))

    def link(found):
        shown, target = found[2], found[3]
        is_folder = "://" not in target and os.path.isdir(os.path.join(folder, target))
        return shown if is_folder else found[0]

    return LINK.sub(link, text)


def read(app, page, source):
    source[0] = local_links(app, page, source[0])
    if page == root_doc:
        source[0] += "\n" + navigation(source[0])
    elif page == "docs/contract/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    elif page == "benches/results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def setup(app):
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
