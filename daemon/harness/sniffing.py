"""Say from a file's first bytes what it is, where it is no text."""

from typing import Final

HEAD: Final = 16  # bytes that tell

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
)
_BRANDS: Final = {b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"mif1": "image/heif"}
_OTHERS: Final = (
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    *((b"BZh%d1AY&SY" % level, "application/x-bzip2") for level in range(1, 10)),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"\x7fELF", "application/x-elf"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x00asm", "application/wasm"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1a\x45\xdf\xa3", "video/webm"),
)


def image(head: bytes) -> str:
    """The media type of the image that begins so, empty for what is none."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "")
    if head.startswith(b"BM") and head[6:10] != bytes(4):
        return ""  # a text that begins with these letters; in a bitmap they are followed by four zeros
    return _type(head, _IMAGES)


def other(head: bytes) -> str:
    """The media type of another file that begins so and is no text, empty where that cannot be said."""
    if head[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "video/mp4"
    return _type(head, _OTHERS)


def _type(head: bytes, known: tuple[tuple[bytes, str], ...]) -> str:
    return next((type for magic, type in known if head.startswith(magic)), "")
