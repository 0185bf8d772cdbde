"""Components: settings chosen by name, found in the modules of one package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, ForwardRef, Literal, TypeVar, Union, get_args

from pydantic import BeforeValidator, Field

from fltrain.core.config import KnownNames, Settings, check_known, file_name
from fltrain.core.errors import FltrainError, place_of_class, refusing
from fltrain.core.own import import_own, own_remedy

_FOLDERS = {"method": "methods", "plug-in": "methods", "model": "models/networks"}
_WAYS = {
    kind: f"add a file to fltrain/{folder}, decorate its class with fltrain.register, or "
    for kind, folder in _FOLDERS.items()
}


class Component(Settings):
    """A setting chosen by name. If you change its numbers, increase ``revision``."""

    name: str
    revision: ClassVar[int] = 1
    citation: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Check name, abstract parts, and that functions take the same arguments as those they override."""
        if fault := _fault_of(cls):
            raise FltrainError(f"{place_of_class(cls.__module__, cls.__name__)}: {fault}")
        for name, function in vars(cls).items():
            overridden = getattr(super(cls, cls), name, None)
            if name.startswith("_") or not (inspect.isfunction(function) and inspect.isfunction(overridden)):
                continue
            expected, taken = inspect.getfullargspec(overridden).args, inspect.signature(function)
            try:
                taken.bind(*expected)
            except TypeError:
                raise FltrainError(
                    f"{place_of_class(cls.__module__, cls.__name__)}: {name!r} takes "
                    f"({', '.join(taken.parameters)}); write {name}({', '.join(expected)})"
                ) from None


def _fault_of(component: type[Component]) -> str:
    """Return the problem of a concrete component's name, or of a part that it lacks; empty without one."""
    field = component.model_fields["name"]
    annotation: Any = field.annotation
    names, default = get_args(annotation), field.default
    if annotation is str and field.is_required():  # a base class
        return ""
    if names == (default,):
        lacking = [_declared(part, getattr(component, part)) for part in component.__abstractmethods__]
        return f"it lacks a part; write {'; '.join(sorted(lacking))}" if lacking else ""
    if isinstance(annotation, ForwardRef):
        return f"name is {annotation.__forward_arg__}, which is not defined; import Literal from typing"
    shown = "str" if annotation is str else str(annotation).removeprefix("typing.")
    wanted = names[0] if len(names) == 1 else default
    remedy = f"write name: Literal[{wanted!r}] = {wanted!r}"
    return f"name is {shown}{'' if field.is_required() else f' = {default!r}'}; {remedy}"


def _declared(name: str, part: Any) -> str:
    """Return the line that declares an abstract property, as a constant of the class, or a function."""
    if constant := getattr(part, "fget", None):
        return f"{name}: ClassVar[{constant.__annotations__['return']}] = ..."
    return f"def {name}({', '.join(inspect.signature(part).parameters)}): ..."


AnyComponent = TypeVar("AnyComponent", bound=Component)


def catalogue(
    base: type[AnyComponent], package: str | None = None, own: str | None = None
) -> dict[str, type[AnyComponent]]:
    """Return the concrete components derived from ``base``, by name.

    Args:
        base: their base class.
        package: imported with all its modules first.
        own: folder of modules in the user's folder; loaded first. They can import classes of other packages.
    """
    if package is not None:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            with refusing(f"{package}.{module.name}: cannot be loaded"):
                importlib.import_module(f"{package}.{module.name}")
    if own:
        import_own(own)
    found: dict[str, type[AnyComponent]] = {}
    pending = list(base.__subclasses__())
    while pending:
        component = pending.pop()
        derived = component.__subclasses__()
        pending.extend(derived)
        if not (derived or "name" in component.__annotations__ or component.__name__.startswith("_")):
            remedy = "write name: Literal[{0!r}] = {0!r}".format(component.__name__.lower())
            place = place_of_class(component.__module__, component.__name__)
            raise FltrainError(f"{place}: lacks 'name'; {remedy}")
        name = component.model_fields["name"].default
        if isinstance(name, str):
            file_name(name, f"name in {component.__module__}")
        if isinstance(name, str) and (other := found.setdefault(name, component)) is not component:
            raise FltrainError(
                f"{other.__module__} and {component.__module__} have components of the same name {name!r}; "
                "change 'name' in one of them"
            )
    return dict(sorted(found.items()))


def choice(
    known: Mapping[str, type[AnyComponent]], kind: str, elsewhere: Mapping[str, str] | None = None
) -> Any:
    """Annotation of a field that holds one component of a catalogue, written as a name or a mapping.

    ``elsewhere`` maps names that belong to another field to a hint at that field.
    """

    def spelled_out(value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping):
            name = value.get("name")
            if name is None:
                raise ValueError(f"a {kind} needs a 'name' (known: {', '.join(known)})")
            if hint := (elsewhere or {}).get(str(name)):
                raise ValueError(f"{name!r} {hint}")
            remedy = own_remedy(_WAYS.get(kind, ""), _FOLDERS.get(kind, "").partition("/")[0])
            check_known(f"unknown {kind}", [name], known, remedy=remedy)
        return value

    members = tuple(known.values())
    union = Annotated[Union[members], Field(discriminator="name")] if len(members) > 1 else members[0]  # noqa: UP007
    written = Literal[tuple(known)] | union
    return Annotated[union, BeforeValidator(spelled_out, json_schema_input_type=written), KnownNames(known)]
