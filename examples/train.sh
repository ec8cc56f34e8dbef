#!/bin/sh -e
# A training of three epochs that continues behind its last checkpoint. `outlive run -d --name train -- examples/train.sh`
for epoch in $(seq "$((${OUTLIVE_CHECKPOINT:-0} + 1))" 3); do
    echo "epoch $epoch"
    sleep 1
    outlive checkpoint set "$epoch"
done
