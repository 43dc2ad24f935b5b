"""Follows every link of a built site that stays inside it."""

import html.parser
import urllib.parse


class Page(html.parser.HTMLParser):
    """The anchors of a page and where it links to."""

    def __init__(self):
        super().__init__()
        self.anchors = set()
        self.links = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]


def read(path):
    page = Page()
    page.feed(path.read_text())
    return page


def find(site):
    """One line for each link to a file or an anchor that is not there, and each link by an absolute
    path, which works only where the site lies at the root. 404.html has to have those."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            anchor = urllib.parse.unquote(parts.fragment)
            where = path.relative_to(site)
            if parts.path.startswith("/"):
                found.append(f"{where}: {link} works only at the root")
            elif not target.exists():
                found.append(f"{where}: {link} leads nowhere")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{where}: {link}: there is no such place on the page")
    return found
