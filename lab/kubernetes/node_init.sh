#!/bin/bash
# PID 1 of one real node, in a mount and a PID namespace of its own. What the kubelet and containerd have built in
# (/var/lib, /var/log, /run, a few sysctls) is covered by the node's own folders, so that the machine keeps its own
# and every node has its own.
#
#   node_init.sh FOLDER NAME GPUS KUBECONFIG IMAGE...
set -u
folder=$1 name=$2 gpus=$3 kubeconfig=$4
shift 4

mount -t proc proc /proc
for part in lib log; do
  mkdir -p "$folder/$part"
  mount --bind "$folder/$part" "/var/$part"
done
mount -t tmpfs tmpfs /run

# The kubelet insists on these, and a node that was switched on again must not show the boot id it had before.
settings=(
  vm/overcommit_memory=1
  vm/panic_on_oom=0
  kernel/panic=10
  kernel/panic_on_oops=1
  "kernel/random/boot_id=$(cat /proc/sys/kernel/random/uuid)"
)
mkdir -p "$folder/sysctl"
for setting in "${settings[@]}"; do
  key=${setting%%=*}
  file=$folder/sysctl/${key//\//.}
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/$key"
done
mount --make-rshared /

# Run a program, and again two seconds after it ended.
keep() {
  local log=$folder/$1.log
  shift
  while :; do
    "$@" >>"$log" 2>&1 </dev/null
    echo "ended with $?" >>"$log"
    sleep 2
  done
}

# Wait up to half a minute.
until_holds() {
  for _ in {1..150}; do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.2
  done
  return 1
}

import_images() {
  for image in "$@"; do
    ctr -n k8s.io images import --local "$image" >>"$folder/images.log" 2>&1 || return 1
  done
  touch "$folder/images-are-in"
}

keep containerd containerd -c "$folder/containerd.toml" &
until_holds ctr version
[ -e "$folder/images-are-in" ] || import_images "$@"
rm -f /var/lib/kubelet/device-plugins/*.sock
keep kubelet kubelet --config "$folder/kubelet.yaml" --kubeconfig "$kubeconfig" --hostname-override "$name" \
  --cloud-provider external &
until_holds test -S /var/lib/kubelet/device-plugins/kubelet.sock
keep device_plugin device_plugin "$gpus" "$folder/sick-gpus" &
wait
