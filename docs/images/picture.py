"""Makes demo.png from a real run: `python docs/images/picture.py` in the repository, with no demo running.

Runs `./dev demo` in a terminal of tmux, kills the rank of spark-2, waits until the set is live again, and draws what
the terminal then shows. Needs tmux, DejaVu Sans Mono, rich and Pillow.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(__file__).with_name("demo.png")
FONTS = Path("/usr/share/fonts/truetype/dejavu")
COLUMNS, ROWS = 118, 75
SIZE, LINE, MARGIN = 18, 23, 18  # pixels
BACKGROUND, FOREGROUND, DIM = "#12161c", "#d6dde6", "#8a94a0"
COLOURS = {1: "#ff7b72", 2: "#56d364", 3: "#e3b341", 4: "#79c0ff", 6: "#39c5cf"}  # by the terminal's number


class Terminal:
    """A terminal of its own, so that nobody's tmux is touched."""

    def __init__(self, command: str) -> None:
        self._do("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(ROOT), command)

    def _do(self, *arguments: str) -> str:
        command = ["tmux", "-L", "glm-spark-picture", "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        return self._do("capture-pane", "-p", "-e")

    def until(self, text: str, within_s: float) -> str:
        """What it shows as soon as it shows `text`. Raises TimeoutError."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if text in (shown := self.screen()):
                return shown
            time.sleep(0.1)
        raise TimeoutError(f"{text!r} was not shown within {within_s:g} s")

    def interrupt(self) -> None:
        self._do("send-keys", "C-c")


def capture() -> str:
    terminal = Terminal("./dev demo")
    try:
        terminal.until("What happens shows here", 180)
        subprocess.run(["./dev", "demo", "kill-rank", "2"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        terminal.until("spark-2: loading", 30)
        return terminal.until("spark-2: live", 60)
    finally:
        terminal.interrupt()


def draw(shown: str) -> Image.Image:
    lines = shown.rstrip().splitlines()
    regular, bold = (ImageFont.truetype(FONTS / f"DejaVuSansMono{kind}.ttf", SIZE) for kind in ("", "-Bold"))
    step = regular.getlength("M")
    size = (round(2 * MARGIN + step * COLUMNS), 2 * MARGIN + LINE * len(lines))
    image = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(image)
    console = Console(width=COLUMNS, color_system="standard", force_terminal=True)
    for row, line in enumerate(lines):
        column = 0
        for text, style, _ in Segment.filter_control(Text.from_ansi(line).render(console)):
            number = style.color.number if style and style.color else None
            colour = FOREGROUND if number is None else COLOURS.get(number, FOREGROUND)
            font = bold if style and style.bold else regular
            at = (MARGIN + step * column, MARGIN + LINE * row)
            pen.text(at, text.rstrip("\n"), font=font, fill=DIM if style and style.dim else colour)
            column += len(text)
    return image.quantize(64)


def main() -> int:
    draw(capture()).save(OUT, optimize=True)
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
