#!/bin/bash
#SBATCH --job-name=nightly
#SBATCH --dependency=singleton
#SBATCH --gres=gpu:1

python train.py
