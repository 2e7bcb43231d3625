"""Build the OpenAPI document of an app."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from fairway.api.auth import rule_of
from fairway.api.problems import MEDIA_TYPE

_TOKEN_ERRORS: Final = {"429": "too many wrong tokens came from this address"}
_BODY_ERRORS: Final = {"400": "the body is not JSON", "413": "the body is too large"}


def description(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, completed by each route's access rule and the schema of errors."""
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
            for status, why in _TOKEN_ERRORS.items() if role else ():
                operation["responses"].setdefault(status, {"description": why})
            if "requestBody" in operation:
                for status, why in _BODY_ERRORS.items():
                    operation["responses"].setdefault(status, {"description": why})
            for status, response in operation["responses"].items():
                if int(status) >= HTTPStatus.BAD_REQUEST:
                    response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return document
