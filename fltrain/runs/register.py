"""Methods and networks that are defined in a notebook or script, for the specs of that process."""

from __future__ import annotations

import dis
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import joblib  # noqa: TID251 - only to hash
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fltrain.core import lazy
from fltrain.core.config import file_name
from fltrain.core.errors import FltrainError
from fltrain.core.hashing import sha256
from fltrain.core.registry import Component, check_settings
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.models.base import Model
from fltrain.models.networks import MODELS
from fltrain.runs import spec

Kind = TypeVar("Kind", bound=type[Component])

_MODULES = (ModuleType, type(lazy.torch))
_ADDED = ("_abc_impl", "revision")
_registered: list[type[Component]] = []


def register(component: Kind) -> Kind:
    """Add a method, plug-in or network to those that specs of this process can name; a class decorator.

    Its revision becomes a hash of its functions, attributes and fields, and of the values, functions and
    classes of your own that they use at this moment, so that an edited class is another run with another ID.
    Functions in lists and dictionaries count by name only. The hash is equal in a script and a notebook. A
    class of the same name that was registered before is replaced.

    Returns:
        The class.

    Raises:
        FltrainError: if it is no method or network, has no name, or the name of one of fltrain.
    """
    subject = f"register: {getattr(component, '__name__', component)}"
    if not (isinstance(component, type) and issubclass(component, Method | Model)):
        raise FltrainError(
            f"{subject} is no subclass of fltrain.methods.base.Method or fltrain.models.base.Model"
        )
    name = component.model_fields["name"].default
    if not isinstance(name, str):
        raise FltrainError(f'{subject} has no name; write, for example, name: Literal["mine"] = "mine"')
    catalogue: dict[str, Any] = METHODS if issubclass(component, Method) else MODELS
    other = catalogue.get(file_name(name, f"name of {component.__name__}"))
    older = other is component and _is_own(component.__module__)  # than the registry, which has found it
    if other and other not in _registered and not older:
        raise FltrainError(
            f"{subject}: {name!r} is the name of {other.__module__}.{other.__name__}; choose another"
        )
    check_settings(component)
    component.revision = _digest(component)
    _registered.append(component)
    catalogue[name] = component
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
    """Return a number that changes with the user's code and data that make up a class, or that it uses."""
    definitions: list[type | FunctionType] = [component]
    texts = []
    for definition in definitions:  # it grows
        for name, part in _members(definition) if isinstance(definition, type) else _used(definition):
            value = inspect.unwrap(getattr(part, "fget", part))
            if not isinstance(value, type | FunctionType):
                texts.append(f"{name}={_value(value)}")
            elif value.__qualname__ != component.__qualname__:  # else, it may be about to be replaced
                texts.append(f"{name}={value.__qualname__}")
                if _is_own(value.__module__) and value not in definitions:
                    definitions.append(value)
    return int(sha256("\0".join(texts))[:8], 16)


def _value(value: Any) -> str:
    """Return a hash of data that is equal in all processes; the type of what cannot be stored."""
    if isinstance(value, frozenset):  # of these, joblib keeps the order, which differs
        value = {*value}
    try:
        return str(joblib.hash(value.tolist() if hasattr(type(value), "tolist") else value))
    except Exception:
        return type(value).__qualname__


def _is_own(module: str | None) -> bool:
    """Return True if a module is the user's: not of Python, of fltrain or of an installed package."""
    top = (module or "__main__").split(".")[0]
    if top == "__main__":  # its file can be a launcher's, as of ``python -m``
        return True
    file = Path(getattr(sys.modules.get(top), "__file__", None) or "")
    return top not in {"fltrain", *sys.stdlib_module_names} and "site-packages" not in file.parts


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the bases, attributes and fields of a class by name, without what Python and pydantic add."""
    for base in kind.__mro__:
        yield "base", base.__qualname__
        for name, value in [*vars(base).items()] if base is kind or _is_own(base.__module__) else []:
            if name not in _ADDED and (inspect.isfunction(value) or not name.startswith("__")):
                yield name, value
    if issubclass(kind, BaseModel):
        for name, private in kind.__private_attributes__.items():
            yield name, private.default
        for name, field in kind.model_fields.items():
            yield from {name: field.default, "by": field.default_factory}.items()
            yield "as", f"{field.annotation} {field.metadata}"


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's source (consoles keep none), and the values that it finds outside its arguments."""
    codes = [*_codes(function.__code__)]
    try:
        yield "source", textwrap.dedent(inspect.getsource(function.__code__))
    except OSError:
        for code in codes:
            yield "code", [code.co_code, code.co_names]
            yield from (("data", value) for value in code.co_consts if not isinstance(value, CodeType))
    yield "defaults", [function.__defaults__, function.__kwdefaults__]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable without a value
            yield name, cell.cell_contents
    steps = [step for code in codes for step in dis.get_instructions(code)]
    for name in dict.fromkeys(step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")):
        value = function.__globals__.get(name, _MODULES)
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            names = dict.fromkeys(name for code in codes for name in code.co_names)
            yield from ((name, vars(value)[name]) for name in names if name in vars(value))
        elif value is not _MODULES and not isinstance(value, _MODULES):
            yield name, value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
