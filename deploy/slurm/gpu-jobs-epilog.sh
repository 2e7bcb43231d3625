#!/bin/sh
# Epilog of Slurm: takes the job off the files that gpu-jobs-prolog.sh wrote. Other jobs' lines stay.
PATH=/usr/bin:/bin
dir=${GPU_JOBS:-/run/gpu-jobs}
[ -d "$dir" ] || exit 0
exec 9>"$dir/.lock" && flock -w 5 9
IFS=,
for gpu in $SLURM_JOB_GPUS; do
    grep -sxv "$SLURM_JOB_ID" "$dir/$gpu" >"$dir/.new"
    if [ -s "$dir/.new" ]; then mv "$dir/.new" "$dir/$gpu"; else rm -f "$dir/.new" "$dir/$gpu"; fi
done
exit 0
