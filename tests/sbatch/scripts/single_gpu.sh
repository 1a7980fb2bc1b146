#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=02:00:00

echo "job $SLURM_JOB_ID on $(hostname) with $SLURM_GPUS_ON_NODE GPU and $SLURM_CPUS_PER_TASK CPUs"
cd "$SLURM_SUBMIT_DIR"
python -c 'print("trained")'
