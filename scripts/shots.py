"""The pictures of docs/img: the terminal UI on a daemon of its own, as SVG by Textual, as PNG by Chromium."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image
from textual.pilot import Pilot

from daemon.client import Client
from tui.app import OutriderApp
from tui.deeds import Given
from tui.desk import Desk

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs/img"
SIZE: Final = (110, 32)
WAIT: Final = 30.0  # seconds for a screen to show what it is to
COLOURS: Final = 48  # of a picture; what a terminal shows has few, and the file stays small
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SHOWN: Final = "/run/user/1000/outrider/api.sock"  # in place of the folder that this makes
HOME: Final = "/home/ada"
PROMPTS: Final = (
    ("rehearsal/echo", "Port the parser to the new grammar"),
    ("rehearsal/echo", "Which of these logs has the first error?"),
    ("rehearsal/tour", "What is this machine?"),
)


def main() -> int:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print(f"shots: no Chromium on the PATH (looked for {', '.join(BROWSERS)})", file=sys.stderr)
        return 1
    home = Path(tempfile.mkdtemp(prefix="or-"))
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "OUTRIDER_DATA": str(home / "d"),
        "OUTRIDER_REHEARSAL_SPEED": "0",
    }

    def outrider(*arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "daemon.cli", *arguments]
        subprocess.run(command, env=environ, cwd=home, check=True, stdout=subprocess.DEVNULL)

    try:
        outrider("up", "--listen", "none")
        try:
            for model, prompt in PROMPTS:
                outrider("run", "--model", model, "--worker", "local:/tmp", prompt)
            pictures = asyncio.run(taken(home))
        finally:
            outrider("down")
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name, svg in pictures.items():
            data = drawn(browser, home, svg)
            (IMAGES / f"{name}.png").write_bytes(data)
            print(f"docs/img/{name}.png  {len(data) / 1000:.0f} kB")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


async def taken(home: Path) -> dict[str, str]:
    """Each picture's name and its SVG."""
    found: dict[str, str] = {}
    desk = Desk(home / "state", SHOWN)
    async with Client(home / "d/api.sock") as client:
        app = OutriderApp(client, desk, Given(SHOWN, True, "/home/ada/src"))
        async with app.run_test(size=SIZE) as pilot:

            async def take(name: str, *words: str) -> None:
                await until(pilot, lambda: all(word in text(app) for word in words))
                found[name] = renamed(app.export_screenshot(title="outrider"), str(home), HOME)

            await until(pilot, lambda: "3 sessions" in text(app))
            await take("sessions", "What is this machine?", "Port the parser", "Filter")
            await pilot.press("enter")
            await until(pilot, lambda: "step" in text(app))
            await pilot.press("escape")
            await take("session", "What is this machine?")
            await pilot.press("ctrl+s", "f4")
            await take("workers", "interpreters", "mesh")
            await pilot.press("escape", "n")
            await take("new", "local · connected")
            await pilot.press("escape", "f9")
            await take("settings", "Colours", "rehearsal")
    return found


def renamed(svg: str, old: str, new: str) -> str:
    """Another name for a folder in the texts of a picture, as wide as it is itself."""

    def one(found: re.Match[str]) -> str:
        length = float(found[2]) * len(found[4].replace(old, new)) / len(found[4])
        return f'{found[1]}textLength="{length:.1f}"{found[3]}>{found[4].replace(old, new)}</text>'

    return re.sub(
        rf'(<text [^>]*?)textLength="([\d.]+)"([^>]*)>([^<]*{re.escape(old)}[^<]*)</text>', one, svg
    )


def text(app: OutriderApp) -> str:
    """What stands on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(WAIT):
            while not true():
                await pilot.pause(0.05)
    except TimeoutError:
        raise SystemExit(f"shots: what was waited for did not come:\n{text(pilot.app)}") from None  # type: ignore[arg-type]


def drawn(browser: str, home: Path, svg: str) -> bytes:
    """An SVG as a small PNG. Its font is one that is here: no picture needs the network."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code", "DejaVu Sans Mono")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    width, height = (round(float(side)) for side in box.groups())
    page, made = home / "shot.html", home / "shot.png"
    page.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><style>body{{margin:0}}svg{{display:block}}</style>{svg}"
    )
    subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={home / 'profile'}",
            f"--window-size={width},{height + 200}",  # its own window takes some of the height
            f"--screenshot={made}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )
    with Image.open(made) as image:
        small = image.convert("RGB").crop((0, 0, width, height)).quantize(COLOURS)
    out = BytesIO()
    small.save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
