#!/bin/sh
# Prolog of Slurm on nodes with GPUs: names the job that holds each GPU for dcgm-exporter
# (--hpc-job-mapping-dir=/run/gpu-jobs), which adds it to its metrics as the label hpc_job.
# One file for each GPU, one line for each job; the id is Slurm's own, also of an array's task.
# slurm.conf:  Prolog=PATH  Epilog=PATH of gpu-jobs-epilog.sh  PrologFlags=Alloc
# MIG instances are left out: Slurm counts its own devices, dcgm-exporter wants GPU.INSTANCE.
PATH=/usr/bin:/bin
dir=${GPU_JOBS:-/run/gpu-jobs}
case $CUDA_VISIBLE_DEVICES in *MIG*) exit 0 ;; esac
# A Prolog that fails drains its node: never for this.
umask 022
mkdir -p "$dir" || exit 0
exec 9>"$dir/.lock" && flock -w 5 9
IFS=,
for gpu in $SLURM_JOB_GPUS; do
    { grep -sxv "$SLURM_JOB_ID" "$dir/$gpu"; echo "$SLURM_JOB_ID"; } >"$dir/.new" && mv "$dir/.new" "$dir/$gpu"
done
exit 0
