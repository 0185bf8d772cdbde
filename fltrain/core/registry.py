"""Components: settings chosen by name, found in the modules of one package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, ForwardRef, Literal, TypeVar, Union, get_args

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic_core import PydanticUndefined

from fltrain.core.config import KnownNames, Settings, check_known, faults, file_name
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

    def __setattr__(self, key: str, value: Any) -> None:
        """Refuse assignments: other runs, processes and clients share the component."""
        if not key.startswith("_"):
            raise FltrainError(
                f"{place_of_class(type(self).__module__, type(self).__name__)}: self.{key} cannot be set, "
                "because components are constant; keep values in a state (docs/add-a-method.md#rules)"
            )
        super().__setattr__(key, value)

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


def check_settings(component: type[Component]) -> None:
    """Refuse types that no file can hold, and defaults that no file could state."""
    place = place_of_class(component.__module__, component.__name__)
    fields = component.model_fields.items()
    stated = {key: field.default for key, field in fields if field.default is not PydanticUndefined}
    try:
        component.model_rebuild()
        component.model_validate(stated)
    except PydanticUndefinedAnnotation as error:
        raise FltrainError(
            f"{place}: a setting has the type {error.name!r}, which is not defined; import it"
        ) from None
    except ValidationError as error:
        for keys, message in faults(error, component).items():
            if keys and keys[0] in stated:
                raise FltrainError(
                    f"{place}: default of {'.'.join(keys)!r}: {message}; change default or type"
                ) from None
    except PydanticSchemaGenerationError as error:
        kind = str(error).partition(" for ")[2].partition(". ")[0]
        raise FltrainError(
            f"{place}: a setting has the type {kind}, which no file can hold; use bool, int, float, str, "
            "Literal or tuple, or write ClassVar[...] for a constant"
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
    type_name = "str" if annotation is str else str(annotation).removeprefix("typing.")
    wanted = names[0] if len(names) == 1 else default
    remedy = f"write name: Literal[{wanted!r}] = {wanted!r}"
    return f"name is {type_name}{'' if field.is_required() else f' = {default!r}'}; {remedy}"


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
        (folder,) = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules([folder]):
            with refusing(f"{Path(folder, module.name)}.py: cannot be loaded"):
                importlib.import_module(f"{package}.{module.name}")
    if own:
        import_own(own)
    components: dict[str, type[AnyComponent]] = {}
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
        if isinstance(name, str) and not component.__module__.startswith("fltrain."):
            check_settings(component)
        if isinstance(name, str):
            file_name(name, f"name in {component.__module__}")
        if isinstance(name, str) and (other := components.setdefault(name, component)) is not component:
            raise FltrainError(
                f"{other.__module__} and {component.__module__} have components of the same name {name!r}; "
                "change 'name' in one of them"
            )
    return dict(sorted(components.items()))


def choice(
    types: Mapping[str, type[AnyComponent]], kind: str, elsewhere: Mapping[str, str] | None = None
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
                raise ValueError(f"a {kind} needs a 'name' (known: {', '.join(types)})")
            base, *plugins = str(name).split("+")
            if kind == "method" and base in types and all(plugins) and plugins:
                form = f"{kind}: {base}, plugins: [{', '.join(plugins)}]"
                raise ValueError(f"{name!r} names a method with plug-ins; write {form}")
            if hint := (elsewhere or {}).get(str(name)):
                raise ValueError(f"{name!r} {hint}")
            remedy = own_remedy(_WAYS.get(kind, ""), _FOLDERS.get(kind, "").partition("/")[0])
            check_known(f"unknown {kind}", [name], types, remedy=remedy)
        return value

    members = tuple(types.values())
    union = Annotated[Union[members], Field(discriminator="name")] if len(members) > 1 else members[0]  # noqa: UP007
    written = Literal[tuple(types)] | union
    return Annotated[union, BeforeValidator(spelled_out, json_schema_input_type=written), KnownNames(types)]
