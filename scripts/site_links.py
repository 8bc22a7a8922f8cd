"""Checks that every link of a built site resolves to a file and an anchor in it: `site_links.py FOLDER`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src") and tag in ("a", "img", "link", "script"):
                self.links.add(value)


def main(folder: Path) -> int:
    pages: dict[Path, Page] = {}
    for path in folder.rglob("*.html"):
        pages[path] = Page()
        pages[path].feed(path.read_text())
    broken = []
    checked = 0
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            # Links of the error page are relative to the root of the site.
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            checked += 1
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                broken.append(f"{path}: {link}: no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path}: {link}: no such heading")
    print(f"{checked} links of {len(pages)} pages, {len(broken)} broken")
    print("\n".join(broken))
    return 1 if broken or not checked else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
