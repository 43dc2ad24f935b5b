"""What `make docs` stands on: headers as Doxygen gets them, links that fit the site, dead links."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import dead_links  # noqa: E402
import doxygen_filter  # noqa: E402
import hooks  # noqa: E402


class DoxygenFilter(unittest.TestCase):
    def test_the_comment_at_the_top_describes_the_file(self):
        self.assertEqual(doxygen_filter.filtered("// Leases.\n//\n//   Take();\n#ifndef X\n"),
                         "/// @file\n///\n/// Leases.\n/// \n///\n///     Take();\n#ifndef X\n")

    def test_comments_behind_members_describe_them(self):
        text = ("struct A {\n  int a = 0;  // of the model,\n              // in bytes\n"
                "  // On top.\n  int b;\n  /// Its own.\n  int c;\n};  // end\n// A heading.\n")
        self.assertEqual(doxygen_filter.filtered("// H.\n" + text).split("/// H.\n")[1],
                         "struct A {\n  int a = 0;  ///< of the model,\n              ///< in bytes\n"
                         "  /// On top.\n  int b;\n  /// Its own.\n  int c;\n};  // end\n"
                         "// A heading.\n")

    def test_labels_become_a_list(self):
        text = doxygen_filter.filtered("#if 0\n  /// Pins.\n  ///\n  /// Errors:   kBusy when held\n")
        self.assertIn("  /// - **Errors:** kBusy when held\n", text)

    def test_no_code_of_the_public_headers_is_lost(self):
        for header in sorted((ROOT / "include" / "quire").glob("*.h")):
            text = doxygen_filter.filtered(header.read_text())
            self.assertNotIn("gnu::visibility", text)
            code = [line.split("//")[0].rstrip() for line in text.splitlines()]
            before = [line.split("//")[0].rstrip() for line in header.read_text().splitlines()]
            wanted = [doxygen_filter.VISIBILITY.sub("", line) for line in before]
            self.assertEqual([line for line in code if line], [line for line in wanted if line])


class Links(unittest.TestCase):
    def test_pages_of_the_tree(self):
        for path, page in (("README.md", "index.md"), ("docs/house.md", "house.md"),
                           ("docs/lab", "lab/README.md"), ("models/tiny", "models/tiny/README.md"),
                           ("include/quire/cache.h", "source/include/quire/cache.h.md")):
            self.assertEqual(hooks.page_of(path), page)

    def test_links_fit_where_the_page_lies(self):
        for source, link, fits in (
                ("README.md", "docs/house.md", "house.md"),
                ("README.md", "include/quire/cache.h", "source/include/quire/cache.h.md"),
                ("docs/embedding.md", "../examples/embed_c/main.c",
                 "source/examples/embed_c/main.c.md"),
                ("docs/lab/README.md", "../numerics.md#words", "../numerics.md#words"),
                ("docs/house.md", "../README.md", "index.md"),
                ("docs/house.md", "https://example.org/README.md", "https://example.org/README.md"),
                ("docs/house.md", "#words", "#words"), ("docs/house.md", "gone.md", "gone.md")):
            self.assertEqual(hooks.repointed(f"[a]({link})", source, hooks.page_of(source)),
                             f"[a]({fits})")


class DeadLinks(unittest.TestCase):
    """The check must fail: each page has one link that is dead, and is named with it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = pathlib.Path(folder.name)
        self.write("other.html", '<h1 id="here">x</h1><a name="there"></a>')
        self.write("404.html", '<a href="/assets/gone.css">')

    def write(self, name, text):
        (self.site / name).parent.mkdir(exist_ok=True)
        (self.site / name).write_text(text)

    def test_what_is_there_is_no_violation(self):
        self.write("sub/page.html", '<a href="../other.html#here">a</a><a href="../other.html">b</a>'
                   '<a href="../other.html#there">c</a><a href="https://example.org/gone">d</a>'
                   '<a href="mailto:a@b">e</a><p id="me"><a href="#me">f</a>')
        self.assertEqual(dead_links.find(self.site), [])

    def test_each_kind_of_dead_link(self):
        for link, message in (("gone.html", "leads nowhere"), ("other.html#gone", "no such place"),
                              ("#gone", "no such place"), ("/other.html", "only at the root"),
                              ("gone/", "leads nowhere")):
            self.write("page.html", f'<a href="{link}">a</a>')
            found = dead_links.find(self.site)
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith(f"page.html: {link}") and message in found[0], found)
        self.write("page.html", '<img src="gone.svg">')
        self.assertIn("gone.svg leads nowhere", dead_links.find(self.site)[0])


if __name__ == "__main__":
    unittest.main()
