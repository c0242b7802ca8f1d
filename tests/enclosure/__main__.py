"""`python -m tests.enclosure COMMAND ...`"""

from __future__ import annotations

import sys

from tests.enclosure import NoNamespacesError, run


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: python -m tests.enclosure COMMAND ...", file=sys.stderr)
        return 2
    try:
        return run(sys.argv[1:])
    except NoNamespacesError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
