"""Holds a Compose file, rendered and read from stdin, to the schema that the first argument names."""

import json
import sys

import yaml
from jsonschema import Draft201909Validator

with open(sys.argv[1]) as file:
    schema = Draft201909Validator(json.load(file))
found = list(schema.iter_errors(yaml.safe_load(sys.stdin)))
for error in found:
    print(f"{'/'.join(map(str, error.absolute_path))}: {error.message}")
sys.exit(bool(found))
