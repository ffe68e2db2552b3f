"""The JSON Schemas of answers and checks. The library is imported only where there is one."""

from __future__ import annotations

from typing import Any

MOST_PROBLEMS = 3


def explain_invalid(schema: Any) -> str | None:
    """Where and why a value is not a JSON Schema."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"
    return None


def explain_misfit(schema: Any, value: Any) -> str | None:
    """Where and why a value does not fit a valid JSON Schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY  # so that nothing is fetched from the network

    validator = validator_for(schema, default=Draft202012Validator)(schema, registry=EMPTY_REGISTRY)
    try:
        errors = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
    except (Unresolvable, RecursionError) as error:
        return f"a reference in the schema cannot be resolved: {error}"
    more = f"; and {len(errors) - MOST_PROBLEMS} more" if len(errors) > MOST_PROBLEMS else ""
    return "; ".join(f"{error.json_path}: {error.message[:300]}" for error in errors[:MOST_PROBLEMS]) + more or None
