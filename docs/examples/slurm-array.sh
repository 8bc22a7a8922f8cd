#!/bin/bash
# One shard of a pipeline, as a task of a Slurm array:
#   array=$(sbatch --parsable --array=0-63 slurm-array.sh web.yaml)
#   sbatch --dependency=afterok:$array --wrap "longsift run web.yaml --phase select"
# PHASE=write writes kept samples, once all shards are scored. Submit failed tasks again by their numbers: --array=7,12
#SBATCH --job-name=longsift
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --requeue
#SBATCH --signal=B:TERM@60
set -euo pipefail
# Number of tasks of the whole array, which begins at 0. SLURM_ARRAY_TASK_COUNT counts only the tasks of this submission.
SHARDS=${SHARDS:-64}
exec longsift run "$1" --phase "${PHASE:-score}" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS"
