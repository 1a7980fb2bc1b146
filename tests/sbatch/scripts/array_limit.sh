#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-9%2
#SBATCH --gres=gpu:1
#SBATCH --output=logs/%x_%A_%a.out
#SBATCH --time=30:00

LRS=(0.1 0.03 0.01 0.003 0.001 0.0003 0.0001 0.00003 0.00001 0.000003)
echo python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]} --seed $SLURM_ARRAY_TASK_ID
