#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --constraint="a100|h100"
#SBATCH --nodelist=gpu-[1-2]

python train.py
