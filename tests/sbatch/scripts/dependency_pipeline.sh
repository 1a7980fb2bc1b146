#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --dependency=afterok:12:13,afterany:14
#SBATCH --gres=gpu:1

python evaluate.py --all
