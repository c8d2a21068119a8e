"""Write the tables of measured figures in README.md and docs/ from benchmarks/results/.

    python -m benchmarks.tables            # rewrite what lies between the markers
    python -m benchmarks.tables --check    # say which pages are out of date, and fail if any is

A page has a table wherever it says `<!-- table: NAME -->`, up to the next `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.tables.render import ROOT, pages, rendered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args().check
    stale = [page for page in pages() if rendered(page.read_text()) != page.read_text()]
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is out of date' if check else 'written'}")
        if not check:
            page.write_text(rendered(page.read_text()))
    if check and stale:
        sys.exit("python -m benchmarks.tables writes them")


if __name__ == "__main__":
    main()
