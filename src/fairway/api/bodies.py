"""Decode large JSON bodies: their structure first, one at a time, in a thread.

A body of many small values takes forty times its size as Python objects, and pydantic collects a fault for
each wrong one. So msgspec compares a large body with the structure of its type first, which builds little and
stops at the first difference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from annotated_types import MaxLen
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fairway.api.problems import ApiError

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size are decoded by FastAPI, which reports every fault."""
LARGE_BYTES: Final = 1024 * 1024
"""Of bodies above this size, few are received at once and one is decoded at a time."""
MAX_LARGE: Final = 4
"""Large bodies that a server receives at once."""
MAX_VALUES: Final = 500_000
"""Values in a body, counted by their commas: 50 for each of 10,000 jobs."""
_MAX_FAULTS: Final = 20_000
_AT: Final = re.compile(r"(.*?)(?: - at `\$([^`]*)`)?", re.DOTALL)

_Scalar = str | int | float | bool | None


class LargeBodies:
    """The large bodies that a server is receiving and decoding."""

    def __init__(self) -> None:
        self._received = 0
        self._decoding = asyncio.Lock()

    def enter(self) -> None:
        """Count one more. Raises ApiError if too many are being received: each is held in memory."""
        if self._received >= MAX_LARGE:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "TooManyLargeRequests",
                f"{MAX_LARGE} requests of more than {LARGE_BYTES} bytes are being received",
                "try again in a few seconds, or send fewer jobs in one request",
                headers={"Retry-After": "2", "Connection": "close"},
            )
        self._received += 1

    def leave(self) -> None:
        """Count one less."""
        self._received -= 1

    async def decode(self, body: bytes, model: type[BaseModel]) -> BaseModel:
        """Decode a body that is not small. Raises RequestValidationError."""
        if len(body) <= LARGE_BYTES:
            return _decode(body, model)
        async with self._decoding:
            return await asyncio.to_thread(_decode, body, model)


class TypedRequest(Request):
    """A request whose JSON is decoded into the type of its route, unless it is small."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL_BYTES:
            return await super().json()
        large: LargeBodies = self.app.state.large_bodies
        return await large.decode(body, self._model)


def _decode(body: bytes, model: type[BaseModel]) -> BaseModel:
    if body.count(b",") >= MAX_VALUES:
        raise _invalid(f"has more than {MAX_VALUES} values; send it in several requests")
    try:
        _decoder(model).decode(body)
    except msgspec.ValidationError as error:
        message, where = _split(str(error))
        raise _invalid(message, *where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"is not JSON: {error}") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MAX_FAULTS:
            raise _invalid(f"has {error.error_count()} faults") from None
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**f, "loc": ("body", *f["loc"])} for f in faults]) from None


def _invalid(message: str, *where: str) -> RequestValidationError:
    return RequestValidationError([{"type": "structure", "loc": ("body", *where), "msg": message}])


def _split(message: str) -> tuple[str, list[str]]:
    """Split a message of msgspec into what is wrong and where: ``Expected … - at `$.jobs[0].name` ``."""
    found = _AT.fullmatch(message)
    what, where = found.groups() if found else (message, None)
    return what, [part for part in re.split(r"[.\[\]]+", where or "") if part]  # `[...]`: any key


@cache
def _decoder(model: type[BaseModel]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_structure(model))


def _structure(kind: Any) -> Any:
    """Return the type of msgspec that has the containers of a type, with any scalar in them."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _structure(args[0])
    if origin is list:
        return list[_structure(args[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, _structure(args[1])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(_structure(arg) for arg in args)]  # noqa: UP007
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _struct(kind)
    return _Scalar


def _struct(model: type[BaseModel]) -> type[msgspec.Struct]:
    fields: Mapping[str, FieldInfo] = model.model_fields
    columns = [(field, _bounded(info) | msgspec.UnsetType, msgspec.UNSET) for field, info in fields.items()]
    aliases = {field: info.alias for field, info in fields.items() if info.alias}
    closed = model.model_config.get("extra") == "forbid"
    return msgspec.defstruct(model.__name__, columns, rename=aliases, forbid_unknown_fields=closed)


def _bounded(info: FieldInfo) -> Any:
    """Return the structure of a field, with the most items that its list or dict may have."""
    structure = _structure(info.annotation)
    longest = next((m.max_length for m in info.metadata if isinstance(m, MaxLen)), None)
    if longest is None or get_origin(structure) not in (list, dict):
        return structure
    return Annotated[structure, msgspec.Meta(max_length=longest)]
