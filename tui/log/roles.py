"""The roles that text of the log is drawn in, and how each looks by itself; a theme gives the colours."""

from typing import Final

ROLES: Final = frozenset({
    "title", "message", "text", "thinking", "call", "result", "output", "step", "error", "config", "system", "summary",
    "start", "end", "other", "live", "running", "failed", "nonzero", "void", "dim", "hint", "picture", "said", "code",
    "comment", "keyword", "string", "number", "name", "builtin", "added", "removed", "hunk", "heading", "h1", "h2",
    "strong", "em", "s", "link", "quote", "mark", "match", "cursor", "new",
})  # fmt: skip

CSS: Final = """
Rows {
    height: 1fr;
    overflow-x: hidden;
    overflow-y: scroll;
    scrollbar-size-vertical: 1;
    scrollbar-gutter: stable;
    background: $background;
    color: $foreground;

    .log--title { text-style: bold; }
    .log--message { color: $text-accent; }
    .log--text { color: $text-success; }
    .log--call { color: $text-primary; }
    .log--result { color: $text-primary; text-style: not bold; }
    .log--output { color: $text-muted; text-style: not bold; }
    .log--error { color: $text-error; }
    .log--thinking, .log--step, .log--config, .log--system, .log--summary, .log--start, .log--end, .log--other,
    .log--dim { color: $text-muted; text-style: not bold; }
    .log--running, .log--live { color: $text-warning; }
    .log--failed { color: $text-error; }
    .log--nonzero { color: $text-warning; }
    .log--void { color: $text-disabled; text-style: strike; }
    .log--hint { color: $text-warning; }
    .log--picture { color: $text-secondary; }
    .log--said { color: $foreground; }
    .log--code { color: $foreground; }
    .log--comment { color: $text-muted; text-style: italic; }
    .log--keyword { color: $text-accent; }
    .log--string, .log--added { color: $text-success; }
    .log--number, .log--builtin { color: $text-warning; }
    .log--name, .log--hunk { color: $text-primary; }
    .log--removed { color: $text-error; }
    .log--added { background: $success 12%; }
    .log--removed { background: $error 12%; }
    .log--heading { color: $text-primary; text-style: bold; }
    .log--h1, .log--h2 { text-style: underline; }
    .log--strong { text-style: bold; }
    .log--em { text-style: italic; }
    .log--s { text-style: strike; }
    .log--link { color: $text-secondary; text-style: underline; }
    .log--quote, .log--mark { color: $text-secondary; }
    .log--match { background: $warning; color: auto 95%; }
    .log--cursor { color: $primary; }
    .log--new { background: $accent; color: auto 95%; text-style: bold; }

    &:ansi {
        .log--dim, .log--thinking, .log--step, .log--config, .log--system, .log--start, .log--end, .log--output,
        .log--comment { text-style: dim not bold; }
        .log--added, .log--removed { background: ansi_default; }
        .log--match { background: $warning; color: ansi_black; }
        .log--new { background: $accent; color: ansi_black; }
    }
}
"""
