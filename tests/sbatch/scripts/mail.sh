#!/bin/bash
#SBATCH --job-name=paper
#SBATCH --gres=gpu:1
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=ada@example.org
#SBATCH --output=paper-%j.out
#SBATCH --error=paper-%j.err
#SBATCH --begin=now+1hour
#SBATCH --comment="for the paper"

python train.py
