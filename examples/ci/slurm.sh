#!/bin/bash
# One report per rank of a SLURM job, one profile of all of them, and a comparison with the run of last time.
#   sbatch --export=ALL,NAME=tonight,BASE=lastnight examples/ci/slurm.sh
#SBATCH --job-name=decode-profile
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=00:30:00
set -euo pipefail

# a folder that all nodes see; srun sets SLURM_PROCID, from which a rank's capture gets its number
export DFLASH_BENCH_PROFILES=${DFLASH_BENCH_PROFILES:-$SCRATCH/profiles}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500

srun --kill-on-bad-exit dflash-bench capture --per-rank --name "$NAME" --discard-captures -- python bench/decode.py

mkdir -p reports
dflash-bench metrics "$NAME"
dflash-bench report "$BASE" "$NAME" -o "reports/$NAME.html"
