"""What MkDocs does not do for this tree by itself (mkdocs.yml names this file).

README.md and HACKING.md become pages, and so does every file of the tree that some page links to, so
that all links work wherever the site lies. When the site is built, every link in it is followed.
"""

import html
import pathlib
import posixpath
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import dead_links  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRONT = {"README.md": "index.md", "HACKING.md": "hacking.md"}  # file of the tree: page
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".c": "c", ".py": "python", ".sh": "bash", ".txt": "text"}


def page_of(path):
    """The page that stands for a file or folder of the tree."""
    if (ROOT / path / "README.md").exists():
        path += "/README.md"
    if path in FRONT:
        return FRONT[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"source/{path}.md"


def repointed(text, source, page):
    """`text` of the tree's file `source`, with links that fit where it became `page`."""
    def link(match):
        target, anchor = match[1], match[2] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            return match[0]  # MkDocs complains
        return f"]({posixpath.relpath(page_of(path), posixpath.dirname(page) or '.')}{anchor})"
    return LINK.sub(link, text)


def links_of(source):
    """Files and folders of the tree that a document of the tree links to."""
    for match in LINK.finditer((ROOT / source).read_text()):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if match[1] and "://" not in match[1] and (ROOT / path).exists():
            yield path


def listing(path):
    """A page that shows a file of the tree, or all files of a folder."""
    where = ROOT / path
    files = [where] if where.is_file() else sorted(p for p in where.iterdir() if p.is_file())
    parts = [f"# {path}"]
    for file in files:
        if where.is_dir():
            parts.append(f"## {file.name}")
        language = LANGUAGES.get(file.suffix, "text")
        parts.append(f"````{language}\n{file.read_text()}\n````")
    return "\n\n".join(parts) + "\n"


def on_files(files, config):
    from mkdocs.structure.files import File
    sources = {f"docs/{file.src_uri}" for file in files.documentation_pages()
               if (ROOT / "docs" / file.src_uri).exists()} | set(FRONT)
    for source in sources:
        page = page_of(source)
        text = repointed((ROOT / source).read_text(), source, page)
        old = files.get_file_from_path(page)
        if old is not None:
            files.remove(old)
        files.append(File.generated(config, page, content=text))
        for path in links_of(source):
            page = page_of(path)
            if path in sources or files.get_file_from_path(page) is not None:
                continue
            text = (repointed((ROOT / path).read_text(), path, page) if path.endswith(".md")
                    else listing(path))
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    if not page.file.src_uri.startswith("api/"):
        return markdown
    # MkDoxy links to #enum-@0 of an enum without a name, whose heading is #enum-0, and escapes
    # underscores and signs also inside of code.
    markdown = markdown.replace("#enum-@", "#enum-")
    return re.sub(r"`[^`\n]*`", lambda code: html.unescape(code[0].replace("\\_", "_")), markdown)


def on_post_build(config):
    from mkdocs.exceptions import PluginError
    found = dead_links.find(pathlib.Path(config.site_dir))
    if found:
        raise PluginError("dead links:\n" + "\n".join(found))
