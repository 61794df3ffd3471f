"""The core that `docs/core.md` names can be read in an afternoon: it is small."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from elsewhere import ROOT

MOST_LINES = 2500  # of code, without docstrings, comments and blanks
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER),
    *(tokenize.INDENT, tokenize.DEDENT),
}


def code_lines(source: str) -> int:
    """The lines that have code on them."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef():
                match node.body:
                    case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
                        end = text.end_lineno or text.lineno
                        documented.update(range(text.lineno, end + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def test_lines_are_counted() -> None:
    source = '"""An\nessay."""\n\nx = (\n    1\n)  # a\n# comment\n'
    assert code_lines(source) == 3


def test_the_core_is_small() -> None:
    page = (ROOT / "docs" / "core.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| [")]
    files = [re.findall(r"\(\.\./(tapejit/\S+?)\)", line)[0] for line in table]
    assert len(files) == 9
    sizes = {name: code_lines((ROOT / name).read_text()) for name in files}
    assert sum(sizes.values()) <= MOST_LINES, sizes
