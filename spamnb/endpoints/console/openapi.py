"""The OpenAPI 3.1 document of the API, made from the table of operations. Pure."""

from __future__ import annotations

import re
from typing import Any

from spamnb.endpoints.console import problems
from spamnb.endpoints.console.parameters import Parameter
from spamnb.endpoints.console.table import MESSAGE, OPERATIONS, PREFIX, ApiOperation
from spamnb.service.admin.tokens import SCOPES

_ERRORS = (400, 401, 403, 404, 408, 409, 413, 415, 421, 429, 500, 502, 503)
_IN_PATH = re.compile(r"\{(\w+)\}")


def document(version: str) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _described(operation)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "spamnb",
            "version": version,
            "description": "The console's API. Within version 1 there are only additions.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": problems.SCHEMA},
            "responses": {"Problem": {"description": "An error (RFC 9457).", "content": {
                problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer",
                "description": f"A token of `spamnb token create`; scopes: {', '.join(SCOPES)}."}},
        },
    }  # fmt: skip


def in_path(operation: ApiOperation) -> list[str]:
    """Return the names of the parameters in the operation's path."""
    return _IN_PATH.findall(operation.path)


def _described(operation: ApiOperation) -> dict[str, Any]:
    has_body = operation.method == "POST"
    named = in_path(operation)
    listed = [
        _parameter(one, "path" if one.name in named else "query")
        for one in operation.parameters
        if one.name in named or not has_body or operation.message
    ]
    if operation.message:  # the label may be in the JSON body instead
        listed = [one | {"required": one["in"] == "path"} for one in listed]
    content = {operation.media_type: {"schema": operation.reply}}
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": listed,
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{str(code): {"$ref": "#/components/responses/Problem"} for code in _ERRORS},
        },
    }
    if operation.review:
        found["responses"]["202"] = {
            "description": "It waits for an administrator's decision.", "content": content,
        }  # fmt: skip
    if operation.scope:
        found["security"] = [{"token": []}]
        found["x-scope"] = operation.scope
    if has_body:
        found["requestBody"] = {"content": _body(operation, named)}
    return found


def _parameter(one: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": place,
        "description": one.text,
        "required": one.required,
        "schema": dict(one.type.schema),
    }


def _body(operation: ApiOperation, named: list[str]) -> dict[str, Any]:
    fields = [one for one in operation.parameters if one.name not in named]
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in fields if one.required],
        "properties": {one.name: {**one.type.schema, "description": one.text} for one in fields},
    }
    found: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.message:
        found[MESSAGE] = {}
    return found
