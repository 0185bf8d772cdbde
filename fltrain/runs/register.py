"""Methods and networks that are defined in a notebook or script, for the specs of that process."""

from __future__ import annotations

import copyreg
import dis
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fltrain.core import lazy
from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.hashing import sha256
from fltrain.core.registry import Component
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.models.base import Model
from fltrain.models.networks import MODELS
from fltrain.runs import spec

Kind = TypeVar("Kind", bound=type[Component])

_PLAIN = (str, bytes, int, float, complex, type(None), type(...))
_MODULES = (ModuleType, type(lazy.torch))
_ADDED = ("_abc_impl", "revision")
_registered: list[type[Component]] = []


def register(component: Kind) -> Kind:
    """Add a method, plug-in or network to those that specs of this process can name; a class decorator.

    Its revision becomes a hash of its functions, attributes and fields, and of the values, functions and
    classes of your own that they use at this moment, so that an edited class is another run with another ID.
    It is equal in a script and a notebook. A class of the same name that was registered before is replaced.

    Raises:
        FltrainError: if it is no method or network, has no name, or the name of one of fltrain.
    """
    what = f"register: {getattr(component, '__name__', component)}"
    if not (isinstance(component, type) and issubclass(component, Method | Model)):
        raise FltrainError(
            f"{what} is no subclass of fltrain.methods.base.Method or fltrain.models.base.Model"
        )
    if missing := sorted(getattr(component, "__abstractmethods__", ())):
        raise FltrainError(f"{what} does not define {', '.join(missing)}")
    name = component.model_fields["name"].default
    if not isinstance(name, str):
        raise FltrainError(f'{what} has no name; write, for example, name: Literal["mine"] = "mine"')
    known: dict[str, Any] = METHODS if issubclass(component, Method) else MODELS
    other = known.get(file_name(name, what))
    if other and other not in _registered:
        raise FltrainError(
            f"{what}: {name!r} is the name of {other.__module__}.{other.__name__}; choose another"
        )
    component.revision = _digest(component)
    _registered.append(component)
    known[name] = component
    refresh()
    return component


def refresh() -> None:
    """Let ``RunSpec`` accept what its registries hold now."""
    for field, annotation in spec.choices().items():
        old = spec.RunSpec.model_fields[field]
        new = FieldInfo.from_annotation(annotation)
        new.default, new.description = old.default, old.description
        spec.RunSpec.model_fields[field] = new
    spec.RunSpec.model_rebuild(force=True)


def _digest(component: type[Component]) -> int:
    """Return a number that changes with what a class and its bases outside fltrain consist of and use."""
    seen = {_name(component): component}
    return int(sha256("\0".join(_text(part, seen) for part in _members(component)))[:8], 16)


def _text(thing: Any, seen: dict[Any, Any]) -> str:
    """Describe data or code by a text that is equal in all processes, so without addresses.

    ``seen`` holds the functions and classes so far, and what this thing is a part of. An older class of the
    component's name, or an object of it, is left out like a name without a value: it is about to be replaced.
    """
    if isinstance(thing, _PLAIN):
        return repr(thing)
    name = _name(thing)
    if name in seen:
        return ""
    if isinstance(thing, _MODULES) or id(thing) in seen:
        return getattr(thing, "__name__", name)
    seen[id(thing)] = thing
    if isinstance(thing, set | frozenset):  # their order differs between processes
        texts = sorted(_text(part, {**seen}) for part in thing)
    else:
        texts = [text for part in _parts(thing) if (text := _text(part, seen))]
    if not isinstance(thing, type | FunctionType):
        del seen[id(thing)]
    return f"{name}({', '.join(texts)})"


def _name(thing: Any) -> str:
    kind = thing if isinstance(thing, type | FunctionType) else type(thing)
    return kind.__qualname__ if _own(kind.__module__) else f"{kind.__module__}.{kind.__qualname__}"


def _own(module: str | None) -> bool:
    """Return whether a module is the user's: not of Python, of fltrain or of an installed package."""
    top = (module or "__main__").split(".")[0]
    file = Path(getattr(sys.modules.get(top), "__file__", None) or "")
    return top not in {"fltrain", *sys.stdlib_module_names} and "site-packages" not in file.parts


def _parts(thing: Any) -> Iterable[Any]:
    """Return what a thing consists of; nothing for code of others and for what pickle cannot store."""
    if isinstance(thing, FunctionType):
        return _used(thing) if _own(thing.__globals__.get("__name__")) else ()
    if isinstance(thing, type):
        return _members(thing) if _own(thing.__module__) else ()
    if isinstance(thing, CodeType):
        return thing.co_code, thing.co_names, thing.co_consts
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(thing, Mapping):
        return thing.items()
    if isinstance(thing, property):
        return [thing.fget]
    if "__wrapped__" in dir(thing):  # static methods, caches
        return [thing.__wrapped__]
    if origin := get_origin(thing):
        return origin, *get_args(thing)
    try:
        if hasattr(type(thing), "tolist"):  # arrays and tensors
            return str(thing.dtype), thing.tolist()
        stored = copyreg.dispatch_table.get(type(thing), methodcaller("__reduce_ex__", 4))(thing)
    except Exception:
        return ()
    parts = stored if isinstance(stored, tuple) else [stored]
    return [[*part] if isinstance(part, Iterator) else part for part in parts]


def _members(kind: type) -> Iterator[Any]:
    """Yield the bases, attributes and fields of a class, without what Python and pydantic add."""
    for base in kind.__mro__:
        yield _name(base)
        for name, value in [*vars(base).items()] if base is kind or _own(base.__module__) else []:
            written = inspect.isfunction(getattr(value, "__wrapped__", value)) or not name.startswith("__")
            if written and name not in _ADDED:
                yield name, value
    if issubclass(kind, BaseModel):
        yield kind.__private_attributes__
        for name, field in kind.model_fields.items():
            yield name, field.annotation, field.default, field.default_factory, field.metadata


def _used(function: FunctionType) -> Iterator[Any]:
    """Yield a function's source (consoles keep none), and the values that it finds outside its arguments."""
    try:
        yield textwrap.dedent(inspect.getsource(function.__code__))
    except OSError:
        yield function.__code__
    yield function.__defaults__, function.__kwdefaults__
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable without a value
            yield cell.cell_contents
    codes = [*_codes(function.__code__)]
    steps = (step for code in codes for step in dis.get_instructions(code))
    for name in dict.fromkeys(step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")):
        if name in function.__globals__:
            value = function.__globals__[name]
            yield value
            if isinstance(value, ModuleType) and _own(value.__name__):
                names = dict.fromkeys(name for code in codes for name in code.co_names)
                yield from (vars(value)[name] for name in names if name in vars(value))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
