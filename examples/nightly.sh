#!/bin/sh -e
# A script with steps: a resumed run replays those that have succeeded. `outlive run --name nightly -- examples/nightly.sh`
outlive step fetch -- sh -c 'echo fetching; sleep 1; echo 42 > data'
outlive step build --input data -- sh -c 'echo building from "$(cat data)"; sleep 1'
test -e disk-has-space || { echo 'no space left' >&2; exit 1; }
outlive step publish --input @build -- echo publishing
