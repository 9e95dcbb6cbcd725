#!/bin/sh
# Creates the images of the qcow2 targets with qemu-img 7.2 or later: small, with many kinds of structures.
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# 96 KiB: every other 512 bytes, so that clusters compress and some are zeros.
source() {
    truncate -s 96k "$scratch/source.raw"
    for part in $(seq 0 3 90); do
        printf "folio $part %.0s" $(seq 30) | dd of="$scratch/source.raw" bs=1k seek="$part" conv=notrunc status=none
    done
}

io() { # io IMAGE COMMAND...
    image=$1
    shift
    for command in "$@"; do set -- "$@" -c "$command"; shift; done
    qemu-io "$@" "$image" >/dev/null
}

source
# Version 2 with compressed clusters and two snapshots.
qemu-img convert -c -f raw -O qcow2 -o compat=0.10,cluster_size=512 "$scratch/source.raw" version-2.qcow2
io version-2.qcow2 'write -P 1 3k 9k'
qemu-img snapshot -c first version-2.qcow2
io version-2.qcow2 'write -P 2 8k 9k' 'discard 40k 4k'
qemu-img snapshot -c second version-2.qcow2
io version-2.qcow2 'write -P 3 60k 5k'

# Version 3 with zstd, narrow refcounts, both kinds of zero clusters, a snapshot and a bitmap.
qemu-img convert -c -f raw -O qcow2 -o cluster_size=1k,refcount_bits=8,compression_type=zstd \
    "$scratch/source.raw" version-3.qcow2
io version-3.qcow2 'write -P 1 3k 9k' 'write -z 4k 2k' 'write -z -u 8k 2k'
qemu-img snapshot -c only version-3.qcow2
qemu-img bitmap --add -g 4k version-3.qcow2 dirty
io version-3.qcow2 'write -P 2 8k 9k' 'write -P 3 60k 5k'

# An overlay with lazy refcounts; its size is not a multiple of a cluster.
cp "$scratch/source.raw" base.raw
qemu-img create -q -f qcow2 -b base.raw -F raw -o cluster_size=512,lazy_refcounts=on overlay.qcow2 98816
io overlay.qcow2 'write -P 1 3k 9k' 'write -z 20k 7k'
rm base.raw

# Subclusters, which need clusters of 16 KiB.
qemu-img create -q -f qcow2 -o cluster_size=16k,extended_l2=on subclusters.qcow2 96k
io subclusters.qcow2 'write -P 1 3k 9k' 'write -z 32k 3k' 'write -P 2 40k 20k'
ls -l ./*.qcow2
