"""The API, described for programs."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from fairway.api.auth import rule_of
from fairway.api.problems import MEDIA_TYPE

_OF_TOKENS: Final = {"429": "too many wrong tokens came from this address"}
_OF_BODIES: Final = {"400": "the body is not JSON", "413": "the body is too large"}


def description(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with what FastAPI does not know: each route's rule, and how errors look."""
    document: dict[str, Any] = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "fairway token create NAME --role ROLE"}
    }
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        rule = rule_of(route)
        role = rule.role if rule else None
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["security"] = [{"token": []}] if role else []
            operation["x-fairway-role"] = str(role) if role else "public"
            for status, why in _OF_TOKENS.items() if role else ():
                operation["responses"].setdefault(status, {"description": why})
            if "requestBody" in operation:
                for status, why in _OF_BODIES.items():
                    operation["responses"].setdefault(status, {"description": why})
            for status, response in operation["responses"].items():
                if int(status) >= HTTPStatus.BAD_REQUEST:
                    response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return document
