#!/bin/bash
# One shard of a pipeline, as a task of a Slurm array:
#   array=$(sbatch --parsable --array=0-63 slurm-array.sh web.yaml)
#   sbatch --dependency=afterok:$array --wrap "longsift run web.yaml --phase select"
# PHASE=write writes what is kept, once all is scored.
#SBATCH --job-name=longsift
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --requeue
#SBATCH --signal=TERM@60
set -euo pipefail
# The array must begin at 0: shards are numbered like that.
exec longsift run "$1" --phase "${PHASE:-score}" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
