"""The documentation is run: its programs, its links, its tables.

In `README.md` and `docs/*.md`,

- a `python` block is run; the blocks of a file share one namespace, top to bottom. One
  that begins with the comment `# train.py` runs as if it were that file, so that
  messages and graphs show its lines. A block of `>>>` prompts is run as a doctest;
- a `{code-cell}` of a notebook is run in the same way, unless it is tagged `picture`:
  those need matplotlib, and run when the documentation is built;
- a `text` block right after a `python` block is what that block prints;
- a `py` block is only shown. In `architecture.md` it is a quotation, which must stand
  word for word in the sources or the tests.

After a statement at the left margin of a `python` block a comment on the same line, or
one on the next line that starts with its mark, says what happens and is checked:

    print(x)  # 6.0
    x + 1  # -> <tj.Tensor f32[] 7.0>
    x[0] = 1.0  # raises TypeError: changed in place
    tape.watch(n)  # warns: floating point only

A text after `raises` or `warns` must be part of the message. A comment after the
`print` that ends a compound statement is what the whole statement prints.

Start reading at `run_block`.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import linecache
import re
import textwrap
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import tapejit as tj
from tapejit.base.config import Config

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

NEED_NATIVE = ("numba.md",)  # what these pages show is native code

FENCE = re.compile(r"^ *```([\w{}-]*).*?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
CELL_OPTIONS = re.compile(r"(?::.*\n)*")
MARK = re.compile(r"-> |raises |warns\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Blocks


@dataclass(frozen=True)
class Block:
    """A fenced block: its tag, its text, its first line in the page, what follows it.

    `output` is the text block right after it, None if there is none.
    """

    page: str
    tag: str
    text: str
    line: int
    output: str | None = None

    @property
    def file(self) -> str | None:
        """The file it says it is."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found else None


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    page = path.read_text()
    found = list(FENCE.finditer(page))
    blocks = []
    for match, after in zip_longest(found, found[1:]):
        line = page.count("\n", 0, match.start(2)) + 1
        output = None
        if after is not None and after[1] == "text":
            is_next = not page[match.end() : after.start()].strip()
            output = textwrap.dedent(after[2]) if is_next else None
        tag, text = match[1], textwrap.dedent(match[2])
        if tag == "{code-cell}":
            options = CELL_OPTIONS.match(text)[0]
            tag = "py" if "picture" in options else "python"
            text = "\n" * options.count("\n") + text.removeprefix(options)
        blocks.append(Block(path.name, tag, text, line, output))
    return blocks


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run a `python` block and check all it says about its results."""
    if block.text.startswith(">>>"):
        run_prompts(block, names)
        return
    # A block that is a file has its own lines; any other has those of its page.
    file, line = (block.file, 1) if block.file else (block.page, block.line)
    source = "\n" * (line - 1) + block.text
    entry = (len(source), None, source.splitlines(keepends=True), file)
    linecache.cache[file] = entry
    claims = claims_of(source)
    printed = io.StringIO()
    for statement in ast.parse(source).body:
        claim = claims.pop(statement.end_lineno or 0, None)
        where = f"{block.page}, line {block.line - line + statement.lineno}"
        out = run_statement(statement, file, names, claim, where)
        printed.write(out)
    unread = [text for text in claims.values() if MARK.match(text)]
    assert not unread, f"{block.page}: no statement at the margin has {unread}"
    if block.output is not None:
        assert printed.getvalue().rstrip() == block.output.rstrip(), block.page


def claims_of(source: str) -> dict[int, str]:
    """Line -> the comment that follows the code on it."""
    claims: dict[int, str] = {}
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        text = token.string.removeprefix("#").strip()
        is_alone = not token.line[:column].strip()
        if not is_alone:
            claims[line] = text
        elif MARK.match(text):
            claims[line - 1] = text
    return claims


def run_statement(
    statement: ast.stmt, file: str, names: dict[str, Any], claim: str | None, where: str
) -> str:
    """Run one statement, check the claim about it, return what it printed."""
    kind, _, text = (claim or "").partition(" ")
    if kind == "raises":
        name, _, part = text.partition(": ")
        with pytest.raises(Exception) as caught:  # its class is checked by name below
            execute(statement, file, names)
        classes = [cls.__name__ for cls in type(caught.value).__mro__]
        assert name in classes, f"{where}: raised {caught.value!r}"
        assert part in str(caught.value), f"{where}: {caught.value}"
        return ""
    if kind.startswith("warns"):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            execute(statement, file, names)
        messages = [str(warning.message) for warning in found]
        assert len(messages) == 1, f"{where}: warned {messages}"
        assert text in messages[0], f"{where}: {messages[0]}"
        return ""
    value, out = execute(statement, file, names)
    if kind == "->":
        got = out.rstrip() if is_print(statement) else repr(value)
        assert got == text, f"{where}: got {got}"
    elif claim is not None and is_print(statement):
        assert out.rstrip() == claim, f"{where}: printed {out}"
    return out


def execute(statement: ast.stmt, file: str, names: dict[str, Any]) -> tuple[Any, str]:
    """The value of a statement, if it is an expression, and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), file, "eval")
            return eval(code, names), out.getvalue()
        exec(compile(ast.Module([statement], []), file, "exec"), names)
    return None, out.getvalue()


def is_print(statement: ast.stmt) -> bool:
    """Whether it is a call of print, or ends in one."""
    if isinstance(statement, (ast.With, ast.For)):
        return is_print(statement.body[-1])
    return ast.unparse(statement).startswith("print(")


def run_prompts(block: Block, names: dict[str, Any]) -> None:
    flags = doctest.NORMALIZE_WHITESPACE
    parsed = doctest.DocTestParser().get_doctest(
        block.text, names, block.page, block.page, block.line - 1
    )
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(parsed, out=report.write, clear_globs=False)
    names.update(parsed.globs)
    assert not runner.failures, report.getvalue()


@pytest.fixture
def with_all_instructions() -> Iterator[None]:
    """How many tasks a product is, as pages show it, depends on the registers."""
    limit = tj.config.cpu
    tj.config.update(cpu="")
    yield
    tj.config.update(cpu=limit)


@pytest.mark.usefixtures("with_all_instructions")
@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_program_runs_and_gives_what_the_page_says(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    tj.config.update(native=path.name in NEED_NATIVE)
    before = tj.config.current()
    for block in blocks_of(path):
        if block.tag == "python":
            run_block(block, names)
    assert tj.config.current() == before, "a page leaves the settings as they were"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_programs_that_are_only_shown_are_python(path: Path) -> None:
    for block in blocks_of(path):
        if block.tag == "py":
            assert ast.parse(block.text).body, f"{path.name}, line {block.line}"


def test_every_page_of_the_documentation_has_programs_that_run() -> None:
    pages = [path for path in PAGES if path.stem != "changelog"]
    tags = {page_id(path): {block.tag for block in blocks_of(path)} for path in pages}
    assert not [page for page, found in tags.items() if "python" not in found]


def test_quotations_stand_in_the_sources() -> None:
    folders = (ROOT / "tapejit", ROOT / "tests")
    sources = [path.read_text() for top in folders for path in top.rglob("*.py")]
    blocks = blocks_of(DOCS / "architecture.md")
    quoted = [block for block in blocks if block.tag == "py"]
    assert quoted
    for block in quoted:
        is_there = any(flat(block.text) in flat(source) for source in sources)
        assert is_there, f"{block.page}, line {block.line}: no source reads so"


def flat(text: str) -> str:
    """The text without indentation, so that a quotation may stand further left."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


# What the checker itself notices


@pytest.mark.parametrize(
    "text",
    [
        "print(1 + 1)  # 3",
        "1 + 1  # -> 3",
        "x = 2\nx\n# -> 3",
        "int('a')  # raises TypeError",
        "int('a')  # raises ValueError: no such text",
        "1 + 1  # raises ValueError",
        "1 + 1  # warns: something",
        "undefined",
        "x = 2  # -> 2",
        "for x in (1, 2):\n    x + 1  # -> 2\n    x",
        "for x in (1, 2):\n    print(x)  # 1",
        ">>> 1 + 1\n3",
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str) -> None:
    with pytest.raises((AssertionError, NameError, pytest.fail.Exception)):
        run_block(Block("page.md", "python", text + "\n", 1), {})


@pytest.mark.parametrize(
    "text",
    [
        "print(1 + 1)  # 2",
        "1 + 1  # -> 2",
        "1 + 1  # a remark",
        "x = 2\nx\n# -> 2",
        "x = 2  # a remark",
        "int('a')  # raises ValueError: invalid literal",
        "import warnings\nwarnings.warn('so it is')  # warns: so it",
        ">>> 1 + 1\n2",
    ],
)
def test_a_page_that_is_right_passes(text: str) -> None:
    names: dict[str, Any] = {}
    run_block(Block("page.md", "python", text + "\n", 1), names)
    assert names.get("x", 2) == 2, "it was run"


def test_what_a_block_prints_is_compared_with_the_text_after_it(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n3\n```\n")
    code, _ = blocks_of(path)
    assert code.output == "1\n3\n"
    with pytest.raises(AssertionError):
        run_block(code, {})


def test_a_block_that_is_a_file_has_the_lines_of_that_file() -> None:
    text = "# train.py\nimport tapejit as tj\ntj.ones(2) + tj.ones(3)"
    with pytest.raises(tj.ShapeError) as caught:
        run_block(Block("page.md", "python", text, 40), {})
    assert "train.py:3:  tj.ones(2) + tj.ones(3)" in str(caught.value)


# Links and names


def links_of(path: Path) -> Iterator[str]:
    for link in LINK.findall(FENCE.sub("", path.read_text())):
        if not re.match(r"[a-z]+:", link):
            yield link


def headings_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as they are made from their texts."""
    found = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found]
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    offenders = []
    for link in links_of(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            offenders.append(f"{link}: there is no {name}")
        elif anchor and anchor not in headings_of(target):
            offenders.append(f"{link}: {target.name} has no such heading")
    assert not offenders, "\n".join(offenders)


def test_paragraphs_of_the_architecture_page_are_short() -> None:
    text = FENCE.sub("", (ROOT / "docs" / "architecture.md").read_text())
    paragraphs = re.split(r"\n\n|\n(?=- |\d+\. |\|)", text)
    assert len(paragraphs) > 100
    assert not [x[:60] for x in paragraphs if len(x) > 900]


def test_the_readme_leads_to_every_page() -> None:
    """Directly, or through a page that it leads to."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        waiting += [
            (path.parent / link.partition("#")[0]).resolve()
            for link in links_of(path)
            if not link.startswith("#")
        ]
    assert set(PAGES) <= reached


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_name_of_tapejit_that_is_mentioned_exists(path: Path) -> None:
    page = path.read_text()
    for block in blocks_of(path):
        if block.tag in ("py", "text"):
            page = page.replace(block.text, "")
    page = re.sub(r"^.*# raises AttributeError.*$", "", page, flags=re.MULTILINE)
    names = set(re.findall(r"\btj\.([A-Za-z_]\w*)", page))
    assert [name for name in sorted(names) if not hasattr(tj, name)] == []


# Tables


def test_the_table_of_settings_is_current() -> None:
    assert Config.describe() in (DOCS / "faq.md").read_text(), (
        "put the text of Config.describe() into docs/faq.md"
    )
