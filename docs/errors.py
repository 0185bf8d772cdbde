"""The page of all messages that a user can meet, read from the code that raises them.

The class of what is raised says how the program ends:

* one with an ``exit_code``: the message is shown as it is, and this is the code;
* ``TypeError`` or ``RuntimeError``: with a traceback, because it takes a fault in the code;
* any other: it is part of a message, because pydantic or the function that catches it puts it into one.

A message is shown as a template: ``<name>`` stands for a value, ``[...]`` for words that are there only
sometimes, ``{...|...}`` for one of several. Words that come from elsewhere are looked up: those of local
variables, of the module's constants, and of functions that return a text.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import fltrain
from fltrain.core import errors

PAGE = """\
# Messages and exit codes

Made by `docs/generate.py` from the code that raises them.

| exit code | meaning |
| --- | --- |
{codes}

A message is one line on standard error, `error: ...`. Jobs of the workflow write it into their log as well,
and Snakemake, which names the log, itself ends with 1. A message about a setting begins with file and key.

Not listed is what others say, all with exit code 2: about settings of a wrong type or out of range (pydantic,
`FILE: KEY: input should be ..., got ...`), about unknown commands and options (Typer), and about files that
the operating system refuses (`FILE: REASON`).

In the lists, `<name>` stands for a value, `[...]` for words that are there only sometimes, `{{...|...}}` for
one of several. What begins with `...` is part of a message: before it stand file and key, or the message that
it is the reason for. In brackets are the exit code and the function that raises it.

{sections}
"""


@dataclass(frozen=True)
class Message:
    """A template, the exit code that the program ends with, and what raises it, in which line."""

    text: str
    exit_code: int
    function: str
    line: int


def has_words(text: str) -> bool:
    """Whether a template says anything beside the values in it."""
    return re.search(r"[^\W\d_]", re.sub(r"<[^<>]*>", "", text)) is not None


def alternatives(text: str) -> list[str]:
    """What a text may be, if it is there only sometimes."""
    optional = re.fullmatch(r"\[([^][]*)\]", text)
    return [*optional[1].split("|"), ""] if optional else [text]


def options(texts: Iterable[str]) -> str:
    """One of several texts; the first, if they are nothing but values."""
    different = list(dict.fromkeys(itertools.chain(*map(alternatives, texts))))
    if not any(map(has_words, different)):
        return different[0]
    words = [text for text in different if text]
    if len(words) < len(different):
        return f"[{'|'.join(words)}]"
    return words[0] if len(words) == 1 else f"{{{'|'.join(words)}}}"


def parameters(function: ast.FunctionDef, call: ast.Call, scope: Scope) -> dict[str, str]:
    """What the parameters of a function stand for in a call."""
    names = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
    given = dict(zip(names, call.args, strict=False))
    named = {word.arg: word.value for word in call.keywords if word.arg}
    return {name: scope.text(value) for name, value in {**given, **named}.items()}


@dataclass(frozen=True)
class Scope:
    """What names stand for at a place in the code."""

    module: ModuleType
    function: ast.FunctionDef | None = None
    bound: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the function, as templates."""

    def text(self, node: ast.expr) -> str:
        """The template of an expression."""
        match node:
            case ast.Constant():
                return str(node.value)
            case ast.JoinedStr():
                return "".join(map(self.text, node.values))
            case ast.FormattedValue():
                return self.text(node.value)
            case ast.IfExp():
                return options(map(self.text, (node.body, node.orelse)))
            case ast.BoolOp(op=ast.Or()):
                return options(map(self.text, node.values))
            case ast.BinOp(op=ast.Add()) if has_words(joined := self.text(node.left) + self.text(node.right)):
                return joined
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp() as each]):
                return self.text(each.elt)
            case ast.Name() if (known := self._known(node)) is not None:
                return known
            case ast.Call(func=ast.Name()) if (said := self._said_by(node)) is not None:
                return said
        return f"<{self.name(node)}>"

    def name(self, node: ast.expr) -> str:
        """What to call the value of an expression."""
        match node:
            case ast.Name():
                return self.bound.get(node.id, node.id).strip("<_>")
            case ast.Attribute(value=ast.Name(id="self")):
                return node.attr.strip("_")
            case ast.Attribute(value=ast.Call(func=ast.Name(id="type"), args=[what]), attr="__name__"):
                return f"type of {self.name(what)}"
            case ast.Attribute():
                return f"{self.name(node.value).rpartition('.')[2]}.{node.attr}"
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                return key
            case ast.Subscript() | ast.Starred():
                return self.name(node.value)
            case ast.GeneratorExp() | ast.ListComp() | ast.SetComp():
                return self.name(node.elt)
            case ast.Call(func=ast.Name(id="len"), args=[what]):
                return f"number of {self.name(what)}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=method)):
                return method.strip("_")
            case ast.Call(func=ast.Attribute() as method) if not self._of_module(method):
                return self.name(node.args[0] if isinstance(method.value, ast.Constant) else method.value)
            case ast.Call(args=[*_, last]):
                return self.name(last if ast.unparse(node.func) == "map" else node.args[0])
        return ast.unparse(node).replace("self.", "")

    def _of_module(self, method: ast.Attribute) -> bool:
        owner = method.value.id if isinstance(method.value, ast.Name) else ""
        return isinstance(vars(self.module).get(owner), ModuleType)

    def _known(self, name: ast.Name) -> str | None:
        """The text that a name stands for, if it is one."""
        if name.id in self.bound:
            return self.bound[name.id]
        assigned = [
            self.text(node.value)
            for node in (ast.walk(self.function) if self.function else ())
            if isinstance(node, ast.Assign) and (node.end_lineno or 0) < name.lineno
            if any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
        ]
        if assigned:
            return said if has_words(said := options(assigned)) else None
        constant = vars(self.module).get(name.id)
        return f"{constant:,}" if type(constant) is int else constant if isinstance(constant, str) else None

    def _said_by(self, call: ast.Call) -> str | None:
        """What a function returns, if it is a text."""
        function = vars(self.module).get(ast.unparse(call.func))
        if not inspect.isfunction(function) or function.__annotations__.get("return") not in ("str", str):
            return None
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        assert isinstance(definition, ast.FunctionDef)
        home = importlib.import_module(function.__module__)
        scope = Scope(home, definition, parameters(definition, call, self))
        returns = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return)]
        said = options(scope.text(value) for value in returns if value)
        return said if has_words(said) else None


Place = tuple[ast.AST, str, ast.FunctionDef | None]
"""A part of the code, its function's name with those around it, and the function."""


def places(node: ast.AST, around: str = "", function: ast.FunctionDef | None = None) -> Iterator[Place]:
    """All parts of some code."""
    for child in ast.iter_child_nodes(node):
        yield child, around, function
        match child:
            case ast.FunctionDef() | ast.ClassDef():
                inner = f"{around}.{child.name}".lstrip(".")
                yield from places(child, inner, child if isinstance(child, ast.FunctionDef) else function)
            case _:
                yield from places(child, around, function)


def raised(module: ModuleType, error: ast.expr | None) -> type[BaseException] | None:
    """The class of what is raised; nothing for an error that comes from elsewhere."""
    written = error.func if isinstance(error, ast.Call) else error
    first, *rest = ast.unparse(written).split(".") if written else [""]
    found = {**vars(builtins), **vars(module)}.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found if inspect.isclass(found) and issubclass(found, BaseException) else None


def messages(module: ModuleType) -> list[Message]:
    """What a module raises, in the order of its lines."""
    parts = list(places(ast.parse(inspect.getsource(module))))
    found = []
    for node, around, function in parts:
        if not isinstance(node, ast.Raise) or (error := raised(module, node.exc)) is None:
            continue
        said = node.exc.args[:1] if isinstance(node.exc, ast.Call) else []
        fault = issubclass(error, TypeError | RuntimeError)
        usual = (errors.MethodError if fault else errors.FltrainError).exit_code
        part = "" if fault or hasattr(error, "exit_code") else "... "
        for scope, name in callers(module, parts, around, function):
            text = "".join(map(scope.text, said))
            if has_words(text) or issubclass(error, ValueError):
                code = getattr(error, "exit_code", usual)
                found.append(Message(f"{part}{text}", code, name, node.lineno))
    return found


def callers(
    module: ModuleType, parts: Iterable[Place], around: str, function: ast.FunctionDef | None
) -> list[tuple[Scope, str]]:
    """Who says what a function raises: itself, or for one that does nothing else those who call it."""
    if function and function.returns and ast.unparse(function.returns) == "NoReturn":
        calls = [
            (Scope(module, function, parameters(function, node, Scope(module, caller))), name)
            for node, name, caller in parts
            if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("self.") == function.name
        ]
        if calls:
            return calls
    return [(Scope(module, function), around)]


def meaning(documented: object) -> str:
    """The first sentence of a docstring."""
    first = (inspect.getdoc(documented) or "").partition("\n")[0]
    return re.split(r"(?<=[.?]) ", first)[0].removesuffix(".").replace("``", "`")


def exit_codes() -> dict[int, str]:
    """What each exit code means: the classes that have one say so."""
    ends = [one for one in vars(errors).values() if "exit_code" in getattr(one, "__dict__", {})]
    return {0: "Done", **{one.exit_code: meaning(one) for one in sorted(ends, key=lambda one: one.exit_code)}}


def modules() -> dict[ModuleType, list[ModuleType]]:
    """The modules of the package by the package that they are in."""
    found: dict[ModuleType, list[ModuleType]] = defaultdict(list)
    for module in pkgutil.walk_packages(fltrain.__path__, f"{fltrain.__name__}."):
        parent, _, name = module.name.rpartition(".")
        if name != "__main__":  # which would run the program
            found[importlib.import_module(parent)].append(importlib.import_module(module.name))
    return found


def entry(message: Message) -> str:
    """A line of the list; a message may have backticks of its own."""
    return f"* `` {message.text} `` ({message.exit_code}, `{message.function}`)"


def page() -> str:
    """The page of all messages, by package and module."""
    root, sections = Path(fltrain.__path__[0]).parent, []
    for package, members in modules().items():
        listed = {module: said for module in members if (said := messages(module))}
        if listed:
            sections.append(f"## {meaning(package)}")
        for module, said in listed.items():
            path = Path(str(module.__file__)).relative_to(root).as_posix()
            sections.append(f"### {meaning(module)}\n\n`{path}`\n\n" + "\n".join(map(entry, said)))
    codes = "\n".join(f"| {code} | {means} |" for code, means in exit_codes().items())
    return PAGE.format(codes=codes, sections="\n\n".join(sections))
