"""Methods and networks that are defined in a notebook or script, for the specs of that process."""

from __future__ import annotations

import inspect
import textwrap
from types import CodeType
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

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

_OURS = ("fltrain", "pydantic", "abc")
_registered: list[type[Component]] = []


def register(component: Kind) -> Kind:
    """Add a method, plug-in or network to those that specs of this process can name; a class decorator.

    Its revision becomes a hash of its source, so that an edited class is another run with another ID. A class
    of the same name that was registered before is replaced.

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
    """Return a number that changes with the source of a class and of its bases outside fltrain."""
    outside = (kind for kind in component.__mro__ if kind.__module__.split(".")[0] not in _OURS)
    texts = [text for kind in outside for text in _sources(kind)]
    return int(sha256("\0".join(texts))[:8], 16)


def _sources(thing: Any) -> list[str]:
    """Return the source of a class or function.

    Notebooks keep no source of classes, so their functions are used; consoles keep no source at all.
    """
    try:
        return [textwrap.dedent(inspect.getsource(thing))]
    except (OSError, TypeError):
        if isinstance(thing, type):
            functions = [getattr(one, "fget", one) for one in [*vars(thing).values()]]
            return [text for one in functions if inspect.isfunction(one) for text in _sources(one)]
        return [_compiled(thing.__code__)]


def _compiled(code: CodeType) -> str:
    # The order of a frozenset of texts (`x in {"a", "b"}`) differs between processes.
    stable = (sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts)
    constants = [_compiled(one) if isinstance(one, CodeType) else repr(one) for one in stable]
    return " ".join([code.co_code.hex(), *code.co_names, *constants])
